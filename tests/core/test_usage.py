from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.core.usage import MAX_USERS, MOST, OTHERS, Ledger, Totals, Use


def test_tokens_and_requests_of_a_peer_and_a_model_add_up() -> None:
    ledger = Ledger(Totals())
    ledger.note_use(Use("p", "", "m", 3, 1, 10))
    ledger.note_use(Use("p", "Pia", "m", 4, 0, 20))
    ledger.note_use(Use("q", "", "m", 1, 1, 5))
    totals = ledger.totals()
    assert (totals.tokens, totals.requests) == (8, 2)
    assert totals.uses == (Use("p", "Pia", "m", 7, 1, 20), Use("q", "", "m", 1, 1, 5))


def test_a_name_that_is_not_known_any_more_stays() -> None:
    ledger = Ledger(Totals(uses=(Use("p", "Pia", "m", 7, 1, 20),)))
    ledger.note_use(Use("p", "", "m", 1, 0, 30))
    assert ledger.totals().uses[0].name == "Pia"


def test_what_came_lately_is_the_difference() -> None:
    ledger = Ledger(Totals())
    ledger.note_use(Use("p", "", "m", 3, 1, 10))
    before = ledger.totals()
    ledger.note_use(Use("q", "", "m", 5, 1, 10))
    ledger.note_bytes(7, 8)
    ledger.note_time(9, is_giving=True)
    ledger.note_time(1, is_giving=False)
    lately = ledger.totals().less(before)
    assert lately.uses == (Use("q", "", "m", 5, 1, 10),)
    assert (lately.tokens, lately.sent_bytes, lately.received_bytes, lately.up_s, lately.giving_s) == (5, 7, 8, 10, 9)


def test_whoever_came_longest_ago_joins_the_others() -> None:
    ledger = Ledger(Totals())
    for number in range(MAX_USERS + 3):
        ledger.note_use(Use(f"p{number:03}", "", "m", 1, 1, number))
    uses = {use.peer: use for use in ledger.totals().uses}
    assert len(uses) == MAX_USERS
    assert uses[OTHERS].tokens == 4
    assert "p000" not in uses
    assert f"p{MAX_USERS + 2:03}" in uses


@given(st.integers(0, MOST), st.integers(0, MOST))
def test_no_sum_grows_beyond_what_a_file_holds(one: int, other: int) -> None:
    ledger = Ledger(Totals(sent_bytes=one))
    ledger.note_bytes(other, 0)
    assert ledger.totals().sent_bytes == min(MOST, one + other)


class AnyOrder(RuleBasedStateMachine):
    """Uses in any order, and restarts between."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(Totals())
        self.tokens = 0

    @rule(peer=st.integers(0, 200), tokens=st.integers(0, 50), at=st.integers(0, 1000))
    def somebody_uses_it(self, peer: int, tokens: int, at: int) -> None:
        self.ledger.note_use(Use(f"p{peer}", "", "m", tokens, 1, at))
        self.tokens += tokens

    @rule(count=st.integers(1, 150))
    def many_use_it(self, count: int) -> None:
        for number in range(count):
            self.somebody_uses_it(1000 + number, 1, number)

    @rule()
    def the_node_restarts(self) -> None:
        self.ledger = Ledger(self.ledger.totals())

    @invariant()
    def every_token_is_somebodys(self) -> None:
        totals = self.ledger.totals()
        assert totals.tokens == self.tokens == sum(use.tokens for use in totals.uses)
        assert len(totals.uses) <= MAX_USERS


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
