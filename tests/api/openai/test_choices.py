"""Several choices, log probabilities, reasoning: what a client sees of them, whole and streamed."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.api.openai.app import openai_app
from p2pmesh.api.openai.endpoint import CONCURRENT_CHOICES, LONG_PROMPT_CHARACTERS
from p2pmesh.base.errors import EngineError, ErrorCode, Refused
from p2pmesh.wire.generation import (
    FinishReason,
    GenerationDelta,
    GenerationFinished,
    GenerationStarted,
    TokenLogprob,
)
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import FINGERPRINT, MODEL, RUN_ID, FakeBackend, Step, say, started

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def ask(backend: FakeBackend, path: str, **body: Any) -> AsgiClient:
    given = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    client = AsgiClient(json.dumps({"model": MODEL, **given, **body}).encode())
    await client.run(openai_app(backend), path)
    return client


def told(token: int, piece: bytes, logprob: float, *top: tuple[int, bytes, float]) -> TokenLogprob:
    return TokenLogprob(token, piece, logprob, tuple(TokenLogprob(*likely) for likely in top))


def script(*deltas: GenerationDelta, held_back: str = "", reason: FinishReason = FinishReason.STOP) -> tuple[Step, ...]:
    count = sum(len(delta.tokens) for delta in deltas)
    return (started(), *deltas, GenerationFinished(reason, held_back, count))


SMILE = "🙂".encode()
TOLD = script(
    GenerationDelta((1,), "a", (told(1, b"a", -0.5, (1, b"a", -0.5), (2, b"b", -1.0)),)),
    GenerationDelta((3,), "", (told(3, SMILE[:2], -0.25),)),
    GenerationDelta((4,), "🙂", (told(4, SMILE[2:], -0.125),)),
    GenerationDelta((5,), "", (told(5, b"S", -2.0),)),  # begins a stop sequence that the next one completes
    GenerationDelta((6,), "", (told(6, b"TOP", -3.0),)),
)


async def test_choices_have_indices_and_usage_counts_the_prompt_once() -> None:
    backend = FakeBackend(scripts={0: say("a"), 1: say("b", "b"), 2: say("c", reason=FinishReason.LENGTH)})
    answer = (await ask(backend, CHAT, n=3)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "bb", "c"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop", "length"]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 4, 7)


async def test_streamed_choices_come_each_in_order_under_one_id() -> None:
    backend = FakeBackend(scripts={0: say("a", "b"), 1: say("c", "d", held_back="e")})
    client = await ask(backend, CHAT, n=2, stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = client.events()
    assert (done, usage["usage"]["completion_tokens"]) == ("[DONE]", 4)
    assert {(chunk["id"], chunk["system_fingerprint"]) for chunk in chunks} == {
        ("chatcmpl-" + backend.requests[0].request_id.hex(), FINGERPRINT)
    }
    for index, text in ((0, ["", "a", "b"]), (1, ["", "c", "d", "e"])):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert [choice["delta"]["content"] for choice in own[:-1]] == text
        assert [choice["finish_reason"] for choice in own] == [None] * len(text) + ["stop"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_one_choice_that_fails_ends_the_answer_and_the_others(is_streamed: bool) -> None:
    failure = EngineError(ErrorCode.ENGINE_CRASHED, "the engine died")
    reached = trio.Event()

    async def fail_after_the_other() -> None:
        await reached.wait()

    async def hang() -> None:
        reached.set()
        await trio.sleep_forever()

    backend = FakeBackend(
        scripts={0: (started(), fail_after_the_other, failure), 1: (started(), GenerationDelta((1,), "x"), hang)}
    )
    client = await ask(backend, CHAT, n=2, stream=is_streamed)
    assert sorted(backend.outcomes) == ["cancelled", "failed"]
    error = client.events()[-1] if is_streamed else client.json()
    assert error["error"]["code"] == "engine_crashed"
    assert client.status == (200 if is_streamed else 503)


async def test_a_refusal_of_every_choice_is_one_status() -> None:
    backend = FakeBackend(entry_error=Refused(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "the prompt has 9 tokens"))
    client = await ask(backend, CHAT, n=4, stream=True)
    error = client.json()["error"]
    assert (client.status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


async def test_few_choices_are_generated_at_a_time() -> None:
    running: list[int] = []
    most = 0

    async def run() -> None:
        nonlocal most
        running.append(0)
        most = max(most, len(running))
        await trio.lowlevel.checkpoint()
        running.pop()

    first, *rest = say("x")
    backend = FakeBackend(script=(first, run, *rest))
    answer = (await ask(backend, CHAT, n=20)).json()
    assert len(answer["choices"]) == 20
    assert 1 < most <= CONCURRENT_CHOICES


async def test_a_long_prompt_that_is_refused_is_refused_once() -> None:
    refused = Refused(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long")
    backend = FakeBackend(script=(trio.lowlevel.checkpoint, refused))
    client = await ask(backend, CHAT, n=8, messages=[{"role": "user", "content": "x" * LONG_PROMPT_CHARACTERS + "y"}])
    assert (client.status, client.json()["error"]["code"], len(backend.requests)) == (400, "context_length_exceeded", 1)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_choices_of_a_long_prompt_that_is_admitted_run_beside_each_other(
    autojump_clock: MockClock, is_streamed: bool
) -> None:
    all_run = trio.Event()
    backend = FakeBackend()

    async def meet() -> None:
        if len(backend.requests) == 4:
            all_run.set()
        await all_run.wait()

    backend.script = (started(), meet, *say("a")[1:])
    text = "x" * LONG_PROMPT_CHARACTERS + "y"
    with trio.fail_after(5):
        client = await ask(backend, COMPLETIONS, n=4, prompt=text, stream=is_streamed)
    assert (client.status, len(backend.requests)) == (200, 4)


async def test_the_best_are_those_of_the_highest_log_probability_per_token() -> None:
    def scored(text: str, *logprobs: float) -> tuple[Step, ...]:
        tokens = range(len(logprobs))
        deltas = [GenerationDelta((i,), text, (told(i, text.encode(), logprobs[i]),)) for i in tokens]
        return script(*deltas)

    backend = FakeBackend(scripts={0: scored("a", -3.0), 1: scored("b", -1.0, -1.5), 2: scored("c", -0.5, -2.5)})
    answer = (await ask(backend, COMPLETIONS, n=2, best_of=3)).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "bb"), (1, "cc")]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
    assert answer["usage"]["completion_tokens"] == 5


async def test_log_probabilities_have_bytes_and_tell_nothing_of_a_stop_sequence() -> None:
    (choice,) = (await ask(FakeBackend(script=TOLD), CHAT, logprobs=True, top_logprobs=2)).json()["choices"]
    assert choice["logprobs"]["refusal"] is None
    first, second, third = choice["logprobs"]["content"]
    assert first == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "b", "logprob": -1.0, "bytes": [98]},
        ],
    }
    assert bytes(second["bytes"] + third["bytes"]) == SMILE
    assert choice["message"]["content"] == "a🙂"


async def test_streamed_log_probabilities_are_those_of_the_whole_answer() -> None:
    for path, asked in ((CHAT, {"logprobs": True, "top_logprobs": 2}), (COMPLETIONS, {"logprobs": 2})):
        (whole,) = (await ask(FakeBackend(script=TOLD), path, **asked)).json()["choices"]
        *chunks, _ = (await ask(FakeBackend(script=TOLD), path, stream=True, **asked)).events()
        parts = [chunk["choices"][0]["logprobs"] or {} for chunk in chunks]
        for name in ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [item for part in parts for item in part.get(name, [])]
            assert joined == whole["logprobs"].get(name, [])


async def test_the_older_endpoint_has_a_shape_of_its_own() -> None:
    (choice,) = (await ask(FakeBackend(script=TOLD), COMPLETIONS, logprobs=1)).json()["choices"]
    assert choice["logprobs"] == {
        "tokens": ["a", "bytes:\\xf0\\x9f", "bytes:\\x99\\x82"],
        "token_logprobs": [-0.5, -0.25, -0.125],
        "top_logprobs": [
            {"a": -0.5, "b": -1.0},
            {"bytes:\\xf0\\x9f": -0.25},
            {"bytes:\\x99\\x82": -0.125},
        ],
        "text_offset": [0, 1, 1],
    }


async def test_text_held_back_brings_its_log_probabilities() -> None:
    events = script(GenerationDelta((5,), "", (told(5, b"S", -2.0),)), held_back="S", reason=FinishReason.LENGTH)
    (choice,) = (await ask(FakeBackend(script=events), CHAT, logprobs=True)).json()["choices"]
    assert [one["token"] for one in choice["logprobs"]["content"]] == ["S"]


THOUGHT = say("<thi", "nk>", "hm", "m</", "think>", "\n\nyes")


async def test_reasoning_is_apart_from_what_is_said() -> None:
    answer = (await ask(FakeBackend(script=THOUGHT), CHAT)).json()
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("yes", "hmm", "hmm")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4
    *chunks, _ = (await ask(FakeBackend(script=THOUGHT), CHAT, stream=True)).events()
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hmm"
    assert "".join(delta.get("content", "") for delta in deltas) == "yes"
    assert all(not (delta.get("content") and delta.get("reasoning_content")) for delta in deltas)


async def test_reasoning_that_the_template_opened_needs_no_mark() -> None:
    events = (
        GenerationStarted((0,), RUN_ID, FINGERPRINT, 9, is_reasoning=True),
        GenerationDelta((1,), "hm</think>"),
        GenerationDelta((2,), "yes"),
        GenerationFinished(FinishReason.STOP, "", 2),
    )
    message = (await ask(FakeBackend(script=events), CHAT)).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("yes", "hm")


async def test_the_older_endpoint_gives_text_as_it_is() -> None:
    (choice,) = (await ask(FakeBackend(script=THOUGHT), COMPLETIONS)).json()["choices"]
    assert choice["text"] == "<think>hmm</think>\n\nyes"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_echo_stands_before_each_choice(is_streamed: bool) -> None:
    client = await ask(FakeBackend(script=say("!")), COMPLETIONS, prompt=["hi", "ho"], echo=True, stream=is_streamed)
    if not is_streamed:
        assert [choice["text"] for choice in client.json()["choices"]] == ["hi!", "ho!"]
        assert client.json()["usage"]["prompt_tokens"] == 6
        return
    *chunks, _ = client.events()
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["hi!", "ho!"]
