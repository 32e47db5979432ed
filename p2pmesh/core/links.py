"""What is known of the links between peers: measured here, told by others, put together for the planner.

``LinksMachine`` owns the estimates of the links from this node and decides when to spend bytes on a throughput probe.
``LinkMatrix`` joins the vectors that peers announce. How round trips and transfers are taken, and who may probe us, is
``node.links``'. A link is a cost: what is unknown or slow is never a reason to refuse a peer.

A round trip is the lower quartile of a window, since queues only ever add; their share is the jitter, kept beside it.
A throughput is the median of timed transfers, weighted by their bytes: a long transfer knows more than a short one.
When the path changes, what was measured over the other one is dropped.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_LINK_BYTES_PER_S, MAX_LINK_PROBE_BYTES, MAX_LINK_RTT_US
from p2pmesh.base.quantities import MIB, MICROS_PER_SECOND, Micros
from p2pmesh.core.allowance import spend
from p2pmesh.core.draws import Draws

PROBE_BYTES = MAX_LINK_PROBE_BYTES
"""Of one throughput probe."""
UNKNOWN_ONE_WAY_US = 50_000
"""What the planner charges for a hop that nobody has measured: between a near and a far peer."""


@dataclass(frozen=True, slots=True)
class LinkPolicy:
    """Windows, and what may be spent on probing."""

    round_trips: int = 16
    """Samples that an estimate rests on."""
    transfers: int = 8
    transfer_life_us: int = 1800 * MICROS_PER_SECOND
    """An older transfer counts only while there is no newer one."""
    most_weight_bytes: int = 8 * MIB
    """One huge transfer does not outweigh everything for half an hour."""
    probe_every_us: int = 600 * MICROS_PER_SECOND
    """Per peer, counted from its last probe or passive transfer."""
    probe_gap_us: int = 128 * MICROS_PER_SECOND
    """Over all peers, in the long run: 256 KiB per gap is 2 KiB/s."""
    probe_gap_in_crowd_us: int = 3600 * MICROS_PER_SECOND
    """The same in a large overlay, without a burst: 73 B/s. What is placed there is timed by its transfers anyway."""
    probe_burst: int = 4
    """Probes that may follow each other at once, so that a small overlay is known soon."""
    first_probe_us: int = 5 * MICROS_PER_SECOND
    """After a peer is first heard, or its path has changed."""
    capacity: int = 512
    """Peers; a peer beyond it is not measured until another goes."""


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """One link as seen from here. A throughput of 0 is unknown; ``measured_at`` is the newest sample's."""

    rtt_us: int
    jitter_us: int
    throughput_bytes_per_s: int
    is_relayed: bool
    measured_at: Micros


@dataclass(frozen=True, slots=True)
class RoundTripMeasured:
    """A round trip to a peer, over a path that is relayed or not."""

    peer: PeerId
    rtt_us: int
    is_relayed: bool


@dataclass(frozen=True, slots=True)
class TransferTimed:
    """So many bytes came from a peer within this time, whether asked for as a probe or not."""

    peer: PeerId
    size_bytes: int
    elapsed_us: int


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """A probe was refused or broke; the peer's next turn comes as after a good one."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """No connection to the peer is left; what was measured is forgotten."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come. While tokens are made here (``is_busy``) nothing is probed."""

    is_busy: bool


@dataclass(frozen=True, slots=True)
class CrowdChanged:
    """The overlay is large from now on, or is not any more."""

    is_large: bool


Event = CrowdChanged | RoundTripMeasured | TransferTimed | ProbeFailed | ConnectionLost | DeadlinePassed


@dataclass(frozen=True, slots=True)
class ProbeThroughput:
    """Time ``PROBE_BYTES`` from this peer; answered by ``TransferTimed`` or ``ProbeFailed``."""

    peer: PeerId


Effect = ProbeThroughput
_BUSY_RETRY_US = 10 * MICROS_PER_SECOND


@dataclass(slots=True)
class _Link:
    """Samples of one link over its present path."""

    round_trips: deque[int]
    transfers: deque[tuple[int, int, Micros]]
    is_relayed: bool
    measured_at: Micros
    probe_due: Micros


