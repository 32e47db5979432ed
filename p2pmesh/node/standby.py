"""Engines that spare peers keep ready for the stages of one model, so that a lost stage is replaced without loading.

Owns which peer is asked for which stage, and the streams that its engines wait on. Where a stage goes when one is lost
is the coordinator's; how an engine waits, and makes room, ``node.engine_shelf``'s.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import Digest, LayerRange, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.coordination import RunPolicy, StageState
from p2pmesh.core.planning.outcome import Placement, PlannedStage
from p2pmesh.core.planning.request import PlanRequest
from p2pmesh.node.overlay import Overlay
from p2pmesh.wire.messages.runs import LoadStage, StageStatus

SETTLED_S = 3.0
"""A run that has served so long is worth the trouble."""
LOOK_AGAIN_S = 10.0
LOAD_S = 300.0
REFUSED_AGAIN_S = 60.0
IDLE_FOREVER_S = 365 * 24 * 3600.0

_RUNS = RunPolicy()
Order = Callable[[Placement, int], AbstractAsyncContextManager[LoadStage]]
"""The order to keep an engine ready for a stage of a placement; its file stays here as long as the scope."""


@dataclass(slots=True)
class _Standby:
    """One engine that a peer was asked to keep ready."""

    peer: PeerId
    needed_bytes: int
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_ready: bool = False
    files: frozenset[str] = frozenset()
    """What its peer may fetch for it."""


class Standbys:
    """Of the run that serves now; each stage has one at most."""

    def __init__(self, overlay: Overlay, request: Callable[[], PlanRequest], order: Order) -> None:
        self._overlay = overlay
        self._request = request
        self._order = order
        self._wanted: Placement | None = None
        self._held: dict[LayerRange, _Standby] = {}
        self._refused_until: dict[PeerId, float] = {}
        self._is_wanted = trio.Event()

    def want(self, placement: Placement) -> None:
        """A run of this placement serves."""
        layers = {stage.layers for stage in placement.stages}
        busy = {stage.peer_id for stage in placement.stages}
        for held, standby in self._held.items():
            if held not in layers or standby.peer in busy:  # a peer holds one stage of a run
                standby.scope.cancel()
        self._wanted = placement
        self._is_wanted.set()

    def forget(self) -> None:
        """No run of ours serves, and none is about to."""
        self._wanted = None
        if self._is_wanted.is_set():
            self._is_wanted = trio.Event()
        for standby in self._held.values():
            standby.scope.cancel()

    def peer_for(self, layers: LayerRange) -> PeerId | None:
        """Who has an engine ready for a stage."""
        standby = self._held.get(layers)
        return standby.peer if standby is not None and standby.is_ready else None

    def described(self) -> list[dict[str, object]]:
        """Engines that are ready, by the layers of their stages, as plain values."""
        waiting = ((layers, one.peer) for layers, one in self._held.items() if one.is_ready)
        ready = sorted((layers.start, layers.end, peer) for layers, peer in waiting if peer not in self._busy())
        return [{"peer_id": peer, "layers": [start, end]} for start, end, peer in ready]

    def _busy(self) -> frozenset[PeerId]:
        """Whoever has just become one of the run gives its engines back."""
        return frozenset(stage.peer_id for stage in self._wanted.stages) if self._wanted is not None else frozenset()

    def gives(self, digest: Digest, peer: PeerId) -> bool:
        """Whether the peer needs this file for its engine."""
        return any(digest in one.files and one.peer == peer for one in self._held.values())

    async def keep(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._is_wanted.wait()
                await trio.sleep(SETTLED_S)
                seen = self._overlay.board.changes.count
                self._start_missing(nursery)
                with trio.move_on_after(LOOK_AGAIN_S):
                    await self._overlay.board.changes.wait_beyond(seen)

    def _start_missing(self, nursery: trio.Nursery) -> None:
        if self._wanted is None:
            return
        now = trio.current_time()
        self._refused_until = {peer: until for peer, until in self._refused_until.items() if until > now}
        for index, stage in enumerate(self._wanted.stages):
            if stage.layers in self._held:
                continue
            peer = self._choose(self._wanted, stage)
            if peer is not None:
                standby = self._held[stage.layers] = _Standby(peer, stage.needed_bytes)
                nursery.start_soon(self._hold, self._wanted, index, standby)

    def _choose(self, placement: Placement, stage: PlannedStage) -> PeerId | None:
        """The spare peer with the most room left beside what it keeps ready already, its owner's use aside."""
        request = self._request()
        busy = {holder.peer_id for holder in placement.stages}
        rooms = []
        for peer in request.peers:
            given = sum(one.needed_bytes for one in self._held.values() if one.peer == peer.peer_id)
            room = request.usable_bytes(peer) - given
            is_capped = peer.most_layers is not None and peer.most_layers < len(stage.layers)
            is_out = is_capped or peer.peer_id in busy or peer.peer_id in self._refused_until
            if not is_out and peer.rank == 0 and room >= stage.needed_bytes:
                rooms.append((not peer.is_spared, room, peer.peer_id))
        return max(rooms)[2] if rooms else None

    async def _hold(self, placement: Placement, index: int, standby: _Standby) -> None:
        """As long as its peer keeps it: it ends when a run takes the engine up, too."""
        layers = placement.stages[index].layers
        stages = list(placement.stages)
        stages[index] = replace(stages[index], peer_id=standby.peer)
        try:
            with standby.scope, suppress(P2PMeshError):
                async with self._order(replace(placement, stages=tuple(stages)), index) as load:
                    standby.files = frozenset((load.artifact_digest, *(file.digest for file in load.fragments)))
                    await self._follow(load, standby)
        finally:
            self._held.pop(layers, None)
            if not standby.is_ready and not standby.scope.cancel_called:
                self._refused_until[standby.peer] = trio.current_time() + REFUSED_AGAIN_S

    async def _follow(self, load: LoadStage, standby: _Standby) -> None:
        stream = await self._overlay.open_exchange(standby.peer, load, load.stage.addresses)
        try:
            ends_at = trio.current_time() + longest_load_s(load)
            while True:
                left_s = IDLE_FOREVER_S if standby.is_ready else min(LOAD_S, max(0.0, ends_at - trio.current_time()))
                status = await stream.expect(StageStatus, left_s)
                standby.is_ready = standby.is_ready or status.state == StageState.READY
        finally:
            await stream.reset()


def longest_load_s(load: LoadStage) -> float:
    """Until an engine is ready: as long as a stage of a run may take, whatever its peer reports meanwhile."""
    return (_RUNS.longest_fetch_us(load.needed_bytes) + _RUNS.load_us) / MICROS_PER_SECOND
