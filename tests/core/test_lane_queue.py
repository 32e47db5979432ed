"""Lanes in turn: bounded, fair to whoever asks little, and late for nobody."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.lane_queue import (
    Arrived,
    Claimant,
    DeadlinePassed,
    Effect,
    Grant,
    LaneQueue,
    LaneQueuePolicy,
    Left,
    Refuse,
    Shed,
)

POLICY = LaneQueuePolicy(lanes=2, max_waiting=6, wait_us=100)
OWN_A, OWN_B = Claimant("", b"a"), Claimant("", b"b")
FAR_A, FAR_B = Claimant("far", b"a"), Claimant("far", b"b")


class Served:
    """A queue, and the order in which its requests got lanes."""

    def __init__(self, policy: LaneQueuePolicy = POLICY) -> None:
        self.queue = LaneQueue(policy)
        self.granted: list[int] = []
        self.refused: list[Refuse] = []
        self._last = 0

    def arrive(self, *claimants: Claimant, at: int = 0) -> None:
        for claimant in claimants:
            self._last += 1
            self.note(self.queue.handle(Arrived(self._last, claimant), Micros(at)))

    def leave(self, *tickets: int, at: int = 0) -> None:
        for ticket in tickets:
            self.note(self.queue.handle(Left(ticket), Micros(at)))

    def note(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Grant):
                self.granted.append(effect.ticket)
            else:
                self.refused.append(effect)

    def serve_all(self) -> list[int]:
        """One request after the other ends."""
        for ticket in self.granted:
            self.leave(ticket)
        return self.granted


def test_a_request_is_worth_sending_again_when_those_before_it_are_through() -> None:
    served = Served(LaneQueuePolicy(lanes=2, max_waiting=6))
    second = MICROS_PER_SECOND
    assert served.queue.retry_after_s(Micros(0)) == 1
    served.arrive(*[OWN_A] * 6)
    assert served.queue.retry_after_s(Micros(4 * second)) == 10  # 5 after 2 lanes that are held for 4 s so far
    served.leave(1, at=6 * second)
    assert served.queue.retry_after_s(Micros(7 * second)) == 12  # 4 of 6 s each
    served.leave(2, at=14 * second)
    assert served.queue.retry_after_s(Micros(15 * second)) == 11  # 3 of 7 s, of which 14 s are one part in eight
    served.leave(3, 4, at=800 * second)
    assert served.queue.retry_after_s(Micros(800 * second)) == 60


def test_lanes_go_at_once_while_there_are_any() -> None:
    served = Served()
    served.arrive(OWN_A, OWN_A, OWN_A)
    assert served.granted == [1, 2]
    served.leave(1)
    assert served.granted == [1, 2, 3]


def test_who_sends_many_waits_behind_itself() -> None:
    served = Served()
    served.arrive(*[OWN_A] * 6, OWN_B, OWN_B)
    assert served.serve_all() == [1, 2, 3, 7, 4, 8, 5, 6]


def test_a_peer_with_many_clients_has_one_turn_and_they_share_it() -> None:
    served = Served()
    served.arrive(OWN_A, OWN_A, FAR_A, FAR_A, FAR_B, OWN_A, OWN_A, OWN_A)
    assert served.serve_all() == [1, 2, 3, 6, 5, 7, 4, 8]


def test_one_that_gave_up_is_passed_over() -> None:
    served = Served()
    served.arrive(OWN_A, OWN_A, OWN_A, OWN_B)
    served.leave(3)
    served.leave(1)
    assert served.granted == [1, 2, 4]


def test_a_full_queue_refuses_the_newest_of_who_has_most_waiting() -> None:
    served = Served()
    served.arrive(*[OWN_A] * 8)
    served.arrive(OWN_A)
    assert served.refused == [Refuse(9, Shed.FULL)]
    served.arrive(OWN_B)
    assert served.refused[1:] == [Refuse(8, Shed.FULL)]
    served.arrive(FAR_A)
    assert served.refused[2:] == [Refuse(7, Shed.FULL)]
    assert served.queue.waiting_count == POLICY.max_waiting


def test_a_peer_cannot_displace_others_by_inventing_clients() -> None:
    served = Served()
    served.arrive(OWN_A, OWN_A, OWN_A, OWN_A, OWN_A)
    served.arrive(*(Claimant("far", bytes([n])) for n in range(20)))
    waiting_own = {3, 4, 5}
    assert not waiting_own & {one.ticket for one in served.refused}


def test_a_wait_ends_at_its_deadline() -> None:
    served = Served()
    served.arrive(OWN_A, OWN_A, OWN_A, at=10)
    served.arrive(OWN_B, at=30)
    assert served.queue.deadline() == 110
    served.note(served.queue.handle(DeadlinePassed(), Micros(109)))
    assert served.refused == []
    served.note(served.queue.handle(DeadlinePassed(), Micros(110)))
    assert served.refused == [Refuse(3, Shed.LATE)]
    assert served.queue.deadline() == 130


CLAIMANTS = st.builds(Claimant, st.sampled_from(["", "p", "q"]), st.sampled_from([b"", b"a", b"b"]))


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Held against plain sets of what waits and what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = LaneQueue(POLICY)
        self.now = 0
        self.last = 0
        self.waiting: dict[int, Claimant] = {}
        self.running: set[int] = set()

    def note(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            claimant = self.waiting.pop(effect.ticket)  # whoever gets an answer waited for it, and gets one only
            if isinstance(effect, Grant):
                assert all(ticket > effect.ticket for ticket, one in self.waiting.items() if one == claimant)
                self.running.add(effect.ticket)

    @rule(claimant=CLAIMANTS, wait=st.integers(0, 40))
    def one_arrives(self, claimant: Claimant, wait: int) -> None:
        self.now += wait
        self.last += 1
        counts = [sum(one.peer == peer for one in self.waiting.values()) for peer in ("", "p", "q")]
        own = sum(one.peer == claimant.peer for one in self.waiting.values())
        self.waiting[self.last] = claimant
        effects = self.queue.handle(Arrived(self.last, claimant), Micros(self.now))
        if Refuse(self.last, Shed.FULL) in effects:
            assert sum(counts) == POLICY.max_waiting
            assert own >= max(counts) - 1
        self.note(effects)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def one_ends(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.running)))
        self.running.remove(ticket)
        self.note(self.queue.handle(Left(ticket), Micros(self.now)))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def one_gives_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[ticket]
        assert self.queue.handle(Left(ticket), Micros(self.now)) == ()

    @rule(wait=st.integers(0, 120))
    def time_passes(self, wait: int) -> None:
        self.now += wait
        effects = self.queue.handle(DeadlinePassed(), Micros(self.now))
        assert all(isinstance(effect, Refuse) and effect.reason is Shed.LATE for effect in effects)
        self.note(effects)
        due = self.queue.deadline()
        assert due is None or due > self.now

    @invariant()
    def no_lane_is_idle_while_somebody_waits(self) -> None:
        assert self.queue.running_count == len(self.running) <= POLICY.lanes
        assert self.queue.waiting_count == len(self.waiting) <= POLICY.max_waiting
        assert len(self.running) == POLICY.lanes or not self.waiting
        assert (self.queue.deadline() is None) == (not self.waiting)


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
