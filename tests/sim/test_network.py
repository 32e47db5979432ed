"""Links and connections of the simulator."""

from p2pmesh.base.quantities import Micros
from p2pmesh.sim.network import SimNetwork
from p2pmesh.sim.scenario import LinkModel
from p2pmesh.sim.scheduler import Scheduler

LINKS = LinkModel(latency_us=10, spread_us=0, jitter_us=0, detect_us=100)


class Listener:
    """Writes down what an endpoint is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def on_connected(self, other: int) -> None:
        self.told.append(("up", other))

    def on_disconnected(self, other: int) -> None:
        self.told.append(("down", other))


class Setting:
    def __init__(self, links: LinkModel = LINKS, count: int = 3) -> None:
        self.scheduler = Scheduler()
        self.network = SimNetwork(self.scheduler, links, tuple("abc"[:count]), seed=1)
        self.ends = [Listener() for _ in range(count)]
        for number, end in enumerate(self.ends):
            self.network.start(number, end)

    def until(self, when: int) -> None:
        self.scheduler.run_until(Micros(when))


def test_both_ends_of_a_dial_are_told_after_a_round_trip() -> None:
    setting = Setting()
    setting.network.dial(0, 1)
    setting.until(19)
    assert setting.ends[0].told == []
    setting.until(20)
    assert [end.told for end in setting.ends] == [[("up", 1)], [("up", 0)], []]
    setting.network.dial(1, 0)
    setting.until(100)
    assert setting.ends[0].told == [("up", 1)]


def test_the_end_that_closes_knows_at_once_and_the_other_after_one_way() -> None:
    setting = Setting()
    setting.network.dial(0, 1)
    setting.until(20)
    setting.network.close(1, 0)
    setting.network.close(1, 0)
    assert setting.ends[1].told[1:] == [("down", 0)]
    assert setting.network.believes_connected(0, 1)
    setting.until(30)
    assert setting.ends[0].told[1:] == [("down", 1)]


def test_a_crash_is_noticed_late_and_only_by_the_living() -> None:
    setting = Setting()
    setting.network.dial(0, 1)
    setting.until(20)
    setting.network.crash(1)
    setting.until(119)
    assert setting.ends[0].told == [("up", 1)]
    setting.until(120)
    assert setting.ends[0].told == [("up", 1), ("down", 1)]
    assert setting.ends[1].told == [("up", 0)]


def test_a_restart_within_the_time_to_notice_is_a_loss_and_a_new_connection() -> None:
    setting = Setting()
    setting.network.dial(0, 1)
    setting.until(20)
    setting.network.crash(1)
    setting.network.start(1, Listener())
    setting.network.dial(1, 0)
    setting.until(1000)
    assert setting.ends[0].told == [("up", 1), ("down", 1), ("up", 1)]
    assert setting.network.incarnation(1) == 2


def test_a_partition_breaks_what_crosses_it_and_nothing_gets_through_until_it_heals() -> None:
    setting = Setting()
    arrived: list[str] = []
    setting.network.dial(0, 1)
    setting.network.dial(1, 2)
    setting.until(20)
    setting.network.partition(1)
    setting.network.send(0, 1, lambda: arrived.append("cut off"))
    setting.network.send(1, 2, lambda: arrived.append("same side"))
    setting.network.dial(0, 2)
    setting.until(200)
    assert arrived == ["same side"]
    assert setting.ends[0].told == [("up", 1), ("down", 1)]
    assert setting.ends[2].told == [("up", 1)]
    setting.network.partition(None)
    setting.network.dial(0, 2)
    setting.until(300)
    assert setting.ends[0].told[-1] == ("up", 2)


def test_what_one_peer_sends_another_arrives_in_order_whatever_the_jitter() -> None:
    setting = Setting(LinkModel(latency_us=10, spread_us=0, jitter_us=1000))
    arrived: list[int] = []
    for number in range(50):
        setting.network.send(0, 1, lambda number=number: arrived.append(number))  # type: ignore[misc]
    setting.until(5000)
    assert arrived == list(range(50))


def test_what_was_meant_for_a_peer_before_its_restart_does_not_reach_it() -> None:
    setting = Setting()
    arrived: list[str] = []
    setting.network.send(0, 1, lambda: arrived.append("old"))
    setting.network.crash(1)
    setting.network.start(1, Listener())
    setting.until(100)
    assert arrived == []


def test_a_peer_reaches_itself_in_no_time() -> None:
    assert Setting().network.one_way_us(1, 1) == 0
