"""Ranges of sampling parameters and forms of a prompt."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.wire.generation import MAX_SEED, ChatMessage, Prompt, SamplingParameters, ToolCall

RANGES = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 1_000_000),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repeat_penalty": (0.01, 10.0),
    "seed": (0, MAX_SEED),
}


@pytest.mark.parametrize("name", RANGES)
def test_both_ends_of_a_range_hold_and_nothing_beyond(name: str) -> None:
    lowest, highest = RANGES[name]
    for inside in (lowest, highest):
        assert getattr(SamplingParameters(**{name: inside}), name) == inside
    step = 1 if isinstance(lowest, int) else 1e-6
    for outside in (lowest - step, highest + step):
        with pytest.raises(RemoteProtocolError, match=name) as error:
            SamplingParameters(**{name: outside})
        assert error.value.code is ErrorCode.REQUEST_INVALID


@pytest.mark.parametrize("value", [0.0, -0.1, 1.0001])
def test_top_p_is_above_zero_and_at_most_one(value: float) -> None:
    with pytest.raises(RemoteProtocolError, match="top_p"):
        SamplingParameters(top_p=value)


@given(st.sampled_from([name for name in RANGES if name not in ("top_k", "seed")]))
def test_nan_is_in_no_range(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="nan"):
        SamplingParameters(**{name: math.nan})


@pytest.mark.parametrize(
    "forms",
    [{}, {"text": "a", "tokens": (1,)}, {"text": "", "messages": ()}, {"text": "a", "tokens": (), "messages": ()}],
)
def test_a_prompt_has_exactly_one_form(forms: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError, match="one form"):
        Prompt(**forms)  # type: ignore[arg-type]


def test_a_prompt_of_each_form() -> None:
    assert Prompt(text="").tokens is None
    assert Prompt(tokens=(1,)).text is None
    assert Prompt(messages=(ChatMessage("user", "hi"),)).text is None


def test_the_size_of_a_prompt_is_what_there_is_to_tokenise() -> None:
    said = ChatMessage("assistant", "abc", (ToolCall("id", "look", '{"a":1}'),))
    assert Prompt(messages=(ChatMessage("user", "hi"), said)).size_characters == 12
    assert (Prompt(text="four").size_characters, Prompt(tokens=(1, 2)).size_characters) == (4, 0)
