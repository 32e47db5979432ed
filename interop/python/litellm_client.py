"""``litellm``, as an OpenAI-compatible provider, unmodified."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before it is imported: else it asks a host outside for prices

import litellm
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

ASK = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY, "num_retries": 0, "timeout": 120}
CHAT = {**ASK, "messages": QUESTION}
ONE_CALL = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}


def chat() -> None:
    answer = litellm.completion(**CHAT, max_tokens=12, seed=1)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 12


def stream_with_usage() -> None:
    whole = litellm.completion(**CHAT, max_tokens=12, temperature=0)
    given = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(**CHAT, max_tokens=12, temperature=0, **given))
    built = litellm.stream_chunk_builder(chunks)
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)] == [12]


def tools() -> None:
    choice = litellm.completion(**CHAT, **ONE_CALL).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert_weather(choice.message.tool_calls[0].function.arguments)


def streamed_tools() -> None:
    chunks = list(litellm.completion(**CHAT, **ONE_CALL, stream=True))
    choice = litellm.stream_chunk_builder(chunks).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert len(choice.message.tool_calls) == 1
    assert choice.message.tool_calls[0].function.name == "forecast"
    assert_weather(choice.message.tool_calls[0].function.arguments)


def structured_output() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    answer = litellm.completion(**CHAT, response_format=wanted, temperature=0)
    assert_weather(answer.choices[0].message.content)


def embeddings() -> None:
    data = litellm.embedding(**ASK, input=["a red house", "a red house", "x"]).data
    assert [item["index"] for item in data] == [0, 1, 2]
    assert data[0]["embedding"] == data[1]["embedding"] != data[2]["embedding"]


def responses() -> None:
    given = {"input": "Name three colours.", "max_output_tokens": 16, "temperature": 0}
    whole = litellm.responses(**ASK, **given)
    assert whole.output[-1].content[0].text
    kinds = [str(event.type.value) for event in litellm.responses(**ASK, **given, stream=True)]
    assert kinds[0] == "response.created", kinds
    assert kinds[-1] in ("response.incomplete", "response.completed"), kinds


def cancellation() -> None:
    stream = litellm.completion(**CHAT, max_tokens=LONG_ANSWER_TOKENS, stream=True)
    for _, _chunk in zip(range(5), stream, strict=False):
        pass
    stream.completion_stream.close()
    impatient = {**CHAT, "timeout": 0.2}
    expect(litellm.Timeout, lambda: litellm.completion(**impatient, max_tokens=LONG_ANSWER_TOKENS))


def error_400() -> None:
    messages = [{"role": "user", "content": TOO_LONG}]
    expect(litellm.ContextWindowExceededError, lambda: litellm.completion(**ASK, messages=messages))
    expect(litellm.BadRequestError, lambda: litellm.completion(**CHAT, temperature=9))


def error_401() -> None:
    expect(litellm.AuthenticationError, lambda: litellm.completion(**{**CHAT, "api_key": "sk-of-somebody-else"}))


def error_404() -> None:
    expect(litellm.NotFoundError, lambda: litellm.completion(**{**CHAT, "model": "openai/nobody/has-it"}))


def error_429() -> None:
    limited = {**CHAT, "api_key": ONCE_A_MINUTE_KEY, "max_tokens": 1}
    litellm.completion(**limited)
    expect(litellm.RateLimitError, lambda: litellm.completion(**limited))


run(
    chat,
    stream_with_usage,
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
