"""When a node loads a model that nobody named to it, and when it unloads one."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import GIB, MIB, MICROS_PER_SECOND, Micros
from p2pmesh.core.demand import NO_DEMAND, Demand
from p2pmesh.core.draws import Draws
from p2pmesh.core.serving import (
    DEFAULT_POLICY,
    DrainFailed,
    DropSpares,
    Effect,
    Fetch,
    FetchDone,
    HandOver,
    Lent,
    Load,
    Loadable,
    LoadDone,
    Loaded,
    LoadFailed,
    LoadReason,
    Look,
    Rate,
    Rival,
    RunState,
    ServingMachine,
    ServingPolicy,
    Unload,
    UnloadReason,
)

A, B = b"a" * 8, b"b" * 8
OWN = PeerId("own")
START = Micros(0)
WAITED = Demand(waiting=1, per_minute=1, per_day=1)
IDLE_POLICY = ServingPolicy(idle_unload_us=10 * MICROS_PER_SECOND)


def at(seconds: float) -> Micros:
    return Micros(int(seconds * MICROS_PER_SECOND))


def loadable(demand: Demand = WAITED, **facts: object) -> Loadable:
    return replace(Loadable(A, GIB, demand), **facts)  # type: ignore[arg-type]


def loaded(model: bytes = A, demand: Demand = NO_DEMAND, idle_since: Micros | None = START) -> Loaded:
    return Loaded(model, RunState.SERVING, GIB, demand, idle_since, is_driven_here=True)


def look(*loadables: Loadable, **facts: object) -> Look:
    return replace(Look(OWN, 2 * GIB, loadables), **facts)  # type: ignore[arg-type]


def told(given: Look, now: Micros = START, policy: ServingPolicy = DEFAULT_POLICY) -> tuple[Effect, ...]:
    """What a fresh machine makes of one look."""
    return ServingMachine(1, policy).handle(given, now)


# --- loading ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (loadable(), LoadReason.NO_SERVER),
        (loadable(Demand(per_minute=1, per_day=1)), LoadReason.NO_SERVER),
        (loadable(Demand(per_day=1)), LoadReason.NO_SERVER),
        (loadable(Demand()), None),
        (loadable(Demand(per_minute=9, per_day=900), servers=1), None),
        (loadable(Demand(per_minute=10, per_day=10), servers=1), LoadReason.BUSY),
        (loadable(Demand(per_minute=19, per_day=19), servers=2), None),
        (loadable(Demand(per_minute=20, per_day=20), servers=2), LoadReason.BUSY),
    ],
)
def test_a_model_is_loaded_where_nobody_serves_it_or_its_servers_are_busy(
    given: Loadable, reason: LoadReason | None
) -> None:
    assert told(look(given)) == (() if reason is None else (Load(A, reason),))


@pytest.mark.parametrize(
    ("per_minute", "rates", "is_loaded"),
    [
        (6, [Rate(B, 2, 1)], True),  # three times as many a server
        (5, [Rate(B, 2, 1)], False),
        (6, [Rate(B, 8, 4)], True),
        (6, [Rate(B, 9, 4)], False),
        (3, [Rate(B, 0, 1)], True),  # the other server has nothing to do
        (2, [Rate(B, 0, 1)], False),  # not worth it
        (6, [Rate(A, 6, 1)], False),  # its own servers are no measure
        (6, [], False),
    ],
)
def test_three_times_the_requests_of_other_servers_are_an_imbalance(
    per_minute: int, rates: list[Rate], is_loaded: bool
) -> None:
    given = loadable(Demand(per_minute=per_minute, per_day=9), servers=1)
    expected = (Load(A, LoadReason.IMBALANCE),) if is_loaded else ()
    assert told(look(given, rates=tuple(rates))) == expected


def test_the_most_wanted_model_is_loaded_first_and_one_at_a_time() -> None:
    other = Loadable(B, GIB, Demand(waiting=2))
    assert told(look(loadable(), other)) == (Load(B, LoadReason.NO_SERVER),)
    assert told(look(loadable(is_awaited_here=True), other)) == (Load(A, LoadReason.NO_SERVER),)
    busy = replace(loaded(B), state=RunState.LOADING)
    assert told(look(loadable(), loaded=(busy,))) == ()


def test_a_model_that_does_not_fit_is_split_only_where_no_peer_could_hold_it_whole() -> None:
    large = loadable(needed_bytes=3 * GIB)
    assert told(look(large)) == ()
    assert told(look(replace(large, may_be_split=True))) == (Load(A, LoadReason.NO_SERVER),)
    rival = replace(large, may_be_split=True, rivals=(Rival(PeerId("z"), is_waiting=True),))
    machine = ServingMachine(1)
    for second in range(DEFAULT_POLICY.all_ranks_us // MICROS_PER_SECOND):  # it has its turn
        assert machine.handle(look(rival), at(second)) == ()
    busy = replace(large, may_be_split=True, servers=1, demand=Demand(per_minute=99))
    assert told(look(busy)) == ()


def test_peers_that_say_that_they_have_room_and_do_nothing_bar_no_split() -> None:
    machine = ServingMachine(1)
    given = look(
        loadable(needed_bytes=3 * GIB, is_awaited_here=True, may_be_split=True, rivals=(Rival(PeerId("liar")),))
    )
    assert machine.handle(given, START) == ()
    now = START
    for _ in range(100):
        deadline = machine.deadline()
        assert deadline is not None
        now = deadline
        if effects := machine.handle(given, now):
            break
    assert effects == (Load(A, LoadReason.NO_SERVER),)
    assert now == DEFAULT_POLICY.all_ranks_us < at(60)  # requests still wait


def test_a_model_that_others_do_not_know_to_be_here_waits_until_they_do_unless_its_client_is_here() -> None:
    hidden = loadable(is_offered=False)
    machine = ServingMachine(1)
    assert machine.handle(look(hidden), START) == ()
    assert machine.handle(look(hidden), at(2)) == ()
    assert machine.handle(look(replace(hidden, is_offered=True)), at(2.2)) == (Load(A, LoadReason.NO_SERVER),)
    assert told(look(replace(hidden, is_awaited_here=True))) == (Load(A, LoadReason.NO_SERVER),)
    never = ServingMachine(1)
    assert never.handle(look(hidden), START) == ()
    assert never.handle(look(hidden), at(60)) == (Load(A, LoadReason.NO_SERVER),)


def test_an_unused_run_makes_room_for_a_model_that_is_waited_for() -> None:
    given = look(loadable(), free_bytes=0, loaded=(loaded(B),))
    assert told(given, at(59)) == ()
    assert told(given, at(60)) == (Unload(B, UnloadReason.ROOM_WANTED),)
    assert told(replace(given, loaded=(loaded(B, Demand(per_minute=1)),)), at(60)) == ()
    assert told(replace(given, loaded=(replace(loaded(B), needed_bytes=MIB),)), at(60)) == ()
    assert told(replace(given, loaded=(loaded(B, idle_since=None),)), at(60)) == ()


def test_who_says_that_it_begins_is_waited_for_but_not_for_ever() -> None:
    machine = ServingMachine(1)
    given = look(loadable(is_coming=True))
    assert machine.handle(given, at(0)) == ()
    assert machine.deadline() == at(60)
    assert machine.handle(given, at(59)) == ()
    assert machine.handle(given, at(60)) == (Load(A, LoadReason.NO_SERVER),)


def test_a_run_that_broke_is_first_left_to_who_had_it() -> None:
    machine = ServingMachine(1)
    assert machine.handle(look(rates=(Rate(A, 0, 1),)), at(0)) == ()  # nobody asks beyond the usual
    assert machine.handle(look(loadable()), at(1)) == ()
    assert machine.deadline() == at(5)
    assert machine.handle(look(loadable()), at(4.9)) == ()
    assert machine.handle(look(loadable()), at(5)) == (Load(A, LoadReason.NO_SERVER),)


def test_who_has_just_unloaded_a_model_loads_it_again_at_once() -> None:
    machine = ServingMachine(1, IDLE_POLICY)
    given = look(loaded=(loaded(),), rates=(Rate(A, 0, 1),))
    assert machine.handle(given, at(10)) == (Unload(A, UnloadReason.IDLE),)
    assert machine.handle(look(loadable()), at(11)) == (Load(A, LoadReason.NO_SERVER),)


def test_a_load_that_failed_is_tried_again_after_longer_and_longer() -> None:
    machine = ServingMachine(1)
    now, pauses = 0.0, []
    for _ in range(7):
        assert machine.handle(look(loadable()), at(now)) == (Load(A, LoadReason.NO_SERVER),)
        machine.handle(LoadFailed(A), at(now))
        assert machine.handle(look(loadable()), at(now + 1)) == ()
        deadline = machine.deadline()
        assert deadline is not None
        pauses.append(deadline / MICROS_PER_SECOND - now)
        now = deadline / MICROS_PER_SECOND
    assert pauses == [30, 60, 120, 240, 480, 900, 900]
    machine.handle(LoadDone(A), at(now))
    machine.handle(LoadFailed(A), at(now))
    machine.handle(look(loadable()), at(now))
    assert machine.deadline() == at(now + 30)


# --- fetching -----------------------------------------------------------------
ABSENT = loadable(Demand(per_minute=10, per_day=10), servers=1, fetch_bytes=GIB)


@pytest.mark.parametrize(
    ("given", "is_fetched"),
    [
        (ABSENT, True),
        (replace(ABSENT, demand=Demand(per_minute=9)), False),
        (replace(ABSENT, servers=0), False),  # whoever has the file serves it
        (replace(ABSENT, servers=0, demand=WAITED, is_awaited_here=True), False),
        (replace(ABSENT, needed_bytes=3 * GIB, may_be_split=True), False),
    ],
)
def test_a_model_that_is_not_on_disk_is_fetched_only_where_its_servers_have_too_much_to_do(
    given: Loadable, is_fetched: bool
) -> None:
    assert told(look(given)) == ((Fetch(A, LoadReason.BUSY),) if is_fetched else ())


def test_what_was_fetched_is_loaded_at_once_if_it_is_as_busy_as_before() -> None:
    machine = ServingMachine(1)
    assert machine.handle(look(ABSENT), at(0)) == (Fetch(A, LoadReason.BUSY),)
    assert machine.handle(FetchDone(A), at(50)) == ()
    here = replace(ABSENT, fetch_bytes=0, is_offered=False, rivals=(Rival(PeerId("a")), Rival(PeerId("b"))))
    assert machine.handle(look(here), at(50)) == (Load(A, LoadReason.BUSY),)
    other = ServingMachine(1)
    other.handle(look(ABSENT), at(0))
    other.handle(FetchDone(A), at(50))
    assert other.handle(look(replace(here, demand=Demand(per_minute=9))), at(50)) == ()


def test_one_model_is_fetched_at_a_time_and_others_are_loaded_meanwhile() -> None:
    fetching = replace(loaded(B), state=RunState.FETCHING)
    assert told(look(ABSENT, loaded=(fetching,))) == ()
    here = replace(loadable(), model=b"c" * 8)
    assert told(look(ABSENT, here, loaded=(fetching,))) == (Load(here.model, LoadReason.NO_SERVER),)


def test_nothing_is_fetched_where_little_memory_is_left() -> None:
    assert told(look(ABSENT, memory_left_bytes=GIB)) == ()


def test_who_has_the_file_ranks_before_whoever_must_fetch_it() -> None:
    for number in range(8):
        rival = Rival(PeerId(f"peer-{number}"), is_spared=True)
        assert told(look(replace(ABSENT, rivals=(rival,)))) == ()
        fetching = Rival(PeerId(f"peer-{number}"), has_file=False)
        assert told(look(replace(ABSENT, fetch_bytes=0, rivals=(fetching,)))) == (Load(A, LoadReason.BUSY),)


def test_whoever_must_fetch_it_waits_as_long_for_another_as_its_fetch_may_take() -> None:
    coming = replace(ABSENT, is_coming=True)
    fetch_s = GIB // DEFAULT_POLICY.fetched_bytes_per_s
    machine = ServingMachine(1)
    assert machine.handle(look(coming), at(0)) == ()
    assert machine.deadline() == at(60 + fetch_s)
    assert machine.handle(look(coming), at(59 + fetch_s)) == ()
    assert machine.handle(look(coming), at(60 + fetch_s)) == (Fetch(A, LoadReason.BUSY),)
    huge = ServingMachine(1)
    assert huge.handle(look(replace(coming, fetch_bytes=1000 * GIB)), at(0)) == ()
    assert huge.deadline() == at(60) + DEFAULT_POLICY.longest_fetch_us


def test_a_fetch_that_failed_is_tried_again_after_a_pause() -> None:
    machine = ServingMachine(1)
    assert machine.handle(look(ABSENT), at(0)) == (Fetch(A, LoadReason.BUSY),)
    machine.handle(LoadFailed(A), at(5))
    assert machine.handle(look(ABSENT), at(34)) == ()
    assert machine.handle(look(ABSENT), at(35)) == (Fetch(A, LoadReason.BUSY),)


# --- unloading ----------------------------------------------------------------
def test_a_run_is_unloaded_once_it_was_idle_for_so_long() -> None:
    machine = ServingMachine(1, IDLE_POLICY)
    given = look(loaded=(loaded(),))
    assert machine.handle(given, at(9)) == ()
    assert machine.deadline() == at(10)
    assert machine.handle(given, at(10)) == (Unload(A, UnloadReason.IDLE),)
    assert told(given, at(10_000)) == ()  # the default keeps it
    for kept in (
        loaded(idle_since=None),
        loaded(demand=WAITED),
        replace(loaded(), is_driven_here=False),
        replace(loaded(), state=RunState.LOADING),
    ):
        assert told(look(loaded=(kept,)), at(100), IDLE_POLICY) == ()


def test_only_a_request_that_waits_brings_a_model_back_that_was_unloaded() -> None:
    machine = ServingMachine(1, IDLE_POLICY)
    assert machine.handle(look(loaded=(loaded(),)), at(10)) == (Unload(A, UnloadReason.IDLE),)
    assert machine.handle(look(), at(10.5)) == ()  # nobody is told of what is served
    assert machine.handle(look(loadable(Demand(per_minute=5, per_day=5))), at(11)) == ()
    assert machine.handle(look(loadable()), at(12)) == (Load(A, LoadReason.NO_SERVER),)


def test_a_replica_that_was_unloaded_does_not_come_back_for_requests_of_before() -> None:
    machine = ServingMachine(1, IDLE_POLICY)
    assert machine.handle(look(loaded=(loaded(),)), at(10)) == (Unload(A, UnloadReason.IDLE),)
    busy = look(loadable(Demand(per_minute=30), servers=1))
    assert machine.handle(busy, at(20)) == ()
    assert machine.handle(busy, at(69)) == ()
    assert machine.handle(busy, at(70)) == (Load(A, LoadReason.BUSY),)


def test_what_was_asked_hours_ago_is_loaded_only_where_it_may_stay() -> None:
    given = look(loadable(Demand(per_day=1)))
    assert told(given) == (Load(A, LoadReason.NO_SERVER),)
    assert told(given, policy=IDLE_POLICY) == ()


def test_little_memory_unloads_the_least_demanded_run_and_loads_nothing() -> None:
    machine = ServingMachine(1)
    runs = (loaded(A, Demand(per_minute=2)), loaded(B, Demand(per_minute=1), idle_since=None))
    given = look(loaded=runs, memory_left_bytes=DEFAULT_POLICY.low_memory_bytes - 1)
    assert machine.handle(given, at(0)) == ()
    assert machine.deadline() == at(5)
    assert machine.handle(replace(given, memory_left_bytes=GIB), at(4)) == ()  # it was only a moment
    assert machine.handle(given, at(5)) == ()
    assert machine.handle(given, at(10)) == (Unload(B, UnloadReason.MEMORY_LOW),)
    left = replace(given, loaded=runs[:1])
    assert machine.handle(left, at(20)) == ()
    assert machine.handle(left, at(40)) == (Unload(A, UnloadReason.MEMORY_LOW),)
    roomy = look(loadable(), memory_left_bytes=2 * GIB)
    assert machine.handle(roomy, at(99)) == ()
    assert machine.handle(replace(roomy, memory_left_bytes=GIB), at(100)) == ()  # it would be low again at once
    assert machine.handle(roomy, at(100)) == (Load(A, LoadReason.NO_SERVER),)


def test_where_memory_is_low_engines_that_nobody_uses_go_before_any_model() -> None:
    machine = ServingMachine(1)
    given = look(loaded=(loaded(A),), memory_left_bytes=0, spare_bytes=GIB)
    assert machine.handle(replace(given, memory_left_bytes=2 * GIB), at(0)) == ()
    assert machine.takes_spares(at(0))
    assert machine.handle(given, at(1)) == ()
    assert not machine.takes_spares(at(1))
    assert machine.handle(given, at(6)) == (DropSpares(),)
    left = replace(given, spare_bytes=0)
    assert machine.handle(left, at(20)) == ()
    assert machine.handle(left, at(36)) == (Unload(A, UnloadReason.MEMORY_LOW),)
    assert machine.handle(look(memory_left_bytes=2 * GIB), at(40)) == ()
    assert [machine.takes_spares(at(second)) for second in (40, 95, 96)] == [False, False, True]


def test_where_memory_is_low_the_least_asked_for_goes_whoever_coordinates_it() -> None:
    low = look(loaded=(loaded(A, Demand(per_minute=2)),), memory_left_bytes=0)

    def relief(*lent: Lent, given: Look = low) -> tuple[Effect, ...]:
        machine = ServingMachine(1)
        machine.handle(replace(given, lent=lent), at(0))
        return machine.handle(replace(given, lent=lent), at(5))

    assert relief(Lent(B, Demand(per_minute=1))) == (HandOver(B),)
    assert relief(Lent(B, Demand(per_minute=3))) == (Unload(A, UnloadReason.MEMORY_LOW),)
    assert relief(Lent(B, Demand(per_minute=2))) == (Unload(A, UnloadReason.MEMORY_LOW),)  # it ends, no other loads
    assert relief(Lent(B, Demand(waiting=3)), given=replace(low, loaded=())) == (HandOver(B),)
    assert relief(Lent(B, NO_DEMAND, is_leaving=True)) == ()  # one at a time
    assert relief(Lent(B, NO_DEMAND), given=replace(low, spare_bytes=GIB)) == (DropSpares(),)
    assert relief(Lent(B, NO_DEMAND), given=replace(low, memory_left_bytes=GIB)) == ()


def test_a_stage_that_nobody_takes_over_is_left_alone_for_a_while() -> None:
    machine = ServingMachine(1)
    given = look(memory_left_bytes=0, lent=(Lent(A, NO_DEMAND), Lent(B, Demand(per_day=1))))
    machine.handle(given, at(0))
    assert machine.handle(given, at(5)) == (HandOver(A),)
    assert not machine.takes_stage(A, at(5))
    machine.handle(DrainFailed(A), at(36))
    assert machine.takes_stage(A, at(36))  # it is here
    assert machine.handle(given, at(36)) == (HandOver(B),)
    gone = replace(given, lent=(Lent(A, NO_DEMAND),))
    assert machine.handle(gone, at(70)) == ()
    assert machine.handle(gone, at(96)) == (HandOver(A),)


def test_a_model_that_had_to_go_for_memory_does_not_come_back_before_there_is_some() -> None:
    machine = ServingMachine(1)
    given = look(memory_left_bytes=0, lent=(Lent(A, NO_DEMAND),))
    machine.handle(given, at(0))
    assert machine.handle(given, at(5)) == (HandOver(A),)
    machine.handle(look(memory_left_bytes=GIB), at(20))
    assert [machine.takes_stage(A, at(second)) for second in (20, 64, 65)] == [False, False, True]
    assert machine.takes_stage(B, at(20))


def test_a_run_that_could_not_be_drained_is_left_alone_for_a_while() -> None:
    machine = ServingMachine(1)
    given = look(loaded=(loaded(A), loaded(B, Demand(per_day=9))), memory_left_bytes=0)
    machine.handle(given, at(0))
    assert machine.handle(given, at(5)) == (Unload(A, UnloadReason.MEMORY_LOW),)
    machine.handle(DrainFailed(A), at(36))
    assert machine.handle(given, at(36)) == (Unload(B, UnloadReason.MEMORY_LOW),)
    draining = replace(given, loaded=(loaded(A), replace(loaded(B), state=RunState.DRAINING)))
    assert machine.handle(draining, at(100)) == ()


# --- many at once ----------------------------------------------------------------
@dataclass
class Crowd:
    """Machines of many idle peers that hear of each other's beginnings ``gossip_s`` later."""

    count: int
    gossip_s: float
    seen_percent: int = 100
    broken: frozenset[int] = frozenset()
    """Peers that never serve, whatever they try."""
    began: dict[int, float] = field(default_factory=dict)

    def run(self, seconds: float, step_s: float = 0.25) -> None:
        names = [PeerId(f"peer-{number}") for number in range(self.count)]
        draws = Draws(7)
        views = [
            tuple(
                Rival(name)
                for other, name in enumerate(names)
                if other != number and draws.below(100) < self.seen_percent
            )
            for number in range(self.count)
        ]
        machines = [ServingMachine(number) for number in range(self.count)]
        for tick in range(int(seconds / step_s)):
            now_s = tick * step_s
            heard = any(
                begun + self.gossip_s <= now_s for number, begun in self.began.items() if number not in self.broken
            )
            for number, machine in enumerate(machines):
                if number in self.began:
                    continue
                given = loadable(is_coming=heard, rivals=views[number])
                if machine.handle(replace(look(given), own_peer=names[number]), at(now_s)):
                    self.began[number] = now_s


