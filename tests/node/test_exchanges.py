"""What an ingress makes of a remote driver's messages."""

import pytest

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.node.exchanges import _event_of
from p2pmesh.wire.control import Refusal


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
