"""Grammars over tokens: what is allowed, picked and rebuilt."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.core.grammar.constraint import Constraint, Rules, Words
from p2pmesh.core.grammar.matcher import Matcher
from p2pmesh.core.grammar.network import compile_grammar
from p2pmesh.core.sampling import sample, sample_allowed
from p2pmesh.wire.generation import SamplingParameters

END = 256
CONTROL = 257
EXTRA = [b'{"', b'": ', b"<call>", b"call>x", b"aa", "é".encode()[:1], "é".encode()[1:], b"\xc3\xa9!"]
WORDS = Words([bytes((byte,)) for byte in range(256)] + [b"", b"", *EXTRA], frozenset({END}))
IDS = {piece: 258 + index for index, piece in enumerate(EXTRA)}
MANY = 2**31 - 1
CUTS = [{}, {"top_k": 9}, {"top_p": 0.7}, {"min_p": 0.1}]


def constrained(grammar, triggers=(), is_at_start=False, max_tokens=MANY, words=WORDS):
    rules = Rules(Matcher(compile_grammar(grammar)), max_tokens, triggers, is_at_start)
    constraint = Constraint(rules, words)
    constraint.follow(())
    return constraint


def allowed_of(constraint):
    return [token for token in range(len(WORDS.pieces)) if constraint.allows(token)]


def test_a_token_must_go_on_the_text():
    constraint = constrained('root ::= "aa" "b"?')
    assert allowed_of(constraint) == [ord("a"), IDS[b"aa"]]
    constraint.follow([ord("a")])
    assert allowed_of(constraint) == [ord("a")]


def test_an_end_is_allowed_where_the_text_may_end_and_nothing_without_bytes_ever():
    constraint = constrained('root ::= "aa" "b"?')
    constraint.follow([IDS[b"aa"]])
    assert allowed_of(constraint) == [ord("b"), END]
    constraint.follow([IDS[b"aa"], ord("b")])
    assert allowed_of(constraint) == [END]
    assert not constraint.allows(CONTROL)
    assert not constraint.allows(9999)


def test_a_token_may_end_inside_a_character():
    constraint = constrained('root ::= "é" "!"')
    first, second = IDS["é".encode()[:1]], IDS["é".encode()[1:]]
    assert allowed_of(constraint) == [0xC3, first, IDS[b"\xc3\xa9!"]]
    constraint.follow([first])
    assert allowed_of(constraint) == [0xA9, second]


def test_everything_goes_until_a_trigger_has_come():
    constraint = constrained('root ::= "<call>" [a-z]', (b"<call>",))
    assert len(allowed_of(constraint)) == len(WORDS.pieces)
    constraint.follow(list(b"so <"))
    assert constraint.allows(IDS[b"call>x"])
    constraint.follow([*b"so <", IDS[b"call>x"]])
    assert allowed_of(constraint) == [END]


def test_a_token_that_brings_a_trigger_and_breaks_the_grammar_is_refused():
    constraint = constrained('root ::= "<call>" [0-9]', (b"<call>",))
    constraint.follow(list(b"<"))
    assert not constraint.allows(IDS[b"call>x"])
    assert constraint.allows(ord("c"))


def test_the_trigger_that_begins_first_counts():
    constraint = constrained('root ::= "{" "<call>" | "<call>"', (b"<call>", b"{"))
    constraint.follow(list(b"x{"))
    assert allowed_of(constraint) == [ord("<"), IDS[b"<call>"]]


def test_a_trigger_at_the_start_counts_there_alone():
    constraint = constrained('root ::= "{" "}"', (b"{",), is_at_start=True)
    constraint.follow(list(b" \n{"))
    assert allowed_of(constraint) == [ord("}")]
    constraint.follow(list(b"a{"))
    assert len(allowed_of(constraint)) == len(WORDS.pieces)
    constraint.follow(list(b" a {x"))
    assert constraint.allows(CONTROL)


def test_a_text_ends_within_its_limit_of_tokens():
    constraint = constrained('root ::= "[" [a-z]* "]"', max_tokens=5)
    constraint.follow(list(b"[x"))
    assert ord("]") in allowed_of(constraint)
    assert ord("y") in allowed_of(constraint)
    constraint.follow(list(b"[xy"))
    assert allowed_of(constraint) == [ord("]")]
    constraint.follow(list(b"[xy]"))
    assert allowed_of(constraint) == [END]


def test_a_limit_that_is_too_small_from_the_start_refuses_nothing():
    constraint = constrained('root ::= "[" [a-z]* "]"', max_tokens=2)
    assert allowed_of(constraint) == [ord("[")]
    constraint.follow(list(b"["))
    assert ord("y") in allowed_of(constraint)


def test_an_answer_that_broke_the_grammar_is_not_gone_on_with():
    constraint = constrained('root ::= "ab"')
    assert not constraint.follow(list(b"ax"))
    assert constraint.follow(list(b"ab"))
    assert allowed_of(constraint) == [END]


# --- picking ---------------------------------------------------------------------
def logits_of(seed):
    return np.random.default_rng(seed).normal(size=len(WORDS.pieces)).astype(np.float32) * 4


def pick(constraint, logits, parameters, position=0):
    return sample_allowed(logits, [], 0, parameters, 0, position, constraint)


def test_what_sampling_picks_is_taken_where_it_is_allowed():
    constraint = constrained("root ::= .*")
    for position in range(50):
        parameters = SamplingParameters(temperature=0.9, seed=7)
        unconstrained = sample(logits_of(position)[:128], [], 0, parameters, 0, position)
        assert pick(constraint, logits_of(position)[:128], parameters, position) == unconstrained


def test_greedy_picks_the_largest_allowed_logit():
    constraint = constrained("root ::= [a-f]")
    logits = logits_of(3)
    assert pick(constraint, logits, SamplingParameters(temperature=0.0)) == 97 + int(np.argmax(logits[97:103]))


def test_draws_have_the_proportions_of_the_allowed_tokens():
    constraint = constrained("root ::= [a-d]")
    logits = np.full(len(WORDS.pieces), 1.0, dtype=np.float32)
    logits[97:101] = [0.0, 1.0, 2.0, 3.0]
    drawn = [pick(constraint, logits, SamplingParameters(seed=1), position) for position in range(4000)]
    weights = np.exp([0.0, 1.0, 2.0, 3.0])
    found = np.array([drawn.count(token) for token in range(97, 101)]) / len(drawn)
    assert np.abs(found - weights / weights.sum()).max() < 0.03


def test_a_draw_is_a_function_of_seed_and_position():
    constraint = constrained("root ::= [a-z]")
    logits = np.zeros(len(WORDS.pieces), dtype=np.float32)
    first = [pick(constraint, logits, SamplingParameters(seed=1), position) for position in range(64)]
    assert first == [pick(constraint, logits, SamplingParameters(seed=1), position) for position in range(64)]
    assert first != [pick(constraint, logits, SamplingParameters(seed=2), position) for position in range(64)]
    assert len(set(first)) > 10


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}])
def test_cuts_come_before_the_grammar(cut):
    constraint = constrained("root ::= [a-z]")
    logits = np.full(len(WORDS.pieces), -9.0, dtype=np.float32)
    logits[[1, 100, 101]] = [5.0, 4.9, 4.8]
    drawn = {pick(constraint, logits, SamplingParameters(seed=1, **cut), position) for position in range(60)}
    assert drawn <= {100, 101}
    logits[[100, 101]] = -9.0
    logits[102] = -8.0
    drawn = {pick(constraint, logits, SamplingParameters(seed=1, **cut), position) for position in range(60)}
    assert drawn <= {102} | ({97 + i for i in range(26)} if cut == {"top_k": 3} else set())


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(0, 2**40), st.sampled_from([{}, {"top_k": 9}, {"top_p": 0.7}, {"min_p": 0.1}])
)
def test_the_token_is_the_one_that_the_protocol_says(seed, position, cut):
    constraint = constrained('root ::= [a-z{"]+')
    logits, parameters = logits_of(seed), SamplingParameters(temperature=0.8, seed=seed, **cut)
    first = sample(logits, [], 0, parameters, 0, position)
    found = pick(constraint, logits, parameters, position)
    if constraint.allows(first):
        assert found == first
        return
    outputs = np.random.Philox(
        key=np.array((seed, 0), dtype=np.uint64), counter=np.array((0, position, 1, 0), dtype=np.uint64)
    ).random_raw(len(logits))
    order = np.argsort(-logits, kind="stable").tolist()[: cut.get("top_k") or None]
    weights = [np.exp((float(logits[token]) - float(logits[order[0]])) / 0.8) for token in order]
    kept, mass = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if mass < cut.get("top_p", 1.0) * sum(weights) and weight >= cut.get("min_p", 0.0):
            kept.append(token)
        mass += weight
    every = [token for token in kept if constraint.allows(token)]
    keys = {token: logits[token] / 0.8 - np.log(-np.log((int(outputs[token]) >> 11) * 2.0**-53)) for token in every}
    rest = allowed_of(constraint)
    wanted = max(keys, key=lambda one: keys[one]) if every else max(rest, key=lambda one: (logits[one], -one))
    assert found == wanted


def test_where_nothing_can_follow_there_is_no_token():
    words = Words([b"a", b"b", b""], frozenset({2}))
    constraint = constrained('root ::= "a" "c"', words=words)
    constraint.follow([0])
    assert pick(constraint, np.zeros(3, dtype=np.float32), SamplingParameters(temperature=0.0)) is None
    assert pick(constraint, np.zeros(3, dtype=np.float32), SamplingParameters()) is None


GRAMMARS = ['root ::= "[" [a-c]* "]"', "root ::= [^x]+", 'root ::= "é"* "!"', 'root ::= ("ab" | "a" "c")+']


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(GRAMMARS), st.integers(0, 2**32), st.sampled_from([0.0, 1.0]), st.integers(1, 20))
def test_looking_at_few_tokens_finds_what_looking_at_all_does(grammar, seed, temperature, length):
    constraint = constrained(grammar, max_tokens=length)
    history: list[int] = []
    for position in range(length):
        constraint.follow(history)
        rng = np.random.default_rng(seed + position)
        keys = rng.integers(-20, 20, len(WORDS.pieces)).astype(np.float64)
        every = allowed_of(constraint)
        plausible = constraint.plausible()
        assert set(every) <= set(plausible.tolist())
        assert constraint.first_allowed(plausible, keys[plausible]) == min(every, key=lambda one: (-keys[one], one))
        found = constraint.first_allowed(np.arange(len(keys)), keys)
        assert found == min(every, key=lambda token: (-keys[token], token))
        token = pick(constraint, logits_of(seed + position), SamplingParameters(temperature=temperature), position)
        assert token in every
        if token == END:
            return
        history.append(token)


@settings(max_examples=20, stateful_step_count=20, deadline=None)
class FollowsAndGoesBack(RuleBasedStateMachine):
    """A constraint that has been ahead, or elsewhere, is that of somebody who came straight here."""

    def __init__(self):
        super().__init__()
        self.constraint = constrained(GRAMMARS[3], (b"ab",), max_tokens=30)
        self.history: list[int] = []

    @rule(choice=st.integers(0, 10_000))
    def goes_on(self, choice):
        every = [token for token in allowed_of(self.constraint) if token != END]
        if every:
            self.history.append(every[choice % len(every)])
            self.constraint.follow(self.history)

    @rule(kept=st.integers(0, 10))
    def goes_back(self, kept):
        del self.history[kept:]
        self.constraint.follow(self.history)

    @invariant()
    def agrees_with_a_fresh_one(self):
        fresh = constrained(GRAMMARS[3], (b"ab",), max_tokens=30)
        fresh.follow(self.history)
        assert allowed_of(fresh) == allowed_of(self.constraint)


TestFollowsAndGoesBack = FollowsAndGoesBack.TestCase