@pytest.mark.parametrize("count", [1, 2, 10, 100, 250])
@pytest.mark.parametrize("gossip_s", [0.25, 1.0, 1.75])
def test_of_many_idle_peers_one_loads_the_model_at_once(count: int, gossip_s: float) -> None:
    crowd = Crowd(count, gossip_s)
    crowd.run(40)
    assert list(crowd.began.values()) == [0.0]


@pytest.mark.parametrize("seen_percent", [70, 90])
def test_few_load_it_where_peers_see_each_other_in_part(seen_percent: int) -> None:
    crowd = Crowd(100, 1.0, seen_percent)
    crowd.run(40)
    assert 1 <= len(crowd.began) <= 4
    assert min(crowd.began.values()) == 0.0


def test_the_next_in_rank_follows_where_those_before_it_do_nothing() -> None:
    alone = Crowd(100, 1.0)
    alone.run(10)
    (first,) = alone.began
    crowd = Crowd(100, 1.0, broken=frozenset({first}))
    crowd.run(40)
    assert len(crowd.began) == 2
    assert max(crowd.began.values()) < 5.0


def test_even_if_the_first_dozen_do_nothing_one_loads_within_half_a_minute_and_no_crowd() -> None:
    crowd = Crowd(100, 1.0, broken=frozenset(range(100)))
    crowd.run(16)
    first_ranks = frozenset(crowd.began)
    assert 8 <= len(first_ranks) <= 9
    crowd = Crowd(100, 1.0, broken=first_ranks)
    crowd.run(40)
    working = {number: begun for number, begun in crowd.began.items() if number not in first_ranks}
    assert min(working.values()) < 30.0
    assert len(working) < 15


