"""Which of our addresses others are told, and in which order a peer's are dialled.

Pure: what interfaces there are is a port's (``ports.interfaces``), what a multiaddr may be is the adapter's. An address
that cannot be read here (a relayed one, a name) is neither left out nor moved before others of its kind.

What is told is what the operator chose, word for word; where he listens on every interface it is the addresses of those
that others may reach. What is not: an address of an interface that is down, one that means something else on every link
(link-local), one that the kernel gives up or has not checked yet, and those of bridges without an uplink, behind which
only containers and virtual machines of this very machine are. Every machine has the same ones: 172.17.0.1 of a peer is
that of whoever dials it. Loopback is told where there is nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from p2pmesh.base.limits import MAX_ADDRESSES

IpAddress = IPv4Address | IPv6Address

_SHARED_NETWORK = ip_network("100.64.0.0/10")
"""RFC 6598: behind a provider's NAT; also what some VPNs use."""
_INNER_PREFIXES = (
    "docker", "br-", "veth", "virbr", "vnet", "lxcbr", "lxdbr", "cni", "flannel", "cali", "podman", "vmnet", "vboxnet",
    "vethernet",
)  # fmt: skip
"""How container engines and hypervisors call the interfaces that they make, in lower case."""


@dataclass(frozen=True, slots=True, order=True)
class InterfaceAddress:
    """One address of one interface, as the system tells it; ``address`` has no zone."""

    interface: str
    address: str
    prefix_bits: int
    is_up: bool = True
    is_bridge: bool = False
    has_uplink: bool = False
    """Of a bridge: whether a network card of this machine is one of its ports."""
    is_unsettled: bool = False
    """The kernel still checks the address, has found it taken, or has deprecated it."""


class LeftOut(StrEnum):
    """Why others are not told an address on which this node listens."""

    DOWN = "down"
    LINK_LOCAL = "link_local"
    """Or no address at all: without its link it leads nowhere."""
    INNER = "inner"
    """Of a bridge or a virtual interface for containers and virtual machines."""
    UNSETTLED = "unsettled"
    LOOPBACK = "loopback"
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Untold:
    """An address that others are not told."""

    address: str
    interface: str
    reason: LeftOut


@dataclass(frozen=True, slots=True)
class AddressChoice:
    """What others are told, best first, and what not."""

    announced: tuple[str, ...]
    left_out: tuple[Untold, ...] = ()


class _Kind(IntEnum):
    PUBLIC = 0
    NAME = 1
    PRIVATE = 2
    SHARED = 3
    LOOPBACK = 4


def choose_announced(bound: Iterable[str], interfaces: Iterable[InterfaceAddress]) -> AddressChoice:
    """What others are told of ``bound`` multiaddrs without peer ids, of which some may mean every interface."""
    here = sorted(interfaces)
    chosen: dict[str, None] = {}
    left_out: list[Untold] = []
    for text in bound:
        host, rest = _host_of(text), _after_host(text)
        if host is None or not host.is_unspecified:
            chosen.setdefault(text)
            continue
        for one in here:
            address = _read(one.address)
            if address is None or address.version != host.version:
                continue
            reason = why_left_out(one)
            told = f"/ip{address.version}/{address}{rest}"
            if reason is None:
                chosen.setdefault(told)
            else:
                left_out.append(Untold(told, one.interface, reason))
    if not chosen:
        chosen = {one.address: None for one in left_out if one.reason is LeftOut.LOOPBACK}
        left_out = [one for one in left_out if one.address not in chosen]
    ranked = sorted(chosen, key=lambda text: _kind_of(text).value)
    spare = [Untold(text, "", LeftOut.TOO_MANY) for text in ranked[MAX_ADDRESSES:]]
    return AddressChoice(tuple(ranked[:MAX_ADDRESSES]), (*left_out, *spare))


def why_left_out(one: InterfaceAddress) -> LeftOut | None:
    """Why an interface's address is not told where every interface is listened on; None if it is."""
    address = _read(one.address)
    if address is None or address.is_link_local or address.is_unspecified:
        return LeftOut.LINK_LOCAL
    if address.is_loopback:
        return LeftOut.LOOPBACK
    if not one.is_up:
        return LeftOut.DOWN
    if is_inner(one):
        return LeftOut.INNER
    return LeftOut.UNSETTLED if one.is_unsettled else None


def is_told(one: InterfaceAddress, announced: Iterable[str]) -> bool:
    """Whether an interface's address is among multiaddrs that others are told."""
    address = _read(one.address)
    return address is not None and any(_host_of(text) == address for text in announced)


def is_loopback(text: str) -> bool:
    """Whether a multiaddr leads to whichever machine it is read on."""
    return _kind_of(text) is _Kind.LOOPBACK


def is_inner(one: InterfaceAddress) -> bool:
    """Whether only containers and virtual machines of this machine are behind an interface."""
    if one.has_uplink:
        return False
    return one.is_bridge or one.interface.lower().startswith(_INNER_PREFIXES)


def order_dials(
    addresses: Iterable[str], interfaces: Iterable[InterfaceAddress], own: Iterable[str] = ()
) -> tuple[str, ...]:
    """A peer's multiaddrs in the order in which to try them; without those of ``own``, where only we can answer.

    First those of our own networks, then public ones and names, then private ones of other networks (a VPN may lead
    there), last loopback, our bridges' networks, and what this machine has no address family for. Of equals, what the
    peer named first.
    """
    here = [one for one in interfaces if one.is_up]
    mine = {_without_peer(text) for text in own}
    wanted = [text for text in addresses if _without_peer(text) not in mine]
    return tuple(sorted(wanted, key=lambda text: _dial_rank(text, here)))


def _dial_rank(text: str, here: list[InterfaceAddress]) -> int:
    host = _host_of(text)
    if host is None:
        return 1
    if host.is_loopback or host.is_link_local:
        return 3
    networks = [one for one in here if _holds(one, host)]
    if any(not is_inner(one) for one in networks):
        return 0
    if networks or not _has_way(host, here):
        return 3
    return 1 if host.is_global else 2


def _holds(one: InterfaceAddress, host: IpAddress) -> bool:
    address = _read(one.address)
    if address is None or address.version != host.version or address.is_loopback:
        return False
    return host in ip_network(f"{address}/{one.prefix_bits}", strict=False)


def _has_way(host: IpAddress, here: list[InterfaceAddress]) -> bool:
    """Whether this machine has an address from which such a host may be reached at all."""
    if host.version == 4:
        return True  # behind translators an IPv4 address of any kind will do
    own = (_read(one.address) for one in here)
    usable = [one for one in own if one is not None and one.version == 6 and not one.is_link_local]
    return any(not one.is_loopback and (one.is_global or not host.is_global) for one in usable)


def _kind_of(text: str) -> _Kind:
    host = _host_of(text)
    if host is None:
        return _Kind.NAME
    if host.is_loopback:
        return _Kind.LOOPBACK
    if host in _SHARED_NETWORK:
        return _Kind.SHARED
    return _Kind.PUBLIC if host.is_global else _Kind.PRIVATE


def _host_of(text: str) -> IpAddress | None:
    """The IP address that a multiaddr begins with."""
    parts = text.split("/")
    return _read(parts[2]) if len(parts) > 3 and parts[1] in ("ip4", "ip6") else None


def _after_host(text: str) -> str:
    return "/" + "/".join(text.split("/")[3:])


def _without_peer(text: str) -> str:
    return text.partition("/p2p/")[0]


def _read(text: str) -> IpAddress | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
