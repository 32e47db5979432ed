"""What is kept of a request, and what another driver is asked with it."""

import pytest

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_PROMPT_TOKENS
from p2pmesh.core.journal import Journal
from p2pmesh.wire.generation import (
    ChatMessage,
    FinishReason,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Prompt,
    SamplingParameters,
)

CHAT = Prompt(messages=(ChatMessage("user", "hello"),))
REQUEST = GenerationRequest(b"1" * 16, "m", CHAT, SamplingParameters(seed=7), ("END",), None, 3)
STARTED = GenerationStarted((1, 2, 3), b"r" * 16, "fp", 40)


def begun(*tokens: int) -> Journal:
    journal = Journal(REQUEST)
    journal.take(STARTED)
    for token in tokens:
        journal.take(GenerationDelta((token,), "x"))
    return journal


def test_before_a_start_the_next_driver_is_asked_what_the_client_asked() -> None:
    asked = Journal(REQUEST).next_request(b"2" * 16)
    assert (asked.request_id, asked.prompt, asked.max_tokens, asked.history) == (b"2" * 16, CHAT, None, ())


def test_after_it_the_next_driver_gets_ids_limit_and_history_and_all_else_as_it_was() -> None:
    asked = begun(8, 9).next_request(b"2" * 16)
    assert asked.prompt == Prompt(tokens=(1, 2, 3))
    assert (asked.max_tokens, asked.history) == (40, (8, 9))
    assert (asked.model, asked.sampling, asked.stop, asked.sequence) == ("m", REQUEST.sampling, ("END",), 3)


def test_the_next_driver_is_told_under_which_id_the_last_one_began() -> None:
    journal = Journal(REQUEST)
    assert journal.next_request(b"1" * 16).continues == b""
    assert journal.next_request(b"2" * 16).continues == b""  # the first had not begun
    journal.take(STARTED)
    assert journal.next_request(b"3" * 16).continues == b"2" * 16
    assert journal.next_request(b"4" * 16).continues == b"2" * 16
    journal.take(STARTED)
    assert journal.next_request(b"5" * 16).continues == b"4" * 16


def test_the_client_hears_of_one_start_and_every_delta() -> None:
    journal = Journal(REQUEST)
    assert journal.take(STARTED) is STARTED
    delta = GenerationDelta((8,), "a")
    assert journal.take(delta) is delta
    assert journal.take(STARTED) is None
    assert (journal.recoveries, journal.token_count, journal.is_exact) == (1, 1, True)


def test_the_end_says_how_often_and_how_well_it_went_on() -> None:
    journal = begun(8)
    journal.take(GenerationStarted(STARTED.prompt_tokens, b"s" * 16, "other", 40))
    journal.take(STARTED)
    end = journal.take(GenerationFinished(FinishReason.STOP, "", 1))
    assert end == GenerationFinished(FinishReason.STOP, "", 1, 2, is_exact=False)


def test_a_driver_that_goes_on_with_another_prompt_is_refused() -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        begun(8).take(GenerationStarted((1, 2), b"s" * 16, "fp", 40))
    assert raised.value.code is ErrorCode.MESSAGE_UNEXPECTED


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_end_that_counts_other_tokens_than_were_given_is_refused(count: int) -> None:
    with pytest.raises(RemoteProtocolError):
        begun(8, 9).take(GenerationFinished(FinishReason.STOP, "", count))


def test_an_end_by_a_stop_that_nobody_asked_for_is_refused() -> None:
    end = begun(8).take(GenerationFinished(FinishReason.STOP, "", 1, stop="END"))
    assert isinstance(end, GenerationFinished)
    assert end.stop == "END"
    with pytest.raises(RemoteProtocolError) as raised:
        begun(8).take(GenerationFinished(FinishReason.STOP, "", 1, stop="EN"))
    assert raised.value.code is ErrorCode.MESSAGE_UNEXPECTED


def test_a_driver_that_never_ends_is_cut_off() -> None:
    journal = begun()
    for _ in range(MAX_PROMPT_TOKENS // 1024):
        journal.take(GenerationDelta((1,) * 1024, ""))
    with pytest.raises(RemoteProtocolError):
        journal.take(GenerationDelta((1,), ""))


@pytest.mark.parametrize("early", [GenerationDelta((8,), "x"), GenerationFinished(FinishReason.STOP, "", 0)])
def test_a_driver_that_answers_before_it_has_begun_adds_nothing(early: GenerationEvent) -> None:
    """What it gave would not be in the history of the next one, and the client would read it twice."""
    journal = Journal(REQUEST)
    with pytest.raises(RemoteProtocolError, match="before it has begun"):
        journal.take(early)
    journal.take(STARTED)
    journal.next_request(b"2" * 16)
    with pytest.raises(RemoteProtocolError, match="before it has begun"):
        journal.take(early)
    assert journal.token_count == 0
