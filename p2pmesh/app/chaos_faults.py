"""Faults of ``p2pmesh chaos``: which, when and on which stage, by a seed; and how each is done to real processes.

What is asked of the overlay meanwhile, and what becomes of it, is ``app.chaos``'.
"""

import os
import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import trio

FROZEN_S = 8.0
SLOW_S = 5.0
SLOW_TURN_S = 0.1
SLOW_FACTOR = 20
_ENGINE = "p2pmesh.adapters.llama.child"


class FaultKind(StrEnum):
    """What is done to the holder of a stage."""

    KILL_NODE = "kill-node"
    KILL_ENGINE = "kill-engine"
    FREEZE = "freeze"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, ``at_s`` seconds after the requests began."""

    at_s: float
    kind: FaultKind
    stage: int


def plan_faults(seed: int, kinds: Sequence[FaultKind], every_s: float, stages: int, count: int) -> tuple[Fault, ...]:
    """``count`` faults, about ``every_s`` apart; equal seeds, equal faults, and more of them begin with the same."""
    dice = random.Random(seed)
    faults, at_s = [], 0.0
    for _ in range(count):
        at_s += every_s * dice.uniform(0.8, 1.2)
        faults.append(Fault(round(at_s, 3), dice.choice(list(kinds)), dice.randrange(stages)))
    return tuple(faults)


def engines_of(pid: int) -> tuple[int, ...]:
    """The engine processes of a node."""
    found = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):
                if _ENGINE in Path(f"/proc/{child}/cmdline").read_text():
                    found.append(int(child))
    return tuple(found)


async def inflict(kind: FaultKind, node: trio.Process) -> None:
    """Does it, and undoes what can be undone; a node that was killed is started again by whoever asked."""
    match kind:
        case FaultKind.KILL_NODE:
            node.kill()
            await node.wait()
        case FaultKind.KILL_ENGINE:
            for engine in engines_of(node.pid):
                _signal(engine, signal.SIGKILL)
        case FaultKind.FREEZE:
            await _stop_for(node.pid, FROZEN_S)
        case FaultKind.SLOW:
            with trio.move_on_after(SLOW_S):
                while engines := engines_of(node.pid):
                    for engine in engines:
                        await _stop_for(engine, SLOW_TURN_S * (1 - 1 / SLOW_FACTOR) / len(engines))
                    await trio.sleep(SLOW_TURN_S / SLOW_FACTOR)


async def _stop_for(pid: int, seconds: float) -> None:
    _signal(pid, signal.SIGSTOP)
    try:
        await trio.sleep(seconds)
    finally:
        _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
