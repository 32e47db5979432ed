"""The order of things on a connection, over ASGI and a clock of our own."""

import json
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing
from starlette.types import Message

from p2pmesh.api.exchange import BODY_DEADLINE_S, PING_AFTER_SILENCE_S, SEND_DEADLINE_S
from p2pmesh.api.openai.app import openai_app
from p2pmesh.base.errors import EngineError, ErrorCode, PeerUnavailable, Refused
from p2pmesh.base.limits import MAX_HTTP_BODY_BYTES, MAX_PROMPT_TOKENS
from p2pmesh.wire.generation import FinishReason, GenerationDelta, GenerationFinished
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import FINGERPRINT, MODEL, RUN_ID, FakeBackend, say, started

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def chat_body(**changes: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": MESSAGES, **changes}).encode()


def usage_of(prompt: int, completion: int, reasoning: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


async def ask(backend: FakeBackend, path: str = CHAT, body: bytes | None = None, **changes: Any) -> AsgiClient:
    client = AsgiClient(chat_body(**changes) if body is None else body)
    await client.run(openai_app(backend), path)
    return client


async def never_reads(_: Message) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_route_whose_owners_are_verified_is_called_so(is_streamed: bool) -> None:
    script = (replace(started(), is_verified=True), *say("a")[1:])
    client = await ask(FakeBackend(script=script), stream=is_streamed)
    assert client.headers["x-p2pmesh-verified"] == "yes"


async def test_a_whole_answer() -> None:
    backend = FakeBackend(script=say("Hel", "", "lo", held_back="!", reason=FinishReason.LENGTH))
    client = await ask(backend)
    assert client.status == 200
    assert client.headers["x-p2pmesh-run-id"] == RUN_ID.hex()
    assert client.headers["x-p2pmesh-model-digest"] == "ab" * 32
    assert client.headers["x-p2pmesh-stages"] == "peer-a 0-10, peer-b 10-22"
    assert client.headers["x-p2pmesh-verified"] == "no"
    assert client.headers["x-request-id"] == backend.requests[0].request_id.hex()
    assert client.json() == {
        "id": "chatcmpl-" + backend.requests[0].request_id.hex(),
        "object": "chat.completion",
        "created": 1_700_000_123,
        "model": MODEL,
        "system_fingerprint": FINGERPRINT,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": usage_of(3, 3),
    }
    assert backend.outcomes == ["left"]


async def test_a_stream_of_chunks() -> None:
    client = await ask(FakeBackend(script=say("Hel", "", "lo", held_back="!")), stream=True)
    assert client.headers["content-type"].startswith("text/event-stream")
    assert client.headers["x-p2pmesh-run-id"] == RUN_ID.hex()
    *chunks, done = client.events()
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hel"},
        {"content": "lo"},
        {"content": "!"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    assert client.is_complete


async def test_a_usage_chunk_comes_last_and_the_others_say_null() -> None:
    client = await ask(FakeBackend(), stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = client.events()
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"] == usage_of(3, 2)


async def test_the_older_endpoint() -> None:
    body = {"model": MODEL, "prompt": [1, 2], "stream": True}
    client = await ask(FakeBackend(), "/v1/completions", json.dumps(body).encode())
    *chunks, _ = client.events()
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hel", "lo", ""]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    whole = await ask(FakeBackend(), "/v1/completions", json.dumps({**body, "stream": False}).encode())
    assert whole.json()["choices"][0] == {"text": "Hello", "index": 0, "logprobs": None, "finish_reason": "stop"}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("code", "status", "api_code"),
    [
        (ErrorCode.CONTEXT_LENGTH_EXCEEDED, 400, "context_length_exceeded"),
        (ErrorCode.MODEL_UNKNOWN, 404, "model_not_found"),
        (ErrorCode.OVERLOADED, 429, "overloaded"),
        (ErrorCode.MODEL_NOT_READY, 503, "model_not_ready"),
        (ErrorCode.DEADLINE_EXCEEDED, 504, "deadline_exceeded"),
    ],
)
async def test_an_error_before_the_first_byte_is_a_status(
    is_streamed: bool, code: ErrorCode, status: int, api_code: str
) -> None:
    client = await ask(FakeBackend(entry_error=Refused(code, "no")), stream=is_streamed)
    assert client.status == status
    assert client.json()["error"]["code"] == api_code
    assert client.headers.get("retry-after") == ("7" if status in {429, 503} else None)


async def test_whoever_refuses_says_when_to_come_again() -> None:
    for told_s, header in ((41, "41"), (3600, "60")):
        client = await ask(FakeBackend(entry_error=Refused(ErrorCode.OVERLOADED, "full", told_s)))
        assert client.headers["retry-after"] == header


async def test_an_error_while_iterating_before_the_start_is_a_status() -> None:
    backend = FakeBackend(script=(PeerUnavailable(ErrorCode.PEER_LOST, "stage 1 is gone"),))
    client = await ask(backend, stream=True)
    assert (client.status, client.json()["error"]["message"]) == (503, "stage 1 is gone")


async def test_an_error_after_the_first_byte_is_the_last_event() -> None:
    error = EngineError(ErrorCode.ENGINE_CRASHED, "the engine died of SIGILL")
    client = await ask(FakeBackend(script=(started(), GenerationDelta((1,), "Hel"), error)), stream=True)
    assert client.status == 200
    assert client.events()[-1] == {
        "error": {
            "message": "the engine died of SIGILL",
            "type": "server_error",
            "param": None,
            "code": "engine_crashed",
        }
    }
    assert client.is_complete


async def test_a_whole_answer_that_breaks_off_is_an_error_alone() -> None:
    error = EngineError(ErrorCode.ENGINE_CRASHED, "the engine died")
    client = await ask(FakeBackend(script=(started(), GenerationDelta((1,), "Hel"), error)))
    assert (client.status, client.json()["error"]["code"]) == (503, "engine_crashed")


@pytest.mark.parametrize("script", [(started(), ValueError("secret")), (started(),), (GenerationDelta((1,), "x"),)])
async def test_a_bug_of_the_node_is_a_500_without_its_words(script: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = await ask(FakeBackend(script=script))
    assert (client.status, client.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in client.text


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_leaves_cancels_its_generation(is_streamed: bool) -> None:
    reached = trio.Event()

    async def hang() -> None:
        reached.set()
        await trio.sleep_forever()

    backend = FakeBackend(script=(started(), GenerationDelta((1,), "Hel"), hang))
    client = AsgiClient(chat_body(stream=is_streamed))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run, openai_app(backend), CHAT)
        await reached.wait()
        client.gone.set()
    assert backend.outcomes == ["cancelled"]
    assert not client.is_complete


async def test_a_client_that_leaves_before_its_body_is_whole_asks_nothing() -> None:
    backend = FakeBackend()
    client = AsgiClient(chat_body(), pieces=0)
    client.gone.set()
    await client.run(openai_app(backend), CHAT)
    assert (backend.requests, client.sent) == ([], [])


async def test_a_client_that_stops_reading_is_dropped(autojump_clock: trio.testing.MockClock) -> None:
    backend = FakeBackend(script=say("a", "b"))
    client = AsgiClient(chat_body(stream=True), before_send=never_reads)
    await client.run(openai_app(backend), CHAT)
    assert trio.current_time() == pytest.approx(SEND_DEADLINE_S)
    assert backend.ended.is_set()
    assert client.sent == []


@pytest.mark.parametrize(("is_exact", "kind"), [(True, "exact"), (False, "inexact")])
async def test_losses_show_in_headers_or_comments_and_nowhere_else(is_exact: bool, kind: str) -> None:
    *events, end = say("Hel", "lo")
    undisturbed = [await ask(FakeBackend(script=(*events, end)), stream=is_streamed) for is_streamed in (False, True)]
    assert "x-p2pmesh-recoveries" not in undisturbed[0].headers
    assert "x-p2pmesh" not in undisturbed[1].text
    assert isinstance(end, GenerationFinished)
    script = (*events, replace(end, recoveries=2, is_exact=is_exact))
    whole, streamed = [await ask(FakeBackend(script=script), stream=is_streamed) for is_streamed in (False, True)]
    assert whole.headers["x-p2pmesh-recoveries"] == "2"
    assert whole.headers["x-p2pmesh-recovery"] == kind
    assert f": x-p2pmesh-recoveries: 2\n: x-p2pmesh-recovery: {kind}\n\n" in streamed.text
    assert [chunk["choices"] for chunk in streamed.events()[:-1]] == [
        chunk["choices"] for chunk in undisturbed[1].events()[:-1]
    ]


async def test_silence_is_broken_by_comments(autojump_clock: trio.testing.MockClock) -> None:
    async def think() -> None:
        await trio.sleep(PING_AFTER_SILENCE_S * 3.5)

    first, *rest = say("Hello")
    client = await ask(FakeBackend(script=(first, think, *rest)), stream=True)
    assert client.text.count(": keep-alive\n\n") == 3
    assert [chunk["choices"][0]["delta"].get("content") for chunk in client.events()[:-1]] == ["", "Hello", None]


async def test_a_ping_that_nobody_reads_ends_the_generation(autojump_clock: trio.testing.MockClock) -> None:
    async def stall_on_ping(message: Message) -> None:
        if message.get("body", b"").startswith(b": keep-alive"):
            await trio.sleep_forever()

    backend = FakeBackend(script=(started(), trio.sleep_forever))
    client = AsgiClient(chat_body(stream=True), before_send=stall_on_ping)
    await client.run(openai_app(backend), CHAT)
    assert backend.outcomes == ["cancelled"]
    assert trio.current_time() == pytest.approx(PING_AFTER_SILENCE_S + SEND_DEADLINE_S)


async def test_a_body_that_does_not_come_is_a_408(autojump_clock: trio.testing.MockClock) -> None:
    client = AsgiClient(chat_body(), pieces=0)
    await client.run(openai_app(FakeBackend()), CHAT)
    assert (client.status, client.json()["error"]["code"]) == (408, "request_timeout")
    assert trio.current_time() == pytest.approx(BODY_DEADLINE_S)


async def test_a_body_in_pieces_is_one_body() -> None:
    client = AsgiClient(chat_body(), pieces=7)
    await client.run(openai_app(FakeBackend()), CHAT)
    assert client.status == 200


async def test_a_body_over_the_limit_is_a_413() -> None:
    body = chat_body() + b" " * MAX_HTTP_BODY_BYTES
    client = AsgiClient(body, pieces=64)
    await client.run(openai_app(FakeBackend()), CHAT)
    assert (client.status, client.json()["error"]["code"]) == (413, "request_too_large")


async def test_bad_json_is_a_400() -> None:
    client = await ask(FakeBackend(), body=b"{oops")
    assert (client.status, client.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 400), ("br", 400), ("identity", 200), ("Identity", 200)])
async def test_an_encoded_body_is_refused_by_the_name_of_its_encoding(encoding: str, status: int) -> None:
    client = AsgiClient(chat_body())
    await client.run(openai_app(FakeBackend()), CHAT, "POST", {"content-encoding": encoding})
    assert client.status == status
    if status == 400:
        assert f"the body is encoded ({encoding}:" in client.json()["error"]["message"]


async def test_a_parameter_at_fault_is_named() -> None:
    client = await ask(FakeBackend(), web_search_options={"a": 1})
    error = client.json()["error"]
    assert (client.status, error["code"], error["param"]) == (400, "unsupported_parameter", "web_search_options")


async def test_until_a_model_is_ready_the_answer_is_503() -> None:
    client = await ask(FakeBackend(listings=()))
    assert (client.status, client.json()["error"]["code"]) == (503, "model_not_ready")
    assert client.headers["retry-after"] == "7"


async def test_the_lane_is_free_before_a_slow_client_takes_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    backend = FakeBackend()

    async def wait_for_end(message: Message) -> None:
        if b"[DONE]" in message.get("body", b""):
            await backend.ended.wait()

    client = AsgiClient(chat_body(stream=True), before_send=wait_for_end)
    await client.run(openai_app(backend), CHAT)
    assert client.is_complete


def test_the_fakes_listing_can_be_replaced() -> None:
    assert replace(FakeBackend(), listings=()).is_ready() is False


async def test_token_ids_of_a_whole_chat_answer() -> None:
    client = await ask(FakeBackend(script=say("Hel", "", "lo", held_back="!")), return_token_ids=True)
    answer = client.json()
    assert answer["prompt_token_ids"] == [0, 1, 2]
    assert answer["choices"][0]["token_ids"] == [0, 1, 2]
    assert answer["choices"][0]["message"]["content"] == "Hello!"


async def test_token_ids_of_a_streamed_chat_come_also_where_the_text_lags() -> None:
    client = await ask(FakeBackend(script=say("Hel", "", "lo", held_back="!")), stream=True, return_token_ids=True)
    *chunks, _ = client.events()
    assert chunks[0]["prompt_token_ids"] == [0, 1, 2]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice.get("token_ids") for choice in choices] == [None, [0], [1], [2], [], None]
    assert [choice["delta"].get("content") for choice in choices] == ["", "Hel", "", "lo", "!", None]


async def test_token_ids_of_completions_stand_in_the_choice() -> None:
    body = {"model": MODEL, "prompt": "hi", "return_token_ids": True}
    whole = await ask(FakeBackend(), "/v1/completions", json.dumps(body).encode())
    choice = whole.json()["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([0, 1, 2], [0, 1])
    streamed = await ask(FakeBackend(), "/v1/completions", json.dumps({**body, "stream": True}).encode())
    *chunks, _ = streamed.events()
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["prompt_token_ids"] == [0, 1, 2]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == [0, 1]


@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_gets_token_ids_unasked(stream: bool) -> None:
    for path, given in ((CHAT, {"messages": MESSAGES}), ("/v1/completions", {"prompt": "hi"})):
        body = json.dumps({"model": MODEL, "stream": stream, "return_token_ids": False, **given}).encode()
        client = await ask(FakeBackend(), path, body)
        assert "token_ids" not in client.text


@pytest.mark.parametrize(
    ("path", "given", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "\udfff"}]}]},
         "messages[0].content[0].text"),
        (CHAT, {"messages": MESSAGES, "stop": ["a", "\ud800"]}, "stop[1]"),
        (CHAT, {"messages": MESSAGES, "stop": list("abcde")}, "stop"),
        (CHAT, {"messages": MESSAGES, "stop": ["a", "b" * 1025]}, "stop[1]"),
        (CHAT, {"messages": MESSAGES, "return_token_ids": 1}, "return_token_ids"),
        ("/v1/completions", {"prompt": "\ud800"}, "prompt"),
        ("/v1/completions", {"prompt": "hi", "stop": "b" * 1025}, "stop"),
    ],
)  # fmt: skip
async def test_a_bad_text_names_its_parameter(path: str, given: dict[str, Any], param: str) -> None:
    client = await ask(FakeBackend(), path, json.dumps({"model": MODEL, **given}).encode())
    assert client.status == 400
    assert client.json()["error"]["param"] == param


