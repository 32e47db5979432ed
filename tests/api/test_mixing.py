"""The virtual model ``mesh``, over a backend of scripts."""

import json
import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.api.backend import ModelListing
from p2pmesh.api.openai.app import openai_app
from p2pmesh.base.errors import ErrorCode, PeerUnavailable, Refused
from p2pmesh.core.mixture.roles import MixturePolicy
from p2pmesh.core.tool_calls.formats import HERMES
from p2pmesh.wire.generation import (
    FinishReason,
    GenerationDelta,
    GenerationFinished,
    GenerationStarted,
    TokenLogprob,
    ToolCall,
)
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import FakeBackend, Step

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
STRONG, MIDDLE, FAST = "org/big-9B", "mid-3B", "tiny-1B"
PROMPTS = {STRONG: 5, MIDDLE: 3, FAST: 2}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def says(model: str, *pieces: str, sure: float = 0.9, reason: FinishReason = FinishReason.STOP) -> tuple[Step, ...]:
    started = GenerationStarted(
        tuple(range(PROMPTS[model])), bytes(16), f"fp_{model}", 99, call_format=HERMES.name, cached_tokens=1
    )
    told = (TokenLogprob(1, b"x", math.log(sure)),)
    deltas = (GenerationDelta((number,), piece, told) for number, piece in enumerate(pieces))
    return (started, *deltas, GenerationFinished(reason, "", len(pieces)))


def serving(**scripts: tuple[Step, ...]) -> FakeBackend:
    """``strong``, ``middle`` and ``fast``, those that are given."""
    names = {"strong": STRONG, "middle": MIDDLE, "fast": FAST}
    of_models = {names[role]: script for role, script in scripts.items()}
    return FakeBackend(of_models=of_models, listings=tuple(ModelListing(name, 1) for name in of_models))


async def ask(backend: FakeBackend, path: str = CHAT, policy: MixturePolicy | None = None, **body: Any) -> AsgiClient:
    given: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    if path == RESPONSES:
        given = {"input": "hi"}
    if path == MESSAGES:
        given["max_tokens"] = 64
    client = AsgiClient(json.dumps({"model": "mesh", **given, **body}).encode())
    await client.run(openai_app(backend, None, policy), path)
    return client


async def test_models_that_agree_answer_as_one() -> None:
    backend = serving(strong=says(STRONG, "Pa", "ris."), fast=says(FAST, "paris"))
    client = await ask(backend)
    answer = client.json()
    assert (client.status, answer["model"]) == (200, "mesh")
    assert answer["choices"][0]["message"]["content"] == "Paris."
    assert client.headers["x-p2pmesh-mesh-models"] == "org/big-9B strong answered, tiny-1B fast answered"
    assert client.headers["x-p2pmesh-mesh-winner"] == "org/big-9B strong"
    assert client.headers["x-p2pmesh-mesh-decision"] == "agreement"
    assert answer["system_fingerprint"] == f"fp_{STRONG}"


async def test_usage_is_the_sum_of_all_that_was_asked() -> None:
    backend = serving(
        strong=says(STRONG, "a", "b", sure=0.1), middle=says(MIDDLE, "c", sure=0.1), fast=says(FAST, "d", sure=0.1)
    )
    client = await ask(backend)
    assert client.headers["x-p2pmesh-mesh-decision"] == "reduced"
    usage = client.json()["usage"]
    # three drafts, and the strong one again for the answer
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (15, 6, 21)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4
    assert "logprobs" not in client.text.replace('"logprobs":null', "")


async def test_roles_bound_drafts_and_the_clients_seed_is_everybodys() -> None:
    backend = serving(strong=says(STRONG, "a"), middle=says(MIDDLE, "a"), fast=says(FAST, "a"))
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant", "user")]
    await ask(backend, seed=5, messages=[{"role": "system", "content": "s"}, *turns])
    asked = {request.model: request for request in backend.requests}
    assert {name: request.max_tokens for name, request in asked.items()} == {STRONG: 1024, MIDDLE: 512, FAST: 256}
    assert {name: len(request.prompt.messages or ()) for name, request in asked.items()} == {
        STRONG: 6,
        MIDDLE: 6,
        FAST: 2,
    }
    assert {request.sampling.seed for request in asked.values()} == {5}
    assert len({request.request_id for request in asked.values()}) == 3


