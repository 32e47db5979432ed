"""What every request meets, whatever the endpoint."""

import pytest
import trio
import trio.testing
from starlette.types import ASGIApp, Receive, Scope, Send

from p2pmesh.api.exchange import SEND_DEADLINE_S, ClientGone, Exchange, is_client_gone, send_json
from p2pmesh.base.errors import ErrorCode, Refused
from tests.fakes.asgi import AsgiClient


def wrapped(app: ASGIApp) -> Exchange:
    return Exchange(app, new_request_id=lambda: bytes(16), retry_after_s=lambda: 7)


async def test_every_answer_carries_a_request_id() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {})

    client = AsgiClient()
    await client.run(wrapped(app), "/")
    assert client.headers["x-request-id"] == "00" * 16


async def test_a_bug_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise KeyError("secret")

    client = AsgiClient()
    await client.run(wrapped(app), "/")
    assert (client.status, client.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in client.text
    assert "secret" in caplog.text


async def test_a_refusal_that_nobody_caught_keeps_its_code() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ExceptionGroup("nursery", [Refused(ErrorCode.OVERLOADED, "full")])

    client = AsgiClient()
    await client.run(wrapped(app), "/")
    assert (client.status, client.headers["retry-after"]) == (429, "7")


async def test_a_send_that_nobody_takes_ends(autojump_clock: trio.testing.MockClock) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {})

    async def stall(_: object) -> None:
        await trio.sleep_forever()

    client = AsgiClient(before_send=stall)
    await client.run(wrapped(app), "/")
    assert client.sent == []
    assert trio.current_time() == pytest.approx(SEND_DEADLINE_S)


async def test_other_scopes_pass_through() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def unused(*_: object) -> None:
        raise AssertionError

    await wrapped(app)({"type": "lifespan"}, unused, unused)  # type: ignore[arg-type]
    assert seen == ["lifespan"]


def test_a_client_that_left_is_found_in_a_group() -> None:
    assert is_client_gone(ExceptionGroup("a", [ValueError(), ExceptionGroup("b", [ClientGone()])]))
    assert not is_client_gone(ValueError())
