"""Which messages go."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.guardrails.compaction import fits, is_full, may_fill, removable_parts, without_parts
from p2pmesh.core.guardrails.policy import GuardrailPolicy
from p2pmesh.wire.generation import ChatMessage, Prompt, ToolCall, ToolUse

POLICY = GuardrailPolicy()


def talk(*roles: str) -> tuple[ChatMessage, ...]:
    """``call`` is an assistant that calls, ``tool`` what it returns."""
    messages = []
    for index, role in enumerate(roles):
        calls = (ToolCall(f"c{index}", "look", "{}"),) if role == "call" else ()
        messages.append(ChatMessage("assistant" if role == "call" else role, str(index), calls))
    return tuple(messages)


def test_exchanges_go_whole_the_oldest_first() -> None:
    messages = talk("system", "user", "assistant", "user", "call", "tool", "assistant", "user")
    assert removable_parts(messages) == ((1, 2), (3, 4, 5, 6))


def test_behind_the_last_question_calls_go_with_their_results_but_the_newest() -> None:
    messages = talk("user", "assistant", "user", "call", "tool", "tool", "call", "tool")
    assert removable_parts(messages) == ((0, 1), (3, 4, 5))


def test_instructions_stay_wherever_they_stand() -> None:
    messages = talk("system", "user", "system", "assistant", "developer", "user")
    assert removable_parts(messages) == ((1, 3),)
    assert without_parts(messages, removable_parts(messages)) == tuple(messages[i] for i in (0, 2, 4, 5))


def test_one_question_alone_leaves_nothing_to_go() -> None:
    assert removable_parts(talk("system", "user")) == ()
    assert removable_parts(talk("user", "call", "tool")) == ()
    assert removable_parts(()) == ()
    assert removable_parts(talk("system")) == ()


def test_what_stands_before_the_first_question_goes_first() -> None:
    assert removable_parts(talk("assistant", "user", "assistant", "user")) == ((0,), (1, 2))


TURNS = st.lists(st.sampled_from([("user",), ("assistant",), ("call", "tool"), ("call", "tool", "tool"), ("system",)]))


@given(turns=TURNS, data=st.data())
def test_whatever_goes_the_rest_is_a_conversation(turns: list[tuple[str, ...]], data: st.DataObject) -> None:
    messages = talk(*(role for turn in turns for role in turn))
    parts = removable_parts(messages)
    places = [index for part in parts for index in part]
    assert places == sorted(set(places))
    count = data.draw(st.integers(0, len(parts)))
    left = without_parts(messages, parts[:count])
    assert [one for one in left if one.role == "system"] == [one for one in messages if one.role == "system"]
    questions = [one for one in messages if one.role == "user"]
    assert questions[-1:] == [one for one in left if one.role == "user"][-1:]
    spoken = [one for one in messages if one.role != "system"]
    assert spoken[-1:] == [one for one in left if one.role != "system"][-1:]
    for before, after in zip([None, *left], left, strict=False):  # a result stands behind its call, or another result
        if after.role == "tool":
            assert before is not None
            behind = messages[messages.index(after) - 1]
            assert before.role == "system" or before == behind


@given(turns=TURNS)
def test_calls_and_results_stay_or_go_together(turns: list[tuple[str, ...]]) -> None:
    messages = talk(*(role for turn in turns for role in turn))
    gone = {index for part in removable_parts(messages) for index in part}
    for index, message in enumerate(messages):
        if message.role == "tool":
            assert (index in gone) == (index - 1 in gone)


def test_the_published_bounds() -> None:
    assert [is_full(count, 1000, POLICY) for count in (899, 900)] == [False, True]
    assert [fits(count, 1000, POLICY) for count in (800, 801)] == [True, False]


def test_short_conversations_are_not_counted() -> None:
    short = Prompt(messages=talk("user"))
    assert not may_fill(short, None, 4096, POLICY)
    assert may_fill(short, None, 1024, POLICY)
    assert may_fill(short, ToolUse("x" * 4000), 4096, POLICY)
    assert may_fill(Prompt(messages=(ChatMessage("user", "é" * 2000),)), None, 4096, POLICY)
    assert not may_fill(Prompt(text="x" * 9999), None, 10, POLICY)
