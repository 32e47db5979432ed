"""Which model is chosen for ``auto``."""

import collections
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.auto_model import (
    Depth,
    Kind,
    ModelChoice,
    RequestClass,
    choose_model,
    classify,
    names_with_auto,
    parameters_millions,
    strengths_of,
)
from p2pmesh.core.routing import ENOUGH_ANSWERS, EXPLORED_PERCENT
from p2pmesh.wire.generation import ChatMessage, GenerationRequest, Prompt, SamplingParameters, ToolUse

CHAT = RequestClass(Kind.CHAT, Depth.MODERATE)


def asks(text: str, effort: str = "") -> GenerationRequest:
    prompt = Prompt(messages=(ChatMessage("system", "def x"), ChatMessage("user", text)), reasoning_effort=effort)
    return GenerationRequest(bytes(16), "auto", prompt, SamplingParameters())


def measured(name: str, tokens_per_s: int) -> ModelChoice:
    return ModelChoice(name, ENOUGH_ANSWERS, 1_000_000 // tokens_per_s)


def chosen_of(choices: list[ModelChoice], asked: RequestClass = CHAT, count: int = 2000) -> collections.Counter[str]:
    return collections.Counter(str(choose_model(choices, asked, b"%d" % number)) for number in range(count))


@pytest.mark.parametrize(
    ("request_", "kind", "depth"),
    [
        (asks("Hello, how are you?"), Kind.CHAT, Depth.QUICK),
        (asks("Write a python function that sorts."), Kind.CODE, Depth.QUICK),
        (asks("What does this do?\n```\nx = 1\n```"), Kind.CODE, Depth.QUICK),
        (asks("Prove that the root of two is irrational."), Kind.REASONING, Depth.QUICK),
        (asks("Tell me about bread.", effort="medium"), Kind.REASONING, Depth.MODERATE),
        (asks("Tell me about bread.", effort="high"), Kind.REASONING, Depth.DEEP),
        (asks("Tell me about bread.", effort="max"), Kind.REASONING, Depth.DEEP),
        (asks("Write a poem about the sea."), Kind.CREATIVE, Depth.QUICK),
        (replace(asks("Weather?"), tools=ToolUse("[]")), Kind.TOOL, Depth.QUICK),
        (asks("bread " * 50), Kind.CHAT, Depth.MODERATE),
        (asks("bread " * 1000), Kind.CHAT, Depth.DEEP),
        (replace(asks("Hello"), max_tokens=4096), Kind.CHAT, Depth.DEEP),
        (replace(asks(""), prompt=Prompt(tokens=(1, 2))), Kind.CHAT, Depth.QUICK),
        (replace(asks(""), prompt=Prompt(text="import os\n")), Kind.CODE, Depth.QUICK),
    ],
)
def test_requests_are_classified_by_their_words(request_: GenerationRequest, kind: Kind, depth: Depth) -> None:
    assert classify(request_) == RequestClass(kind, depth)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("SmolLM2-135M-Instruct.Q4_1", 135),
        ("Qwen3-4B", 4000),
        ("Mixtral-8x7B-Instruct", 56_000),
        ("llama-3.1-70b", 70_000),
        ("Qwen3-30B-A3B", 30_000),
        ("gpt-oss-120b", 120_000),
        ("phi-3.5-mini", None),
        ("model-4bit", None),
    ],
)
def test_a_name_tells_how_large_its_model_is(name: str, millions: int | None) -> None:
    assert parameters_millions(name) == millions


def test_a_name_tells_what_its_model_is_made_for() -> None:
    assert strengths_of("Qwen3-Coder-30B") == {Kind.CODE}
    assert strengths_of("DeepSeek-R1-Distill") == {Kind.REASONING}
    assert strengths_of("Hermes-3-8B") == {Kind.TOOL}
    assert strengths_of("llama-3.1-8b") == frozenset()


def test_a_model_made_for_it_comes_before_one_for_all_and_that_before_one_for_something_else() -> None:
    coder, general = measured("Qwen-Coder-7B", 10), measured("llama-8b", 90)
    assert set(chosen_of([coder, general], RequestClass(Kind.CODE, Depth.MODERATE))) == {"Qwen-Coder-7B"}
    assert set(chosen_of([coder, general])) == {"llama-8b"}
    assert set(chosen_of([coder])) == {"Qwen-Coder-7B"}


def test_large_models_answer_what_is_not_quick() -> None:
    choices = [measured("a-1b", 50), measured("b-70b", 50)]
    assert set(chosen_of(choices)) == {"b-70b"}
    assert set(chosen_of(choices, RequestClass(Kind.CHAT, Depth.QUICK))) == {"a-1b", "b-70b"}


def test_models_are_drawn_by_their_speed_within_bounds() -> None:
    drawn = chosen_of([measured("a", 1), measured("b", 45)], count=4000)
    assert 300 < drawn["a"] < 500  # 5 of 50


def test_a_share_goes_to_models_whose_speed_is_not_known() -> None:
    slow_unknown = ModelChoice("new", 2, 1)
    drawn = chosen_of([measured("a", 100), measured("b", 100), slow_unknown], count=4000)
    expected = EXPLORED_PERCENT / 100 + (1 - EXPLORED_PERCENT / 100) * 25 / 225
    assert abs(drawn["new"] / 4000 - expected) < 0.03


names = st.sampled_from(["a-1b", "b-70b", "coder-7b", "r1-8b", "x", "y-20b"])


@given(
    st.lists(
        st.builds(ModelChoice, names, st.integers(0, 5), st.none() | st.integers(0, 10**6)), unique_by=lambda c: c.name
    ),
    st.builds(RequestClass, st.sampled_from(Kind), st.sampled_from(Depth)),
    st.binary(max_size=40),
    st.randoms(use_true_random=False),
)
def test_the_order_changes_nothing_and_one_of_them_is_chosen(
    choices: list[ModelChoice], asked: RequestClass, key: bytes, rng: object
) -> None:
    chosen = choose_model(choices, asked, key)
    shuffled = list(choices)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose_model(shuffled, asked, key) == chosen
    assert (chosen is None) == (not choices)
    assert chosen is None or chosen in {choice.name for choice in choices}


def test_auto_is_offered_where_there_is_a_choice() -> None:
    assert names_with_auto(["a"]) == ("a",)
    assert names_with_auto(["a", "b"]) == ("a", "b", "auto")
    assert names_with_auto(["a", "auto"]) == ("a", "auto")
