"""Reasoning told apart from what is said."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.reasoning import ReasoningSplitter, opens_reasoning


def split(pieces: list[str], *, is_inside: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(is_inside=is_inside)
    steps = [*(splitter.add(piece) for piece in pieces), splitter.finish()]
    return "".join(step.reasoning for step in steps), "".join(step.content for step in steps)


@pytest.mark.parametrize(
    ("text", "is_inside", "expected"),
    [
        ("plain", False, ("", "plain")),
        ("  plain ", False, ("", "  plain ")),
        ("<think>\nhm\n</think>\n\nyes", False, ("hm", "yes")),
        ("\n<think>hm</think>yes", False, ("hm", "yes")),
        ("<think></think>yes", False, ("", "yes")),
        ("hm\n</think>\n\nyes", True, ("hm", "yes")),
        ("<think>never ends ", False, ("never ends ", "")),
        ("<thin", False, ("", "<thin")),
        ("a <think>b</think>", False, ("", "a <think>b</think>")),
        ("<think>a </thin b</think>c</think>", False, ("a </thin b", "c</think>")),
        ("", True, ("", "")),
    ],
)
def test_marks_are_given_out_nowhere(text, is_inside, expected):
    assert split([text], is_inside=is_inside) == expected
    assert split(list(text), is_inside=is_inside) == expected


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "a", " ", "\n", "b c"])),
    st.booleans(),
    st.data(),
)
def test_where_a_piece_ends_changes_nothing(parts, is_inside, data):
    text = "".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
    assert split(pieces, is_inside=is_inside) == split([text], is_inside=is_inside)


@given(st.text(alphabet="<think>/ a", max_size=30))
def test_text_without_an_opening_mark_is_content_to_the_letter(text):
    if not text.lstrip().startswith("<think>"):
        assert split(list(text)) == ("", text)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("<|assistant|><think>\n", True), ("<|assistant|>", False), ("<think>\n\n</think>\n\n", False)],
)
def test_a_template_may_leave_a_block_open(prompt, expected):
    assert opens_reasoning(prompt) is expected
