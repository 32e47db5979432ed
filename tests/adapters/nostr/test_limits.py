"""What relays state about themselves, and what is made of it."""

import json
from dataclasses import replace
from typing import Any

import pytest
import trio

from p2pmesh.adapters.nostr.limits import NOTHING_STATED, StatedLimits, fetch_limits, limits_of
from p2pmesh.adapters.nostr.relays import trust_of_relays
from p2pmesh.ports.relays import PublishOutcome
from tests.adapters.nostr.real_relays import silent_server
from tests.adapters.nostr.test_relays import NOW_S, TIMEOUT_S, Wall, content_at, outcomes, relays_at


def test_limits_are_read_and_whatever_else_stands_there_is_not() -> None:
    stated = {"max_content_length": 8196, "max_message_length": 16384, "created_at_upper_limit": 900,
              "min_pow_difficulty": 30, "payment_required": True, "max_limit": 5000}  # fmt: skip
    document = json.dumps({"name": "a relay", "limitation": stated}).encode()
    assert limits_of(document) == StatedLimits(8196, 16384, 900)


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b"{", b'{"limitation": []}', b'{"limitation": {"max_content_length": "8196"}}', b"[" * 20_000,
     b'{"limitation": {"max_content_length": -1, "max_message_length": true}}'],
)  # fmt: skip
def test_a_document_that_is_none_states_nothing(document: bytes) -> None:
    assert limits_of(document) == NOTHING_STATED


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


async def served(answer: bytes, use: Any) -> Any:
    """What ``use`` makes of the URL of something that answers every connection with the same bytes."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(4096)
            await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        result = await use(f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}")
        nursery.cancel_scope.cancel()
    return result


async def test_limits_come_by_http() -> None:
    body = json.dumps({"limitation": {"max_content_length": 100}}).encode()
    found = await served(http_answer(body), lambda url: fetch_limits(url, trust_of_relays()))
    assert found == replace(NOTHING_STATED, max_content_bytes=100)


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0\r\n", http_answer(b"x" * 100_000), http_answer(b"", "404 Not Found")]
)
async def test_a_relay_that_says_nothing_of_use_has_no_limits(answer: bytes) -> None:
    assert await served(answer, lambda url: fetch_limits(url, trust_of_relays())) == NOTHING_STATED


async def test_a_listing_that_is_too_long_for_a_relay_is_not_said_there() -> None:
    body = json.dumps({"limitation": {"max_content_length": 100}}).encode()
    report = await served(http_answer(body), lambda url: relays_at(url).publish(content_at(Wall().seconds), TIMEOUT_S))
    assert outcomes(report) == [PublishOutcome.TOO_LARGE]
    assert "100 bytes" in report.replies[0].detail


async def test_something_that_is_no_relay_is_told_as_such() -> None:
    report = await served(
        http_answer(b"hello", "404 Not Found"), lambda url: relays_at(url).publish(content_at(NOW_S), TIMEOUT_S)
    )
    assert outcomes(report) == [PublishOutcome.UNREACHABLE]
    assert "HTTP 404" in report.replies[0].detail


async def test_a_silent_server_states_nothing_in_time() -> None:
    async with silent_server() as url:
        with trio.fail_after(TIMEOUT_S):
            assert await fetch_limits(url, trust_of_relays()) == NOTHING_STATED
