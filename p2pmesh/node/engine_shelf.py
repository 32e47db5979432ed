"""The engines of this node: those that stages use, and those that wait for a stage just like their last one.

When a run breaks, most of its engines are whole. They stay loaded for a while, empty, and the run that replaces it
takes them up again; a spare peer keeps engines ready in the same way (``Stages``). What waits here counts as free
memory, since it goes as soon as another stage needs the room.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from p2pmesh.base.errors import EngineError, ErrorCode, LocalProtocolError, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.ports.engine import Engine, EngineLauncher, EngineSpec
from p2pmesh.wire.stage import StageFrame

KEPT_S = 30.0
"""As long as a new run may reasonably be on its way."""
MAX_WAITING = 16


@dataclass(slots=True, eq=False)
class _Kept:
    """One engine from its start to its end."""

    spec: EngineSpec
    size_bytes: int
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_up: trio.Event = field(default_factory=trio.Event)
    is_dismissed: trio.Event = field(default_factory=trio.Event)
    has_ended: trio.Event = field(default_factory=trio.Event)
    watch: trio.CancelScope = field(default_factory=trio.CancelScope)
    has_left: trio.Event = field(default_factory=trio.Event)
    """It waits no more: it was taken up, or is ending."""
    engine: Engine | None = None
    failure: P2PMeshError | None = None


class EngineShelf:
    """Starts engines, lends them, keeps them. ``room_bytes`` tells what no stage has reserved."""

    def __init__(self, launcher: EngineLauncher, room_bytes: Callable[[], int]) -> None:
        self._launcher = launcher
        self._room_bytes = room_bytes
        self._nursery: trio.Nursery | None = None
        self._waiting: list[_Kept] = []
        self._loading_bytes = 0

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Holds engines until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    @property
    def waiting_bytes(self) -> int:
        """Memory of the engines that wait, and of those that load in order to wait."""
        return self._loading_bytes + sum(kept.size_bytes for kept in self._waiting)

    def has(self, spec: EngineSpec) -> bool:
        """Whether an engine waits for a stage like this."""
        return any(kept.spec == spec for kept in self._waiting)

    @asynccontextmanager
    async def borrow(self, spec: EngineSpec, size_bytes: int) -> AsyncGenerator[Engine, None]:
        """An empty engine for one stage, one that waits or a new one; kept afterwards unless it broke.

        Raises ``EngineError`` if it cannot be started. Its user leaves no sequence behind in it.
        """
        kept = await self._take(spec) or await self._start(spec, size_bytes)
        assert kept.engine is not None
        is_sound = True
        try:
            yield kept.engine
        except (EngineError, RemoteProtocolError):  # it broke, or was fed what breaks rules
            is_sound = False
            raise
        finally:
            if is_sound and len(self._waiting) < MAX_WAITING:
                self._keep(kept, KEPT_S)
            else:
                await self._dismiss(kept)

    async def keep_ready(self, spec: EngineSpec, size_bytes: int, ready: Callable[[], Any]) -> None:
        """Loads an engine that waits until a stage takes it up, its room is needed, or this is cancelled.

        Raises ``Refused`` where it does not fit beside what is reserved, waits and loads.
        """
        kept = await self._take(spec) or await self._load_spare(spec, size_bytes)
        self._keep(kept, float("inf"))
        try:
            await ready()
            await kept.has_left.wait()
        finally:
            if kept in self._waiting:
                kept.watch.cancel()

    async def make_room(self, needed_bytes: int) -> None:
        """Ends engines that wait, the longest first, until ``needed_bytes`` fit beside the others."""
        while self._waiting and self.waiting_bytes + needed_bytes > self._room_bytes():
            kept = self._waiting.pop(0)  # from here on nobody can take it up
            kept.is_dismissed.set()
            kept.watch.cancel()
            await kept.has_ended.wait()

    # --- one engine ------------------------------------------------------------------
    async def _take(self, spec: EngineSpec) -> _Kept | None:
        kept = next((one for one in self._waiting if one.spec == spec), None)
        if kept is None:
            return None
        self._waiting.remove(kept)
        kept.watch.cancel()
        try:
            await kept.has_left.wait()  # who watched it must be done before another follows it
        except BaseException:
            kept.is_dismissed.set()  # neither on the shelf nor lent, it would be nobody's
            raise
        return None if kept.is_dismissed.is_set() else kept

    async def _start(self, spec: EngineSpec, size_bytes: int) -> _Kept:
        if self._nursery is None:
            raise LocalProtocolError(ErrorCode.INTERNAL, "engines are started before the node runs")
        kept = _Kept(spec, size_bytes)
        self._nursery.start_soon(self._hold, kept)
        try:
            await kept.is_up.wait()
        except BaseException:
            kept.scope.cancel()
            raise
        if kept.failure is not None:
            raise kept.failure
        return kept

    async def _load_spare(self, spec: EngineSpec, size_bytes: int) -> _Kept:
        """Counted while it loads; what was reserved meanwhile comes first."""
        self._check_room(size_bytes)
        self._loading_bytes += size_bytes
        try:
            kept = await self._start(spec, size_bytes)
        finally:
            self._loading_bytes -= size_bytes
        try:
            self._check_room(size_bytes)
        except Refused:
            await self._dismiss(kept)
            raise
        return kept

    def _check_room(self, size_bytes: int) -> None:
        if self.waiting_bytes + size_bytes > self._room_bytes():
            raise Refused(ErrorCode.PLACEMENT_REFUSED, "there is no room for a spare engine here")

    async def _hold(self, kept: _Kept) -> None:
        try:
            with kept.scope:
                async with self._launcher.launch(kept.spec) as engine:
                    kept.engine = engine
                    kept.is_up.set()
                    await kept.is_dismissed.wait()
        except P2PMeshError as error:
            kept.failure = error
        finally:
            kept.is_up.set()
            kept.has_ended.set()

    def _keep(self, kept: _Kept, kept_s: float) -> None:
        if self._nursery is None:
            kept.is_dismissed.set()
            return
        kept.watch, kept.has_left = trio.CancelScope(), trio.Event()
        self._waiting.append(kept)
        self._nursery.start_soon(self._watch, kept, kept_s)

    async def _watch(self, kept: _Kept, kept_s: float) -> None:
        """Drops what the engine still says, and lets it go when it dies or nobody wants it."""
        assert kept.engine is not None
        try:
            with kept.watch, trio.move_on_after(kept_s), suppress(P2PMeshError):
                await kept.engine.follow(_drop)
        finally:
            if kept in self._waiting:  # nobody has taken it
                self._waiting.remove(kept)
                kept.is_dismissed.set()
            kept.has_left.set()

    async def _dismiss(self, kept: _Kept) -> None:
        kept.is_dismissed.set()
        with trio.CancelScope(shield=True):
            await kept.has_ended.wait()


async def _drop(_: Sequence[StageFrame]) -> None:
    """Of sequences that nobody waits for any more."""
