"""Inbound connections before their identity is proved, and those of peers that are not admitted: who gives way to whom.

Owns the bounds in number, time and rate, and the list of the banned. What one connection may make us hold is
``yamux``'s; who is admitted or banned is decided in the node.

A full doorway never turns the newcomer away: the source with the most connections in it loses its oldest. So whoever
floods it crowds out himself, and a member that comes from elsewhere gets through. An address that a member is
connected from, and loopback, are spared the limit of the rate, which many members behind one router would meet
together. Sources are IPv4 addresses, and IPv6 networks of 64 bits, since anyone has 2^64 addresses of one.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import trio
from libp2p.peer.id import ID

Source = str
"""Where a connection comes from, as far as it counts here."""

UNKNOWN_SOURCE: Source = "unknown"


@dataclass(frozen=True, slots=True)
class DoorwayLimits:
    """How many connections may be without a proved identity, for how long, and how fast a source may open them."""

    max_handshakes: int = 128
    max_handshakes_per_source: int = 32
    """Of sources that are not spared."""
    handshake_s: float = 15.0
    """From the accepted socket to the agreed multiplexer."""
    handshakes_per_s: float = 20.0
    burst: int = 64
    max_sources: int = 1024
    """Whose rate is remembered; the one that was seen longest ago is forgotten first."""


@dataclass(slots=True, eq=False)
class Visit:
    """One connection in the doorway. Its ``scope`` surrounds the handshake."""

    source: Source
    scope: trio.CancelScope


class Doorway:
    """Connections whose handshake is not done."""

    def __init__(self, is_spared: Callable[[Source], bool], limits: DoorwayLimits | None = None) -> None:
        self._limits = limits or DoorwayLimits()
        self._is_spared = is_spared
        self._visits: dict[object, Visit] = {}
        self._rates: OrderedDict[Source, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._visits)

    def enter(self, connection: object, source: Source) -> Visit | None:
        """A place for a connection; None when its source opens them too fast."""
        is_spared = self._is_spared(source)
        if not is_spared and not self._has_rate_left(source):
            return None
        counts: dict[Source, int] = {}
        for visit in self._visits.values():
            counts[visit.source] = counts.get(visit.source, 0) + 1
        if not is_spared and counts.get(source, 0) >= self._limits.max_handshakes_per_source:
            self._give_up_oldest(source)
        elif len(self._visits) >= self._limits.max_handshakes:
            self._give_up_oldest(max(counts, key=lambda crowd: (counts[crowd], crowd)))
        scope = trio.CancelScope(deadline=trio.current_time() + self._limits.handshake_s)
        visit = self._visits[connection] = Visit(source, scope)
        return visit

    def leave(self, connection: object) -> None:
        """The handshake is done, or over; the scope's time is up no more."""
        visit = self._visits.pop(connection, None)
        if visit is not None:
            visit.scope.deadline = float("inf")

    def _give_up_oldest(self, source: Source) -> None:
        for connection, visit in self._visits.items():
            if visit.source == source:
                del self._visits[connection]
                visit.scope.cancel()
                return

    def _has_rate_left(self, source: Source) -> bool:
        """A token bucket per source."""
        now = trio.current_time()
        left, at = self._rates.pop(source, (float(self._limits.burst), now))
        left = min(float(self._limits.burst), left + (now - at) * self._limits.handshakes_per_s)
        has_left = left >= 1
        self._rates[source] = (left - 1 if has_left else left, now)
        if len(self._rates) > self._limits.max_sources:
            self._rates.popitem(last=False)
        return has_left


def source_of(address: tuple[str, int] | None) -> Source:
    """The source that a socket's remote address belongs to."""
    if address is None:
        return UNKNOWN_SOURCE
    try:
        ip = ipaddress.ip_address(address[0].partition("%")[0])
    except ValueError:
        return UNKNOWN_SOURCE
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if isinstance(ip, ipaddress.IPv6Address) and not ip.is_loopback:
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


def is_loopback(source: Source) -> bool:
    """Whether a source is this machine."""
    return source == "::1" or source.startswith("127.")


class Gate:
    """Which peers are banned, and which have a member's limits."""

    def __init__(self) -> None:
        self._banned: set[ID] = set()
        self._admitted: dict[ID, frozenset[Source]] = {}

    def ban(self, peer: ID) -> None:
        """Lets the peer in no more."""
        self._banned.add(peer)

    def unban(self, peer: ID) -> None:
        """Lets it in again."""
        self._banned.discard(peer)

    def is_banned(self, peer: ID) -> bool:
        """Whether the peer is to be cut off."""
        return peer in self._banned

    def admit(self, peer: ID, sources: frozenset[Source]) -> None:
        """The peer, connected from ``sources``, is a member."""
        self._admitted[peer] = sources

    def forget(self, peer: ID) -> None:
        """Its last connection is gone."""
        self._admitted.pop(peer, None)

    def is_admitted(self, peer: ID) -> bool:
        """Whether the peer has a member's limits."""
        return peer in self._admitted

    def is_spared(self, source: Source) -> bool:
        """Whether a source may open connections at any rate."""
        return is_loopback(source) or any(source in sources for sources in self._admitted.values())
