"""What is told beside tokens, from near and far, and after losses: log probabilities, vectors; tokens of a text."""

from dataclasses import replace

import pytest
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.wire.generation import (
    ChatMessage,
    GenerationDelta,
    GenerationEvent,
    Prompt,
    SamplingParameters,
    TokenLogprob,
)
from tests.fakes.engine import BEGINNING_TOKEN, TEXT_TOKENS, embedding_of, report_of
from tests.fakes.mesh import expected, open_mesh
from tests.node.test_ingress import end_of, events_of, tokens_of
from tests.node.test_pipelines import chain


def told_of(events: list[GenerationEvent]) -> list[TokenLogprob]:
    return [one for event in events if isinstance(event, GenerationDelta) for one in event.logprobs]


@pytest.mark.parametrize("at", [0, 1, 25])
@pytest.mark.parametrize("index", [0, 1, 2])
async def test_log_probabilities_survive_the_engine_of_any_stage(
    autojump_clock: MockClock, index: int, at: int
) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 3)
        for ingress in (nodes[0], nodes[1]):
            await ingress.wait_routable()
            sampling = SamplingParameters(temperature=0.8, seed=7, logit_bias=((5, 1.5),))
            request = replace(mesh.request("a prompt", max_tokens=40, sampling=sampling), top_logprobs=3, sequence=2)
            events = await events_of(ingress, request, {at: nodes[index].engine.kill})
            assert end_of(events).recoveries >= (at > 0)
            tokens, told = tokens_of(events), told_of(events)
            assert tokens == expected(request)
            assert [one.token for one in told] == tokens
            for count, one in enumerate(told):
                report = report_of(one.token, len(b"a prompt") + count, 3)
                assert (one.piece, one.logprob) == (bytes([one.token]), pytest.approx(report.logprob))
                assert [(likely.token, likely.logprob) for likely in one.top] == list(report.top)


async def test_nothing_is_told_unasked(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        assert told_of(await events_of(nodes[0], mesh.request(), {})) == []


@pytest.mark.parametrize("index", [None, 0, 1])
async def test_a_prompt_is_read_from_near_and_far_and_again_after_a_loss(
    autojump_clock: MockClock, index: int | None
) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        for ingress in nodes:
            await ingress.wait_routable()
            request = replace(mesh.request("some text " * 60, max_tokens=1), wants_embedding=True)
            strikes = {} if index is None else {0: nodes[index].engine.kill}
            events = await events_of(ingress, request, strikes)
            vectors = [event.embedding for event in events if isinstance(event, GenerationDelta) and event.embedding]
            assert vectors == [embedding_of(request.prompt.tokens or ())]


async def test_tokens_of_a_text_and_text_of_tokens_from_near_and_far(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        for node in await chain(mesh, 2):
            await node.wait_routable()

            async def ask(prompt: Prompt, *, add_special: bool, node=node) -> tuple[tuple[int, ...], str]:  # type: ignore[no-untyped-def]
                answer = await node.node.tokenize("fake", bytes(16), prompt, add_special=add_special)
                return answer.tokens, answer.text

            assert await ask(Prompt(text="hi"), add_special=False) == ((104, 105), "")
            assert await ask(Prompt(text="hi"), add_special=True) == ((BEGINNING_TOKEN, 104, 105), "")
            assert await ask(Prompt(tokens=(104, 105, 0xC3)), add_special=True) == ((), "hi\ufffd")
            chat = Prompt(messages=(ChatMessage("user", "x"),))
            assert (await ask(chat, add_special=True))[0] == (BEGINNING_TOKEN, *b"[user]x\n")
            with pytest.raises(P2PMeshError) as refused:
                await ask(Prompt(tokens=(TEXT_TOKENS + 9,)), add_special=True)
            assert refused.value.code is ErrorCode.REQUEST_INVALID


async def test_a_bias_for_a_token_that_there_is_not_is_refused(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await chain(mesh, 2)
        for ingress in nodes:
            await ingress.wait_routable()
            unknown = SamplingParameters(logit_bias=((10**6, 1.0),))
            with pytest.raises(P2PMeshError) as raised:
                await events_of(ingress, mesh.request(sampling=unknown), {})
            assert raised.value.code is ErrorCode.LOGIT_BIAS_INVALID
            assert "names the token id 1000000, and the model's are 0 to" in raised.value.message
