"""How many peers of a view may announce the same host: keys cost nothing, addresses do.

Whoever makes up a thousand identities can have each be answered for by one machine, but that machine has few public
addresses. Private and loopback addresses are no host: every home has a 192.168.1.2. Identities at addresses that are
not theirs answer no probe and fail by themselves; so do those without any.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from p2pmesh.base.ids import PeerId

Host = str
"""An IPv4 address, or the first 64 bits of an IPv6 one."""
MAX_HOSTS_OF_PEER = 32


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """The bound, and from how large a view on it holds: a small overlay may well be one room behind one address."""

    peers_per_host: int = 8
    holds_from: int = 64


def hosts_of(addresses: Iterable[str]) -> frozenset[Host]:
    """The public hosts that multiaddrs name; whatever cannot be read names none, nor does an address at a relay: that
    has many peers, and bounds them itself."""
    found = set()
    for address in addresses:
        if "/p2p-circuit" in address:
            continue
        parts = address.split("/")
        if len(parts) > 2 and parts[1] in ("ip4", "ip6"):
            host = _host_of(parts[2])
            if host is not None:
                found.add(host)
    return frozenset(sorted(found)[:MAX_HOSTS_OF_PEER])


def _host_of(text: str) -> Host | None:
    try:
        address: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if not address.is_global:
        return None
    if isinstance(address, IPv4Address):
        return str(address)
    return address.exploded[:19] + "::/64"


class HostBound:
    """The hosts of the peers in a view."""

    __slots__ = ("_counts", "_hosts", "_policy")

    def __init__(self, policy: HostPolicy | None = None) -> None:
        self._policy = policy or HostPolicy()
        self._hosts: dict[PeerId, frozenset[Host]] = {}
        self._counts: dict[Host, int] = {}

    def admits(self, peer: PeerId, hosts: frozenset[Host]) -> bool:
        """Whether a view that holds what was noted may take a peer in, or keep it at other addresses."""
        if len(self._hosts) < self._policy.holds_from:
            return True
        own = self._hosts.get(peer, frozenset())
        return all(self._counts.get(host, 0) - (host in own) < self._policy.peers_per_host for host in hosts)

    def note(self, peer: PeerId, hosts: frozenset[Host]) -> None:
        """The view holds the peer, at these hosts."""
        if self._hosts.get(peer) == hosts:
            return
        self.forget(peer)
        self._hosts[peer] = hosts
        for host in hosts:
            self._counts[host] = self._counts.get(host, 0) + 1

    def forget(self, peer: PeerId) -> None:
        """The view does not hold the peer any more."""
        for host in self._hosts.pop(peer, frozenset()):
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]
