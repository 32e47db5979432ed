"""Conversations with tools on their way to a template."""

import json

import pytest

from p2pmesh.adapters.llama.chats import message_fields, read_messages, show_conversation
from p2pmesh.base.errors import P2PMeshError
from p2pmesh.core.tool_calls.formats import HERMES, PLAIN
from p2pmesh.core.tool_calls.tools import Tool, encode_tools
from p2pmesh.wire.generation import ChatMessage, ToolCall, ToolUse

TOOLS = encode_tools((Tool("weather", "of a city"),))
TURNS = [
    ChatMessage("user", "Weather?"),
    ChatMessage("assistant", "", (ToolCall("call_1", "weather", "{}"),)),
    ChatMessage("tool", "rain", answers="call_1"),
]


def test_messages_come_out_as_they_went_in():
    assert read_messages(json.loads(json.dumps([message_fields(turn) for turn in TURNS]))) == TURNS


def test_a_template_that_knows_tools_is_handed_them():
    shown, handed = show_conversation(TURNS, TOOLS, HERMES)
    assert handed == json.loads(TOOLS)
    assert [message["role"] for message in shown] == ["user", "assistant", "tool"]


def test_a_template_that_knows_none_is_told_in_words():
    shown, handed = show_conversation(TURNS, TOOLS, PLAIN)
    assert handed is None
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "user"]


def test_a_conversation_without_tools_is_left_alone():
    turns = [ChatMessage("user", "a"), ChatMessage("user", "b")]
    plain = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert show_conversation(turns, "", PLAIN) == (plain, None)
    assert show_conversation(turns, "", HERMES) == (plain, None)


async def test_an_engine_tells_its_format_and_shows_tools(launcher, make_spec):
    async with launcher.launch(make_spec("llama")) as engine:
        assert engine.facts.call_format == "plain"
        text = await engine.render_chat(tuple(TURNS), tools=ToolUse(TOOLS))
        assert text.startswith("[system]")
        assert '"name": "weather"' in text
        assert "<tool_response>\nrain" in text
        with pytest.raises(P2PMeshError):
            await engine.render_chat(tuple(TURNS), tools=ToolUse("no JSON"))
