"""The applications on real sockets, and through the real SDK."""

import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import openai
import pytest
import trio
import trio.testing
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived, StreamReset
from starlette.types import ASGIApp

from p2pmesh.api import server
from p2pmesh.api.access import LOOPBACK_NAMES
from p2pmesh.api.exchange import BODY_DEADLINE_S
from p2pmesh.api.openai.app import AccessRules, openai_app
from p2pmesh.api.server import KEEP_ALIVE_S, bind_port, serve_app, url_of
from p2pmesh.base.errors import ConfigError, ErrorCode, PeerUnavailable, Refused
from p2pmesh.base.limits import MAX_HTTP_BODY_BYTES, MAX_HTTP_HEADER_BYTES
from p2pmesh.wire.generation import GenerationDelta
from tests.fakes.backend import FINGERPRINT, MODEL, RUN_ID, FakeBackend, say, started

T = TypeVar("T")
DRAIN_S = 60.0


class Served:
    """A served application: its URL, its port, and the event that stops it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = int(url.rsplit(":", 1)[1])
        self.shutdown = trio.Event()
        self.stopped = trio.Event()

    async def run(self, app: ASGIApp, sock: Any, **options: Any) -> None:
        await serve_app(app, sock, shutdown=self.shutdown, **{"drain_s": DRAIN_S, **options})
        self.stopped.set()

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


@asynccontextmanager
async def serving(app: ASGIApp, **options: Any) -> AsyncIterator[Served]:
    sock = bind_port("127.0.0.1", 0, "--port")
    served = Served(url_of(sock))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: served.run(app, sock, **options))
        yield served
        served.shutdown.set()


async def with_sdk(served: Served, call: Callable[[openai.OpenAI], T]) -> T:
    def run() -> T:
        with openai.OpenAI(base_url=served.url + "/v1", api_key="any", max_retries=0) as client:
            return call(client)

    return await trio.to_thread.run_sync(run)


def raw_request(is_streamed: bool, path: str = "/v1/chat/completions", **more: Any) -> bytes:
    asked = more or {"messages": [{"role": "user", "content": "hi"}]}
    body = json.dumps({"model": MODEL, "stream": is_streamed, **asked})
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


async def read_until(stream: trio.SocketStream, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        piece = await stream.receive_some(65_536)
        assert piece, f"{data!r} ended before {mark!r}"
        data += piece
    return data


async def read_to_end(stream: trio.SocketStream) -> bytes:
    data = b""
    while piece := await stream.receive_some(65_536):
        data += piece
    return data


H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
MESSAGES: Any = [{"role": "user", "content": "hi"}]


async def test_the_sdk_reads_a_whole_answer_and_its_headers() -> None:
    async with serving(openai_app(FakeBackend())) as served:
        raw = await with_sdk(
            served, lambda sdk: sdk.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
        )
        answer = raw.parse()
        assert answer.choices[0].message.content == "Hello"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.total_tokens == 5
        assert answer.system_fingerprint == FINGERPRINT
        assert raw.headers["x-p2pmesh-run-id"] == RUN_ID.hex()
        assert answer.id.endswith(raw.headers["x-request-id"])


async def test_the_sdk_reads_a_stream() -> None:
    def collect(sdk: openai.OpenAI) -> tuple[str, list[int]]:
        text, totals = "", []
        options: Any = {"include_usage": True}
        stream = sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, stream_options=options)
        for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            totals += [chunk.usage.total_tokens] if chunk.usage else []
        return text, totals

    async with serving(openai_app(FakeBackend(script=say("\u00e9", "\U0001f600", "\n")))) as served:
        assert await with_sdk(served, collect) == ("\u00e9\U0001f600\n", [6])


async def test_the_sdk_lists_models_and_completes() -> None:
    async with serving(openai_app(FakeBackend())) as served:
        models = await with_sdk(served, lambda sdk: [model.id for model in sdk.models.list()])
        assert models == [MODEL]
        assert (await with_sdk(served, lambda sdk: sdk.models.retrieve(MODEL))).id == MODEL
        answer = await with_sdk(served, lambda sdk: sdk.completions.create(model=MODEL, prompt="hi", max_tokens=3))
        assert answer.choices[0].text == "Hello"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.CONTEXT_LENGTH_EXCEEDED, openai.BadRequestError),
        (ErrorCode.MODEL_UNKNOWN, openai.NotFoundError),
        (ErrorCode.OVERLOADED, openai.RateLimitError),
        (ErrorCode.MODEL_NOT_READY, openai.InternalServerError),
    ],
)
async def test_the_sdk_raises_its_own_classes(code: ErrorCode, kind: type[openai.APIStatusError]) -> None:
    async with serving(openai_app(FakeBackend(entry_error=Refused(code, "not so")))) as served:
        with pytest.raises(kind, match="not so"):
            await with_sdk(served, lambda sdk: sdk.chat.completions.create(model=MODEL, messages=MESSAGES))


async def test_the_sdk_raises_an_error_of_the_stream() -> None:
    script = (started(), GenerationDelta((1,), "a"), PeerUnavailable(ErrorCode.PEER_LOST, "stage 1 is gone"))
    async with serving(openai_app(FakeBackend(script=script))) as served:
        with pytest.raises(openai.APIError, match="stage 1 is gone"):
            await with_sdk(
                served,
                lambda sdk: list(sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)),
            )


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_hanging_up_cancels_the_generation(is_streamed: bool) -> None:
    reached = trio.Event()

    async def hang() -> None:
        reached.set()
        await trio.sleep_forever()

    backend = FakeBackend(script=(started(), hang))
    async with serving(openai_app(backend)) as served:
        client = await served.connect()
        await client.send_all(raw_request(is_streamed))
        await reached.wait()
        await client.aclose()
        await backend.ended.wait()
        assert backend.outcomes == ["cancelled"]


async def test_a_client_that_stops_reading_is_dropped_and_its_generation_ends() -> None:
    backend = FakeBackend(script=(started(), *[GenerationDelta((1,), "x" * 1_000_000)] * 1_000))
    async with serving(openai_app(backend), send_deadline_s=0.2) as served:
        async with await served.connect() as client:
            await client.send_all(raw_request(is_streamed=True))
            await backend.ended.wait()
            assert backend.outcomes == ["cancelled"]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_events_that_the_socket_takes_in_parts_arrive_whole_and_in_order(is_streamed: bool) -> None:
    pieces = tuple(letter * 2**20 for letter in "abcdefgh")
    app = openai_app(FakeBackend(say(*pieces)))
    async with serving(app) as served, await served.connect() as client:
        await client.send_all(raw_request(is_streamed).replace(b"host: x", b"host: x\r\nconnection: close"))
        await trio.testing.wait_all_tasks_blocked(0.05)  # what fits has been sent
        body = b"".join([data async for data in client])
    places = [body.find(piece.encode()) for piece in pieces]
    assert -1 not in places
    assert places == sorted(places)


async def test_one_connection_serves_many_requests() -> None:
    async with serving(openai_app(FakeBackend())) as served:
        client = await served.connect()
        async with client:
            for _ in range(3):
                await client.send_all(raw_request(is_streamed=False))
                assert b"Hello" in await read_until(client, b"total_tokens")


async def test_a_running_request_may_end_while_the_server_drains() -> None:
    reached, may_end = trio.Event(), trio.Event()

    async def pause() -> None:
        reached.set()
        await may_end.wait()

    first, *rest = say("Hello")
    async with serving(openai_app(FakeBackend(script=(first, pause, *rest)))) as served:
        client = await served.connect()
        idle = await served.connect()
        async with client, idle:
            await client.send_all(raw_request(is_streamed=True))
            await reached.wait()
            served.shutdown.set()
            assert await idle.receive_some(1) == b""
            with pytest.raises(OSError, match="connect"):
                await served.connect()
            assert not served.stopped.is_set()
            may_end.set()
            assert b"[DONE]" in await read_to_end(client)
            await served.stopped.wait()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_connection_is_closed_once_its_last_request_has_ended(is_streamed: bool) -> None:
    """The drain has no deadline here: the test ends only if the connection closes by itself."""
    reached, may_end = trio.Event(), trio.Event()

    async def pause() -> None:
        reached.set()
        await may_end.wait()

    first, *rest = say("Hello")
    backend = FakeBackend(script=(first, pause, *rest))
    async with serving(openai_app(backend), drain_s=math.inf) as served, await served.connect() as client:
        await client.send_all(raw_request(is_streamed))
        await reached.wait()
        served.shutdown.set()
        may_end.set()
        assert b"Hello" in await read_to_end(client)
        await served.stopped.wait()


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}),
    ],
)
async def test_an_answer_that_outlasts_the_drain_ends_with_an_error(
    path: str, more: dict[str, Any], is_streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reached, drained = trio.Event(), trio.Event()

    async def hang() -> None:
        reached.set()
        await trio.sleep_forever()

    backend = FakeBackend(script=(started(), GenerationDelta((1,), "Hel"), hang))
    app = openai_app(backend)
    async with serving(app, drain_s=math.inf, drained=drained) as served, await served.connect() as client:
        await client.send_all(raw_request(is_streamed, path, **more))
        await reached.wait()
        served.shutdown.set()
        await trio.testing.wait_all_tasks_blocked()
        assert backend.outcomes == []  # until the drain is over
        drained.set()
        answer = await read_to_end(client)
        await served.stopped.wait()
    assert backend.outcomes == ["cancelled"]
    assert answer.startswith(b"HTTP/1.1 200" if is_streamed else b"HTTP/1.1 503")
    last = [line for line in answer.splitlines() if line.startswith((b"data: {", b"{"))][-1]
    assert b"this node stopped before the answer was whole; send the request again" in last
    if "messages" not in path:
        assert b"shutting_down" in last or b"server_error" in last
    if is_streamed:
        assert answer.endswith(b"0\r\n\r\n")
    assert "1 request was still running" in caplog.text


async def test_the_sdk_raises_what_the_end_of_a_drain_says() -> None:
    async def stop() -> None:
        served.shutdown.set()
        await trio.sleep_forever()

    script = (started(), GenerationDelta((1,), "a"), stop)
    async with serving(openai_app(FakeBackend(script=script)), drain_s=0.05) as served:
        with pytest.raises(openai.APIError, match="send the request again") as raised:
            await with_sdk(
                served, lambda sdk: list(sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
            )
        assert raised.value.code == "shutting_down"


async def test_a_drain_ends_at_its_deadline() -> None:
    reached = trio.Event()

    async def hang() -> None:
        reached.set()
        await trio.sleep_forever()

    backend = FakeBackend(script=(started(), hang))
    async with serving(openai_app(backend), drain_s=0.05) as served, await served.connect() as client:
        await client.send_all(raw_request(is_streamed=True))
        await reached.wait()
        served.shutdown.set()
        await served.stopped.wait()
        assert backend.outcomes == ["cancelled"]


async def test_a_drain_does_not_wait_for_a_send_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LAST_EVENTS_S", 0.05)
    backend = FakeBackend(script=(started(), *[GenerationDelta((1,), "x" * 1_000_000)] * 1_000))
    options = {"drain_s": 0.05, "send_deadline_s": math.inf}
    async with serving(openai_app(backend), **options) as served, await served.connect() as client:
        await client.send_all(raw_request(is_streamed=True))
        await read_until(client, b"xxx")
        served.shutdown.set()
        await served.stopped.wait()
        assert backend.ended.is_set()


async def test_a_body_over_the_limit_is_answered_not_cut_off() -> None:
    async with serving(openai_app(FakeBackend())) as served:
        body = b" " * (MAX_HTTP_BODY_BYTES + 1)
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.post(f"{served.url}/v1/chat/completions", content=body)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


async def test_a_body_that_is_never_read_to_its_end_is_refused_at_once() -> None:
    """Nothing of it is sent: the test ends only if the answer comes without it."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n"
    async with serving(openai_app(FakeBackend())) as served, await served.connect() as client:
        await client.send_all(head)
        with trio.fail_after(BODY_DEADLINE_S / 2):
            answer = await read_to_end(client)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"request_too_large" in answer


