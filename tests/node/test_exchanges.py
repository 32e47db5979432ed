"""What an ingress makes of a remote driver's messages."""

import pytest

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.node.exchanges import _event_of
from p2pmesh.wire.control import Refusal, Started


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("overloaded", ErrorCode.OVERLOADED),
        ("context_length_exceeded", ErrorCode.CONTEXT_LENGTH_EXCEEDED),
        ("invite_expired", ErrorCode.INTERNAL),
        ("unauthorized", ErrorCode.INTERNAL),
        ("no such code", ErrorCode.INTERNAL),
    ],
)
def test_a_driver_refuses_a_generation_only_by_a_generations_codes(said: str, heard: ErrorCode) -> None:
    with pytest.raises(RemoteProtocolError, match="why") as caught:
        _event_of(Refusal(said, "why"))
    assert caught.value.code is heard


@pytest.mark.parametrize("cached", [3, 4, 1000])
def test_no_more_of_a_prompt_is_cached_than_all_but_its_last_token(cached: int) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        _event_of(Started((1, 2, 3), bytes(16), "fp", 9, cached_tokens=cached))
    assert caught.value.code is ErrorCode.MESSAGE_MALFORMED
