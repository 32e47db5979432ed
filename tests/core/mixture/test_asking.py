"""What models are asked for one request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.mixture.asking import (
    answers_calls,
    is_own_limit,
    recent_messages,
    reducer_request,
    worker_request,
)
from p2pmesh.core.mixture.drafts import Draft
from p2pmesh.core.mixture.roles import MixturePolicy, Role, Worker
from p2pmesh.wire.generation import ChatMessage, GenerationRequest, Prompt, SamplingParameters, ToolCall, ToolUse

POLICY = MixturePolicy()
FAST, STRONG = Worker("f", Role.FAST), Worker("s", Role.STRONG)
SYSTEM = ChatMessage("system", "be brief")
ASKS, SAYS = ChatMessage("user", "q"), ChatMessage("assistant", "a")
CALLS = ChatMessage("assistant", "", (ToolCall("c1", "look", "{}"),))
RESULT = ChatMessage("tool", "blue", answers="c1")


def asks(*messages: ChatMessage, **fields: object) -> GenerationRequest:
    given = {"request_id": bytes(16), "model": "mesh", "sampling": SamplingParameters(seed=7, temperature=0.3)}
    return GenerationRequest(**(given | {"prompt": Prompt(messages=messages or (ASKS,))} | fields))  # type: ignore[arg-type]


def test_a_worker_is_asked_the_same_with_less_behind_it() -> None:
    request = asks(SYSTEM, ASKS, SAYS, ASKS, stop=("x",), sequence=3)
    asked = worker_request(request, FAST, POLICY, b"n" * 16)
    assert asked.prompt.messages == (SYSTEM, ASKS)
    assert (asked.model, asked.request_id, asked.max_tokens, asked.top_logprobs) == ("f", b"n" * 16, 256, 0)
    assert (asked.sampling, asked.stop, asked.sequence) == (request.sampling, ("x",), 3)
    assert worker_request(request, STRONG, POLICY, b"").prompt.messages == request.prompt.messages


@pytest.mark.parametrize(("given_", "asked"), [(None, 256), (100, 100), (4000, 256)])
def test_the_limit_is_the_smaller_of_the_roles_and_the_clients(given_: int | None, asked: int) -> None:
    request = asks(max_tokens=given_)
    worker = worker_request(request, FAST, POLICY, b"")
    assert worker.max_tokens == asked
    assert is_own_limit(request, worker) == (given_ == 100)
    reduced = reducer_request(request, "s", (), POLICY, b"")
    assert reduced.max_tokens == (given_ if given_ == 100 else 2048)


@pytest.mark.parametrize("fields", [{"grammar": "root ::= [a]"}, {"tools": ToolUse("[]")}])
@pytest.mark.parametrize("limit", [None, 5000])
def test_what_a_grammar_would_close_early_has_the_clients_limit_alone(fields: dict[str, object], limit: int) -> None:
    request = asks(max_tokens=limit, **fields)
    for asked in (worker_request(request, FAST, POLICY, b""), reducer_request(request, "s", (), POLICY, b"")):
        assert asked.max_tokens == limit
        assert is_own_limit(request, asked)


def test_log_probabilities_that_a_client_wants_stay() -> None:
    assert worker_request(asks(top_logprobs=5), FAST, POLICY, b"").top_logprobs == 5


def test_drafts_stand_in_the_last_message_of_the_user() -> None:
    asked = reducer_request(asks(SYSTEM, ASKS), "s", (Draft("one"), Draft("two"), Draft("one"), Draft("")), POLICY, b"")
    system, last = asked.prompt.messages or ()
    assert (system, last.role) == (SYSTEM, "user")
    assert last.content.startswith("q\n\n")
    assert last.content.endswith("\n\nDraft 1:\none\n\nDraft 2:\ntwo")


def test_drafts_follow_a_result_as_a_message_of_their_own() -> None:
    asked = reducer_request(asks(ASKS, CALLS, RESULT), "s", (Draft("one"),), POLICY, b"")
    assert asked.prompt.messages is not None
    assert asked.prompt.messages[:-1] == (ASKS, CALLS, RESULT)
    assert asked.prompt.messages[-1].role == "user"


def test_without_drafts_the_conversation_speaks_for_itself() -> None:
    asked = reducer_request(asks(ASKS, CALLS, RESULT), "s", (), POLICY, b"")
    assert asked.prompt.messages == (ASKS, CALLS, RESULT)


def test_a_long_draft_is_shown_in_part() -> None:
    asked = reducer_request(asks(ASKS), "s", (Draft("x" * 10_000),), POLICY, b"")
    assert (asked.prompt.messages or ())[-1].content.count("x") == 4096


def test_a_result_keeps_its_call_and_the_question() -> None:
    assert recent_messages((SYSTEM, ASKS, SAYS, ASKS, CALLS, RESULT), 1) == (SYSTEM, ASKS, CALLS, RESULT)


def test_whether_a_turn_answers_calls() -> None:
    assert answers_calls(asks(ASKS, CALLS, RESULT))
    assert not answers_calls(asks(ASKS, CALLS, RESULT, ASKS))
    assert not answers_calls(asks(prompt=Prompt(text="x")))


@given(
    roles=st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), max_size=20),
    count=st.integers(1, 10),
)
def test_what_is_left_of_a_conversation_is_its_instructions_and_its_end(roles: list[str], count: int) -> None:
    messages = tuple(ChatMessage(role, str(index)) for index, role in enumerate(roles))
    kept = recent_messages(messages, count)
    assert [one for one in kept if one.role == "system"] == [one for one in messages if one.role == "system"]
    turns = [one for one in messages if one.role != "system"]
    left = [one for one in kept if one.role != "system"]
    assert left == turns[len(turns) - len(left) :]
    assert len(left) >= min(count, len(turns))
    if left and left != turns:
        assert left[0].role == "user"
    assert [one.content for one in kept] == sorted((one.content for one in kept), key=int)
