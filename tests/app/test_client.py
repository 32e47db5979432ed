"""The commands against a served node whose backend is a fake."""

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from starlette.types import ASGIApp, Receive, Scope, Send

from p2pmesh.api.console import console_app
from p2pmesh.api.exchange import send_json
from p2pmesh.api.openai.app import openai_app
from p2pmesh.api.server import bind_port, serve_app, url_of
from p2pmesh.app import client, node_watch
from p2pmesh.app.client import fetch_status, run_chat
from p2pmesh.app.config import ChatOptions
from p2pmesh.app.run_file import RunFile, write_run_file
from p2pmesh.app.silence import SILENCE_S
from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable, Refused
from p2pmesh.wire.generation import ChatMessage, GenerationDelta
from tests.fakes.backend import MODEL, FakeBackend, say, started

T = TypeVar("T")
TOKEN = "token"


@asynccontextmanager
async def node(home: Path, backend: FakeBackend, api: ASGIApp | None = None, token: str = TOKEN) -> AsyncIterator[None]:
    shutdown = trio.Event()
    socks = [bind_port("127.0.0.1", 0, "--port") for _ in range(2)]
    write_run_file(home, RunFile(os.getpid(), url_of(socks[0]), url_of(socks[1]), token, "peer"))
    apps = (api or openai_app(backend), console_app(backend, TOKEN))
    async with trio.open_nursery() as nursery:
        for app, sock in zip(apps, socks, strict=True):
            nursery.start_soon(lambda app=app, sock=sock: serve_app(app, sock, shutdown=shutdown, drain_s=5))
        try:
            yield
        finally:
            shutdown.set()


