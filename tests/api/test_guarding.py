"""Guardrails round a backend of scripts."""

import json
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.api.backend import ModelListing
from p2pmesh.api.openai.app import openai_app
from p2pmesh.api.openai.endpoint import LONG_PROMPT_CHARACTERS
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.core.guardrails.policy import GuardrailMode, GuardrailPolicy
from p2pmesh.core.tool_calls.formats import HERMES
from p2pmesh.wire.generation import (
    FinishReason,
    GenerationDelta,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    TokenLogprob,
    ToolCall,
)
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import FakeBackend, Step

CHAT = "/v1/chat/completions"
SMALL, LARGE = "small-1B", "large-9B"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
STRUCTURED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
RIGHT = HERMES.write([ToolCall("", "weather", '{"city": "Oslo"}')])
WRONG = HERMES.write([ToolCall("", "weather", '{"town": "Oslo"}')])
FOREIGN = '```json\n{"name": "weather", "arguments": {"city": "Oslo"}}\n```'
HEADER = "x-p2pmesh-guardrails"


def says(*pieces: str, reason: FinishReason = FinishReason.STOP, is_reasoning: bool = False) -> tuple[Step, ...]:
    started = GenerationStarted(
        (1, 2, 3), bytes(16), "fp", 99, is_reasoning=is_reasoning, call_format=HERMES.name, cached_tokens=1
    )
    deltas = (GenerationDelta((number,), piece) for number, piece in enumerate(pieces))
    return (started, *deltas, GenerationFinished(reason, "", len(pieces)))


class Scripted(FakeBackend):
    """Plays one script after the other, the last again and again."""

    def __init__(self, *scripts: tuple[Step, ...], model: str = SMALL, context: int | None = None) -> None:
        super().__init__(listings=(ModelListing(model, 1, context_tokens=context),))
        self._scripts = scripts

    def _script_of(self, request: GenerationRequest) -> tuple[Step, ...]:
        return self._scripts[min(len(self.requests), len(self._scripts)) - 1]


class Asked:
    """An application with guardrails."""

    def __init__(self, backend: FakeBackend, mode: GuardrailMode = GuardrailMode.ENFORCE, **policy: Any) -> None:
        self.backend = backend
        self.app = openai_app(backend, guardrails=GuardrailPolicy(mode, **policy))

    async def ask(self, path: str = CHAT, **body: Any) -> AsgiClient:
        given: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        client = AsgiClient(json.dumps({"model": self.backend.listings[0].id, **given, **body}).encode())
        await client.run(self.app, path)
        return client

    async def count(self, intervention: str) -> int:
        shown = AsgiClient()
        await shown.run(self.app, "/metrics", "GET")
        lines = [line for line in shown.text.splitlines() if f'intervention="{intervention}"' in line]
        assert len(lines) <= 1
        return int(lines[0].split()[-1]) if lines else 0


def call_of(client: AsgiClient) -> dict[str, Any]:
    choice = client.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    function = choice["message"]["tool_calls"][0]["function"]
    return {"name": function["name"], **json.loads(function["arguments"])}


def streamed(client: AsgiClient) -> tuple[str, str, str]:
    """Reasoning, text and arguments of a streamed answer."""
    deltas = [event["choices"][0]["delta"] for event in client.events() if event != "[DONE]" and event["choices"]]
    calls = [part for delta in deltas for part in delta.get("tool_calls", [])]
    return (
        "".join(delta.get("reasoning_content", "") for delta in deltas),
        "".join(delta.get("content") or "" for delta in deltas),
        "".join(part["function"]["arguments"] for part in calls),
    )


async def test_a_call_that_does_not_fit_is_asked_for_anew() -> None:
    asked = Asked(Scripted(says(WRONG, "x"), says(RIGHT)))
    client = await asked.ask(tools=[TOOL])
    assert call_of(client) == {"name": "weather", "city": "Oslo"}
    assert client.headers[HEADER] == "asked-anew tool"
    usage = client.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (6, 3)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2
    first, second = asked.backend.requests
    assert (second.prompt.messages or ())[:1] == first.prompt.messages
    assert "it lacks 'city'" in (second.prompt.messages or ())[-1].content
    assert first.request_id != second.request_id
    assert await asked.count("asked-anew") == 1


async def test_after_its_retries_the_last_answer_is_given_as_it_is() -> None:
    asked = Asked(Scripted(says(WRONG)))
    client = await asked.ask(tools=[TOOL])
    assert call_of(client) == {"name": "weather", "town": "Oslo"}
    assert client.headers[HEADER] == "asked-anew tool, given-up tool"
    assert len(asked.backend.requests) == 2
    assert await asked.count("given-up") == 1


