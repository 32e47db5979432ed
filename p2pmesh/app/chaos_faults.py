"""Faults of ``p2pmesh chaos``: which, when and on which stage, by a seed; and how each is done to real processes.

What is asked of the overlay meanwhile, and what becomes of it, is ``app.chaos``'; how links fail ``app.chaos_links``',
how a peer lies ``app.chaos_lies``'.
"""

import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import trio

from p2pmesh.app.chaos_lies import TRUTH, Lie
from p2pmesh.app.chaos_links import Link, Links

LEAVES_S = 90.0
"""Longer than a node may take."""
FROZEN_S = 8.0
SILENT_S = 8.0
LYING_S = 8.0
SLOW_S = 5.0
SLOW_TURN_S = 0.1
SLOW_FACTOR = 20
_ENGINE = "p2pmesh.adapters.llama.child"


class FaultKind(StrEnum):
    """What is done to the holder of a stage."""

    KILL_NODE = "kill-node"
    LEAVE = "leave"
    """It is told to stop, as by whoever owns it, and hands over what it can."""
    KILL_ENGINE = "kill-engine"
    FREEZE = "freeze"
    FREEZE_ENGINE = "freeze-engine"
    SLOW = "slow"
    PARTITION = "partition"
    """Nothing passes between it and any other node for a while."""
    SILENT_LINK = "silent-link"
    """Nothing passes between it and the peer of a stage beside it for a while; others reach both."""
    CUT_LINK = "cut-link"
    CORRUPT = "corrupt"
    """A byte changes on its way to or from the peer of a stage beside it."""
    LIE = "lie"
    """It answers garbage for a while."""


ENDS_NODE = frozenset({FaultKind.KILL_NODE, FaultKind.LEAVE})
"""Afterwards the node must be started again."""
NO_LOSS = frozenset({FaultKind.SLOW})
"""A run must not be replaced for these."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, ``at_s`` seconds after the requests began; ``lie`` counts for a lying peer alone."""

    at_s: float
    kind: FaultKind
    stage: int
    lie: Lie = Lie.NAN


@dataclass(frozen=True, slots=True)
class Victim:
    """The holder of a stage. ``neighbour`` holds a stage beside it, empty if there is none."""

    name: str
    process: trio.Process
    neighbour: str
    others: tuple[str, ...]

    @property
    def link(self) -> Link:
        """To its neighbour."""
        return frozenset((self.name, self.neighbour))


def plan_faults(seed: int, kinds: Sequence[FaultKind], every_s: float, stages: int, count: int) -> tuple[Fault, ...]:
    """``count`` faults, about ``every_s`` apart; equal seeds, equal faults, and more of them begin with the same."""
    dice = random.Random(seed)
    faults, at_s = [], 0.0
    for _ in range(count):
        at_s += every_s * dice.uniform(0.8, 1.2)
        faults.append(Fault(round(at_s, 3), dice.choice(list(kinds)), dice.randrange(stages), dice.choice(list(Lie))))
    return tuple(faults)


@dataclass(frozen=True, slots=True)
class Case:
    """One of the matrix: the stage that is struck, after how many pieces of the answer, to which question."""

    stage: int
    position: int
    question: int


def plan_cases(stages: int, positions: int, tokens: int) -> tuple[Case, ...]:
    """Each stage at each position, the first one in the prefill; greedy and sampled, short and long prompts."""
    return tuple(
        Case(stage, turn * (tokens - 1) // positions, question)
        for stage in range(stages)
        for turn in range(positions)
        for question in (turn % 2, 2 + turn % 2)
    )


def choose_cases(cases: Sequence[Case], count: int, seed: int) -> tuple[Case, ...]:
    """``count`` of them, in their order; equal seeds, equal cases."""
    chosen = set(random.Random(seed).sample(range(len(cases)), min(count, len(cases))))
    return tuple(case for number, case in enumerate(cases) if number in chosen)


def engines_of(pid: int) -> tuple[int, ...]:
    """The engine processes of a node: children of whichever of its threads started them."""
    return tuple(sorted({child for child in _children_of(pid) if _is_engine(child)}))


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _is_engine(pid: int) -> bool:
    with suppress(OSError):
        return _ENGINE in Path(f"/proc/{pid}/cmdline").read_text()
    return False


async def inflict(fault: Fault, victim: Victim, links: Links) -> None:
    """Does it, and undoes what can be undone; a node that was killed is started again by whoever asked."""
    await _DONE_BY[fault.kind](fault, victim, links)


async def _kill_node(_: Fault, victim: Victim, links: Links) -> None:
    victim.process.kill()
    await victim.process.wait()


async def _leave(_: Fault, victim: Victim, links: Links) -> None:
    victim.process.terminate()
    with trio.move_on_after(LEAVES_S) as waiting:
        await victim.process.wait()
    if waiting.cancelled_caught:
        await _kill_node(_, victim, links)


async def _kill_engine(_: Fault, victim: Victim, links: Links) -> None:
    for engine in engines_of(victim.process.pid):
        _signal(engine, signal.SIGKILL)


async def _freeze(_: Fault, victim: Victim, links: Links) -> None:
    await _stop_for(victim.process.pid, FROZEN_S)


async def _freeze_engine(_: Fault, victim: Victim, links: Links) -> None:
    async with trio.open_nursery() as nursery:
        for engine in engines_of(victim.process.pid):
            nursery.start_soon(_stop_for, engine, FROZEN_S)


async def _slow(_: Fault, victim: Victim, links: Links) -> None:
    with trio.move_on_after(SLOW_S):
        while engines := engines_of(victim.process.pid):
            for engine in engines:
                await _stop_for(engine, SLOW_TURN_S * (1 - 1 / SLOW_FACTOR) / len(engines))
            await trio.sleep(SLOW_TURN_S / SLOW_FACTOR)


async def _partition(_: Fault, victim: Victim, links: Links) -> None:
    with links.silence(frozenset((victim.name, other)) for other in victim.others):
        await trio.sleep(SILENT_S)


async def _silence_link(_: Fault, victim: Victim, links: Links) -> None:
    with links.silence([victim.link]):
        await trio.sleep(SILENT_S)


async def _cut_link(_: Fault, victim: Victim, links: Links) -> None:
    links.reset(victim.link)


async def _corrupt(_: Fault, victim: Victim, links: Links) -> None:
    links.spoil(victim.link)


async def _lie(fault: Fault, victim: Victim, links: Links) -> None:
    await _tell(victim.process, fault.lie.value)
    await trio.sleep(LYING_S)
    await _tell(victim.process, TRUTH)


async def _tell(process: trio.Process, line: str) -> None:
    if process.stdin is not None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await process.stdin.send_all(line.encode() + b"\n")


async def _stop_for(pid: int, seconds: float) -> None:
    _signal(pid, signal.SIGSTOP)
    try:
        await trio.sleep(seconds)
    finally:
        _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


_DONE_BY: dict[FaultKind, Callable[[Fault, Victim, Links], Awaitable[None]]] = {
    FaultKind.KILL_NODE: _kill_node,
    FaultKind.LEAVE: _leave,
    FaultKind.KILL_ENGINE: _kill_engine,
    FaultKind.FREEZE: _freeze,
    FaultKind.FREEZE_ENGINE: _freeze_engine,
    FaultKind.SLOW: _slow,
    FaultKind.PARTITION: _partition,
    FaultKind.SILENT_LINK: _silence_link,
    FaultKind.CUT_LINK: _cut_link,
    FaultKind.CORRUPT: _corrupt,
    FaultKind.LIE: _lie,
}
