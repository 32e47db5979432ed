"""The loop of OpenAI's ``openai-agents``, unmodified: several turns, a tool in each, over chats and over responses.

The demo model was taught no tools. So each turn offers one tool and requires it; what is proved is that the loop reads
our calls, runs its tools by them, hands results back and is understood, not that a small model plans well.
"""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    StopAtTools,
    function_tool,
    set_tracing_disabled,
)
from agents.models.interface import Model
from checks import API_KEY, BASE_URL, CITIES, MODEL, run
from openai import AsyncOpenAI

ORDER = ["forecast", "add", "report"]
QUESTION = "The weather in Bern, then 2 + 40, then a report."


def make_agent(model: Model, called: list[str]) -> Agent:
    """An agent whose tools must be called one after the other; the last one ends the run."""

    def is_next(name: str) -> bool:
        return len(called) < len(ORDER) and ORDER[len(called)] == name

    @function_tool(is_enabled=lambda _context, _agent: is_next("forecast"))
    def forecast(city: str) -> str:
        """The weather in a city."""
        called.append("forecast")
        return f"rain in {city}"

    @function_tool(is_enabled=lambda _context, _agent: is_next("add"))
    def add(a: int, b: int) -> int:
        """The sum of two numbers."""
        called.append("add")
        return a + b

    @function_tool(is_enabled=lambda _context, _agent: is_next("report"))
    def report(is_wet: bool) -> str:
        """Ends the work."""
        called.append("report")
        return f"wet: {is_wet}"

    return Agent(
        name="weather",
        instructions=f"Use the tools. Cities: {', '.join(CITIES)}.",
        model=model,
        model_settings=ModelSettings(temperature=0, tool_choice="required", max_tokens=160, parallel_tool_calls=False),
        tools=[forecast, add, report],
        tool_use_behavior=StopAtTools(stop_at_tool_names=["report"]),
        reset_tool_choice=False,
    )


async def _take_turns(kind: type[OpenAIChatCompletionsModel] | type[OpenAIResponsesModel], is_streamed: bool) -> None:
    called: list[str] = []
    async with AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=120) as client:
        agent = make_agent(kind(model=MODEL, openai_client=client), called)
        if is_streamed:
            result = Runner.run_streamed(agent, QUESTION, max_turns=5)
            kinds = [event.type async for event in result.stream_events()]
            assert "raw_response_event" in kinds, kinds
        else:
            result = await Runner.run(agent, QUESTION, max_turns=5)
    assert called == ORDER, called
    assert str(result.final_output).startswith("wet: "), result.final_output
    assert [item["type"] for item in result.to_input_list()[1:]].count("function_call_output") == len(ORDER)


def turns_over_chats() -> None:
    asyncio.run(_take_turns(OpenAIChatCompletionsModel, is_streamed=False))


def streamed_turns_over_chats() -> None:
    asyncio.run(_take_turns(OpenAIChatCompletionsModel, is_streamed=True))


def turns_over_responses() -> None:
    asyncio.run(_take_turns(OpenAIResponsesModel, is_streamed=False))


def streamed_turns_over_responses() -> None:
    asyncio.run(_take_turns(OpenAIResponsesModel, is_streamed=True))


set_tracing_disabled(True)
run(turns_over_chats, streamed_turns_over_chats, turns_over_responses, streamed_turns_over_responses)
