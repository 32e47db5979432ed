"""Answers under a grammar: real engines on tiny models, with llama.cpp's own matcher as the notation's reference."""

import ctypes

import numpy as np
import pytest
from llama_cpp import llama_cpp as native

from p2pmesh.adapters.llama.binding import LoadedStage, LoadOptions
from p2pmesh.adapters.llama.grammars import GrammarShelf
from p2pmesh.adapters.llama.vocabulary import Vocabulary
from p2pmesh.base.errors import ErrorCode
from p2pmesh.wire.begin import Begin, encode_begin
from p2pmesh.wire.generation import Grammar, SamplingParameters
from p2pmesh.wire.stage import FrameKind, decode_error
from tests.adapters.llama.conftest import CUTS, LAYERS
from tests.adapters.llama.dialogue import GREEDY, Dialogue
from tests.wire.grammar_vectors import JSON, VALID

PROMPT = [3 + (index * 37) % 350 for index in range(40)]
SAMPLED = SamplingParameters(temperature=1.0, top_k=40, seed=5)
LETTERS = 'root ::= "[" [a-z]{3,12} "]"'


class Answer(Dialogue):
    """A sequence under a grammar."""

    def __init__(self, engines, grammar, request=1, parameters=GREEDY, max_tokens=64):
        super().__init__(engines, request, parameters)
        self._begin = Begin(parameters, len(PROMPT), None, max_tokens, grammar)

    async def begin(self, prompt_tokens):
        for engine in self._engines:
            await engine.send(self.frame(FrameKind.BEGIN, body=encode_begin(self._begin)))

    async def answer(self, ends, history=()):
        """Tokens to the end of the answer, the end token among them."""
        await self.begin(len(PROMPT))
        out = list(history)
        out.append(await self.prefill(PROMPT) if not history else (await self.decode(len(PROMPT), history))[-1])
        while out[-1] not in ends:
            out += await self.decode(len(PROMPT) + len(out) - 1, [out[-1]])
        await self.end()
        return out


@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED])
async def test_an_answer_keeps_to_its_grammar_whole_and_split(launcher, make_spec, vocabulary, parameters):
    cut = CUTS["llama"]
    pieces = vocabulary[1].pieces
    async with (
        launcher.launch(make_spec("llama")) as whole,
        launcher.launch(make_spec("llama", 0, cut)) as first,
        launcher.launch(make_spec("llama", cut, LAYERS["llama"])) as last,
    ):
        ends = whole.facts.end_tokens
        expected = await Answer([whole], Grammar(LETTERS), 1, parameters).answer(ends)
        text = b"".join(pieces[token] for token in expected)
        assert text[:1] + text[-1:] == b"[]"
        assert text[1:-1].isalpha()
        assert await Answer([first, last], Grammar(LETTERS), 2, parameters).answer(ends) == expected


async def test_an_answer_goes_on_after_a_rollback_as_before(launcher, make_spec):
    async with launcher.launch(make_spec()) as engine:
        ends = engine.facts.end_tokens
        expected = await Answer([engine], Grammar(JSON), 1, SAMPLED).answer(ends)
        again = Answer([engine], Grammar(JSON), 2, SAMPLED)
        await again.begin(len(PROMPT))
        await again.prefill(PROMPT)
        half = len(expected) // 2
        assert list(await again.decode(len(PROMPT), expected[:half])) == expected[1 : half + 1]
        assert list(await again.decode(len(PROMPT), expected[:1])) == expected[1:2]


async def test_a_grammar_waits_for_its_trigger(launcher, make_spec, vocabulary):
    pieces = vocabulary[1].pieces
    async with launcher.launch(make_spec()) as engine:
        free = await Dialogue([engine], 1, SAMPLED).generate(PROMPT, 30)
        at = next(index for index in range(4, 30) if pieces[free[index]].isalpha() and free[index] not in free[:index])
        trigger = pieces[free[at]].decode()
        grammar = Grammar(f'root ::= "{trigger}" "<" [0-9]{{4}} ">"', (trigger,))
        held = await Answer([engine], grammar, 2, SAMPLED).answer(engine.facts.end_tokens)
        assert held[: at + 1] == free[: at + 1]
        text = b"".join(pieces[token] for token in held[at:]).decode()
        assert text[len(trigger)] == "<"
        assert text[len(trigger) + 1 : -1].isdigit()
        assert text.endswith(">")