async def test_unsure_drafts_are_put_to_the_strong_model_in_order() -> None:
    backend = serving(strong=says(STRONG, "one", sure=0.1), fast=says(FAST, "two", sure=0.1))
    await ask(backend)
    assert {request.model for request in backend.requests[:2]} == {STRONG, FAST}
    assert backend.requests[2].model == STRONG
    last = (backend.requests[-1].prompt.messages or ())[-1].content
    assert last.startswith("hi\n\n")
    assert last.endswith("Draft 1:\none\n\nDraft 2:\ntwo")


async def test_a_stream_begins_when_it_is_known_whose_it_is() -> None:
    backend = serving(strong=says(STRONG, "a", "b", sure=0.1), fast=says(FAST, "c", sure=0.1))
    client = await ask(backend, stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = client.events()
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "ab"
    assert {chunk["model"] for chunk in chunks} == {"mesh"}
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"], done) == (12, 5, "[DONE]")
    assert client.headers["x-p2pmesh-mesh-winner"] == "org/big-9B reducer"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_other_shapes_share_the_way(path: str, is_streamed: bool) -> None:
    backend = serving(strong=says(STRONG, "Blue"), fast=says(FAST, "blue"))
    client = await ask(backend, path, stream=is_streamed)
    assert client.status == 200
    assert "Blue" in client.text
    assert client.headers["x-p2pmesh-mesh-decision"] == "agreement"
    used = client.json()["usage"] if not is_streamed else streamed_usage(client)
    if path == MESSAGES:
        assert (used["input_tokens"], used["cache_read_input_tokens"], used["output_tokens"]) == (5, 2, 2)
    else:
        assert (used["input_tokens"], used["output_tokens"]) == (7, 2)


def streamed_usage(client: AsgiClient) -> dict[str, Any]:
    """What the last event that tells usage says."""
    lines = [line.removeprefix("data: ") for line in client.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines]
    found = [event.get("usage") or event.get("response", {}).get("usage") for event in events]
    return [used for used in found if used][-1]


async def test_calls_of_tools_that_agree_are_the_answer() -> None:
    calls = [HERMES.write([ToolCall("", "look", text)]) for text in ('{"a": 1, "b": 2}', '{"b":2, "a":1}')]
    backend = serving(strong=says(STRONG, *calls[0]), fast=says(FAST, calls[1], sure=0.1))
    answer = (await ask(backend, tools=[TOOL])).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a": 1, "b": 2}'}
    assert all(request.tools is not None and request.max_tokens is None for request in backend.requests)


async def test_a_result_goes_to_the_strong_model_alone() -> None:
    backend = serving(strong=says(STRONG, "It is blue."), fast=says(FAST, "no"))
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "blue"},
    ]
    client = await ask(backend, messages=turns, tools=[TOOL])
    assert [request.model for request in backend.requests] == [STRONG]
    assert client.headers["x-p2pmesh-mesh-decision"] == "continued"
    assert [message.role for message in backend.requests[0].prompt.messages or ()] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("served", [{}, {"strong": says(STRONG, "a")}])
async def test_fewer_than_two_models_are_a_503_that_says_so(served: dict[str, Any]) -> None:
    backend = serving(**served)
    client = await ask(backend)
    assert (client.status, client.json()["error"]["code"]) == (503, "model_not_ready")
    assert "mesh answers once 2 or more models are served" in client.json()["error"]["message"]
    assert client.headers["retry-after"] == "7"
    listed = AsgiClient()
    await listed.run(openai_app(backend), "/v1/models", "GET")
    assert "mesh" not in [model["id"] for model in listed.json()["data"]]


async def test_a_peers_model_of_that_name_is_neither_asked_nor_listed() -> None:
    backend = serving(strong=says(STRONG, "a"))
    backend.listings = (*backend.listings, ModelListing("mesh", 1), ModelListing("auto", 1))
    assert (await ask(backend)).status == 503
    backend.listings = (*backend.listings, ModelListing(FAST, 1))
    backend.of_models[FAST] = says(FAST, "a")
    assert (await ask(backend)).status == 200
    assert {request.model for request in backend.requests} == {STRONG, FAST}
    listed = AsgiClient()
    await listed.run(openai_app(backend), "/v1/models", "GET")
    assert [model["id"] for model in listed.json()["data"]].count("mesh") == 1


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_leaves_cancels_everybody(is_streamed: bool) -> None:
    reached = [trio.Event(), trio.Event()]

    def hangs(number: int) -> tuple[Step, ...]:
        async def hang() -> None:
            reached[number].set()
            await trio.sleep_forever()

        return (*says((STRONG, FAST)[number], "a")[:2], hang)

    backend = serving(strong=hangs(0), fast=hangs(1))
    body = {"model": "mesh", "messages": [{"role": "user", "content": "hi"}], "stream": is_streamed}
    client = AsgiClient(json.dumps(body).encode())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run, openai_app(backend), CHAT)
        for event in reached:
            await event.wait()
        client.gone.set()
    assert sorted(backend.left) == [(STRONG, "cancelled"), (FAST, "cancelled")]


