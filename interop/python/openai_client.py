"""The official ``openai`` package for Python, unmodified."""

import openai
from checks import (
    API_KEY,
    BASE_URL,
    LONG_ANSWER_TOKENS,
    MODEL,
    ONCE_A_MINUTE_KEY,
    QUESTION,
    TOO_LONG,
    TOOL,
    WEATHER,
    assert_weather,
    expect,
    run,
)
from pydantic import BaseModel

CLIENT = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=120)
CHATS = CLIENT.chat.completions
ONE_CALL = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}


class Report(BaseModel):
    """What ``parse`` makes a schema of."""

    city: str
    days: int


def models() -> None:
    assert MODEL in [model.id for model in CLIENT.models.list()]
    assert CLIENT.models.retrieve(MODEL).id == MODEL


def chat() -> None:
    answer = CHATS.create(model=MODEL, messages=QUESTION, max_completion_tokens=12, seed=1)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    again = CHATS.create(model=MODEL, messages=QUESTION, max_completion_tokens=12, seed=1)
    assert again.choices[0].message.content == answer.choices[0].message.content


def stream_with_usage() -> None:
    whole = CHATS.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0)
    chunks = list(
        CHATS.create(
            model=MODEL,
            messages=QUESTION,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [12]
    assert chunks[-1].choices == []


def choices_with_logprobs() -> None:
    """Streamed, since the pieces of several choices then come among each other."""
    stream = CHATS.create(
        model=MODEL, messages=QUESTION, n=3, seed=1, max_tokens=12, logprobs=True, top_logprobs=2, stream=True
    )
    texts, told = dict.fromkeys(range(3), ""), dict.fromkeys(range(3), b"")
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            for one in choice.logprobs.content if choice.logprobs else ():
                assert len(one.top_logprobs) <= 2
                assert one.logprob <= 0
                told[choice.index] += bytes(one.bytes)
    assert all(texts.values())
    assert texts == {index: spelled.decode("utf-8", "replace") for index, spelled in told.items()}


def history_of_agents() -> None:
    """Speakers with names, and two calls at a time with their answers."""
    calls = [
        {
            "id": f"call_{city}",
            "type": "function",
            "function": {"name": "forecast", "arguments": f'{{"city":"{city}"}}'},
        }
        for city in ("Bern", "Oslo")
    ]
    answers = [{"role": "tool", "tool_call_id": call["id"], "name": "forecast", "content": "rain"} for call in calls]
    asked = [{**QUESTION[-1], "name": "Ann"}]
    messages = [*asked, {"role": "assistant", "name": "Bob", "content": None, "tool_calls": calls}, *answers]
    answer = CHATS.create(model=MODEL, messages=messages, tools=[TOOL], tool_choice="none", max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def tools() -> None:
    answer = CHATS.create(model=MODEL, messages=QUESTION, tools=[TOOL], **ONE_CALL)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.name == "forecast"
    assert_weather(choice.message.tool_calls[0].function.arguments)


def streamed_tools() -> None:
    """By the package's own accumulator of deltas."""
    named = {**ONE_CALL, "tool_choice": {"type": "function", "function": {"name": "forecast"}}}
    with CHATS.stream(model=MODEL, messages=QUESTION, tools=[TOOL], **named) as stream:
        kinds = {event.type for event in stream}
        choice = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds, kinds
    assert choice.finish_reason == "tool_calls"
    assert len(choice.message.tool_calls) == 1
    assert_weather(choice.message.tool_calls[0].function.arguments)


def structured_output() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    answer = CHATS.create(model=MODEL, messages=QUESTION, response_format=wanted, temperature=0)
    assert_weather(answer.choices[0].message.content)
    parsed = CHATS.parse(model=MODEL, messages=QUESTION, response_format=Report, temperature=0, max_tokens=120)
    assert isinstance(parsed.choices[0].message.parsed, Report)


def embeddings() -> None:
    """The package asks for base64 by itself."""
    data = CLIENT.embeddings.create(model=MODEL, input=["a red house", "a red house", "x"]).data
    assert [item.index for item in data] == [0, 1, 2]
    assert data[0].embedding == data[1].embedding != data[2].embedding
    assert abs(sum(number * number for number in data[0].embedding) - 1) < 1e-3


def responses() -> None:
    whole = CLIENT.responses.create(model=MODEL, input="Name three colours.", max_output_tokens=16, temperature=0)
    assert whole.output_text
    with CLIENT.responses.stream(
        model=MODEL, input="Name three colours.", max_output_tokens=16, temperature=0
    ) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.incomplete", "response.completed"), kinds[-1]
    called = CLIENT.responses.create(
        model=MODEL,
        input="Name three colours.",
        tools=[{"type": "function", "name": "forecast", "parameters": WEATHER, "strict": True}],
        **ONE_CALL,
    )
    assert_weather(called.output[-1].arguments)


def cancellation() -> None:
    """That every stage is free afterwards is looked up by the runner."""
    stream = CHATS.create(model=MODEL, messages=QUESTION, max_tokens=LONG_ANSWER_TOKENS, stream=True)
    for _, _chunk in zip(range(5), stream, strict=False):
        pass
    stream.close()
    impatient = CLIENT.with_options(timeout=0.2)
    expect(
        openai.APITimeoutError,
        lambda: impatient.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=LONG_ANSWER_TOKENS),
    )


def error_400() -> None:
    messages = [{"role": "user", "content": TOO_LONG}]
    error = expect(openai.BadRequestError, lambda: CHATS.create(model=MODEL, messages=messages, stream=True))
    assert error.code == "context_length_exceeded", error.code
    error = expect(openai.BadRequestError, lambda: CHATS.create(model=MODEL, messages=QUESTION, temperature=9))
    assert error.param == "temperature", error.param


def error_401() -> None:
    stranger = CLIENT.with_options(api_key="sk-of-somebody-else")
    error = expect(openai.AuthenticationError, stranger.models.list)
    assert error.code == "invalid_api_key", error.code


def error_404() -> None:
    error = expect(openai.NotFoundError, lambda: CHATS.create(model="nobody/has-it", messages=QUESTION))
    assert error.code == "model_not_found", error.code
    expect(openai.NotFoundError, lambda: CLIENT.models.retrieve("nobody/has-it"))


def error_429() -> None:
    limited = CLIENT.with_options(api_key=ONCE_A_MINUTE_KEY)
    limited.models.list()
    error = expect(openai.RateLimitError, limited.models.list)
    assert 1 <= int(error.response.headers["retry-after"]) <= 60


run(
    models,
    chat,
    stream_with_usage,
    choices_with_logprobs,
    history_of_agents,
    tools,
    streamed_tools,
    structured_output,
    embeddings,
    responses,
    cancellation,
    error_400,
    error_401,
    error_404,
    error_429,
)
