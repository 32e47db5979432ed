"""What models are asked for, as one node lives with it: its clients' requests counted and told, others' read.

Runs ``core.demand`` over announcements. Requests that wait are counted here; how long, and what is loaded for them, is
``node.on_demand``'s.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import trio

from p2pmesh.base.ids import PeerId
from p2pmesh.core.demand import NO_DEMAND, Demand, DemandBook, DemandCounters, count_serving
from p2pmesh.core.serving import Rate
from p2pmesh.node.changes import Changes
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.router import Router
from p2pmesh.ports.clock import Clock
from p2pmesh.wire.announcement import Announcement, model_hash_of

TELL_GAP_S = 2.0
"""Clients may come and go faster than others need to hear of it."""


class ModelDemand:
    """Demand for every model in view."""

    def __init__(self, overlay: Overlay, router: Router, clock: Clock) -> None:
        self._overlay = overlay
        self._router = router
        self._clock = clock
        self._counters = DemandCounters()
        self._book = DemandBook()
        self._of_others: dict[bytes, Demand] = {}
        """As last read."""
        self._open: dict[str, int] = {}
        """Requests of our clients that are under way, by the name that their model is served under."""
        self._stalled: set[str] = set()
        """Those of these names that nobody serves any more."""
        self._told_at = float("-inf")
        self.changes = Changes()
        """Marked when a request of ours begins to wait, or ends to."""

    # --- requests of our clients -----------------------------------------------------
    def count(self, model: bytes) -> None:
        """A client asks for a model."""
        self._counters.count(model, self._clock.now())

    @contextmanager
    def waiting(self, model: bytes) -> Iterator[None]:
        """A request waits for a model."""
        self._counters.begin_waiting(model)
        self.changes.mark()
        try:
            yield
        finally:
            self._counters.end_waiting(model)
            self.changes.mark()

    @contextmanager
    def under_way(self, name: str) -> Iterator[None]:
        """A request that goes on: if its model is lost or unloaded meanwhile, it waits for it like any other."""
        name = self._router.served_name(name) or name
        self._open[name] = self._open.get(name, 0) + 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]
                self._end_stall(name)

    def note_stalls(self) -> None:
        """Looks which requests that go on have lost their model, and which have it again."""
        for name in self._open:
            if self._router.is_served(name):
                self._end_stall(name)
            elif name not in self._stalled:
                self._stalled.add(name)
                self._counters.begin_waiting(model_hash_of(name))

    def _end_stall(self, name: str) -> None:
        if name in self._stalled:
            self._stalled.discard(name)
            self._counters.end_waiting(model_hash_of(name))
            self.changes.mark()

    # --- what is asked for ---------------------------------------------------------------
    def peers(self) -> tuple[Announcement, ...]:
        """Those whose word counts."""
        return self._overlay.trust.admitted(self._overlay.board.others())

    def read(self, peers: tuple[Announcement, ...]) -> None:
        """Takes in what they say that their clients ask for."""
        now = self._clock.now()
        for peer in peers:
            self._book.note(PeerId(peer.peer_id), peer.freshness, peer.demand, now)
        self._book.keep_only(frozenset(PeerId(peer.peer_id) for peer in peers))
        self._of_others = self._book.totals(now)

    def of(self, model: bytes) -> Demand:
        """By our clients, and by others' as last read."""
        return self._counters.demand(model, self._clock.now()) + self._of_others.get(model, NO_DEMAND)

    def is_awaited_here(self, model: bytes) -> bool:
        """Whether a client of ours waits for it."""
        return self._counters.demand(model, self._clock.now()).waiting > 0

    def served(self) -> dict[bytes, int]:
        """Models that are served anywhere in view, and by how many."""
        peers = (*self.peers(), self._overlay.board.own())
        return count_serving([model_hash_of(one.name) for one in peer.models] for peer in peers)

    def rates(self, served: dict[bytes, int]) -> tuple[Rate, ...]:
        """Requests a minute of what is served."""
        return tuple(Rate(model, self.of(model).per_minute, count) for model, count in sorted(served.items()))

    # --- what others hear --------------------------------------------------------------------
    def tell(self, loadable: Collection[bytes]) -> None:
        """Demand goes along with any announcement; that somebody began or ended to wait is worth one of its own."""
        if not self._counters.models():
            return
        known = {model for peer in self.peers() for model in peer.loadable}
        rows = self._counters.told(self.served(), known.union(loadable), self._clock.now())
        is_early = trio.current_time() - self._told_at < TELL_GAP_S
        if self._overlay.board.share_demand(rows, is_urgent=not is_early):
            self._told_at = trio.current_time()