async def test_a_client_that_leaves_while_drafts_are_reduced_cancels_that(autojump_clock: MockClock) -> None:
    async def think() -> None:
        await trio.sleep(1)
        client.gone.set()
        await trio.sleep_forever()

    backend = serving(strong=says(STRONG, "a", sure=0.1), fast=says(FAST, "b", sure=0.1))
    started, delta, _ = says(STRONG, "c")
    body = {"model": "mesh", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    client = AsgiClient(json.dumps(body).encode())

    def script_of(request: Any) -> tuple[Step, ...]:
        return (started, delta, think) if len(backend.requests) == 3 else backend.of_models[request.model]

    backend._script_of = script_of  # type: ignore[method-assign]
    await client.run(openai_app(backend), CHAT)
    assert backend.left[-1] == (STRONG, "cancelled")
    assert '"content":"c"' in client.text


async def test_a_slow_model_is_dropped_and_what_it_said_is_paid_for(autojump_clock: MockClock) -> None:
    backend = serving(strong=says(STRONG, "a"), fast=(*says(FAST, "b", "c")[:3], trio.sleep_forever))
    client = await ask(backend)
    assert trio.current_time() == pytest.approx(3)
    assert client.headers["x-p2pmesh-mesh-models"] == "org/big-9B strong answered, tiny-1B fast dropped"
    assert client.headers["x-p2pmesh-mesh-decision"] == "arbitrated"
    assert client.json()["usage"]["completion_tokens"] == 3
    assert (FAST, "cancelled") in backend.left


async def test_a_reducer_that_does_not_begin_is_hedged(autojump_clock: MockClock) -> None:
    backend = serving(strong=says(STRONG, "a", sure=0.1), fast=says(FAST, "b", sure=0.1))

    def script_of(request: Any) -> tuple[Step, ...]:
        is_slow = len(backend.requests) == 3
        return (says(STRONG)[0], trio.sleep_forever) if is_slow else backend.of_models[request.model]

    backend._script_of = script_of  # type: ignore[method-assign]
    client = await ask(backend)
    assert trio.current_time() == pytest.approx(5)
    assert client.json()["choices"][0]["message"]["content"] == "b"
    assert client.headers["x-p2pmesh-mesh-winner"] == "tiny-1B reducer"
    assert client.headers["x-p2pmesh-mesh-models"].endswith("big-9B reducer dropped, tiny-1B reducer answered")


async def test_a_model_that_fails_costs_nothing_but_its_draft() -> None:
    error = PeerUnavailable(ErrorCode.PEER_LOST, "gone")
    backend = serving(strong=(says(STRONG)[0], error), middle=says(MIDDLE, "a"), fast=says(FAST, "a"))
    client = await ask(backend)
    assert client.status == 200
    assert "org/big-9B strong failed" in client.headers["x-p2pmesh-mesh-models"] or (
        "org/big-9B strong dropped" in client.headers["x-p2pmesh-mesh-models"]
    )


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_when_all_fail_the_clients_error_is_the_strong_ones(is_streamed: bool) -> None:
    too_long = Refused(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long")
    backend = serving(strong=(too_long,), fast=(PeerUnavailable(ErrorCode.PEER_LOST, "gone"),))
    client = await ask(backend, stream=is_streamed)
    assert (client.status, client.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_reducer_that_breaks_off_ends_the_stream_with_its_error() -> None:
    backend = serving(strong=says(STRONG, "a", sure=0.1), fast=says(FAST, "b", sure=0.1))

    def script_of(request: Any) -> tuple[Step, ...]:
        if len(backend.requests) < 3:
            return backend.of_models[request.model]
        return (*says(STRONG, "c")[:2], PeerUnavailable(ErrorCode.PEER_LOST, "gone"))

    backend._script_of = script_of  # type: ignore[method-assign]
    client = await ask(backend, stream=True)
    assert client.events()[-1]["error"]["code"] == "peer_lost"


async def test_an_unforeseen_failure_of_one_model_is_not_the_requests(caplog: pytest.LogCaptureFixture) -> None:
    backend = serving(strong=(ValueError("secret"),), fast=says(FAST, "a"))
    client = await ask(backend)
    assert client.headers["x-p2pmesh-mesh-decision"] == "only"
    assert "secret" not in client.text


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/completions", {"prompt": "x"}, "invalid_request"),
        ("/v1/embeddings", {"input": "x"}, "invalid_request"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "logit_bias": {"1": 1}}, "unsupported_parameter"),
    ],
)
async def test_what_only_one_model_can_answer_is_refused(path: str, body: dict[str, Any], code: str) -> None:
    backend = serving(strong=says(STRONG, "a"), fast=says(FAST, "b"))
    client = AsgiClient(json.dumps({"model": "mesh", **body}).encode())
    await client.run(openai_app(backend), path)
    assert (client.status, client.json()["error"]["code"]) == (400, code)
    assert backend.requests == []


