"""What ``p2pmesh chaos`` asks of its overlay, and what becomes of an answer: its bytes without id and date."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import trio

from p2pmesh.base.errors import ErrorCode, Refused

ANSWER_S = 400.0
"""Above every deadline of the nodes, a stall of the longest among them: what takes longer hangs."""
REFUSED_AGAIN_S = 1.0
MOST_REFUSALS = 120
QUESTIONS = 4
_PROMPT = "Write down, in your own words, what happened on the {n}th day of the voyage: "


@dataclass(slots=True)
class Answer:
    """What a client got: its data without id and date, the longest pause, and how it ended."""

    outcome: str = "hung"
    detail: str = ""
    data: list[str] = field(default_factory=list)
    longest_pause_ms: int = 0
    refusals: int = 0


def undated(line: str) -> str:
    """A ``data:`` line without what belongs to one request alone."""
    if line == "data: [DONE]":
        return line
    value = json.loads(line.removeprefix("data: "))
    return json.dumps({name: part for name, part in value.items() if name not in ("id", "created")}, sort_keys=True)


def question(number: int, model: str, tokens: int) -> dict[str, Any]:
    """One of a few bodies: with a short and a long prompt, greedy and sampled."""
    prompt = _PROMPT.format(n=number % QUESTIONS) * (1 + 6 * (number % 2))
    sampling = {"temperature": 0} if number % 4 < 2 else {"temperature": 0.8, "top_p": 0.95, "seed": number % QUESTIONS}
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "stream": True,
        "return_token_ids": True,
        **sampling,
    }


async def ask(
    client: httpx.AsyncClient, body: Mapping[str, Any], note: Callable[[int], None] = lambda _: None
) -> Answer:
    """One streamed completion; a refusal before it began is repeated. ``note`` hears how many pieces have come."""
    answer = Answer()
    with trio.move_on_after(ANSWER_S):
        while answer.refusals < MOST_REFUSALS:
            try:
                async with client.stream("POST", "/v1/completions", json=dict(body)) as response:
                    if response.status_code != 503:
                        await _read(response, answer, note)
                        return answer
            except httpx.HTTPError as error:
                answer.outcome, answer.detail = "failed", repr(error)
                return answer
            answer.refusals += 1
            await trio.sleep(REFUSED_AGAIN_S)
        answer.outcome = "refused"
    return answer


async def ask_undisturbed(client: httpx.AsyncClient, body: Mapping[str, Any]) -> list[str]:
    """The data that all other answers are compared with; raises ``Refused`` if it did not come whole."""
    answer = await ask(client, body)
    if answer.outcome != "finished":
        text = f"an answer that nothing disturbed is {answer.outcome}: {answer.detail or 'no reason was given'}"
        raise Refused(ErrorCode.INTERNAL, text)
    return answer.data


async def _read(response: httpx.Response, answer: Answer, note: Callable[[int], None]) -> None:
    if response.status_code != 200:
        answer.outcome, answer.detail = "failed", (await response.aread()).decode(errors="replace")[:500]
        return
    last_s = time.monotonic()
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        answer.longest_pause_ms = max(answer.longest_pause_ms, round(1000 * (time.monotonic() - last_s)))
        last_s = time.monotonic()
        answer.data.append(undated(line))
        note(len(answer.data))
    is_whole = bool(answer.data) and answer.data[-1] == "data: [DONE]"
    answer.outcome = "finished" if is_whole else "failed"
    answer.detail = "" if is_whole else "".join(answer.data[-1:])[:500]
