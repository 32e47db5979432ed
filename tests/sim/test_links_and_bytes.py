"""Regions, chance by counters, the folded journal, and bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.sim.chance import Draws, mixed
from p2pmesh.sim.fold import Fold
from p2pmesh.sim.overlay_scenario import RegionLinks
from p2pmesh.sim.regions import Regions
from p2pmesh.sim.traffic import Cause, TrafficLedger, measure_sizes


def test_a_way_depends_on_the_regions_and_the_pair_and_jitters() -> None:
    links = RegionLinks((1, 1), ((1_000, 50_000), (50_000, 2_000)), (50, 100, 200), (0, 100))
    regions = Regions(links, 7)
    assert {regions.region(number) for number in range(50)} == {0, 1}
    near = [n for n in range(1, 50) if regions.region(n) == regions.region(0)]
    far = [n for n in range(50) if regions.region(n) != regions.region(0)]
    assert max(regions.one_way_us(0, n) for n in near) < min(regions.one_way_us(0, n) for n in far)
    there = {regions.one_way_us(0, far[0]) for _ in range(50)}
    back = {regions.one_way_us(far[0], 0) for _ in range(50)}
    assert there == back
    assert len(there) == 2


def test_partitions_and_slow_peers() -> None:
    regions = Regions(RegionLinks(jitter_percent=(0,)), 1)
    before = regions.one_way_us(1, 2)
    regions.slow_down((2,), 1_000)
    assert regions.one_way_us(1, 2) == regions.one_way_us(2, 1) == before + 1_000
    regions.slow_down((2,), 0)
    assert regions.one_way_us(1, 2) == before
    regions.partition(2)
    assert (regions.same_side(1, 2), regions.same_side(0, 1), regions.same_side(2, 3)) == (False, True, True)
    regions.partition(None)
    assert regions.same_side(1, 2)


@given(st.integers(0, 2**64 - 1), st.integers(1, 10**6))
def test_draws_stay_below_their_bound_and_follow_from_seed_and_name(seed: int, bound: int) -> None:
    one, two = Draws(seed, "a"), Draws(seed, "a")
    drawn = [one.below(bound) for _ in range(5)]
    assert drawn == [two.below(bound) for _ in range(5)]
    assert all(0 <= value < bound for value in drawn)
    assert 0 <= mixed(seed) < 2**64


@pytest.mark.parametrize("per_million", [1_000, 100_000, 500_000])
def test_gaps_let_through_as_many_as_single_draws_would(per_million: int) -> None:
    draws = Draws(3, "gaps")
    gaps = [draws.gap(per_million) for _ in range(4000)]
    share = 1_000_000 * len(gaps) // (sum(gaps) + len(gaps))
    assert 0.85 * per_million < share < 1.3 * per_million
    assert Draws(3, "none").gap(0) > 10**18


def test_the_digest_depends_on_every_integer_and_on_their_order_but_not_on_when_they_are_folded() -> None:
    def digest(*values: int, settle: bool = False) -> str:
        fold = Fold()
        for value in values:
            fold.line.append(value)
            if settle:
                fold.digest()
        return fold.digest()

    assert digest(1, 2, 3) == digest(1, 2, 3, settle=True)
    assert len({digest(1, 2, 3), digest(1, 3, 2), digest(1, 2), digest(1, 2, 4), digest()}) == 5


def test_bytes_go_to_both_ends_and_to_their_cause() -> None:
    ledger = TrafficLedger()
    for _ in range(3):
        ledger.add_peer()
    ledger.exchange(0, 1, Cause.PROBES, 10, 3)
    ledger.alone(2, Cause.UPKEEP, 5, 0)
    ledger.alike[1] += 100
    ledger.pass_on(Cause.NOTES, 100)
    assert [ledger.totals(number) for number in range(3)] == [(10, 3), (103, 110), (5, 0)]
    spent = {"notes": 200, "probes": 26, "upkeep": 5}
    assert {cause: count for cause, count in ledger.by_cause().items() if count} == spent
    ledger.forget()
    assert sum(ledger.by_cause().values()) == 0


def test_an_announcement_costs_what_its_encoding_takes_and_more_for_each_model() -> None:
    sizes = measure_sizes().announcement
    assert 600 < sizes[0] < sizes[1] < sizes[2] < 3000
    assert measure_sizes().gossiped(sizes[0]) > 2.7 * sizes[0]
