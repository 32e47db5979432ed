"""Conversations with tools as templates take them."""

from p2pmesh.core.tool_calls.conversation import show_natively, show_plainly, without_system
from p2pmesh.core.tool_calls.formats import HERMES, MISTRAL, PLAIN
from p2pmesh.core.tool_calls.tools import Tool
from p2pmesh.wire.generation import ChatMessage, ToolCall

CALL = ToolCall("call_1", "weather", '{"city": "Bern"}')
TURNS = (
    ChatMessage("user", "Weather?"),
    ChatMessage("assistant", "", (CALL, ToolCall("call_2", "now", "broken {"))),
    ChatMessage("tool", "rain", answers="call_1"),
    ChatMessage("tool", "noon", answers="call_2"),
)
TOOLS = [Tool("weather", "of a city").shown()]


def test_a_template_that_knows_tools_gets_openais_shape_with_objects():
    user, assistant, tool, _ = show_natively(TURNS, HERMES)
    assert user == {"role": "user", "content": "Weather?"}
    functions = [call["function"] for call in assistant["tool_calls"]]
    assert functions[0] == {"name": "weather", "arguments": {"city": "Bern"}}
    assert functions[1]["arguments"] == "broken {"
    assert tool == {"role": "tool", "content": "rain", "tool_call_id": "call_1", "name": "weather"}


def test_names_of_participants_reach_templates_and_keep_them_apart():
    asked = (ChatMessage("user", "Hi", name="Ann"), ChatMessage("user", "Me too", name="Bob"), ChatMessage("user", "!"))
    apart = [
        {"role": "user", "content": "Hi", "name": "Ann"},
        {"role": "user", "content": "Me too", "name": "Bob"},
        {"role": "user", "content": "!"},
    ]
    assert show_natively(asked, HERMES) == show_plainly(asked, [], PLAIN) == apart
    lone = ChatMessage("tool", "rain", answers="call_9", name="weather")
    assert show_natively((lone,), HERMES)[0]["name"] == "weather"
    answer = ChatMessage("tool", "x", answers="call_2", name="weather")
    assert show_natively((*TURNS[:2], answer), HERMES)[2]["name"] == "now"
    told = without_system([{"role": "system", "content": "S"}, apart[0]])
    assert told == [{"role": "user", "content": "S\n\nHi", "name": "Ann"}]


def test_mistral_gets_ids_of_the_length_that_it_takes():
    _, assistant, tool, _ = show_natively(TURNS, MISTRAL)
    assert len(tool["tool_call_id"]) == 9
    assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"]


def test_a_template_that_knows_none_is_taught_and_roles_take_turns():
    shown = show_plainly(TURNS, TOOLS, PLAIN)
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "user"]
    assert '"name": "weather"' in shown[0]["content"]
    assert PLAIN.write([CALL]) in shown[2]["content"]
    assert shown[3]["content"].count("<tool_response>") == 2


def test_a_system_message_is_kept_and_added_to():
    shown = show_plainly((ChatMessage("system", "Be brief."), *TURNS), TOOLS, PLAIN)
    assert shown[0]["content"].startswith("Be brief.\n\n")
    assert show_plainly(TURNS[:1], [], PLAIN) == [{"role": "user", "content": "Weather?"}]


def test_a_template_without_the_role_gets_it_before_the_first_message():
    shown = without_system(show_plainly(TURNS, TOOLS, PLAIN))
    assert [message["role"] for message in shown] == ["user", "assistant", "user"]
    assert shown[0]["content"].endswith("Weather?")
    assert without_system([{"role": "user", "content": "hi"}]) == [{"role": "user", "content": "hi"}]