async def test_log_probabilities_and_ids_are_the_winners() -> None:
    backend = serving(strong=says(STRONG, "a", "b"), fast=says(FAST, "ab"))
    choice = (await ask(backend, logprobs=True, return_token_ids=True)).json()["choices"][0]
    assert choice["token_ids"] == [0, 1]
    assert len(choice["logprobs"]["content"]) == 2


async def test_choices_are_mixed_each_for_itself() -> None:
    backend = serving(strong=says(STRONG, "a"), fast=says(FAST, "a"))
    answer = (await ask(backend, n=2)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "a"]
    assert sorted(request.sequence for request in backend.requests) == [0, 0, 1, 1]
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("virtual", ["mesh", "auto"])
async def test_tokens_of_virtual_models_are_the_strong_ones(virtual: str) -> None:
    class Counting(FakeBackend):
        async def tokenize(self, model: str, *arguments: Any, **named: Any) -> tuple[int, ...]:
            assert model == STRONG
            return (1, 2)

    backend = Counting(listings=(ModelListing(FAST, 1), ModelListing(STRONG, 1)))
    client = AsgiClient(json.dumps({"model": virtual, "messages": [{"role": "user", "content": "x"}]}).encode())
    await client.run(openai_app(backend), "/v1/messages/count_tokens")
    assert client.json() == {"input_tokens": 2}


async def test_tokens_of_auto_are_those_of_the_only_model_there_is() -> None:
    body = json.dumps({"model": "auto", "prompt": "hi"}).encode()
    client = AsgiClient(body)
    await client.run(openai_app(FakeBackend(listings=(ModelListing(FAST, 1),))), "/tokenize")
    assert client.json()["count"] == 3
    none = AsgiClient(body)
    await none.run(openai_app(FakeBackend(listings=())), "/tokenize")
    assert none.status == 503


async def test_metrics_count_answers_and_models() -> None:
    backend = serving(strong=says(STRONG, "a"), fast=says(FAST, "a"))
    app = openai_app(backend)
    body = {"model": "mesh", "messages": [{"role": "user", "content": "hi"}]}
    await AsgiClient(json.dumps(body).encode()).run(app, CHAT)
    shown = AsgiClient()
    await shown.run(app, "/metrics", "GET")
    assert 'p2pmesh_mesh_answers_total{decision="agreement"} 1\n' in shown.text
    assert 'p2pmesh_mesh_models_total{role="fast",outcome="answered"} 1\n' in shown.text
    assert 'p2pmesh_completion_tokens_total{model="tiny-1B"} 1\n' in shown.text
    assert "p2pmesh_models_routable 2\n" in shown.text


async def test_the_policy_is_the_operators() -> None:
    backend = serving(strong=says(STRONG, "a"), middle=says(MIDDLE, "a"), fast=says(FAST, "b"))
    client = await ask(backend, policy=MixturePolicy(models=2, confidence_milli=950))
    assert sorted(request.model for request in backend.requests) == [STRONG, STRONG, FAST]
    assert client.headers["x-p2pmesh-mesh-decision"] == "reduced"
