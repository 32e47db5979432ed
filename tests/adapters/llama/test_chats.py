"""Conversations with tools on their way to a template."""

import json

import pytest

from p2pmesh.adapters.llama.binding import LoadedStage, LoadOptions
from p2pmesh.adapters.llama.chats import message_fields, read_messages, show_conversation
from p2pmesh.adapters.llama.vocabulary import Vocabulary
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


class Templated:
    """A loaded stage with another template in its file."""

    def __init__(self, stage, template):
        self.vocabulary, self.vocabulary_size = stage.vocabulary, stage.vocabulary_size
        self._template = template

    def chat_template(self):
        return self._template


@pytest.fixture(scope="module")
def stage(stage_folder):
    loaded = LoadedStage(LoadOptions(str(stage_folder / "llama.gguf"), True, True, 2, 64, 1, False))
    yield loaded
    loaded.close()


KNOWS_TOOLS = """{% if tools %}<tools>{{ tools | tojson }}</tools> as <tool_call>{% endif %}
{%- for m in messages %}[{{ m.role }}]{% if m.tool_calls %}{% for c in m.tool_calls %}
{{- c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% else %}{{ m.content }}{% endif %}
{%- endfor %}"""
REFUSES_SYSTEM = """{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}
{%- if m.content is not string %}{{ raise_exception('no text') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"""


def test_a_template_that_shows_names_is_given_them(stage):
    shows_names = "{% for m in messages %}[{{ m.name or m.role }}]{{ m.content }}{% endfor %}"
    vocabulary = Vocabulary(Templated(stage, shows_names))
    turns = (ChatMessage("user", "Hi", name="Ann"), ChatMessage("assistant", "Hello"))
    assert vocabulary.render_chat([message_fields(turn) for turn in turns]) == "[Ann]Hi[assistant]Hello"


def test_a_models_own_template_shows_tools_calls_and_answers(stage):
    vocabulary = Vocabulary(Templated(stage, KNOWS_TOOLS))
    assert vocabulary.call_format == "hermes"
    text = vocabulary.render_chat([message_fields(turn) for turn in TURNS], "", TOOLS)
    assert text.startswith(f"<tools>{TOOLS}</tools>")
    assert text.endswith("[user]Weather?[assistant]weather({})[tool]rain")
    assert "<tools>" not in vocabulary.render_chat([message_fields(turn) for turn in TURNS])


def test_a_template_without_a_system_role_is_taught_in_the_first_message(stage):
    vocabulary = Vocabulary(Templated(stage, REFUSES_SYSTEM))
    assert vocabulary.call_format == "plain"
    text = vocabulary.render_chat([message_fields(turn) for turn in TURNS], "", TOOLS)
    assert text.startswith("[user]These functions")
    assert text.count("[user]") == 2
    with pytest.raises(P2PMeshError):
        vocabulary.render_chat([message_fields(ChatMessage("system", "x"))])
