"""A real model, split in two: whatever it is asked for, every answer satisfies its schema."""

import json

import jsonschema
import openai
import pytest

from tests.core.json_schema.suite import SCHEMAS
from tests.e2e.conftest import SMOLLM

MAX_TOKENS = 120


def ask(split_client: openai.OpenAI, name: str, **parameters):
    wanted = {"name": "answer", "schema": SCHEMAS[name], "strict": True}
    return split_client.chat.completions.create(
        model=SMOLLM,
        messages=[{"role": "user", "content": f"Answer with JSON: {name}."}],
        response_format={"type": "json_schema", "json_schema": wanted},
        max_tokens=MAX_TOKENS,
        **parameters,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_satisfies_its_schema(split_client: openai.OpenAI, name: str) -> None:
    for parameters in ({"temperature": 0}, {"temperature": 1.0, "seed": 7}):
        answer = ask(split_client, name, **parameters)
        text = answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop", text
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(json.loads(text))


def test_a_streamed_answer_is_the_whole_one(split_client: openai.OpenAI) -> None:
    whole = ask(split_client, "a weather report", temperature=0).choices[0].message.content
    chunks = ask(split_client, "a weather report", temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    jsonschema.validate(json.loads(whole), SCHEMAS["a weather report"])


def test_json_mode_gives_an_object(split_client: openai.OpenAI) -> None:
    answer = split_client.chat.completions.create(
        model=SMOLLM,
        messages=[{"role": "user", "content": "Tell me about the sea, in JSON."}],
        response_format={"type": "json_object"},
        max_tokens=60,
        seed=1,
    )
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_a_keyword_that_cannot_be_promised_is_a_400_that_names_it(split_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        split_client.chat.completions.create(
            model=SMOLLM,
            messages=[{"role": "user", "content": "hi"}],
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "null"}}}},
        )
    assert raised.value.code == "unsupported_parameter"
    assert "'not'" in raised.value.message
