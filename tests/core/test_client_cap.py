from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.core.client_cap import ClientCap
from p2pmesh.core.lane_queue import Claimant

ONE, OTHER = Claimant("p", b"1"), Claimant("p", b"2")


def test_a_client_counts_once_however_much_it_asks() -> None:
    cap = ClientCap(1)
    assert cap.enter(ONE)
    assert cap.enter(ONE)
    assert not cap.enter(OTHER)
    cap.leave(ONE)
    assert not cap.enter(OTHER)
    cap.leave(ONE)
    assert cap.enter(OTHER)


def test_none_is_any_number_and_zero_is_nobody() -> None:
    assert all(ClientCap().enter(Claimant("p", bytes([n]))) for n in range(99))
    assert not ClientCap(0).enter(ONE)


def test_a_lower_cap_cuts_nobody_off() -> None:
    cap = ClientCap(2)
    assert cap.enter(ONE)
    assert cap.enter(OTHER)
    cap.most = 1
    assert cap.enter(ONE)
    assert cap.served == 2


class AnyOrder(RuleBasedStateMachine):
    """Clients that come and go under a cap that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.cap = ClientCap(2)
        self.open: Counter[int] = Counter()

    @rule(client=st.integers(0, 5))
    def somebody_asks(self, client: int) -> None:
        is_known, before = self.open[client] > 0, self.cap.served
        is_served = self.cap.enter(Claimant("p", bytes([client])))
        assert is_served is (is_known or self.cap.most is None or before < self.cap.most)
        self.open[client] += is_served

    @rule(client=st.integers(0, 5))
    def a_request_ends(self, client: int) -> None:
        if self.open[client]:
            self.open[client] -= 1
            self.cap.leave(Claimant("p", bytes([client])))

    @rule(most=st.none() | st.integers(0, 4))
    def the_owner_wants_otherwise(self, most: int | None) -> None:
        self.cap.most = most

    @invariant()
    def it_counts_who_is_there(self) -> None:
        assert self.cap.served == sum(count > 0 for count in self.open.values())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
