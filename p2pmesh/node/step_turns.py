"""Rows of a driver's sequences on their way into stage 0, in the turns that ``core.step_group`` gives them.

Only where all stages are on one machine: elsewhere every frame passes at once. What the rows are is known to
``node.sequences``, where they go to ``node.stage_run``.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import trio

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, P2PMeshError
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.batching import SequenceKey
from p2pmesh.core.step_group import StepGroup, share_machine
from p2pmesh.ports.clock import Clock
from p2pmesh.wire.messages.runs import StageEntry
from p2pmesh.wire.stage import FrameKind, StageFrame


class FrameTaker(Protocol):
    """The stage that a driver drives: ``StageRun``."""

    async def submit(self, frame: StageFrame) -> None:
        """Takes BEGIN, PREFILL, DECODE, CANCEL and END."""

    async def submit_all(self, frames: tuple[StageFrame, ...]) -> None:
        """As ``submit``; they go together."""

    def fail(self, error: P2PMeshError) -> None:
        """Ends the run here."""


class StepTurns:
    """Of one run; tasks that wait for a turn to be over run in ``nursery``."""

    def __init__(self, stages: Iterable[StageEntry], clock: Clock, nursery: trio.Nursery) -> None:
        addresses = [entry.addresses for entry in stages]
        self._group = StepGroup() if len(addresses) > 1 and share_machine(addresses) else None
        self._clock = clock
        self._nursery = nursery
        self._is_quiet: trio.Event | None = None
        """Ends the one task that lets those go who have waited long enough; None without it."""
        self._stage: FrameTaker | None = None

    def attach(self, stage: FrameTaker) -> None:
        """Stage 0 is up."""
        self._stage = stage

    @property
    def stage(self) -> FrameTaker:
        """Stage 0; ``LocalProtocolError`` before it is up."""
        if self._stage is None:
            raise LocalProtocolError(ErrorCode.INTERNAL, "a driver without its stage")
        return self._stage

    async def submit(self, frame: StageFrame) -> None:
        """Sends a frame of a sequence, now or with its group; raises what sending raises."""
        group, stage = self._group, self.stage
        if group is None or frame.kind is not FrameKind.DECODE or frame.is_replay:
            await stage.submit(frame)
            return
        await self._send(group.take(frame, self._clock.now()))
        if group.deadline() is not None and self._is_quiet is None:
            self._is_quiet = trio.Event()
            self._nursery.start_soon(self._expire, group, self._is_quiet)

    def leave(self, key: SequenceKey) -> None:
        """A sequence is over: nobody waits for it."""
        if self._group is None:
            return
        frames = self._group.leave(key, self._clock.now())
        if frames:
            self._nursery.start_soon(self._send_late, frames)
        if self._group.deadline() is None and self._is_quiet is not None:
            self._is_quiet.set()
            self._is_quiet = None

    async def _expire(self, group: StepGroup, is_quiet: trio.Event) -> None:
        """Runs on from step to step: deadlines pass seldom, and a task for each would cost more than what it saves."""
        while (due := group.deadline()) is not None:
            with trio.move_on_after(max(0, due - self._clock.now()) / MICROS_PER_SECOND):
                await is_quiet.wait()
            if is_quiet.is_set():
                return
            if group.deadline() == due:
                await self._send_late(group.expire(max(due, self._clock.now())))
        if self._is_quiet is is_quiet:
            self._is_quiet = None

    async def _send_late(self, frames: tuple[StageFrame, ...]) -> None:
        """In no sequence's own task; where it fails the run is over, which tells every sequence why."""
        with suppress(P2PMeshError):
            await self._send(frames)

    async def _send(self, frames: tuple[StageFrame, ...]) -> None:
        if frames:
            await self.stage.submit_all(frames)
