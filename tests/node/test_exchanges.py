"""What an ingress makes of a remote driver's messages."""

from typing import Any, cast

import pytest

from p2pmesh.base.errors import ErrorCode, Refused, RemoteProtocolError
from p2pmesh.base.limits import MAX_RETRY_AFTER_S
from p2pmesh.node.channels import error_of, refusal_of
from p2pmesh.node.exchanges import DriverExchanges, _event_of
from p2pmesh.wire.messages.answers import Refusal
from p2pmesh.wire.messages.generation import Generate, SamplingEntry, Started


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


def test_a_driver_that_refuses_for_a_while_says_for_how_long() -> None:
    told = error_of(refusal_of(ErrorCode.OVERLOADED, "full", 41))
    assert (told.code, told.retry_after_s) == (ErrorCode.OVERLOADED, 41)
    with pytest.raises(RemoteProtocolError) as caught:
        _event_of(refusal_of(ErrorCode.OVERLOADED, "full", 10**9))
    assert caught.value.retry_after_s == MAX_RETRY_AFTER_S


@pytest.mark.parametrize("cached", [3, 4, 1000])
def test_no_more_of_a_prompt_is_cached_than_all_but_its_last_token(cached: int) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        _event_of(Started((1, 2, 3), bytes(16), "fp", 9, cached_tokens=cached))
    assert caught.value.code is ErrorCode.MESSAGE_MALFORMED


class Desk:
    """An overlay that keeps what would serve it, and drivers of a model or two."""

    def __init__(self, *models: str) -> None:
        self.served: dict[type, Any] = {}
        self._models = models

    def serve_exchange(self, kind: type, serve: Any) -> None:
        self.served[kind] = serve

    def find_published(self, model: str) -> Any:
        return object() if model in self._models else None


@pytest.mark.parametrize("name", ["mesh", "auto", "third"])
async def test_a_driver_resolves_no_name_but_those_of_its_runs(name: str) -> None:
    """A request that was fanned out cannot fan out again, whatever an ingress writes."""
    desk = Desk("one", "two")
    DriverExchanges(cast(Any, desk), cast(Any, desk), cast(Any, None))
    sampling = SamplingEntry(1.0, 0, 1.0, 0.0, 0.0, 0.0, 1.0, 7)
    with pytest.raises(Refused) as caught:
        await desk.served[Generate](None, Generate(bytes(16), name, sampling, None, "hello"))
    assert caught.value.code is ErrorCode.MODEL_NOT_READY