@pytest.mark.parametrize("retries", [0, 3])
async def test_how_often_is_the_operators(retries: int) -> None:
    asked = Asked(Scripted(says(WRONG)), tool_retries=retries)
    await asked.ask(tools=[TOOL])
    assert len(asked.backend.requests) == retries + 1


async def test_structure_is_asked_for_twice() -> None:
    asked = Asked(Scripted(says('{"a": "x"}'), says("no"), says('{"a": 1}')))
    client = await asked.ask(response_format=STRUCTURED)
    assert client.json()["choices"][0]["message"]["content"] == '{"a": 1}'
    assert client.headers[HEADER] == "asked-anew structure, asked-anew structure"
    asked = Asked(Scripted(says("no")))
    client = await asked.ask(response_format=STRUCTURED)
    assert client.headers[HEADER].endswith("given-up structure")
    assert len(asked.backend.requests) == 3


async def test_a_call_in_another_models_way_is_rescued() -> None:
    asked = Asked(Scripted(says("I look.\n", FOREIGN)))
    client = await asked.ask(tools=[TOOL])
    assert call_of(client) == {"name": "weather", "city": "Oslo"}
    assert client.json()["choices"][0]["message"]["content"] == "I look."
    assert client.headers[HEADER] == "rescued tool"
    assert client.json()["usage"]["completion_tokens"] == 2
    assert len(asked.backend.requests) == 1
    assert await asked.count("rescued") == 1


async def test_reasoning_stays_with_a_rescued_answer() -> None:
    asked = Asked(Scripted(says("I thi", "nk</think>\n", FOREIGN, is_reasoning=True)))
    client = await asked.ask(tools=[TOOL])
    assert client.json()["choices"][0]["message"]["reasoning_content"] == "I think"
    assert call_of(client)["city"] == "Oslo"


async def test_more_than_is_looked_at_is_not_rescued() -> None:
    asked = Asked(Scripted(says(FOREIGN)), rescue_bytes=len(FOREIGN) - 1)
    client = await asked.ask(tools=[TOOL])
    assert client.json()["choices"][0]["message"]["content"] == FOREIGN
    assert HEADER not in client.headers


async def test_ids_and_log_probabilities_are_those_of_what_was_generated() -> None:
    started, delta, end = says(FOREIGN)
    assert isinstance(delta, GenerationDelta)
    told = (TokenLogprob(0, FOREIGN.encode(), -0.5),)
    asked = Asked(Scripted((started, replace(delta, logprobs=told), end)))
    client = await asked.ask(tools=[TOOL], logprobs=True, return_token_ids=True)
    assert call_of(client)["city"] == "Oslo"
    choice = client.json()["choices"][0]
    assert choice["token_ids"] == [0]
    assert [one["token"] for one in choice["logprobs"]["content"]] == [FOREIGN]


async def test_a_right_answer_is_left_alone() -> None:
    asked = Asked(Scripted(says(RIGHT)))
    client = await asked.ask(tools=[TOOL])
    assert call_of(client)["city"] == "Oslo"
    assert HEADER not in client.headers
    assert len(asked.backend.requests) == 1


async def test_what_was_cut_off_is_left_alone() -> None:
    asked = Asked(Scripted(says(WRONG[:-20], reason=FinishReason.LENGTH)))
    assert (await asked.ask(tools=[TOOL])).status == 200
    assert len(asked.backend.requests) == 1


async def test_an_attempt_that_fails_leaves_the_answer_before_it() -> None:
    failure = Refused(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long")
    asked = Asked(Scripted(says(WRONG), (says()[0], failure)))
    client = await asked.ask(tools=[TOOL])
    assert call_of(client)["town"] == "Oslo"
    assert client.json()["usage"]["prompt_tokens"] == 6


async def test_the_first_error_is_the_clients() -> None:
    asked = Asked(Scripted((Refused(ErrorCode.OVERLOADED, "later"),)))
    assert (await asked.ask(tools=[TOOL])).status == 429


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_large_models_are_left_alone(is_streamed: bool) -> None:
    asked = Asked(Scripted(says(WRONG), model=LARGE))
    client = await asked.ask(tools=[TOOL], stream=is_streamed)
    assert "town" in client.text
    assert len(asked.backend.requests) == 1
    asked = Asked(Scripted(says(WRONG), says(RIGHT), model=LARGE), below_millions=10_000)
    assert "town" not in (await asked.ask(tools=[TOOL], stream=is_streamed)).text


@pytest.mark.parametrize("mode", [GuardrailMode.OFF, GuardrailMode.METRICS])
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("text", "body", "intervention"),
    [
        (WRONG, {"tools": [TOOL]}, "asked-anew"),
        (FOREIGN, {"tools": [TOOL]}, "rescued"),
        ("no", {"response_format": STRUCTURED}, "asked-anew"),
    ],
)
async def test_metrics_only_count(
    mode: GuardrailMode, is_streamed: bool, text: str, body: dict[str, Any], intervention: str
) -> None:
    asked, plain = Asked(Scripted(says(text, "")), mode), Asked(Scripted(says(text, "")), GuardrailMode.OFF)
    client, expected = await asked.ask(stream=is_streamed, **body), await plain.ask(stream=is_streamed, **body)
    assert (client.text, client.headers) == (expected.text, expected.headers)
    assert len(asked.backend.requests) == 1
    assert await asked.count(intervention) == (mode is GuardrailMode.METRICS)