async def test_more_token_ids_than_peers_take_are_too_large() -> None:
    body = {"model": MODEL, "prompt": [1] * (MAX_PROMPT_TOKENS + 1)}
    client = await ask(FakeBackend(), "/v1/completions", json.dumps(body).encode())
    assert (client.status, client.json()["error"]["param"]) == (413, "prompt")


async def wait_long() -> None:
    await trio.sleep(30)


async def test_a_stream_that_waits_for_a_driver_is_opened_late_and_kept_alive(
    autojump_clock: trio.testing.MockClock,
) -> None:
    client = await ask(FakeBackend(script=(wait_long, *say("Hel", "lo"))), stream=True)
    assert client.status == 200
    assert client.text.startswith(": keep-alive\n\n" * 4)
    assert f": x-p2pmesh-run-id: {RUN_ID.hex()}\n" in client.text
    assert [chunk["choices"][0]["delta"].get("content") for chunk in client.events()[:-1]] == ["", "Hel", "lo", None]


async def test_a_stream_that_waited_in_vain_ends_with_an_event(autojump_clock: trio.testing.MockClock) -> None:
    gone = Refused(ErrorCode.MODEL_NOT_READY, "nobody took over in time")
    client = await ask(FakeBackend(script=(wait_long, gone)), stream=True)
    assert (client.status, client.is_complete) == (200, True)
    assert client.events()[-1]["error"]["code"] == "model_not_ready"


async def test_a_whole_answer_that_waited_in_vain_is_an_error_alone(autojump_clock: trio.testing.MockClock) -> None:
    gone = Refused(ErrorCode.MODEL_NOT_READY, "nobody took over in time")
    client = await ask(FakeBackend(script=(wait_long, gone)))
    assert (client.status, client.json()["error"]["code"]) == (503, "model_not_ready")


async def test_a_request_for_a_model_that_is_awaited_is_taken_though_nothing_is_ready() -> None:
    backend = FakeBackend(listings=(), awaited=(MODEL,))
    await ask(backend)
    assert [request.model for request in backend.requests] == [MODEL]
    await ask(other := FakeBackend(listings=()))
    assert other.requests == []
