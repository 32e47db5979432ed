"""What a node of ``p2pmesh bench api`` does beside serving: it drives requests with nothing in front of their driver.

No router, no journal, no HTTP: what is left is the bare loop that the API's cost is measured against, in the same
process. It obeys lines on its standard input, ``NUMBER cpu`` and ``NUMBER drive MODEL TOKENS PROMPT,PROMPT,…``, and
answers each with a line on its standard output; it ends where the lines end, since whoever started it is gone.
"""

import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.node.node import Node
from p2pmesh.wire.generation import GenerationRequest, Prompt, SamplingParameters

ANSWER = "answer-"
"""Before the number of the line that is answered: the name of an event."""
MAX_LINE_BYTES = 1 << 20


def cpu_line(number: int) -> str:
    """Asks for the node's CPU time."""
    return f"{number} cpu\n"


def drive_line(number: int, model: str, tokens: int, prompt: Iterable[int]) -> str:
    """Asks for so many tokens of the bare loop."""
    return f"{number} drive {json.dumps(model)} {tokens} {','.join(map(str, prompt))}\n"


async def obey(node: Node) -> None:
    """Until the lines end."""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        async for line in _lines(stream):
            number, _, order = line.partition(" ")
            began_s = time.perf_counter()
            tokens = await _drive(node, order) if order != "cpu" else 0
            answer = {"tokens": tokens, "seconds": time.perf_counter() - began_s, "cpu_s": time.process_time()}
            sys.stdout.write(json.dumps({"event": ANSWER + number, **answer}) + "\n")
            sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    rest = b""
    async for data in stream:
        *lines, rest = (rest + bytes(data)).split(b"\n")
        for line in lines:
            yield line.decode()
        if len(rest) > MAX_LINE_BYTES:
            return


async def _drive(node: Node, order: str) -> int:
    model, tokens, prompt = _order_of(order)
    driver = node.drivers.find_published(model)
    if driver is None:
        raise Refused(ErrorCode.MODEL_NOT_READY, f"{model} is not driven here")
    greedy = SamplingParameters(temperature=0.0)
    request = GenerationRequest(os.urandom(16), model, Prompt(tokens=prompt), greedy, max_tokens=tokens)
    count = 0
    async with driver.generate(request) as events:
        async for event in events:
            count += len(getattr(event, "tokens", ()))
    return count


def _order_of(order: str) -> tuple[str, int, tuple[int, ...]]:
    name, rest = json.JSONDecoder().raw_decode(order.removeprefix("drive "))
    tokens, prompt = order.removeprefix("drive ")[rest:].split()
    model: Any = name
    return str(model), int(tokens), tuple(map(int, prompt.split(",")))
