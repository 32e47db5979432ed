"""How much models are asked for, by whom, and for how long that counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_ANNOUNCED_DEMANDS, MAX_KNOWN_PEERS
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.demand import NO_DEMAND, Demand, DemandBook, DemandCounters, DemandPolicy, count_serving
from p2pmesh.wire.announcement import ModelDemand

A, B, C = b"a" * 8, b"b" * 8, b"c" * 8
ANNE, BERT = PeerId("anne"), PeerId("bert")


def at(seconds: float) -> Micros:
    return Micros(int(seconds * MICROS_PER_SECOND))


def demand_in(book: DemandBook, model: bytes, now: Micros) -> Demand:
    return book.totals(now).get(model, NO_DEMAND)


def test_a_request_counts_for_a_minute_and_for_a_day() -> None:
    counters = DemandCounters()
    counters.count(A, at(5))
    counters.count(A, at(30))
    assert counters.demand(A, at(30)) == Demand(0, 2, 2)
    assert counters.demand(A, at(64)).per_minute == 2
    assert counters.demand(A, at(80)).per_minute == 1
    assert counters.demand(A, at(110)) == Demand(0, 0, 2)
    assert counters.demand(A, at(24 * 3600)).per_day == 2
    assert counters.demand(A, at(25 * 3600 + 1)) == NO_DEMAND
    assert NO_DEMAND.is_none


def test_who_waits_is_counted_as_long_as_it_waits() -> None:
    counters = DemandCounters()
    counters.begin_waiting(A)
    counters.begin_waiting(A)
    assert counters.waited_for() == (A,)
    counters.end_waiting(A)
    assert counters.demand(A, at(0)) == Demand(1, 0, 0)
    counters.end_waiting(A)
    counters.end_waiting(A)
    counters.end_waiting(B)
    assert counters.waited_for() == ()


def test_made_up_names_push_out_neither_who_waits_nor_what_somebody_has() -> None:
    counters = DemandCounters(DemandPolicy(most_models=4))
    counters.count(A, at(0))
    counters.begin_waiting(A)
    for number in range(100):
        counters.count(number.to_bytes(8), at(1))
    assert len(counters.models()) == 4
    assert A in counters.models()
    assert counters.told(served=(), loadable=(A,), now=at(1))[0].model == A


def test_others_are_told_only_of_what_matters_to_them() -> None:
    counters = DemandCounters()
    counters.count(A, at(0))
    counters.count(B, at(0))
    assert counters.told(served=(A,), loadable=(), now=at(0)) == (ModelDemand(B, 0, 1, 1),)
    for _ in range(2):
        counters.count(A, at(1))
    assert counters.told(served=(A,), loadable=(), now=at(1)) == (ModelDemand(A, 0, 3, 3), ModelDemand(B, 0, 1, 1))
    assert counters.told(served=(A, B), loadable=(), now=at(100)) == ()


def test_one_peer_counts_for_no_more_than_its_cap() -> None:
    book = DemandBook()
    book.note(ANNE, (1, 1), (ModelDemand(A, 2**24, 2**24, 2**24),), at(0))
    policy = DemandPolicy()
    alone = Demand(policy.source_waiting, policy.source_per_minute, policy.source_per_day)
    assert demand_in(book, A, at(0)) == alone
    book.note(BERT, (1, 1), (ModelDemand(A, 1, 2, 3), ModelDemand(A, 1, 2, 3)), at(0))
    assert demand_in(book, A, at(0)) == alone + Demand(1, 2, 3)
    assert book.models() == (A,)


def test_an_old_word_counts_for_the_day_alone_and_no_old_one_replaces_a_new_one() -> None:
    book = DemandBook()
    book.note(ANNE, (1, 5), (ModelDemand(A, 1, 2, 3),), at(0))
    book.note(ANNE, (1, 5), (ModelDemand(A, 1, 2, 3),), at(100))  # the same word, read again
    book.note(ANNE, (1, 4), (ModelDemand(A, 9, 9, 9),), at(100))
    assert demand_in(book, A, at(119)) == Demand(1, 2, 3)
    assert demand_in(book, A, at(120)) == Demand(0, 0, 3)
    book.note(ANNE, (1, 6), (ModelDemand(A, 1, 1, 4),), at(130))
    assert demand_in(book, A, at(131)) == Demand(1, 1, 4)
    book.note(ANNE, (1, 7), (), at(132))
    assert demand_in(book, A, at(132)) == NO_DEMAND


def test_who_is_gone_asks_for_nothing() -> None:
    book = DemandBook()
    for peer in (ANNE, BERT):
        book.note(peer, (1, 1), (ModelDemand(A, 0, 1, 1),), at(0))
    book.keep_only({BERT})
    assert demand_in(book, A, at(0)) == Demand(0, 1, 1)


def test_the_book_is_bounded() -> None:
    book = DemandBook()
    for number in range(2 * MAX_KNOWN_PEERS):
        rows = tuple(ModelDemand(bytes([number % 256, row]) * 4, 0, 1, 1) for row in range(3 * MAX_ANNOUNCED_DEMANDS))
        book.note(PeerId(f"peer-{number}"), (1, 1), rows, at(0))
    assert len(book.models()) <= MAX_KNOWN_PEERS * MAX_ANNOUNCED_DEMANDS


@pytest.mark.parametrize(("models", "expected"), [([], {}), ([[A, A, B], [A]], {A: 2, B: 1})])
def test_servers_are_counted_once_a_peer(models: list[list[bytes]], expected: dict[bytes, int]) -> None:
    assert count_serving(models) == expected


@given(st.lists(st.tuples(st.integers(0, 100_000), st.sampled_from([A, B, C])), max_size=60))
def test_windows_agree_with_a_list_of_all_requests(asked: list[tuple[int, bytes]]) -> None:
    """Slots are as coarse as a sixth of a minute and a twenty-fourth of a day, never coarser."""
    counters = DemandCounters()
    asked.sort()
    for second, model in asked:
        counters.count(model, at(second))
    now = 100_000
    for model in (A, B, C):
        times = [second for second, one in asked if one == model]
        demand = counters.demand(model, at(now))
        assert sum(t > now - 60 for t in times) <= demand.per_minute <= sum(t > now - 71 for t in times)
        assert sum(t > now - 86_400 for t in times) <= demand.per_day <= sum(t > now - 90_001 for t in times)
