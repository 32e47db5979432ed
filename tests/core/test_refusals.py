"""Refusals are counted per peer and reason, and told once an hour."""

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.refusals import MAX_REMEMBERED, TELL_AGAIN_US, RefusalBook

A, B = PeerId("a"), PeerId("b")
OUT = ErrorCode.PEER_REMOVED


def test_the_same_refusal_is_told_once_an_hour_with_its_count() -> None:
    book = RefusalBook()
    told = [book.note(A, OUT, "direct_proof_revoked: out", Micros(second * 1_000_000)) for second in range(100)]
    assert told == [1] + 99 * [0]
    assert book.note(A, OUT, "direct_proof_revoked: out", Micros(TELL_AGAIN_US)) == 100
    assert book.describe(16) == [
        {"peer_id": A, "code": "peer_removed", "message": "direct_proof_revoked: out", "count": 101}
    ]


def test_another_peer_or_reason_is_another_line_and_a_changing_number_is_not() -> None:
    book = RefusalBook()
    assert book.note(A, OUT, "direct_proof_revoked: out", Micros(0)) == 1
    assert book.note(B, OUT, "direct_proof_revoked: out", Micros(0)) == 1
    assert book.note(A, ErrorCode.INVITE_EXPIRED, "bootstrap_token_expired: 3 minutes ago", Micros(0)) == 1
    assert book.note(A, ErrorCode.INVITE_EXPIRED, "bootstrap_token_expired: 4 minutes ago", Micros(1)) == 0
    assert [(shown["peer_id"], shown["count"]) for shown in book.describe(16)] == [(A, 1), (B, 1), (A, 2)]
    assert len(book.describe(2)) == 2


def test_strangers_without_end_take_no_memory_without_end() -> None:
    book = RefusalBook()
    for number in range(2 * MAX_REMEMBERED):
        assert book.note(PeerId(f"stranger {number}"), OUT, "no", Micros(0)) == 1
    shown = book.describe(10_000)
    assert len(shown) == MAX_REMEMBERED
    assert shown[-1]["peer_id"] == f"stranger {2 * MAX_REMEMBERED - 1}"
