"""Requests of both endpoints, parsed."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.api.errors import RequestError
from p2pmesh.api.openai.chat import parse_chat
from p2pmesh.api.openai.completions import parse_completions
from p2pmesh.api.openai.parameters import (
    CHAT_HARMLESS,
    COMPLETIONS_HARMLESS,
    IMPLEMENTED,
    STREAM_OPTIONS_HARMLESS,
    Call,
)
from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.wire.generation import ChatMessage, ToolCall

ID = bytes(16)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}


def chat(**changes: Any) -> Call:
    return parse_chat({**CHAT, **changes}, ID, lambda: 99)


def completion(**changes: Any) -> Call:
    return parse_completions({**COMPLETION, **changes}, ID, lambda: 99)


def refusal(parse: Callable[..., Call], **changes: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        parse(**changes)
    return raised.value


def test_defaults_are_openais() -> None:
    call = chat()
    assert not call.is_streamed
    assert not call.wants_usage_chunk
    sampling = call.request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert sampling.seed == 99
    assert (call.request.stop, call.request.max_tokens, call.request.request_id) == ((), None, ID)
    assert completion().request.max_tokens == 16


def test_every_implemented_parameter_arrives() -> None:
    call = chat(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        presence_penalty=-1,
        frequency_penalty=2,
        repeat_penalty=1.1,
        seed=7,
        stop=["a", "b"],
        max_completion_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    sampling = call.request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 40, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repeat_penalty) == (-1.0, 2.0, 1.1)
    assert (sampling.seed, call.request.stop, call.request.max_tokens) == (7, ("a", "b"), 5)
    assert (call.is_streamed, call.wants_usage_chunk) == (True, True)


def test_negative_seeds_are_seeds() -> None:
    assert chat(seed=-1).request.sampling.seed == 2**64 - 1
    assert refusal(chat, seed=2**64).param == "seed"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("store", False),
        ("service_tier", "auto"),
        ("service_tier", "default"),
        ("n", 1),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("logit_bias", {}),
        ("prompt_cache_options", {"mode": "auto"}),
        ("prediction", {"type": "content", "content": "x"}),
        ("prediction", {"type": "content", "content": [{"type": "text", "text": "x"}]}),
        ("parallel_tool_calls", True),
        ("response_format", {"type": "text"}),
        ("modalities", ["text"]),
        ("tools", []),
        ("tool_choice", "none"),
        ("prediction", None),
        ("reasoning_effort", None),
        ("invented", None),
    ],
)
def test_harmless_values_are_accepted(name: str, value: object) -> None:
    assert chat(**{name: value}) == chat()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", True),
        ("service_tier", "priority"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
        ("web_search_options", {}),
        ("moderation", {}),
        ("invented", 1),
    ],
)
def test_unsupported_values_are_named(name: str, value: object) -> None:
    error = refusal(chat, **{name: value})
    assert (error.code, error.param) == (ErrorCode.PARAMETER_UNSUPPORTED, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("suffix", "x"), ("tools", []), ("reasoning_effort", "low"), ("top_logprobs", 2)],
)
def test_the_older_endpoint_refuses_its_own(name: str, value: object) -> None:
    error = refusal(completion, **{name: value})
    assert (error.code, error.param) == (ErrorCode.PARAMETER_UNSUPPORTED, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 1),
        ("model", ""),
        ("model", None),
        ("model", "m" * 257),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("top_p", 0),
        ("top_p", 10**400),
        ("top_k", 1.5),
        ("presence_penalty", 3),
        ("max_tokens", 0),
        ("max_completion_tokens", "5"),
        ("seed", 1.5),
        ("stop", 5),
        ("stop", ""),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stream", "yes"),
        ("n", True),
        ("n", "1"),
        ("n", 0),
        ("n", 129),
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("top_logprobs", 3),
        ("logit_bias", [1]),
        ("logit_bias", {str(token): 1 for token in range(1025)}),
        ("reasoning_effort", "much"),
        ("repetition_penalty", 0),
        ("prediction", "x"),
        ("user", 5),
        ("metadata", "m"),
        ("stream_options", {"include_usage": True}),
        ("messages", None),
        ("messages", []),
        ("messages", "hi"),
    ],
)
def test_wrong_types_and_values_are_named(name: str, value: object) -> None:
    error = refusal(chat, **{name: value})
    assert (error.code, error.param) == (ErrorCode.REQUEST_INVALID, name)


def test_stream_options_are_checked_by_name() -> None:
    assert refusal(chat, stream=True, stream_options={"include_usage": 1}).param == "stream_options.include_usage"
    error = refusal(chat, stream=True, stream_options={"other": 1})
    assert (error.code, error.param) == (ErrorCode.PARAMETER_UNSUPPORTED, "stream_options.other")
    assert not chat(stream=True, stream_options={"include_obfuscation": False}).wants_usage_chunk


def test_the_two_limits_may_agree_only() -> None:
    assert chat(max_tokens=5, max_completion_tokens=5).request.max_tokens == 5
    assert refusal(chat, max_tokens=5, max_completion_tokens=6).param == "max_tokens"


def messages_of(*messages: object) -> tuple[ChatMessage, ...] | None:
    return chat(messages=list(messages)).request.prompt.messages


def test_roles_and_contents() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert messages_of(
        {"role": "developer", "content": "be brief"},
        {"role": "system", "content": ""},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [], "annotations": []},
        {"role": "assistant"},
    ) == (
        ChatMessage("system", "be brief"),
        ChatMessage("system", ""),
        ChatMessage("user", "one\ntwo"),
        ChatMessage("assistant", ""),
        ChatMessage("assistant", ""),
    )


def test_names_and_what_was_refused_stay_in_the_conversation() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    assert messages_of(
        {"role": "user", "name": "Ann", "content": "hi"},
        {"role": "user", "name": None, "content": "hi"},
        {"role": "assistant", "content": None, "refusal": "not that"},
        {"role": "assistant", "content": [{"type": "text", "text": "I"}, {"type": "refusal", "refusal": "may not"}]},
        {"role": "assistant", "name": "Bob", "tool_calls": [call]},
        {"role": "tool", "name": "now", "tool_call_id": "c", "content": "noon"},
    ) == (
        ChatMessage("user", "hi", name="Ann"),
        ChatMessage("user", "hi"),
        ChatMessage("assistant", "not that"),
        ChatMessage("assistant", "I\nmay not"),
        ChatMessage("assistant", "", (ToolCall("c", "now", "{}"),), name="Bob"),
        ChatMessage("tool", "noon", answers="c", name="now"),
    )


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("hi", ErrorCode.REQUEST_INVALID, "messages[1]"),
        ({"content": "x"}, ErrorCode.REQUEST_INVALID, "messages[1].role"),
        ({"role": "robot", "content": "x"}, ErrorCode.REQUEST_INVALID, "messages[1].role"),
        ({"role": "tool", "content": "x"}, ErrorCode.REQUEST_INVALID, "messages[1].tool_call_id"),
        ({"role": "function", "content": "x"}, ErrorCode.PARAMETER_UNSUPPORTED, "messages[1].role"),
        ({"role": "user"}, ErrorCode.REQUEST_INVALID, "messages[1].content"),
        ({"role": "user", "content": 5}, ErrorCode.REQUEST_INVALID, "messages[1].content"),
        ({"role": "user", "content": []}, ErrorCode.REQUEST_INVALID, "messages[1].content"),
        ({"role": "user", "content": "x", "name": 5}, ErrorCode.REQUEST_INVALID, "messages[1].name"),
        ({"role": "user", "content": "x", "name": "a\nb"}, ErrorCode.REQUEST_INVALID, "messages[1].name"),
        ({"role": "user", "content": "x", "name": "b" * 65}, ErrorCode.REQUEST_INVALID, "messages[1].name"),
        ({"role": "user", "content": "x", "refusal": "no"}, ErrorCode.PARAMETER_UNSUPPORTED, "messages[1].refusal"),
        ({"role": "assistant", "refusal": 5}, ErrorCode.REQUEST_INVALID, "messages[1].refusal"),
        (
            {"role": "assistant", "content": [{"type": "refusal", "text": "no"}]},
            ErrorCode.PARAMETER_UNSUPPORTED,
            "messages[1].content[0].text",
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [{}]},
            ErrorCode.REQUEST_INVALID,
            "messages[1].tool_calls[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            ErrorCode.PARAMETER_UNSUPPORTED,
            "messages[1].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "text"}]},
            ErrorCode.REQUEST_INVALID,
            "messages[1].content[0].text",
        ),
    ],
)
def test_a_message_at_fault_is_named(message: object, code: ErrorCode, param: str) -> None:
    error = refusal(chat, messages=[{"role": "user", "content": "ok"}, message])
    assert (error.code, error.param) == (code, param)


def test_prompts_of_the_older_endpoint() -> None:
    assert completion(prompt="x").request.prompt.text == "x"
    assert completion(prompt=["x"]).request.prompt.text == "x"
    assert completion(prompt=[1, 2]).request.prompt.tokens == (1, 2)
    assert completion(prompt=[[1, 2]]).request.prompt.tokens == (1, 2)


@pytest.mark.parametrize("prompt", [None, "", [], [True], [-1], [2**31], [1.5], {}, 7])
def test_prompts_that_are_none(prompt: object) -> None:
    error = refusal(completion, prompt=prompt)
    assert (error.code, error.param) == (ErrorCode.REQUEST_INVALID, "prompt")


def test_a_batch_of_prompts_is_as_many_requests() -> None:
    call = completion(prompt=["a", [1, 2]], n=2, best_of=3)
    assert [request.sequence for request in call.requests] == [0, 1, 2, 3, 4, 5]
    assert [call.prompt_of(index) for index in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [request.prompt.text for request in call.requests] == ["a"] * 3 + [None] * 3
    assert {request.top_logprobs for request in call.requests} == {0}  # what the best are found by
    assert (call.n, call.candidates, call.shows_logprobs) == (2, 3, False)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ["a", []]}, "prompt[1]"),
        ({"prompt": [[1], "a", 5]}, "prompt[2]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
    ],
)
def test_batches_and_choices_at_fault_are_named(changes: dict[str, Any], param: str) -> None:
    error = refusal(completion, **changes)
    assert (error.code, error.param) == (ErrorCode.REQUEST_INVALID, param)


def test_choices_are_sequences_of_one_request() -> None:
    call = chat(n=3)
    assert [request.sequence for request in call.requests] == [0, 1, 2]
    assert {request.request_id for request in call.requests} == {ID}
    assert {request.sampling.seed for request in call.requests} == {99}
    assert chat(stream=True, n=2).candidates == 2


def test_log_probabilities_are_asked_for_as_each_endpoint_does() -> None:
    assert chat().request.top_logprobs is None
    assert chat(logprobs=True).request.top_logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).request.top_logprobs == 20
    assert completion(logprobs=0).request.top_logprobs == 0
    assert completion(logprobs=5).request.top_logprobs == 5
    assert completion(logprobs=False).request.top_logprobs is None


def test_a_bias_arrives_by_ascending_token() -> None:
    assert chat(logit_bias={"50": -100, "7": 1.5}).request.sampling.logit_bias == ((7, 1.5), (50, -100.0))


@pytest.mark.parametrize(
    "bias", [{"a": 1}, {"-1": 1}, {"01": 1}, {"2147483648": 1}, {"5": 101}, {"5": "1"}, {"5": None}]
)
def test_a_bias_at_fault_is_named(bias: dict[str, Any]) -> None:
    error = refusal(chat, logit_bias=bias)
    assert error.code is ErrorCode.REQUEST_INVALID
    assert error.param == f"logit_bias.{next(iter(bias))}"


def test_the_repetition_penalty_has_two_names() -> None:
    assert chat(repetition_penalty=1.5).request.sampling.repeat_penalty == 1.5
    assert chat(repetition_penalty=1.5, repeat_penalty=1.5).request.sampling.repeat_penalty == 1.5
    assert refusal(chat, repetition_penalty=1.5, repeat_penalty=1.2).param == "repetition_penalty"


def test_reasoning_effort_is_the_templates() -> None:
    assert chat(reasoning_effort="none").request.prompt.reasoning_effort == "none"
    assert chat().request.prompt.reasoning_effort == ""


def test_reasoning_is_kept_out_of_history() -> None:
    earlier = {"role": "assistant", "content": "yes", "reasoning_content": "hm", "reasoning": "hm"}
    assert messages_of(earlier) == (ChatMessage("assistant", "yes"),)
    assert (
        refusal(chat, messages=[{"role": "assistant", "content": "x", "reasoning": 5}]).param == "messages[0].reasoning"
    )
    unknown = refusal(chat, messages=[{"role": "user", "content": "x", "reasoning": "hm"}])
    assert unknown.code is ErrorCode.PARAMETER_UNSUPPORTED


def test_an_echo_is_of_text_and_without_log_probabilities() -> None:
    assert completion(prompt=["a", "b"], echo=True, n=2).echoes == ("a", "a", "b", "b")
    assert refusal(completion, prompt=[1], echo=True).param == "echo"
    assert refusal(completion, echo=True, logprobs=0).param == "echo"


_NAMES = sorted(IMPLEMENTED | CHAT_HARMLESS.keys() | COMPLETIONS_HARMLESS.keys() | STREAM_OPTIONS_HARMLESS.keys())
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "user", "assistant", "tool"]) | _VALUES,
            "content": st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _VALUES})) | _VALUES,
            "name": _VALUES,
        },
    ),
    max_size=3,
)
_BODIES = st.builds(
    lambda base, more: {**base, **more},
    st.fixed_dictionaries({"model": st.just("m") | _VALUES, "messages": _MESSAGES | _VALUES, "prompt": _VALUES}),
    st.dictionaries(st.sampled_from(_NAMES) | st.text(max_size=8), _VALUES, max_size=4),
)


def outcome(parse: Callable[..., Call], body: dict[str, Any]) -> Call | P2PMeshError:
    try:
        return parse(body, ID, lambda: 0)
    except P2PMeshError as error:
        return error


@given(body=_BODIES, drop=st.sampled_from(["messages", "prompt", "model", ""]))
def test_parsing_raises_nothing_but_refusals(body: dict[str, Any], drop: str) -> None:
    body = {name: value for name, value in body.items() if name != drop}
    for parse in (parse_chat, parse_completions):
        found = outcome(parse, body)
        if isinstance(found, P2PMeshError):
            assert found.code in {ErrorCode.REQUEST_INVALID, ErrorCode.PARAMETER_UNSUPPORTED}
            assert "\n" not in found.message
