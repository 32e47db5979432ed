"""What a draft says, calls, and how sure it is."""

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.mixture.drafts import Call, Draft, read_draft
from p2pmesh.core.tool_calls.formats import HERMES
from p2pmesh.core.tool_calls.tools import Tool, encode_tools
from p2pmesh.wire.generation import (
    FinishReason,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationStarted,
    TokenLogprob,
    ToolCall,
    ToolUse,
)

TOOLS = ToolUse(encode_tools((Tool("look"), Tool("find"))))


def heard(
    *pieces: str,
    reason: FinishReason = FinishReason.STOP,
    probability: float = 1.0,
    is_reasoning: bool = False,
    held_back: str = "",
) -> list[GenerationEvent]:
    told = TokenLogprob(1, b"x", math.log(probability))
    started = GenerationStarted((1,), bytes(16), "fp", 9, is_reasoning=is_reasoning, call_format=HERMES.name)
    deltas = [GenerationDelta((1,), piece, (told,)) for piece in pieces]
    return [started, *deltas, GenerationFinished(reason, held_back, len(pieces))]


def written(name: str, arguments: str) -> str:
    return HERMES.write([ToolCall("", name, arguments)])


def test_reasoning_is_no_part_of_a_draft() -> None:
    draft = read_draft(heard("so", "</thi", "nk> It", " is."), None, is_own_limit=False)
    assert draft.text == "so</think> It is."
    thought = read_draft(heard("so", "</thi", "nk> It", " is.", is_reasoning=True), None, is_own_limit=False)
    assert thought.text == "It is."


def test_text_that_was_held_back_counts() -> None:
    assert read_draft(heard("a", held_back="b"), None, is_own_limit=False).text == "ab"


def test_calls_are_read_out_of_the_text() -> None:
    text = written("look", '{"at": "sky"}')
    draft = read_draft(heard("I look. ", text[:9], text[9:]), TOOLS, is_own_limit=False)
    assert (draft.text, draft.calls) == ("I look.", (Call("look", '{"at": "sky"}'),))
    assert draft.called == ("look",)
    assert read_draft(heard(written("look", "{}")), None, is_own_limit=False).calls == ()


@pytest.mark.parametrize(
    ("reason", "is_own_limit", "is_whole"),
    [(FinishReason.STOP, False, True), (FinishReason.LENGTH, False, False), (FinishReason.LENGTH, True, True)],
)
def test_a_draft_that_its_role_cut_off_is_not_whole(reason: FinishReason, is_own_limit: bool, is_whole: bool) -> None:
    draft = read_draft(heard("a", reason=reason), None, is_own_limit=is_own_limit)
    assert (draft.is_whole, draft.is_usable) == (is_whole, is_whole)


def test_one_that_was_broken_off_is_not_whole() -> None:
    assert not read_draft(heard("a", "b")[:-1], None, is_own_limit=True).is_whole
    assert read_draft([], None, is_own_limit=True) == Draft("", is_whole=False)


@pytest.mark.parametrize(("probability", "milli"), [(1.0, 1000), (0.5, 500), (0.0012, 1), (1e-60, 0)])
def test_confidence_is_the_mean_of_its_probabilities(probability: float, milli: int) -> None:
    assert read_draft(heard("a", "b", probability=probability), None, is_own_limit=False).confidence_milli == milli


def test_a_model_that_tells_no_probabilities_is_not_sure() -> None:
    assert Draft("a").confidence_milli == 0


@pytest.mark.parametrize(
    "draft",
    [
        Draft(" \n"),
        Draft("", (Call("look", '{"at": '),)),
        Draft("", (Call("look", "[1]"),)),
        Draft("", (Call("look", '{"at": NaN}'),)),
        Draft("", (Call("look", '{"at": ' + "[" * 200 + "]" * 200 + "}"),)),
        Draft("a", is_whole=False),
    ],
)
def test_what_says_nothing_or_does_not_parse_is_no_answer(draft: Draft) -> None:
    assert not draft.is_usable


def test_drafts_agree_on_words_alone() -> None:
    assert Draft("It's Paris.").meaning == Draft(" it's PARIS!\n").meaning
    assert Draft("It is safe").meaning != Draft("It is not safe").meaning
    assert Draft("42").meaning != Draft("").meaning
    assert Draft("!").meaning != Draft("?").meaning


def test_calls_agree_where_names_and_arguments_do() -> None:
    one = Draft("I look", (Call("look", '{"a": 1, "b": [2]}'),))
    assert one.meaning == Draft("", (Call("look", '{"b":[2],"a":1}'),)).meaning
    assert one.meaning != Draft("", (Call("look", '{"a": 2, "b": [2]}'),)).meaning
    assert one.meaning != Draft("", (Call("find", '{"a": 1, "b": [2]}'),)).meaning
    assert Draft("calls []").meaning != Draft("", ()).meaning


def test_calls_are_shown_to_who_reduces_drafts() -> None:
    assert Draft(" a ", (Call("look", "{}"),)).shown() == "a\n(calls look with {})"
    assert Draft("").shown() == ""


@given(text=st.text(max_size=60), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_how_an_answer_was_cut_is_no_matter(text: str, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(bounds)]
    whole = read_draft(heard(text), TOOLS, is_own_limit=False)
    assert read_draft(heard(*pieces), TOOLS, is_own_limit=False) == whole
    assert json.dumps(whole.meaning)
