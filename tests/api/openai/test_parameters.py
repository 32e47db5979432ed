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
from p2pmesh.wire.generation import ChatMessage

ID = bytes(16)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}

OPENAI_CHAT_PARAMETERS = (
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "modalities",
    "model",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
)


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


@pytest.mark.parametrize("name", OPENAI_CHAT_PARAMETERS)
def test_no_parameter_of_openai_is_dropped_silently(name: str) -> None:
    known = IMPLEMENTED | {"messages", "max_completion_tokens"} | CHAT_HARMLESS.keys()
    if name not in known:
        error = refusal(chat, **{name: {"some": "value"}})
        assert (error.code, error.param) == (ErrorCode.PARAMETER_UNSUPPORTED, name)
        assert name in error.message


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
        ("logit_bias", {}),
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
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("logit_bias", {"5": 1}),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("prediction", {"type": "content", "content": "x"}),
        ("reasoning_effort", "high"),
        ("invented", 1),
    ],
)
def test_unsupported_values_are_named(name: str, value: object) -> None:
    error = refusal(chat, **{name: value})
    assert (error.code, error.param) == (ErrorCode.PARAMETER_UNSUPPORTED, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("echo", True), ("suffix", "x"), ("best_of", 2), ("logprobs", 0), ("logprobs", 2), ("n", 3), ("tools", [])],
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


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("hi", ErrorCode.REQUEST_INVALID, "messages[1]"),
        ({"content": "x"}, ErrorCode.REQUEST_INVALID, "messages[1].role"),
        ({"role": "robot", "content": "x"}, ErrorCode.REQUEST_INVALID, "messages[1].role"),
        ({"role": "tool", "content": "x"}, ErrorCode.PARAMETER_UNSUPPORTED, "messages[1].role"),
        ({"role": "user"}, ErrorCode.REQUEST_INVALID, "messages[1].content"),
        ({"role": "user", "content": 5}, ErrorCode.REQUEST_INVALID, "messages[1].content"),
        ({"role": "user", "content": []}, ErrorCode.REQUEST_INVALID, "messages[1].content"),
        ({"role": "user", "content": "x", "name": "bob"}, ErrorCode.PARAMETER_UNSUPPORTED, "messages[1].name"),
        (
            {"role": "assistant", "content": None, "tool_calls": [{}]},
            ErrorCode.PARAMETER_UNSUPPORTED,
            "messages[1].tool_calls",
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


@pytest.mark.parametrize("prompt", [None, "", [], [[]], [True], [-1], [2**31], [1.5], {}, 7])
def test_prompts_that_are_none(prompt: object) -> None:
    error = refusal(completion, prompt=prompt)
    assert (error.code, error.param) == (ErrorCode.REQUEST_INVALID, "prompt")


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]]])
def test_batches_of_prompts_are_unsupported(prompt: object) -> None:
    assert refusal(completion, prompt=prompt).code is ErrorCode.PARAMETER_UNSUPPORTED


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
