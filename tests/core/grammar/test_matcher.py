"""Matching against regular expressions as the reference, and what hostile grammars may cost."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.core.grammar import matcher as matching
from p2pmesh.core.grammar.characters import DONE, compile_characters
from p2pmesh.core.grammar.matcher import Matcher
from p2pmesh.core.grammar.network import compile_grammar
from p2pmesh.core.grammar.notation import invert_ranges, merge_ranges

LETTERS = "abé"


def expressions():
    """Pairs of an expression and the regular expression that means the same."""
    leaves = st.sampled_from([('"a"', "a"), ('"b"', "b"), ('"é"', "é"), ("[ab]", "[ab]"), ("[^a]", "[^a]"), ('""', "")])

    def grow(inner):
        return st.one_of(
            st.tuples(inner, inner).map(lambda two: (f"{two[0][0]} {two[1][0]}", two[0][1] + two[1][1])),
            st.tuples(inner, inner).map(lambda two: (f"({two[0][0]} | {two[1][0]})", f"(?:{two[0][1]}|{two[1][1]})")),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}"])).map(
                lambda one: (f"({one[0][0]}){one[1]}", f"(?:{one[0][1]}){one[1]}")
            ),
        )

    return st.recursive(leaves, grow, max_leaves=8)


@settings(max_examples=300, deadline=None)
@given(expressions(), st.text(LETTERS, max_size=6))
def test_a_grammar_without_recursion_matches_what_the_regular_expression_does(pair, text):
    grammar, pattern = pair
    matcher = Matcher(compile_grammar(f"root ::= {grammar}"))
    state = matcher.walk(matcher.start, text.encode())
    assert (state is not None and state.is_complete) == (re.fullmatch(pattern, text, re.DOTALL) is not None)


@settings(max_examples=200, deadline=None)
@given(expressions(), st.text(LETTERS, max_size=6))
def test_where_a_text_can_go_on_the_shortest_rest_says_how_far(pair, text):
    matcher = Matcher(compile_grammar(f"root ::= {pair[0]}"))
    state = matcher.walk(matcher.start, text.encode())
    while state is not None and state.least_bytes:
        ways = [following for byte in range(256) if (following := matcher.walk(state, bytes((byte,)))) is not None]
        assert min(way.least_bytes for way in ways) == state.least_bytes - 1
        state = min(ways, key=lambda way: way.least_bytes)
    assert state is None or state.is_complete


@given(st.lists(st.tuples(st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF)), max_size=4), st.integers(0, 0x10FFFF))
def test_a_set_holds_its_characters_and_its_inverse_the_others(pairs, code):
    ranges = merge_ranges([(min(pair), max(pair)) for pair in pairs])
    if 0xD800 <= code <= 0xDFFF:
        return
    is_in = any(first <= code <= last for first, last in ranges)
    for wanted, tried in ((is_in, ranges), (not is_in, invert_ranges(ranges))):
        characters = compile_characters(tried)
        place: int | None = 0
        for byte in chr(code).encode():
            place = characters.moves[place].get(byte) if place is not None else None
        assert (place == DONE) is wanted


def test_what_is_met_again_costs_nothing():
    matcher = Matcher(compile_grammar('root ::= ("a" | "b")*'))
    matcher.grant(100)
    assert matcher.walk(matcher.start, b"ab" * 10_000) is not None


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('root ::= "a" root "b" | "a" root "c" | "a"', b"a" * 64),  # twice as many readings with every byte
        ("root ::= " + " | ".join(f'"a{i}"' for i in range(5000)), b"a1"),
    ],
)
def test_too_many_readings_are_refused(grammar, text):
    matcher = Matcher(compile_grammar(grammar))
    with pytest.raises(RemoteProtocolError) as caught:
        matcher.walk(matcher.start, text)
    assert caught.value.code is ErrorCode.GRAMMAR_INVALID


def test_too_much_work_for_a_token_is_refused():
    matcher = Matcher(compile_grammar('root ::= ("a"? ){3000}'))
    matcher.grant(50_000)
    with pytest.raises(RemoteProtocolError) as caught:
        matcher.walk(matcher.start, b"a" * 2000)
    assert caught.value.code is ErrorCode.GRAMMAR_INVALID


def test_states_are_forgotten_before_they_fill_the_memory(monkeypatch):
    monkeypatch.setattr(matching, "_KEPT_CELLS", 50)
    matcher = Matcher(compile_grammar('root ::= "(" root ")" | "x"'))
    for _ in range(3):
        text = b"(" * 40 + b"x" + b")" * 40
        state = matcher.walk(matcher.start, text)
        assert state is not None
        assert state.is_complete
        assert len(matcher._states) <= 50


def test_a_long_list_is_no_deep_one():
    matcher = Matcher(compile_grammar('root ::= item rest\nrest ::= ("," root)?\nitem ::= [0-9]'))
    state = matcher.walk(matcher.start, b"1," * 5000 + b"2")
    assert state is not None
    assert state.is_complete
