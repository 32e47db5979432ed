from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.draws import Draws
from p2pmesh.core.probe_order import ProbeOrder

INTERVAL_US = 10


def order_of(count: int, seed: int = 1) -> ProbeOrder:
    order = ProbeOrder(Draws(seed), INTERVAL_US)
    for number in range(count):
        order.add(PeerId(f"p{number}"))
    return order


@given(st.integers(1, 20), st.integers(0, 2**32), st.integers(1, 5))
def test_every_peer_has_one_turn_in_each_pass(count: int, seed: int, passes: int) -> None:
    order = order_of(count, seed)
    for _ in range(passes):
        assert sorted(order.take() for _ in range(count)) == sorted(order)


@given(st.integers(2, 12), st.integers(0, 2**32), st.data())
def test_who_leaves_costs_nobody_else_a_turn(count: int, seed: int, data: st.DataObject) -> None:
    order = order_of(count, seed)
    before = [order.take() for _ in range(data.draw(st.integers(0, count - 1)))]
    gone = data.draw(st.sampled_from(sorted(order)))
    order.remove(gone)
    after = [order.take() for _ in range(count - len(before) - (gone not in before))]
    turns = Counter(peer for peer in before + after if peer != gone)
    assert turns == Counter(dict.fromkeys(order, 1))
    assert len(order) == count - 1


def test_the_seed_makes_the_order() -> None:
    def taken(seed: int) -> list[PeerId]:
        order = order_of(20, seed)
        return [order.take() for _ in range(20)]

    assert taken(1) == taken(1) != taken(2)


def test_an_urgent_peer_is_taken_once_and_another_only_two_rounds_later() -> None:
    order = order_of(3)
    order.hurry(PeerId("p1"), Micros(100))
    order.hurry(PeerId("p2"), Micros(100))
    assert order.take_urgent() == "p1"
    assert order.take_urgent() is None
    order.hurry(PeerId("p2"), Micros(100 + 2 * INTERVAL_US - 1))
    assert order.take_urgent() is None
    order.hurry(PeerId("p2"), Micros(100 + 2 * INTERVAL_US))
    assert order.take_urgent() == "p2"