async def in_thread(call: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(call)


async def chat(home: Path, **options: Any) -> str:
    pieces: list[str] = []
    await in_thread(lambda: run_chat(ChatOptions(home, MODEL, "hi", **options), pieces.append))
    return "".join(pieces)


async def refusal(home: Path) -> P2PMeshError:
    with pytest.raises(P2PMeshError) as raised:
        await chat(home)
    return raised.value


async def test_chat_prints_the_answer(tmp_path: Path) -> None:
    backend = FakeBackend(script=say("Hel", "l\u00f6\n", held_back="!"))
    async with node(tmp_path, backend):
        assert await chat(tmp_path, system="be brief", max_tokens=9, seed=3, temperature=0.0) == "Hell\u00f6\n!"
    request = backend.requests[0]
    assert request.prompt.messages == (ChatMessage("system", "be brief"), ChatMessage("user", "hi"))
    assert (request.max_tokens, request.sampling.seed, request.sampling.temperature) == (9, 3, 0.0)


@pytest.mark.parametrize("code", [ErrorCode.MODEL_UNKNOWN, ErrorCode.MODEL_NOT_READY, ErrorCode.OVERLOADED])
async def test_a_refusal_keeps_its_code(tmp_path: Path, code: ErrorCode) -> None:
    async with node(tmp_path, FakeBackend(entry_error=Refused(code, "not so"))):
        error = await refusal(tmp_path)
    assert (error.code, error.message) == (code, "not so")


async def test_an_error_in_the_stream_keeps_its_code(tmp_path: Path) -> None:
    script = (started(), GenerationDelta((1,), "a"), PeerUnavailable(ErrorCode.PEER_LOST, "stage 1 is gone"))
    async with node(tmp_path, FakeBackend(script=script)):
        error = await refusal(tmp_path)
    assert (error.code, error.message) == (ErrorCode.PEER_LOST, "stage 1 is gone")


async def test_a_silence_is_told_and_the_answer_goes_on(tmp_path: Path) -> None:
    unbegun, stalled = threading.Event(), threading.Event()
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        (stalled if "stalled" in line else unbegun).set()

    def awaiting(event: threading.Event) -> Callable[[], Awaitable[None]]:
        async def wait() -> None:
            assert await trio.to_thread.run_sync(event.wait, 20)

        return wait

    first, *rest = say("Hel", "lo")
    script = (first, awaiting(unbegun), rest[0], awaiting(stalled), *rest[1:])
    pieces: list[str] = []
    async with node(tmp_path, FakeBackend(script=script)):
        await in_thread(lambda: run_chat(ChatOptions(tmp_path, MODEL, "hi"), pieces.append, tell, silence_s=0.05))
    assert "".join(pieces) == "Hello"
    assert "the answer has not begun" in told[0]
    assert "another is sought to go on" in told[-1]


@pytest.mark.parametrize("answer", [[], {"error": 5}, {"error": {"code": "x"}}, "text"])
async def test_what_is_no_node_is_said_so(tmp_path: Path, answer: object) -> None:
    async def stranger(scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 418, answer)

    async with node(tmp_path, FakeBackend(), stranger):
        error = await refusal(tmp_path)
    assert error.code in {ErrorCode.MESSAGE_MALFORMED, ErrorCode.INTERNAL}


@pytest.mark.parametrize(
    "line", [b"data: {\n\n", b"data: []\n\n", b'data: {"a": 1}\n\n', b'data: {"choices": [5]}\n\n', b""]
)
async def test_a_stream_that_is_none_is_said_so(tmp_path: Path, line: bytes) -> None:
    async def stranger(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": line})

    async with node(tmp_path, FakeBackend(), stranger):
        error = await refusal(tmp_path)
    assert error.code is (ErrorCode.MESSAGE_MALFORMED if line else ErrorCode.PEER_LOST)


async def test_status_carries_the_token(tmp_path: Path) -> None:
    async with node(tmp_path, FakeBackend()):
        assert await in_thread(lambda: fetch_status(tmp_path)) == {"peer_id": "fake", "models": [MODEL]}


async def test_status_with_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with node(tmp_path, FakeBackend(), token="stale"):
        with pytest.raises(P2PMeshError) as raised:
            await in_thread(lambda: fetch_status(tmp_path))
    assert raised.value.code is ErrorCode.UNAUTHORIZED


async def test_a_node_that_stands_still_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.CONSOLE_TIMEOUT_S <= 10
    monkeypatch.setattr(client, "CONSOLE_TIMEOUT_S", 0.2)
    with bind_port("127.0.0.1", 0, "--port") as sock:  # it listens, and nobody takes what comes
        write_run_file(tmp_path, RunFile(os.getpid(), url_of(sock), url_of(sock), TOKEN, "peer"))
        with pytest.raises(Refused) as raised:
            await in_thread(lambda: fetch_status(tmp_path))
    assert raised.value.code is ErrorCode.DEADLINE_EXCEEDED


async def test_a_frozen_node_is_told_from_one_that_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SILENCE_S + node_watch.LIFE_DEADLINE_S < 8
    monkeypatch.setattr(node_watch, "LIFE_DEADLINE_S", 0.2)
    monkeypatch.setattr(client, "CONSOLE_TIMEOUT_S", 20.0)
    with bind_port("127.0.0.1", 0, "--port") as sock:
        write_run_file(tmp_path, RunFile(os.getpid(), url_of(sock), url_of(sock), TOKEN, "peer"))
        for ask in (
            lambda: fetch_status(tmp_path),
            lambda: run_chat(ChatOptions(tmp_path, MODEL, "hi"), lambda text: None, silence_s=0.05),
        ):
            with pytest.raises(PeerUnavailable) as raised:
                await in_thread(ask)
            assert raised.value.code is ErrorCode.NODE_UNRESPONSIVE


async def test_a_run_file_with_no_url_is_no_node(tmp_path: Path) -> None:
    write_run_file(tmp_path, RunFile(os.getpid(), "http://[::1", "http://[::1", TOKEN, "peer"))
    with pytest.raises(P2PMeshError, match="not a p2pmesh node"):
        await in_thread(lambda: fetch_status(tmp_path))


async def test_a_node_that_does_not_answer_is_not_running(tmp_path: Path) -> None:
    with bind_port("127.0.0.1", 0, "--port") as sock:
        url = url_of(sock)
    write_run_file(tmp_path, RunFile(os.getpid(), url, url, TOKEN, "peer"))
    assert (await refusal(tmp_path)).code is ErrorCode.NODE_NOT_RUNNING