# --- streams --------------------------------------------------------------------
async def test_a_streamed_call_is_held_until_it_is_right() -> None:
    asked = Asked(Scripted(says(*WRONG), says(RIGHT)))
    client = await asked.ask(tools=[TOOL], stream=True, stream_options={"include_usage": True})
    assert streamed(client) == ("", "", '{"city": "Oslo"}')
    assert client.headers[HEADER] == "asked-anew tool"
    assert client.events()[-2]["usage"]["completion_tokens"] == len(WRONG) + 1


async def test_a_streamed_call_in_another_way_is_rescued() -> None:
    asked = Asked(Scripted(says(*FOREIGN)))
    client = await asked.ask(tools=[TOOL], stream=True)
    assert streamed(client) == ("", "", '{"city": "Oslo"}')


async def test_reasoning_passes_and_the_call_behind_it_is_rescued() -> None:
    asked = Asked(Scripted(says("I ", "think", "</think>", "\n", *FOREIGN, is_reasoning=True)))
    client = await asked.ask(tools=[TOOL], stream=True)
    assert streamed(client) == ("I think", "", '{"city": "Oslo"}')
    assert f": {HEADER}: rescued tool" in client.text
    assert HEADER not in client.headers


async def test_what_was_given_out_is_not_asked_for_anew() -> None:
    for pieces in (("I look. ", WRONG), ("thi", "nk</think>", WRONG)):
        asked = Asked(Scripted(says(*pieces, is_reasoning=len(pieces) == 3)))
        client = await asked.ask(tools=[TOOL], stream=True)
        assert streamed(client)[2] == '{"town": "Oslo"}'
        assert len(asked.backend.requests) == 1