async def test_drafts_that_break_the_grammar_cost_nothing(launcher, make_spec):
    async with launcher.launch(make_spec()) as engine:
        ends = engine.facts.end_tokens
        expected = await Answer([engine], Grammar(LETTERS)).answer(ends)
        drafting = Answer([engine], Grammar(LETTERS), 2)
        await drafting.begin(len(PROMPT))
        assert await drafting.prefill(PROMPT) == expected[0]
        wrong = expected[0]  # an opening bracket where letters are due
        tokens = await drafting.decode(len(PROMPT), [expected[0], expected[1], wrong, wrong])
        assert list(tokens[:2]) == expected[1:3]
        assert list(await drafting.decode(len(PROMPT) + 1, expected[1:3])) == expected[2:4]
        with pytest.raises(AssertionError, match="grammar_invalid"):
            await drafting.decode(len(PROMPT) + 1, [wrong])


async def test_a_hostile_grammar_costs_its_own_sequence(launcher, make_spec):
    async with launcher.launch(make_spec()) as engine:
        undisturbed = await Answer([engine], Grammar(LETTERS)).answer(engine.facts.end_tokens)
        doubling = 'root ::= .? root "b" | . root "c" | "a"'
        hostile = [
            'root ::= root "a" | "b"',
            '("a"{10000}){10000}',
            "root ::= ((((",
            f"root ::= {'x ' * 999}",
            doubling,
        ]
        for request, text in enumerate(hostile, 2):
            other = Answer([engine], Grammar(text), request)
            await other.begin(len(PROMPT))
            code, message = decode_error(await other.receive())
            assert code is ErrorCode.GRAMMAR_INVALID, message
        assert await Answer([engine], Grammar(LETTERS), 99).answer(engine.facts.end_tokens) == undisturbed


async def test_a_dead_end_is_an_error_and_others_go_on(launcher, make_spec):
    deep = "\n".join(f'r{index} ::= "(" r{index + 1} ")"' for index in range(150))  # a text is read 128 rules deep
    async with launcher.launch(make_spec()) as engine:
        dead = Answer([engine], Grammar(f'root ::= r0\n{deep}\nr150 ::= "x"'), max_tokens=320)
        with pytest.raises(AssertionError, match="grammar_dead_end"):
            await dead.answer(engine.facts.end_tokens)
        assert await Answer([engine], Grammar(LETTERS), 2).answer(engine.facts.end_tokens)


# --- the notation is llama.cpp's ---------------------------------------------------
@pytest.fixture(scope="module")
def vocabulary(stage_folder):
    stage = LoadedStage(LoadOptions(str(stage_folder / "llama.gguf"), True, True, 2, 64, 1, False))
    yield stage.vocabulary, Vocabulary(stage).words()
    stage.close()


def allowed_by_llama(sampler, size):
    """Of all tokens those that llama.cpp's grammar leaves."""
    data = (native.llama_token_data * size)()
    for token in range(size):
        data[token].id, data[token].logit, data[token].p = token, 0.0, 0.0
    candidates = native.llama_token_data_array(data, size, -1, False)
    native.llama_sampler_apply(sampler, ctypes.byref(candidates))
    return {data[index].id for index in range(candidates.size) if np.isfinite(data[index].logit)}


NOT_OF_LLAMA_CPP = {
    "the empty text",
    "no repetition at all",
    "repetitions of repetitions",  # refused there
    "brackets deeper than 128",  # where ours has an end
}


@pytest.mark.parametrize("case", [pytest.param(one, id=one[0]) for one in VALID if one[0] not in NOT_OF_LLAMA_CPP])
def test_the_same_tokens_are_allowed_as_by_llama_cpp(vocabulary, case):
    handle, words = vocabulary
    text = case[1]
    sampler = native.llama_sampler_init_grammar(handle, text.encode(), b"root")
    assert sampler
    constraint = GrammarShelf(lambda: words).constrain(Begin(GREEDY, 1, None, 2**31 - 1, Grammar(text)))
    rng = np.random.default_rng(7)
    # llama.cpp takes bytes that are no UTF-8 for a character, and a zero for the end of a text
    plain = {token for token, piece in enumerate(words.pieces) if piece.isascii() and b"\0" not in piece}
    history = []
    for _ in range(24):
        ours = {token for token in range(len(words.pieces)) if constraint.allows(token)}
        assert ours & plain == allowed_by_llama(sampler, len(words.pieces)) & plain, history
        going_on = sorted((ours & plain or ours) - words.end_tokens)
        if not going_on:
            break
        history.append(int(rng.choice(going_on)))
        native.llama_sampler_accept(sampler, history[-1])
        constraint.follow(history)
    native.llama_sampler_free(sampler)
