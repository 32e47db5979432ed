"""Stages and waiting engines at the peers of the world ``models``: ordered, loaded, ended, and what of them breaks.

In short what ``node.stages`` and ``node.engine_shelf`` do. Who orders is ``sim.models_coordinator``'s.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.core import grants
from p2pmesh.core.claims import Claim
from p2pmesh.core.coordination import Event, StageFailed, StageReported, StageState
from p2pmesh.sim.claim_peers import ClaimPeers, ClaimsPeer, SimRun
from p2pmesh.sim.models_hosts import EngineKey, Host, Hosts
from p2pmesh.sim.models_scenario import ModelsScenario
from p2pmesh.sim.scenario import SECOND_US

ROOM_US = 3 * SECOND_US
"""A stage waits so long for the memory of another to come free, or for the stage of the run before it to end."""
TRY_US = SECOND_US // 4
TELL_US = 10 * SECOND_US
SHELF_US = 30 * SECOND_US


@dataclass(frozen=True, slots=True)
class StageOrder:
    """One stage of a run, as its coordinator orders it."""

    run: SimRun
    claim: Claim
    index: int
    layers: LayerRange
    needed_bytes: int
    report: Callable[[Event], None]

    @property
    def number(self) -> int:
        """Of the peer."""
        return self.run.stages[self.index]

    @property
    def engine(self) -> EngineKey:
        """Which waiting engine would do."""
        return (self.run.model, self.layers)


class SimStages:
    """All stages of a world."""

    def __init__(
        self, scenario: ModelsScenario, claims: ClaimPeers, hosts: Hosts, is_reached: Callable[[int, int], bool]
    ) -> None:
        self._scenario = scenario
        self._claims = claims
        self._hosts = hosts
        self._is_reached = is_reached
        self.refused = 0
        self.loaded = 0
        self._layers: dict[tuple[bytes, int], LayerRange] = {}
        """Of the stages that are there, by run and peer."""

    # --- loading --------------------------------------------------------------------
    def order(self, coordinator: ClaimsPeer, order: StageOrder) -> None:
        """Sends the order; its ``report`` hears what comes of it."""
        way_us = self._hosts.way_us(coordinator.number, order.number)
        self._claims.later(way_us, partial(self._receive, coordinator.number, order))

    def _receive(self, source: int, order: StageOrder) -> None:
        peer = self._claims.peers[order.number]
        if not peer.is_up or not self._is_reached(source, order.number):
            self._claims.later(self._scenario.detect_us, partial(self._fail, order, ErrorCode.PEER_UNREACHABLE))
        else:
            self._begin(peer, peer.life, order, tries=ROOM_US // TRY_US)

    def _begin(self, peer: ClaimsPeer, life: int, order: StageOrder, tries: int) -> None:
        """Fenced by its own peer; then the memory is reserved."""
        run, claim = order.run, order.claim
        if not peer.is_up or peer.life != life or run.is_broken:
            return
        now = peer.clock(self._claims.now_us)
        fenced = peer.grantor.why_fenced(claim.coordinator, claim.model, run.run_id, claim.term, now)
        if fenced is not None:
            self._fail(order, fenced[0])
            return
        host = self._hosts.all[peer.number]
        if run.model not in peer.stages and host.make_room(order.needed_bytes):
            self._load(peer, host, order)
        elif tries:
            self._claims.later(TRY_US, partial(self._begin, peer, life, order, tries - 1))
        else:
            self.refused += 1
            self._fail(order, ErrorCode.PLACEMENT_REFUSED)

    def _load(self, peer: ClaimsPeer, host: Host, order: StageOrder) -> None:
        peer.stages[order.run.model] = order.run
        host.used[order.run.model] = order.needed_bytes
        self._claims.grant(peer, grants.StageBegun(order.claim.model, order.run.run_id))
        self._layers[order.run.run_id, peer.number] = order.layers
        self._hosts.announce(host, self._claims.later)
        if host.engines.pop(order.engine, None) is not None:
            self._tell(peer, order, self._scenario.loading.take_up_us)
        else:
            self.loaded += 1
            self._tell(peer, order, self._load_us(order.needed_bytes))

    def _load_us(self, size_bytes: int) -> int:
        loading = self._scenario.loading
        return loading.base_us + SECOND_US * size_bytes // loading.bytes_per_s

    def _tell(self, peer: ClaimsPeer, order: StageOrder, left_us: int) -> None:
        """Says from time to time that it loads still."""
        if not peer.is_up or peer.stages.get(order.run.model) is not order.run:
            return
        back_us = self._hosts.way_us(peer.number, order.number)
        if left_us > 0:
            step_us = min(left_us, TELL_US)
            order.report(StageReported(order.index, StageState.LOADING))
            self._claims.later(step_us, partial(self._tell, peer, order, left_us - step_us))
        elif self._hosts.all[peer.number].is_lying:
            self.end(peer, order.run)
            self._fail(order, ErrorCode.ENGINE_LOAD_FAILED)
        else:
            self._claims.later(back_us, partial(order.report, StageReported(order.index, StageState.READY)))

    def _fail(self, order: StageOrder, code: ErrorCode) -> None:
        order.report(StageFailed(order.index, code, ""))

    # --- ending ---------------------------------------------------------------------
    def end(self, peer: ClaimsPeer, run: SimRun) -> None:
        """The stage of a run at a peer that is up is gone; its engine waits for another."""
        if peer.stages.get(run.model) is not run:
            return
        host = self._hosts.all[peer.number]
        needed_bytes = host.used.pop(run.model)
        engine = (run.model, self._layers.pop((run.run_id, peer.number)))
        if not host.is_lying and host.free_bytes - sum(host.engines.values()) >= needed_bytes:
            host.engines[engine] = needed_bytes
            self._claims.later(SHELF_US, partial(self._clear, host, engine))
        self._hosts.announce(host, self._claims.later)
        self._claims.end_stage(peer, run)

    def _clear(self, host: Host, engine: EngineKey) -> None:
        host.engines.pop(engine, None)

    def forget(self, peer: ClaimsPeer) -> None:
        """A peer is gone with all its engines."""
        host = self._hosts.all[peer.number]
        for run in peer.stages.values():
            self._layers.pop((run.run_id, peer.number), None)
        host.used.clear()
        host.engines.clear()

    def end_all(self, run: SimRun) -> None:
        """All stages of a broken run."""
        for number in run.stages:
            if self._claims.peers[number].is_up:
                self.end(self._claims.peers[number], run)

    # --- engines that wait ------------------------------------------------------------
    def keep_ready(self, number: int, engine: EngineKey, needed_bytes: int, told: Callable[[bool], None]) -> None:
        """Asks a peer to load an engine that waits; ``told`` whether it is up, unless the peer is lost before."""
        host, peer = self._hosts.all[number], self._claims.peers[number]
        if not peer.is_up or host.free_bytes - sum(host.engines.values()) < needed_bytes:
            self._claims.later(self._scenario.detect_us, partial(told, False))
            return
        if engine in host.engines:
            self._claims.later(self._scenario.loading.take_up_us, partial(told, True))
            return
        self._claims.later(
            self._load_us(needed_bytes), partial(self._stand_by, peer, peer.life, engine, needed_bytes, told)
        )

    def _stand_by(
        self, peer: ClaimsPeer, life: int, engine: EngineKey, needed_bytes: int, told: Callable[[bool], None]
    ) -> None:
        host = self._hosts.all[peer.number]
        is_up = peer.is_up and peer.life == life and not host.is_lying
        has_room = host.free_bytes - sum(host.engines.values()) >= needed_bytes
        if is_up and has_room:
            host.engines[engine] = needed_bytes
        told(is_up and has_room)

    def is_ready(self, number: int, engine: EngineKey) -> bool:
        """Whether an engine waits at a peer, as far as its coordinator knows."""
        return self._claims.peers[number].is_up and engine in self._hosts.all[number].engines
