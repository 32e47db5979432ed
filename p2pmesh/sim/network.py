"""Links and connections between simulated peers, and who can reach whom. Peers go by their number here."""

from functools import partial
from typing import Protocol

from p2pmesh.base.quantities import Micros
from p2pmesh.sim.chance import Chance
from p2pmesh.sim.scenario import LinkModel
from p2pmesh.sim.scheduler import Action, Scheduler


class Endpoint(Protocol):
    """A peer as the network sees it."""

    def on_connected(self, other: int) -> None:
        """A first connection to ``other`` stands."""

    def on_disconnected(self, other: int) -> None:
        """The connection to ``other`` is gone, and this end has noticed."""


class SimNetwork:
    """Ordered, reliable connections between peers that are up and on the same side of every partition.

    ``views[a][b]`` is the serial of the connection that a believes to have to b: after a crash the other end keeps
    believing for a while.
    """

    def __init__(self, scheduler: Scheduler, links: LinkModel, peer_ids: tuple[str, ...], seed: int) -> None:
        self._scheduler = scheduler
        self._links = links
        self._jitter = [Chance(seed, peer_id, "link") for peer_id in peer_ids]
        self._places = [Chance(seed, peer_id, "place").below(max(1, links.spread_us)) for peer_id in peer_ids]
        self._endpoints: list[Endpoint | None] = [None] * len(peer_ids)
        self._incarnations = [0] * len(peer_ids)
        self._views: list[dict[int, int]] = [{} for _ in peer_ids]
        self._arrivals: dict[tuple[int, int], Micros] = {}
        self._connections: dict[tuple[int, int], int] = {}
        self._serial = 0
        self._boundary: int | None = None

    # --- who is there ---------------------------------------------------------
    def is_up(self, number: int) -> bool:
        """Whether the peer runs."""
        return self._endpoints[number] is not None

    def incarnation(self, number: int) -> int:
        """How many times the peer has started."""
        return self._incarnations[number]

    def can_reach(self, a: int, b: int) -> bool:
        """Whether both run and no partition lies between them."""
        return self.is_up(a) and self.is_up(b) and self.same_side(a, b)

    def believes_connected(self, number: int, other: int) -> bool:
        """Whether ``number`` has not noticed that it has no connection to ``other``."""
        return other in self._views[number]

    def start(self, number: int, endpoint: Endpoint) -> None:
        """The peer runs from now on."""
        self._endpoints[number] = endpoint
        self._incarnations[number] += 1

    def crash(self, number: int) -> None:
        """The peer is gone; the others notice later."""
        self._endpoints[number] = None
        self._views[number].clear()
        for a, b in [pair for pair in self._connections if number in pair]:
            self._break(a, b)

    def partition(self, boundary: int | None) -> None:
        """Cuts peers below ``boundary`` off the others; None heals."""
        self._boundary = boundary
        for a, b in [pair for pair in self._connections if not self.same_side(*pair)]:
            self._break(a, b)

    def same_side(self, a: int, b: int) -> bool:
        """Whether no partition lies between them."""
        return self._boundary is None or (a < self._boundary) == (b < self._boundary)

    # --- time -----------------------------------------------------------------
    def one_way_us(self, a: int, b: int) -> int:
        """The time from a to b, jitter included; to itself none."""
        if a == b:
            return 0
        distance = abs(self._places[a] - self._places[b])
        return self._links.latency_us + distance + self._jitter[a].below(self._links.jitter_us)

    def send(self, a: int, b: int, action: Action) -> None:
        """Runs ``action`` at b after one way, in order with what a sent before; lost if b cannot be reached then.

        What was meant for b before a restart does not reach it after that.
        """
        arrival = Micros(self._scheduler.now + self.one_way_us(a, b))
        arrival = max(arrival, self._arrivals.get((a, b), arrival))
        self._arrivals[a, b] = arrival
        self._scheduler.at(arrival, partial(self._deliver, a, b, self._incarnations[b], action))

    def _deliver(self, a: int, b: int, incarnation: int, action: Action) -> None:
        if self.can_reach(a, b) and self._incarnations[b] == incarnation:
            action()

    # --- connections ----------------------------------------------------------
    def dial(self, a: int, b: int) -> None:
        """Connects after a round trip, unless b cannot be reached."""
        self._scheduler.after(2 * self.one_way_us(a, b), partial(self._connect, a, b, self._incarnations[a]))

    def close(self, a: int, b: int) -> None:
        """a closes its connection to b: a knows at once, b after one way."""
        serial = self._connections.pop(_pair(a, b), None)
        if serial is not None:
            self._scheduler.after(self.one_way_us(a, b), partial(self._tell_down, b, a, serial))
            self._tell_down(a, b, serial)

    def _connect(self, a: int, b: int, incarnation: int) -> None:
        is_stale = self._incarnations[a] != incarnation or _pair(a, b) in self._connections
        if is_stale or not self.can_reach(a, b):
            return
        self._serial += 1
        self._connections[_pair(a, b)] = self._serial
        self._tell_up(a, b, self._serial)
        self._tell_up(b, a, self._serial)

    def _break(self, a: int, b: int) -> None:
        serial = self._connections.pop(_pair(a, b))
        self._scheduler.after(self._links.detect_us, partial(self._tell_down, a, b, serial))
        self._scheduler.after(self._links.detect_us, partial(self._tell_down, b, a, serial))

    def _tell_up(self, number: int, other: int, serial: int) -> None:
        self._tell_down(number, other, self._views[number].get(other))
        self._views[number][other] = serial
        endpoint = self._endpoints[number]
        if endpoint is not None:
            endpoint.on_connected(other)

    def _tell_down(self, number: int, other: int, serial: int | None) -> None:
        endpoint = self._endpoints[number]
        if serial is not None and endpoint is not None and self._views[number].get(other) == serial:
            del self._views[number][other]
            endpoint.on_disconnected(other)


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