def http2(served: Served) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=served.url, http1=False, http2=True, trust_env=False)


CHAT: Any = {"model": MODEL, "messages": MESSAGES}


async def test_http_2_serves_answers_and_streams_at_a_time_on_one_connection() -> None:
    arrived, may_end = [], trio.Event()

    async def meet() -> None:
        arrived.append(None)
        if len(arrived) == 8:
            may_end.set()
        await may_end.wait()

    answers: list[httpx.Response] = []
    first, *rest = say("Hel", "lo")
    async with serving(openai_app(FakeBackend(script=(first, meet, *rest))), max_connections=1) as served:
        async with http2(served) as client, trio.open_nursery() as nursery:

            async def ask(is_streamed: bool) -> None:
                answers.append(await client.post("/v1/chat/completions", json={**CHAT, "stream": is_streamed}))

            for number in range(8):
                nursery.start_soon(ask, number % 2 == 0)
    assert {(answer.http_version, answer.status_code) for answer in answers} == {("HTTP/2", 200)}
    assert sum("[DONE]" in answer.text for answer in answers) == 4
    assert sum('"Hello"' in answer.text for answer in answers) == 4


class RawHttp2:
    """A client that does frames by hand: it may reset one stream, or give no window."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._h2 = H2Connection(H2Configuration(validate_outbound_headers=False))
        self._h2.initiate_connection()
        self._number = 0
        self._reset: set[int] = set()
        self.statuses: list[bytes] = []

    async def request(
        self, path: str, body: bytes = b"", more: dict[str, str | None] | None = None, *, is_whole: bool = True
    ) -> int:
        self._number = self._h2.get_next_available_stream_id()
        method = "POST" if body else "GET"
        named = {":method": method, ":path": path, ":scheme": "http", ":authority": "localhost"} | (more or {})
        headers = [(name, value) for name, value in named.items() if value is not None]
        self._h2.send_headers(self._number, headers, end_stream=not body)
        if body:
            self._h2.send_data(self._number, body, end_stream=is_whole)
        await self._flush()
        return int(self._number)

    async def send_more(self, body: bytes) -> None:
        self._h2.send_data(self._number, body, end_stream=True)
        await self._flush()

    async def reset(self, number: int) -> None:
        self._h2.reset_stream(number)
        await self._flush()

    async def read_until(self, mark: bytes) -> None:
        seen = b""
        self._h2.increment_flow_control_window(2**20)
        await self._flush()
        while mark not in seen:
            seen += await self._read(f"{seen!r} ended before {mark!r}")

    async def wait_reset(self, number: int) -> bool:
        """Whether the server broke a stream off; gives no window meanwhile."""
        while number not in self._reset:
            await self._read("it ended without a reset")
        return True

    async def _read(self, problem: str) -> bytes:
        seen = b""
        data = await self._stream.receive_some(65_536)
        assert data, problem
        for event in self._h2.receive_data(data):
            seen += getattr(event, "data", b"") or b""
            if isinstance(event, ResponseReceived):
                self.statuses.append(dict(event.headers)[b":status"])
            if isinstance(event, StreamReset):
                self._reset.add(event.stream_id)
        await self._flush()
        return seen

    async def _flush(self) -> None:
        await self._stream.send_all(self._h2.data_to_send())


STREAMED = json.dumps({**CHAT, "stream": True}).encode()


async def test_over_http_2_hanging_up_on_one_request_cancels_that_one() -> None:
    reached = trio.Event()

    async def hang() -> None:
        reached.set()
        await trio.sleep_forever()

    backend = FakeBackend(script=(started(), hang))
    async with serving(openai_app(backend)) as served, await served.connect() as stream:
        client = RawHttp2(stream)
        number = await client.request("/v1/chat/completions", STREAMED)
        await reached.wait()
        await client.reset(number)
        await backend.ended.wait()
        assert backend.outcomes == ["cancelled"]
        await client.request("/v1/models")
        await client.read_until(MODEL.encode())


async def test_over_http_2_bodies_and_errors_are_as_over_http_1() -> None:
    async with serving(openai_app(FakeBackend())) as served, http2(served) as client:
        refused = await client.post("/v1/chat/completions", content=b" " * (MAX_HTTP_BODY_BYTES + 1))
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
        assert (await client.get("/nowhere")).status_code == 404


@pytest.mark.parametrize("preface", [H2_PREFACE, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" + H2_PREFACE])
async def test_a_silent_http_2_connection_is_closed(preface: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.2)
    async with serving(openai_app(FakeBackend())) as served, await served.connect() as client:
        await client.send_all(preface)
        with trio.fail_after(30):
            await read_to_end(client)


async def test_a_drain_ends_http_2_connections_once_their_requests_have_ended() -> None:
    reached, may_end = trio.Event(), trio.Event()

    async def pause() -> None:
        reached.set()
        await may_end.wait()

    first, *rest = say("Hello")
    answers: list[httpx.Response] = []
    async with (
        serving(openai_app(FakeBackend(script=(first, pause, *rest))), drain_s=math.inf) as served,
        http2(served) as client,
        trio.open_nursery() as nursery,
    ):

        async def ask() -> None:
            answers.append(await client.post("/v1/chat/completions", json=CHAT))

        nursery.start_soon(ask)
        await reached.wait()
        served.shutdown.set()
        may_end.set()
        await served.stopped.wait()
    assert "Hello" in answers[0].text


def many_tokens(count: int) -> tuple[Any, Callable[[], int]]:
    """A script that says little at a time, and how often it was asked for more."""
    told: list[None] = []

    async def note() -> None:
        told.append(None)

    steps = [step for _ in range(count) for step in (note, GenerationDelta((1,), "x" * 20))]
    return (started(), *steps), lambda: len(told)


async def test_over_http_2_a_client_that_gives_no_window_loses_its_request_alone() -> None:
    script, told = many_tokens(10_000)
    backend = FakeBackend(script=script)
    async with serving(openai_app(backend), send_deadline_s=0.2) as served, await served.connect() as stream:
        client = RawHttp2(stream)
        number = await client.request("/v1/chat/completions", STREAMED)
        await backend.ended.wait()
        assert backend.outcomes == ["cancelled"]
        assert told() < 1000  # what window and buffers hold, not all of it
        assert await client.wait_reset(number)
        await client.request("/livez")
        await client.read_until(b"live")


async def test_over_http_2_an_answer_that_breaks_off_is_no_whole_one() -> None:
    async def answer_half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async with serving(answer_half) as served, await served.connect() as stream:
        client = RawHttp2(stream)
        assert await client.wait_reset(await client.request("/"))


async def test_a_large_answer_comes_whole_over_http_2() -> None:
    text = "0123456789abcdef" * 2**17
    async with serving(openai_app(FakeBackend(say(text)))) as served, http2(served) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
        assert answer.json()["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("more", [b"", b"{}"])
async def test_over_http_2_too_many_headers_are_told_so_and_the_connection_goes_on(more: bytes) -> None:
    async with serving(openai_app(FakeBackend())) as served, await served.connect() as stream:
        client = RawHttp2(stream)
        await client.request("/v1/models", more, {"x-much": "a" * MAX_HTTP_HEADER_BYTES})
        await client.read_until(b"64 KiB")
        assert client.statuses[-1] == b"431"
        await client.request("/v1/models")
        await client.read_until(MODEL.encode())


async def test_over_http_2_a_body_that_comes_after_its_answer_costs_nothing() -> None:
    async with serving(openai_app(FakeBackend())) as served, await served.connect() as stream:
        client = RawHttp2(stream)
        await client.request("/nowhere", b"x", is_whole=False)
        await client.read_until(b"there is no")
        await client.send_more(b"y" * 1000)
        await client.request("/v1/models")
        await client.read_until(MODEL.encode())


@pytest.mark.parametrize("headers", [{":path": None, ":scheme": None}, {":protocol": "websocket"}])
async def test_over_http_2_tunnels_are_refused(headers: dict[str, str | None]) -> None:
    async with serving(openai_app(FakeBackend())) as served, await served.connect() as stream:
        client = RawHttp2(stream)
        await client.request("/v1/models", b"", {":method": "CONNECT", **headers})
        await client.read_until(b"method_not_allowed")
        assert client.statuses[-1] == b"405"


async def test_an_offer_of_http_2_is_passed_over() -> None:
    offer = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    async with serving(openai_app(FakeBackend())) as served, await served.connect() as client:
        await client.send_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + offer + b"\r\n")
        with trio.fail_after(KEEP_ALIVE_S * 2):
            answer = await read_until(client, MODEL.encode())
        assert answer.startswith(b"HTTP/1.1 200")


async def test_a_connection_too_many_is_closed() -> None:
    async with serving(openai_app(FakeBackend()), max_connections=1) as served, await served.connect() as first:
        await first.send_all(raw_request(is_streamed=False))
        await read_until(first, b"Hello")
        async with await served.connect() as second:
            assert await second.receive_some(1) == b""


@pytest.mark.parametrize("is_http2", [False, True])
async def test_a_connection_that_its_client_closed_counts_no_more(is_http2: bool) -> None:
    async with serving(openai_app(FakeBackend()), max_connections=1) as served:
        for _ in range(3):
            async with await served.connect() as client:
                if is_http2:
                    raw = RawHttp2(client)
                    await raw.request("/v1/models")
                    await raw.read_until(MODEL.encode())
                else:
                    await client.send_all(raw_request(is_streamed=False))
                    await read_until(client, b"Hello")
            await trio.testing.wait_all_tasks_blocked(0.05)


@pytest.mark.parametrize(
    ("request_bytes", "status", "said"),
    [
        (b"GET / HTTP/1.1\r\nx: " + b"a" * (MAX_HTTP_HEADER_BYTES + 1), 431, "64 KiB"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, "not a request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "not a request"),
        (b"\x16\x03\x01\x02\r\n\r\n", 400, "http://"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n", 501, "transfer-encoding"),
    ],
)
async def test_what_cannot_be_read_is_refused_in_the_shape_of_all_errors(
    request_bytes: bytes, status: int, said: str
) -> None:
    async with serving(openai_app(FakeBackend())) as served, await served.connect() as client:
        await client.send_all(request_bytes)
        head, _, body = (await read_to_end(client)).partition(b"\r\n\r\n")
        error = json.loads(body)["error"]
        assert head.startswith(b"HTTP/1.1 %d" % status)
        assert b"content-type: application/json" in head
        assert error.keys() == {"message", "type", "param", "code"}
        assert said in error["message"]


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/v1/models", b"localhost", 200),
        (b"HTTP://localhost:80/v1/models?x=1", b"wrong.example", 200),  # the target counts, whatever the header says
        (b"https://user@localhost/v1/models", b"localhost", 200),
        (b"http://wrong.example/v1/models", b"localhost", 403),
        (b"http://localhost", b"localhost", 404),
        (b"http://localhost?x", b"localhost", 404),
    ],
)
async def test_a_whole_url_as_the_target_is_taken(target: bytes, host: bytes, status: int) -> None:
    rules = AccessRules(host_names=LOOPBACK_NAMES)
    async with serving(openai_app(FakeBackend(), rules)) as served, await served.connect() as client:
        await client.send_all(b"GET " + target + b" HTTP/1.1\r\nhost: " + host + b"\r\n\r\n")
        assert (await read_until(client, b"}")).startswith(b"HTTP/1.1 %d" % status)


async def test_a_websocket_is_told_what_there_is_instead() -> None:
    offer = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n"
    async with serving(openai_app(FakeBackend())) as served, await served.connect() as client:
        await client.send_all(b"GET /v1/responses HTTP/1.1\r\nhost: x\r\n" + offer + b"\r\n")
        answer = await read_until(client, b"}}")
        assert answer.startswith(b"HTTP/1.1 405")
        assert b"send POST" in answer
        await client.send_all(raw_request(is_streamed=False))
        assert (await read_until(client, b"}}")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "junk", [b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxx" * 9]
)
async def test_junk_costs_its_own_connection_only(junk: bytes) -> None:
    async with serving(openai_app(FakeBackend())) as served:
        async with await served.connect() as client:
            await client.send_all(junk)
            await client.send_eof()
            await read_to_end(client)
        assert await with_sdk(served, lambda sdk: [model.id for model in sdk.models.list()]) == [MODEL]


def test_a_port_in_use_names_the_port_and_the_flag() -> None:
    with bind_port("127.0.0.1", 0, "--port") as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use.*--console-port") as raised:
            bind_port("127.0.0.1", port, "--console-port")
    assert raised.value.code is ErrorCode.PORT_IN_USE


def test_a_foreign_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="--host") as raised:
        bind_port("192.0.2.1", 0, "--port")
    assert raised.value.code is ErrorCode.ADDRESS_INVALID


def test_urls() -> None:
    with bind_port("127.0.0.1", 0, "--port") as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
