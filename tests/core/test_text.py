"""Text that may be shown, token by token."""

import codecs
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.text import TextAssembler

STOPS = ("ab", "abc", "END", "\nUser:", "é", "aaa", "b\ufffd")


def run(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """All texts that were given out, and the stop that ended them, or nothing."""
    assembler = TextAssembler(pieces, stops)
    given_out = []
    for token in range(len(pieces)):
        step = assembler.add(token)
        given_out.append(step.text)
        if step.is_stopped:
            return given_out, step.stop
    step = assembler.finish()
    return [*given_out, step.text], step.stop


def whole(data: bytes, stops: tuple[str, ...]) -> tuple[str, str]:
    """The reference: decode everything, cut at the stop that completes first (the longer one at a tie)."""
    text = data.decode("utf-8", "replace")
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], text[min(starts) : end]
    return text, ""


@st.composite
def split_texts(draw: st.DrawFn) -> list[bytes]:
    text = draw(st.lists(st.sampled_from(["a", "b", "c", "E", "N", "D", "\n", "User:", "é", "🙂", "\ufffd", " "])))
    data = "".join(text).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)))))
    return [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]


def test_a_character_over_three_tokens_comes_out_when_it_is_whole() -> None:
    smile = "🙂".encode()
    assert run([b"x", smile[:1], smile[1:3], smile[3:], b"y"])[0] == ["x", "", "", "🙂", "y", ""]


def test_bytes_that_never_become_a_character_come_out_at_the_end_as_a_replacement() -> None:
    assert run([b"ok", b"\xf0\x9f"])[0] == ["ok", "", "\ufffd"]


def test_a_stop_across_tokens_ends_the_text_before_it() -> None:
    assert run([b"one E", b"N", b"D two"], ("END",)) == (["one ", "", ""], "END")


def test_text_that_only_began_like_a_stop_is_released() -> None:
    assert run([b"one E", b"N", b"x"], ("END",)) == (["one ", "", "ENx", ""], "")


def test_held_back_text_is_released_at_the_end() -> None:
    assert run([b"one EN"], ("END",)) == (["one ", "EN"], "")


def test_the_stop_that_completes_first_counts_however_tokens_fall() -> None:
    assert run([b"xabcd"], ("abcd", "c")) == (["xab"], "c")
    assert "".join(run([b"x", b"a", b"b", b"c", b"d"], ("abcd", "c"))[0]) == "xab"


def test_of_two_stops_that_complete_together_the_longer_is_taken_out() -> None:
    assert run([b"xabc"], ("c", "abc")) == (["x"], "abc")


def test_an_empty_stop_stops_nothing() -> None:
    assert run([b"abc"], ("",)) == (["abc", ""], "")


def test_an_incomplete_character_can_complete_a_stop_at_the_end() -> None:
    assert run([b"ab", b"\xf0"], ("b\ufffd",)) == (["a", "", ""], "b\ufffd")


@pytest.mark.parametrize("token", [-1, 1, 10**6])
def test_an_id_outside_the_vocabulary_has_no_bytes(token: int) -> None:
    assert TextAssembler([b"x"]).add(token).text == ""


@given(split_texts(), st.lists(st.sampled_from(STOPS), max_size=4, unique=True).map(tuple))
def test_the_texts_together_are_the_whole_decode_up_to_the_stop(pieces: list[bytes], stops: tuple[str, ...]) -> None:
    texts, stop = run(pieces, stops)
    assert ("".join(texts), stop) == whole(b"".join(pieces), stops)


@given(st.lists(st.binary(max_size=4), max_size=12))
def test_any_bytes_decode_as_they_do_in_one_piece(pieces: list[bytes]) -> None:
    assert "".join(run(pieces)[0]) == b"".join(pieces).decode("utf-8", "replace")


@given(split_texts(), st.sampled_from([stop for stop in STOPS if "\ufffd" not in stop]))
def test_no_part_of_a_stop_is_ever_given_out(pieces: list[bytes], stop: str) -> None:
    shown = ""
    assembler = TextAssembler(pieces, (stop,))
    for token in range(len(pieces)):
        step = assembler.add(token)
        shown += step.text
        if step.is_stopped:
            return
        so_far = codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(pieces[: token + 1]))
        for length in range(len(stop)):  # however the stop might be completed from here
            cut = (so_far + stop[length:]).find(stop)
            assert cut < 0 or cut >= len(shown)