def test_ranks_are_the_same_at_every_peer_and_others_for_another_model() -> None:
    firsts = set()
    for letter in b"abcdefgh":
        names = [PeerId(f"peer-{number}") for number in range(20)]
        first = []
        for name in names:
            rivals = tuple(Rival(other) for other in names if other != name)
            given = Look(name, GIB, (Loadable(bytes([letter]) * 8, MIB, WAITED, rivals=rivals),))
            if told(given):
                first.append(name)
        assert len(first) == 1
        firsts.add(first[0])
    assert len(firsts) > 3


def test_peers_whose_own_clients_wait_come_first() -> None:
    rivals = tuple(Rival(PeerId(f"peer-{number}")) for number in range(50))
    assert told(look(loadable(is_awaited_here=True, rivals=rivals))) == (Load(A, LoadReason.NO_SERVER),)
    machine = ServingMachine(1)
    waiting_rival = (Rival(PeerId("waits"), is_waiting=True),)
    assert machine.handle(look(loadable(rivals=waiting_rival)), at(0)) == ()
    deadline = machine.deadline()
    assert deadline is not None
    assert at(2) <= deadline < at(4)


def test_who_runs_on_battery_or_is_in_use_loads_only_where_nobody_else_does() -> None:
    for number in range(8):
        rivals = (Rival(PeerId(f"peer-{number}")),)
        assert told(replace(look(loadable(rivals=rivals)), is_spared=True)) == ()
        spared = (replace(rivals[0], is_spared=True),)
        assert told(look(loadable(rivals=spared))) == (Load(A, LoadReason.NO_SERVER),)
    assert told(replace(look(loadable()), is_spared=True)) == (Load(A, LoadReason.NO_SERVER),)


