"""Which pool is joined."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from p2pmesh.base.ids import MeshId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.pool_choice import (
    Candidate,
    Checked,
    DeadlinePassed,
    Effect,
    Event,
    Listed,
    PoolClaims,
    PoolRace,
    Probe,
    RacePolicy,
    Reached,
    Settled,
    Unreached,
    Wanted,
    bounded_score,
    is_worth_moving,
    published_score,
    rank_checked,
)

OURS = MeshId("0" * 31 + "1")
LAST = MeshId("f" * 32)
POOL = PoolClaims(OURS, nodes=3, serving=2, wanted=1)
SECOND = 1_000_000


def mesh(number: int) -> MeshId:
    return MeshId(f"{number:032x}")


def candidate(number: int, **claims: object) -> Candidate:
    at = f"/ip4/1.{number // 250}.{number % 250}.7/tcp/4001"
    return Candidate(f"key{number}", replace(PoolClaims(mesh(number)), **claims), (at,))  # type: ignore[arg-type]


def checked(number: int, rtt_us: int = 1000, **claims: object) -> Checked:
    return Checked(f"key{number}", replace(PoolClaims(mesh(number)), **claims), rtt_us)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("claims", "last", "score"),
    [
        (POOL, None, 450),
        (POOL, OURS, 950),
        (replace(POOL, clients=5, max_clients=5), None, -550),
        (replace(POOL, clients=0, max_clients=5), None, 455),
        (replace(POOL, name="bob"), None, 150),
    ],
)
def test_the_published_score_has_its_published_values(claims: PoolClaims, last: MeshId | None, score: int) -> None:
    assert published_score(claims, last) == score


@pytest.mark.parametrize("name", ["", "mesh-llm", "Mesh-LLM", "P2PMESH"])
def test_a_pool_without_a_name_or_with_the_services_is_open(name: str) -> None:
    assert Wanted().takes(replace(POOL, name=name))


def test_a_named_pool_is_joined_by_its_exact_name_alone() -> None:
    bob = replace(POOL, name="bob")
    assert not Wanted().takes(bob)
    assert Wanted("bob").takes(replace(bob, clients=5, max_clients=5))
    assert not Wanted("bob").takes(replace(POOL, name="Bob"))
    assert not Wanted("bob").takes(POOL)


def test_a_full_pool_and_the_nodes_own_are_not_joined() -> None:
    assert not Wanted().takes(replace(POOL, clients=5, max_clients=5))
    assert not Wanted(besides=frozenset([OURS])).takes(POOL)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 10**9))
def test_no_claim_raises_a_pool_beyond_one_that_does_much(wanted: int, serving: int, nodes: int) -> None:
    boasting = PoolClaims(OURS, nodes=nodes, serving=serving, wanted=wanted)
    assert bounded_score(boasting) <= bounded_score(PoolClaims(OURS, nodes=10, serving=10))
    assert bounded_score(replace(boasting, wanted=0)) == bounded_score(boasting)


def test_what_a_reached_pool_says_itself_decides_and_the_nearest_of_equals() -> None:
    boasted = checked(1, serving=0, nodes=1)  # its listing may have claimed a thousand
    near, far = checked(2, 900, serving=2), checked(3, 90_000, serving=2)
    assert [one.key for one in rank_checked([boasted, far, near], Wanted())] == ["key2", "key3", "key1"]


def test_whoever_has_company_stays_and_of_two_alone_one_goes() -> None:
    alone, other = PoolClaims(mesh(9)), PoolClaims(mesh(4))
    assert is_worth_moving(alone, other)
    assert not is_worth_moving(other, alone)
    assert is_worth_moving(other, replace(alone, nodes=2))
    assert not is_worth_moving(replace(alone, nodes=2), replace(other, nodes=200))
    assert not is_worth_moving(alone, replace(other, nodes=9, clients=3, max_clients=3))


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 3), st.integers(1, 3))
def test_no_two_pools_change_places(one: int, two: int, nodes: int, others: int) -> None:
    left, right = PoolClaims(mesh(one), nodes=nodes), PoolClaims(mesh(two), nodes=others)
    assert not (is_worth_moving(left, right) and is_worth_moving(right, left))


# --- the race -------------------------------------------------------------------
def probes(effects: tuple[Effect, ...]) -> list[str]:
    return [effect.key for effect in effects if isinstance(effect, Probe)]


def test_the_first_that_answers_waits_a_moment_for_better_ones() -> None:
    race = PoolRace(Wanted(), Micros(0))
    asked = probes(race.handle(Listed((candidate(1), candidate(2), candidate(3))), Micros(0)))
    assert sorted(asked) == ["key1", "key2", "key3"]
    assert race.handle(Reached(checked(1)), Micros(10)) == ()
    assert race.deadline() == 10 + race.policy.grace_us
    assert race.handle(Reached(checked(2, serving=4)), Micros(20)) == ()
    (over,) = race.handle(DeadlinePassed(), Micros(10 + race.policy.grace_us))
    assert isinstance(over, Settled)
    assert [one.key for one in over.ranked] == ["key2", "key1"]
    assert race.deadline() is None
    assert race.handle(Reached(checked(3)), Micros(10 * SECOND)) == ()


def test_nobody_waits_once_all_have_answered() -> None:
    race = PoolRace(Wanted(), Micros(0))
    race.handle(Listed((candidate(1), candidate(2))), Micros(0))
    assert race.handle(Unreached("key2"), Micros(5)) == ()
    assert race.handle(Reached(checked(1)), Micros(9)) == (Settled((checked(1),)),)


def test_an_empty_list_ends_at_once_and_a_silent_relay_at_the_deadline() -> None:
    assert PoolRace(Wanted(), Micros(0)).handle(Listed(()), Micros(1)) == (Settled(()),)
    race = PoolRace(Wanted(), Micros(0))
    assert race.deadline() == race.policy.total_us
    assert race.handle(DeadlinePassed(), Micros(race.policy.total_us)) == (Settled(()),)


def test_probes_that_hang_give_their_place_to_others() -> None:
    race = PoolRace(Wanted(), Micros(0), policy=RacePolicy(parallel=2, probe_us=SECOND))
    first = probes(race.handle(Listed(tuple(candidate(n) for n in range(4))), Micros(0)))
    assert len(first) == 2
    assert race.deadline() == SECOND
    assert len(probes(race.handle(DeadlinePassed(), Micros(SECOND)))) == 2


def test_a_pool_that_turns_out_to_be_full_or_another_is_no_pool() -> None:
    race = PoolRace(Wanted(), Micros(0))
    race.handle(Listed((candidate(1), candidate(2))), Micros(0))
    race.handle(Reached(checked(1, clients=2, max_clients=2)), Micros(1))
    assert race.handle(Reached(checked(2, name="bob")), Micros(2)) == (Settled(()),)


def test_many_listings_at_one_address_delay_nobody() -> None:
    crowd = tuple(replace(candidate(n, serving=10, nodes=10), addresses=("/ip4/1.2.3.4/tcp/1",)) for n in range(500))
    good = candidate(777)
    race = PoolRace(Wanted(), Micros(0))
    assert good.key in probes(race.handle(Listed((*crowd, good)), Micros(0)))


def test_whoever_made_a_key_to_be_first_is_so_for_one_salt_alone() -> None:
    listed = Listed(tuple(candidate(n) for n in range(40)))
    orders = {tuple(probes(PoolRace(Wanted(), Micros(0), salt).handle(listed, Micros(0)))) for salt in (b"a", b"b")}
    assert len(orders) == 2


def test_a_modest_pool_is_found_among_five_hundred_that_boast_and_hang() -> None:
    boasters = tuple(candidate(n, serving=99, nodes=999) for n in range(500))
    doubted: set[str] = set()
    for search in range(6):
        listed = tuple(replace(one, is_doubtful=one.key in doubted) for one in (*boasters, candidate(777)))
        asked = asked_until_over(PoolRace(Wanted(), Micros(0), bytes([search])), listed)
        assert len(asked) >= 96
        if "key777" in asked:
            break
        doubted |= set(asked)
    else:
        raise AssertionError("the good one was never asked")


def asked_until_over(race: PoolRace, listed: tuple[Candidate, ...]) -> list[str]:
    """Whom a race asks of whom nobody ever answers."""
    asked = probes(race.handle(Listed(listed), Micros(0)))
    while (at := race.deadline()) is not None:
        asked += probes(race.handle(DeadlinePassed(), at))
    return asked


def test_half_of_those_asked_are_so_for_their_claims() -> None:
    listed = (*(candidate(n) for n in range(200)), *(candidate(n, serving=9) for n in range(200, 224)))
    asked = probes(PoolRace(Wanted(), Micros(0)).handle(Listed(listed), Micros(0)))
    assert {f"key{n}" for n in range(200, 224)} <= set(asked)
    assert len(asked) == 48


def copies(count: int) -> tuple[Candidate, ...]:
    """Listings of one mesh under keys of their own."""
    return tuple(replace(candidate(n), claims=PoolClaims(mesh(1))) for n in range(1, count + 1))


def test_of_a_listing_and_its_copies_few_are_asked_at_a_time_and_none_once_one_has_answered() -> None:
    race = PoolRace(Wanted(), Micros(0))
    asked = probes(race.handle(Listed((*copies(100), candidate(500))), Micros(0)))
    assert len(asked) == race.policy.per_mesh + 1
    failed = next(key for key in asked if key != "key500")
    assert len(probes(race.handle(Unreached(failed), Micros(1)))) == 1
    race.handle(Unreached("key500"), Micros(2))
    answering = next(key for key in asked if key not in (failed, "key500"))
    assert race.handle(Reached(Checked(answering, PoolClaims(mesh(1)), 5)), Micros(3)) == ()
    others = list(race._running)
    over = [race.handle(Unreached(key), Micros(4)) for key in others]
    assert probes(tuple(effect for effects in over for effect in effects)) == []
    assert over[-1] == (Settled((Checked(answering, PoolClaims(mesh(1)), 5),)),)


def test_a_pool_that_was_reached_by_several_listings_is_tried_once() -> None:
    near, far = Checked("a", PoolClaims(mesh(1)), 5), Checked("b", PoolClaims(mesh(1)), 9)
    assert rank_checked((far, near, checked(2)), Wanted()) == (near, checked(2))


class AnyRace(RuleBasedStateMachine):
    """Whatever relays list and peers answer, in any order: bounded, and over in time."""

    @initialize()
    def start(self) -> None:
        self.now = Micros(0)
        self.race = PoolRace(Wanted(), self.now, policy=RacePolicy(parallel=3, candidates=12))
        self.asked: list[str] = []
        self.running: set[str] = set()
        self.settled: Settled | None = None

    def feed(self, event: Event) -> None:
        for effect in self.race.handle(event, self.now):
            assert self.settled is None
            if isinstance(effect, Probe):
                self.asked.append(effect.key)
                self.running.add(effect.key)
            else:
                self.settled = effect

    @rule(numbers=st.lists(st.integers(0, 30), max_size=8))
    def list_some(self, numbers: list[int]) -> None:
        self.feed(Listed(tuple(candidate(n, serving=n) for n in numbers)))

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 99), is_reached=st.booleans(), serving=st.integers(0, 3))
    def answer(self, index: int, is_reached: bool, serving: int) -> None:
        key = sorted(self.running)[index % len(self.running)]
        self.running.discard(key)
        self.feed(Reached(checked(int(key[3:]), serving=serving)) if is_reached else Unreached(key))

    @rule()
    def wait(self) -> None:
        at = self.race.deadline()
        if at is not None:
            self.now = max(self.now, at)
            self.feed(DeadlinePassed())

    @invariant()
    def it_is_bounded_and_ends(self) -> None:
        assert len(self.asked) == len(set(self.asked)) <= 12
        deadline = self.race.deadline()
        assert (deadline is None) == (self.settled is not None)
        assert deadline is None or self.now < deadline <= self.race.policy.total_us


TestAnyRace = AnyRace.TestCase