class LinksMachine:
    """The links from this node; ``seed`` spreads the probes of many nodes that start together."""

    def __init__(self, seed: int, policy: LinkPolicy | None = None) -> None:
        self._policy = policy or LinkPolicy()
        self._links: dict[PeerId, _Link] = {}
        self._draws = Draws(seed)
        self._gap_us = self._policy.probe_gap_us
        self._most_credit_us = self._policy.probe_burst * self._policy.probe_gap_us
        self._credit_us = self._most_credit_us
        self._credited_at: Micros = Micros(0)
        self._not_before: Micros = Micros(0)

    # --- what is known

    def estimate(self, peer: PeerId, now: Micros) -> LinkEstimate | None:
        """The link to a peer, if a round trip was measured."""
        link = self._links.get(peer)
        if link is None or not link.round_trips:
            return None
        ordered = sorted(link.round_trips)
        rtt_us, median_us = ordered[len(ordered) // 4], ordered[len(ordered) // 2]
        return LinkEstimate(
            rtt_us, median_us - ordered[0], self._throughput(link, now), link.is_relayed, link.measured_at
        )

    def estimates(self, now: Micros) -> tuple[tuple[PeerId, LinkEstimate], ...]:
        """All links, the most useful first: direct before relayed, near before far, ties by peer id."""
        found = ((peer, self.estimate(peer, now)) for peer in sorted(self._links))
        known = [(peer, estimate) for peer, estimate in found if estimate is not None]
        return tuple(sorted(known, key=lambda link: (link[1].is_relayed, link[1].rtt_us, link[0])))

    @property
    def peer_count(self) -> int:
        """Peers with a link."""
        return len(self._links)

    def _throughput(self, link: _Link, now: Micros) -> int:
        """The rate at which half of the weight of all recent transfers is reached, slowest first."""
        recent = [sample for sample in link.transfers if now - sample[2] <= self._policy.transfer_life_us]
        weighed = sorted(
            (min(MAX_LINK_BYTES_PER_S, size * MICROS_PER_SECOND // elapsed), self._weight(size))
            for size, elapsed, _ in recent or list(link.transfers)[-1:]
        )
        half, reached = sum(weight for _, weight in weighed), 0
        for rate, weight in weighed:
            reached += 2 * weight
            if reached >= half:
                return max(1, rate)
        return 0

    def _weight(self, size_bytes: int) -> int:
        return min(size_bytes, self._policy.most_weight_bytes)

    # --- the machine

    def deadline(self) -> Micros | None:
        """When a peer's probe is due and may be afforded."""
        due = min((link.probe_due for link in self._links.values()), default=None)
        return None if due is None else max(due, self._affordable_at(), self._not_before)

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case CrowdChanged(is_large):
                self._on_crowd(now, is_large=is_large)
            case RoundTripMeasured(peer, rtt_us, is_relayed):
                self._on_round_trip(peer, rtt_us, is_relayed, now)
            case TransferTimed(peer, size_bytes, elapsed_us):
                self._on_transfer(peer, size_bytes, elapsed_us, now)
            case ProbeFailed(peer):
                pass  # its next turn was set when it was sent
            case ConnectionLost(peer):
                self._links.pop(peer, None)
            case DeadlinePassed(is_busy):
                return self._on_deadline(now, is_busy=is_busy)
        return ()

    def _on_round_trip(self, peer: PeerId, rtt_us: int, is_relayed: bool, now: Micros) -> None:
        link = self._links.get(peer)
        if link is None and len(self._links) >= self._policy.capacity:
            return
        if link is None or link.is_relayed != is_relayed:
            link = self._links[peer] = self._new_link(is_relayed, now)
        link.round_trips.append(min(max(0, rtt_us), MAX_LINK_RTT_US))
        link.measured_at = now

    def _new_link(self, is_relayed: bool, now: Micros) -> _Link:
        due = Micros(now + self._jittered(self._policy.first_probe_us))
        round_trips: deque[int] = deque(maxlen=self._policy.round_trips)
        transfers: deque[tuple[int, int, Micros]] = deque(maxlen=self._policy.transfers)
        return _Link(round_trips, transfers, is_relayed, now, due)

    def _on_transfer(self, peer: PeerId, size_bytes: int, elapsed_us: int, now: Micros) -> None:
        link = self._links.get(peer)
        if link is None or size_bytes <= 0 or elapsed_us <= 0:
            return
        link.transfers.append((size_bytes, elapsed_us, now))
        link.measured_at = now
        link.probe_due = Micros(now + self._jittered(self._policy.probe_every_us))

    def _on_deadline(self, now: Micros, *, is_busy: bool) -> tuple[Effect, ...]:
        due = self.deadline()
        if due is None or due > now:
            return ()
        if is_busy:
            self._not_before = Micros(now + _BUSY_RETRY_US)
            return ()
        peer = min(sorted(self._links), key=lambda other: self._links[other].probe_due)
        self._links[peer].probe_due = Micros(now + self._jittered(self._policy.probe_every_us))
        self._spend(now)
        return (ProbeThroughput(peer),)

    # --- what probes cost

    def _affordable_at(self) -> Micros:
        return Micros(self._credited_at + max(0, self._gap_us - self._credit_us))

    def _spend(self, now: Micros) -> None:
        self._settle(now)
        self._credit_us -= self._gap_us

    def _settle(self, now: Micros) -> None:
        self._credit_us = min(self._most_credit_us, self._credit_us + now - self._credited_at)
        self._credited_at = now

    def _on_crowd(self, now: Micros, *, is_large: bool) -> None:
        policy = self._policy
        gap_us = policy.probe_gap_in_crowd_us if is_large else policy.probe_gap_us
        if gap_us != self._gap_us:
            self._settle(now)
            self._gap_us = gap_us
            self._most_credit_us = gap_us if is_large else policy.probe_burst * gap_us
            # What was saved at one price buys no more at the other.
            self._credit_us = min(self._credit_us, policy.probe_gap_us)

    def _jittered(self, wait_us: int) -> int:
        """``wait_us``, up to a quarter more or less."""
        spread = max(1, wait_us // 2)
        return wait_us - spread // 2 + self._draws.below(spread)


# --- who may probe us ---------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ProbeAllowance:
    """What this node gives to the probes of others."""

    gap_us: int = 60 * MICROS_PER_SECOND
    burst: int = 8
    per_peer_us: int = 60 * MICROS_PER_SECOND
    capacity: int = 512


class ProbeGate:
    """Whether a probe of a peer is answered; bounded in bytes per time, per peer and over all."""

    def __init__(self, allowance: ProbeAllowance | None = None) -> None:
        self._allowance = allowance or ProbeAllowance()
        self._last: dict[PeerId, Micros] = {}
        self._full_at: Micros = Micros(0)

    def admit_probe(self, peer: PeerId, now: Micros, *, is_busy: bool) -> bool:
        """Takes the probe into account if it is let in."""
        allowance = self._allowance
        last = self._last.get(peer)
        is_early = last is not None and now - last < allowance.per_peer_us
        full_at = spend(self._full_at, now, allowance.gap_us, allowance.burst)
        if is_busy or is_early or full_at is None:
            return False
        self._full_at = full_at
        self._last.pop(peer, None)
        self._last[peer] = now
        if len(self._last) > allowance.capacity:
            del self._last[next(iter(self._last))]
        return True


# --- links between any two ----------------------------------------------------
@dataclass(frozen=True, slots=True)
class PairLink:
    """A link between two peers, whoever measured it; a throughput of 0 is unknown."""

    rtt_us: int
    throughput_bytes_per_s: int
    is_relayed: bool


class LinkMatrix:
    """What is known of the link between any two peers.

    Either end may have announced the link. Where both did, the worse figure of each kind counts: a peer that praises
    its links gains nothing unless the other end praises them too. What we measured ourselves counts alone.
    """

    __slots__ = ("_links",)

    def __init__(self, links: Mapping[tuple[PeerId, PeerId], PairLink] | None = None) -> None:
        self._links = {_pair(*ends): link for ends, link in (links or {}).items()}

    def __len__(self) -> int:
        return len(self._links)

    def between(self, one: PeerId, other: PeerId) -> PairLink | None:
        """The link of a pair, in any order; None is unknown."""
        return self._links.get(_pair(one, other))

    def one_way_us(self, one: PeerId, other: PeerId) -> int:
        """Half a round trip; ``UNKNOWN_ONE_WAY_US`` where nobody measured it, 0 from a peer to itself."""
        if one == other:
            return 0
        link = self.between(one, other)
        return UNKNOWN_ONE_WAY_US if link is None else link.rtt_us // 2

    def knows_ring(self, peers: Sequence[PeerId]) -> bool:
        """Whether somebody has measured every link from each peer to the next, round to the first."""
        ring = zip(peers, [*peers[1:], *peers[:1]], strict=True)
        return all(one == other or self.between(one, other) is not None for one, other in ring)

    def ring_us(self, peers: Sequence[PeerId]) -> int:
        """One-way latencies from each peer to the next and from the last back to the first: what a token travels."""
        return sum(self.one_way_us(peer, peers[(at + 1) % len(peers)]) for at, peer in enumerate(peers))


NO_LINKS = LinkMatrix()

Vector = Iterable[tuple[PeerId, PairLink]]
"""Links of one peer, each with the peer at its other end."""


def combine_vectors(own_peer: PeerId, own: Vector, announced: Mapping[PeerId, Vector]) -> LinkMatrix:
    """The matrix of our own measurements and the vectors that others announce; the order changes nothing."""
    links: dict[tuple[PeerId, PeerId], PairLink] = {}
    for peer in sorted(announced):
        for other, link in announced[peer]:
            if peer != other:
                pair = _pair(peer, other)
                links[pair] = _worse(links[pair], link) if pair in links else link
    links |= {_pair(own_peer, peer): link for peer, link in own if peer != own_peer}
    return LinkMatrix(links)


def _pair(one: PeerId, other: PeerId) -> tuple[PeerId, PeerId]:
    return (one, other) if one <= other else (other, one)


def _worse(one: PairLink, other: PairLink) -> PairLink:
    rates = [rate for rate in (one.throughput_bytes_per_s, other.throughput_bytes_per_s) if rate]
    return PairLink(max(one.rtt_us, other.rtt_us), min(rates, default=0), one.is_relayed or other.is_relayed)