# --- any order --------------------------------------------------------------------
DEMANDS = st.builds(Demand, st.integers(0, 2), st.sampled_from([0, 1, 3, 9, 10, 40]), st.sampled_from([0, 1, 50]))
MODELS = [bytes([number]) * 8 for number in range(5)]


class AnyOrder(RuleBasedStateMachine):
    """Any sequence of looks and outcomes: what holds after every effect."""

    @initialize(idle_s=st.sampled_from([None, 1, 30]), seed=st.integers(0, 2**16))
    def start(self, idle_s: int | None, seed: int) -> None:
        idle_us = None if idle_s is None else idle_s * MICROS_PER_SECOND
        self.policy = ServingPolicy(idle_unload_us=idle_us)
        self.machine = ServingMachine(seed, self.policy)
        self.now = Micros(0)
        self.runs: dict[bytes, Loaded] = {}
        self.on_disk = set(MODELS[:3])
        self.lent_models = {b"l" * 8, b"m" * 8}
        self.leaving: set[bytes] = set()
        self.free_bytes = 3 * GIB

    @rule(seconds=st.sampled_from([0.1, 1, 5, 31, 90, 700]))
    def wait(self, seconds: float) -> None:
        self.now = Micros(self.now + at(seconds))

    @rule()
    def wait_for_deadline(self) -> None:
        deadline = self.machine.deadline()
        if deadline is not None:
            self.now = max(self.now, deadline)

    @rule(
        demands=st.lists(DEMANDS, min_size=5, max_size=5),
        left_bytes=st.sampled_from([None, 0, 100 * MIB, GIB, 2 * GIB]),
        servers=st.integers(0, 2),
        is_coming=st.booleans(),
        is_busy=st.booleans(),
        rival_count=st.integers(0, 12),
        spare_bytes=st.sampled_from([0, GIB]),
    )
    def look(
        self, demands: list[Demand], left_bytes: int | None, servers: int, is_coming: bool, is_busy: bool,
        rival_count: int, spare_bytes: int,
    ) -> None:  # fmt: skip
        rivals = tuple(Rival(PeerId(f"r{n}"), n % 5 == 0, n % 3 == 0) for n in range(rival_count))
        loadables = tuple(
            Loadable(
                model,
                GIB,
                demand,
                servers=servers,
                is_coming=is_coming,
                rivals=rivals,
                fetch_bytes=0 if model in self.on_disk else GIB,
            )
            for model, demand in zip(MODELS, demands, strict=True)
            if model not in self.runs
        )
        for model, demand in zip(MODELS, demands, strict=True):
            if model in self.runs:
                run = self.runs[model]
                idle_since = None if is_busy else (run.idle_since if run.idle_since is not None else self.now)
                self.runs[model] = replace(run, demand=demand, idle_since=idle_since)
        given = Look(
            OWN, self.free_bytes, loadables, tuple(self.runs.values()), left_bytes, (Rate(B, 1, 1),),
            spare_bytes=spare_bytes,
            lent=tuple(Lent(model, demands[0], model in self.leaving) for model in self.lent_models),
        )  # fmt: skip
        effects = self.machine.handle(given, self.now)
        assert len(effects) <= 1
        for effect in effects:
            self.perform(effect, given)
        deadline = self.machine.deadline()
        assert deadline is None or deadline > self.now

    def perform(self, effect: Effect, given: Look) -> None:
        if isinstance(effect, HandOver):
            assert self.machine.is_memory_low
            assert effect.model in {one.model for one in given.lent}
            assert not any(one.is_leaving for one in given.lent)
            assert not given.spare_bytes
            self.leaving.add(effect.model)
            return
        if isinstance(effect, DropSpares):
            assert given.spare_bytes
            assert self.machine.is_memory_low
            assert not self.machine.takes_spares(self.now)
            return
        if isinstance(effect, Fetch):
            chosen = next(one for one in given.loadables if one.model == effect.model)
            assert chosen.fetch_bytes
            assert chosen.servers
            assert chosen.needed_bytes <= given.free_bytes
            assert all(run.state is not RunState.FETCHING for run in given.loaded)
            self.runs[effect.model] = Loaded(effect.model, RunState.FETCHING, 0, chosen.demand, None, False)
            return
        if isinstance(effect, Load):
            chosen = next(one for one in given.loadables if one.model == effect.model)
            assert not chosen.demand.is_none
            assert not chosen.fetch_bytes
            assert chosen.needed_bytes <= given.free_bytes
            assert all(run.state in (RunState.SERVING, RunState.FETCHING) for run in given.loaded)
            left_bytes = given.memory_left_bytes
            assert left_bytes is None or left_bytes >= chosen.needed_bytes + self.policy.low_memory_bytes
            self.free_bytes -= GIB
            self.runs[effect.model] = Loaded(effect.model, RunState.LOADING, GIB, chosen.demand, None, True)
            return
        run = self.runs[effect.model]
        assert run.state is RunState.SERVING
        assert not run.demand.waiting
        if effect.reason is not UnloadReason.MEMORY_LOW:
            assert run.idle_since is not None
        if effect.reason is UnloadReason.IDLE:
            assert self.policy.idle_unload_us is not None
            assert run.idle_since is not None
            assert self.now - run.idle_since >= self.policy.idle_unload_us
        self.runs[effect.model] = replace(run, state=RunState.DRAINING)

    @rule(is_loaded=st.booleans())
    def load_ends(self, is_loaded: bool) -> None:
        for model, run in tuple(self.runs.items()):
            if run.state is RunState.LOADING and is_loaded:
                self.runs[model] = replace(run, state=RunState.SERVING, idle_since=self.now)
                assert self.machine.handle(LoadDone(model), self.now) == ()
            elif run.state is RunState.LOADING:
                self.end(model)
                assert self.machine.handle(LoadFailed(model), self.now) == ()

    @rule(has_gone=st.booleans())
    def hand_over_ends(self, has_gone: bool) -> None:
        for model in sorted(self.leaving):
            if has_gone:
                self.lent_models.discard(model)
            else:
                self.machine.handle(DrainFailed(model), self.now)
        self.leaving.clear()

    @rule(is_fetched=st.booleans())
    def fetch_ends(self, is_fetched: bool) -> None:
        for model, run in tuple(self.runs.items()):
            if run.state is RunState.FETCHING:
                del self.runs[model]
                self.on_disk |= {model} if is_fetched else set()
                outcome = FetchDone(model) if is_fetched else LoadFailed(model)
                assert self.machine.handle(outcome, self.now) == ()

    @rule(is_drained=st.booleans())
    def drain_ends(self, is_drained: bool) -> None:
        for model, run in tuple(self.runs.items()):
            if run.state is RunState.DRAINING and is_drained:
                self.end(model)
            elif run.state is RunState.DRAINING:
                self.runs[model] = replace(run, state=RunState.SERVING)
                assert self.machine.handle(DrainFailed(model), self.now) == ()

    def end(self, model: bytes) -> None:
        del self.runs[model]
        self.free_bytes += GIB

    @invariant()
    def never_more_than_one_loads(self) -> None:
        if hasattr(self, "runs"):
            assert sum(run.state is RunState.LOADING for run in self.runs.values()) <= 1
            assert self.free_bytes >= 0


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
