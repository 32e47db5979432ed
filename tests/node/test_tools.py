"""Tools and grammars from a client's request to the last stage and back, also when a stage is lost on the way."""

import json
from dataclasses import replace

import pytest
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.core.tool_calls.formats import find_format
from p2pmesh.core.tool_calls.reading import CallReader
from p2pmesh.core.tool_calls.tools import Tool, encode_tools
from p2pmesh.node.exchanges import chat_message_of, message_entry_of
from p2pmesh.wire.generation import (
    ChatMessage,
    GenerationEvent,
    GenerationRequest,
    GenerationStarted,
    Prompt,
    ToolCall,
    ToolChoice,
    ToolUse,
)
from tests.fakes.mesh import Mesh, open_mesh
from tests.node.test_ingress import end_of, events_of, tokens_of
from tests.node.test_pipelines import chain

CITY = {"type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}, "days": {"type": "integer"}}}
USE = ToolUse(encode_tools((Tool("weather", "of a city", {**CITY, "required": ["city"]}),)), ToolChoice.REQUIRED)


def request_of(mesh: Mesh, **fields) -> GenerationRequest:
    prompt = Prompt(messages=(ChatMessage("user", "Weather?"),))
    return replace(mesh.request(max_tokens=150), prompt=prompt, **fields)


def test_a_message_arrives_as_it_left() -> None:
    message = ChatMessage("assistant", "so", (ToolCall("c", "now", "{}"),), "d", "Bob")
    assert chat_message_of(message_entry_of(message)) == message


def text_of(events: list[GenerationEvent]) -> str:
    return "".join(event.text for event in events if not isinstance(event, GenerationStarted))


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_a_call_survives_the_loss_of_any_stage(autojump_clock: MockClock, index: int) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        undisturbed = await events_of(nodes[1], request_of(mesh, tools=USE), {})
        events = await events_of(nodes[1], request_of(mesh, tools=USE), {20: nodes[index].engine.kill})
        assert end_of(events).recoveries == 1
        assert tokens_of(events) == tokens_of(undisturbed)
        started = events[0]
        assert isinstance(started, GenerationStarted)
        reader = CallReader(find_format(started.call_format), ["weather"])
        steps = [reader.add(text_of(events)), reader.finish()]
        assert "".join(step.content for step in steps) == ""
        arguments = "".join(part.arguments for step in steps for part in step.calls if part.index == 0)
        assert json.loads(arguments)["city"] in ("Bern", "Oslo")


async def test_tools_are_part_of_the_prompt_and_their_format_of_the_start(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        for node in nodes:
            await node.wait_routable()
            started = (await events_of(node, request_of(mesh, tools=USE), {}))[0]
            assert isinstance(started, GenerationStarted)
            assert started.call_format == "plain"
            assert "[tools]" in bytes(token for token in started.prompt_tokens if token < 256).decode()
            started = (await events_of(node, request_of(mesh), {}))[0]
            assert isinstance(started, GenerationStarted)
            assert started.call_format == ""


async def test_reasoning_that_the_template_opened_is_free(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        prompt = Prompt(tokens=tuple(b"why?<think>\n"))
        free = replace(mesh.request(max_tokens=30), prompt=prompt, grammar='root ::= "{}"')
        events = await events_of(nodes[0], free, {})
        assert len(tokens_of(events)) == 30
        assert "{}" not in text_of(events)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"tools": ToolUse("no JSON")}, ErrorCode.REQUEST_INVALID),
        ({"grammar": "root ::= root"}, ErrorCode.GRAMMAR_INVALID),
    ],
)
async def test_what_cannot_be_held_to_is_refused_here_and_elsewhere(autojump_clock: MockClock, fields, code) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        for node in nodes:
            await node.wait_routable()
            with pytest.raises(P2PMeshError) as raised:
                await events_of(node, request_of(mesh, **fields), {})
            assert raised.value.code is code