async def test_text_streams_as_it_comes() -> None:
    seen: list[int] = []

    async def look() -> None:
        seen.append(len(client.events()) if client.sent else 0)

    script = says("It ", "is ", "cold.")
    asked = Asked(Scripted((*script[:2], look, script[2], look, *script[3:])))
    body = {"model": SMALL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": [TOOL]}
    client = AsgiClient(json.dumps(body).encode())
    await client.run(asked.app, CHAT)
    assert seen == [2, 3]
    assert streamed(client)[1] == "It is cold."


async def test_structure_in_a_stream_passes_through() -> None:
    asked = Asked(Scripted(says("no")))
    client = await asked.ask(response_format=STRUCTURED, stream=True)
    assert streamed(client)[1] == "no"
    assert len(asked.backend.requests) == 1


# --- compaction -----------------------------------------------------------------
def long_talk(exchanges: int = 10) -> list[dict[str, Any]]:
    """Each message of 100 characters, which the backend counts as a token each."""
    turns = [{"role": role, "content": "x" * 100} for _ in range(exchanges) for role in ("user", "assistant")]
    return [{"role": "system", "content": "s" * 100}, *turns, {"role": "user", "content": "q" * 100}]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_conversation_that_fills_the_context_loses_its_oldest_exchanges(is_streamed: bool) -> None:
    asked = Asked(
        Scripted(says("ok"), model=LARGE, context=2400)
    )  # 2,201 tokens are more than 90 %, 1,801 at most 80 %
    client = await asked.ask(messages=long_talk(), stream=is_streamed)
    assert client.headers[HEADER] == "compacted 4 messages"
    messages = asked.backend.requests[0].prompt.messages or ()
    assert [message.role for message in messages[:2]] == ["system", "user"]
    assert len(messages) == 18
    assert messages[-1].content == "q" * 100
    assert await asked.count("compacted") == 1


@pytest.mark.parametrize("length", [100, LONG_PROMPT_CHARACTERS])
async def test_choices_of_a_conversation_are_compacted_by_the_looks_of_one(length: int) -> None:
    looks: list[int] = []

    class Counting(Scripted):
        async def tokenize(self, *arguments: Any, **named: Any) -> tuple[int, ...]:
            await trio.lowlevel.checkpoint()
            looks.append(len(arguments[1].messages))
            return await super().tokenize(*arguments, **named)

    system = {"role": "system", "content": "s" * length}
    taken: set[int] = set()
    for n in (1, 16):
        looks.clear()
        asked = Asked(Counting(says("ok"), context=length + 2400))
        client = await asked.ask(messages=[system, *long_talk()], n=n)
        assert client.headers[HEADER].startswith("compacted ")
        assert len({len(request.prompt.messages or ()) for request in asked.backend.requests}) == 1
        assert len(asked.backend.requests) == n
        taken.add(len(looks))
    assert len(taken) == 1


async def test_below_the_bound_nothing_goes() -> None:
    asked = Asked(Scripted(says("ok"), context=2500))
    client = await asked.ask(messages=long_talk())
    assert HEADER not in client.headers
    assert len(asked.backend.requests[0].prompt.messages or ()) == 22


async def test_what_cannot_go_stays_and_is_refused_by_who_generates() -> None:
    asked = Asked(Scripted((Refused(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long"),), context=300))
    client = await asked.ask(messages=long_talk(2))
    assert (client.status, client.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert [message.role for message in asked.backend.requests[0].prompt.messages or ()] == ["system", "user"]


async def test_in_mode_metrics_everything_stays() -> None:
    asked = Asked(Scripted(says("ok"), context=2400), GuardrailMode.METRICS)
    client = await asked.ask(messages=long_talk())
    assert HEADER not in client.headers
    assert len(asked.backend.requests[0].prompt.messages or ()) == 22
    assert await asked.count("compacted") == 1


async def test_a_tokenizer_that_fails_costs_no_request() -> None:
    class Broken(Scripted):
        async def tokenize(self, *arguments: Any, **named: Any) -> tuple[int, ...]:
            raise Refused(ErrorCode.OVERLOADED, "later")

    asked = Asked(Broken(says("ok"), context=2400))
    assert (await asked.ask(messages=long_talk())).status == 200


async def test_short_conversations_are_not_counted() -> None:
    class Counting(Scripted):
        async def tokenize(self, *arguments: Any, **named: Any) -> tuple[int, ...]:
            raise AssertionError("nobody need count")

    asked = Asked(Counting(says("ok"), context=4096))
    assert (await asked.ask()).status == 200


async def test_other_shapes_are_guarded_as_well() -> None:
    asked = Asked(Scripted(says(FOREIGN)))
    tool = {"type": "function", "name": "weather", "parameters": CITY}
    client = await asked.ask("/v1/responses", input="hi", tools=[tool], messages=None)
    assert client.headers[HEADER] == "rescued tool"
    assert client.json()["output"][0]["type"] == "function_call"


async def test_drafts_for_mesh_are_mended_too() -> None:
    backend = Scripted(says(FOREIGN))
    backend.listings = (ModelListing("a-1B", 1), ModelListing("b-2B", 1))
    asked = Asked(backend)
    client = await asked.ask(model="mesh", tools=[TOOL])
    assert call_of(client)["city"] == "Oslo"
    assert client.headers["x-p2pmesh-mesh-decision"] == "agreement"


async def test_of_a_model_that_is_dropped_all_is_paid_for_though_nothing_was_given_out(
    autojump_clock: MockClock,
) -> None:
    backend = FakeBackend(
        of_models={"a-2B": says("Blue"), "b-1B": (*says("gr", "een")[:3], trio.sleep_forever)},
        listings=(ModelListing("a-2B", 1), ModelListing("b-1B", 1)),
    )
    backend.of_models["a-2B"] = tuple(sure(step) for step in says("Blue"))
    client = await Asked(backend).ask(model="mesh")
    assert client.headers["x-p2pmesh-mesh-models"] == "a-2B strong answered, b-1B fast dropped"
    usage = client.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (6, 3)


async def test_who_reduces_drafts_has_begun_though_guardrails_hold_it(autojump_clock: MockClock) -> None:
    async def think() -> None:
        await trio.sleep(200)

    slow = says("a", "b")
    backend = Scripted(says("x"), says("y"), (*slow[:2], think, *slow[2:]))
    backend.listings = (ModelListing("a-2B", 1), ModelListing("b-1B", 1))
    client = await Asked(backend).ask(model="mesh")
    assert client.json()["choices"][0]["message"]["content"] == "ab"
    assert len(backend.requests) == 3
    assert client.headers["x-p2pmesh-mesh-winner"] == "a-2B reducer"


def sure(step: Step) -> Step:
    """With a probability of nearly one for each token."""
    if not isinstance(step, GenerationDelta):
        return step
    return replace(step, logprobs=tuple(TokenLogprob(token, b"x", -0.01) for token in step.tokens))


async def test_usage_of_a_mended_draft_counts_both_attempts() -> None:
    backend = Scripted(says(WRONG), says(RIGHT))
    backend.listings = (ModelListing("a-2B", 1), ModelListing("b-1B", 1))
    client = await Asked(backend, tool_retries=1).ask(model="mesh", tools=[TOOL])
    assert call_of(client)["city"] == "Oslo"
    usage = client.json()["usage"]
    assert usage["prompt_tokens"] == 3 * len(backend.requests) == 9
    assert usage["completion_tokens"] == 3
