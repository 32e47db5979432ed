"""The normative vectors of ``protocols/grammar.md``."""

import pytest

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.core.grammar.matcher import Matcher
from p2pmesh.core.grammar.network import NEVER, compile_grammar
from tests.wire import vectors

GRAMMARS = vectors.load("grammars")


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in GRAMMARS["valid"]])
def test_texts_are_matched_begun_and_refused(case):
    matcher = Matcher(compile_grammar(case["grammar"]))
    for text in case["matched"]:
        state = matcher.walk(matcher.start, text.encode())
        assert state is not None, text
        assert state.is_complete, text
        assert state.least_bytes == 0
    for text in case["begun"]:
        state = matcher.walk(matcher.start, text.encode())
        assert state is not None, text
        assert not state.is_complete or case["name"] == "repetitions of repetitions", text
        assert state.least_bytes < NEVER
    for text in case["refused"]:
        state = matcher.walk(matcher.start, text.encode())
        assert state is None or not state.is_complete, text


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in GRAMMARS["invalid"]])
def test_what_is_no_grammar_is_refused(case):
    with pytest.raises(RemoteProtocolError) as caught:
        compile_grammar(case["grammar"])
    assert caught.value.code is ErrorCode(case["error"])
    assert "\n" not in caught.value.message
