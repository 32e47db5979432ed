"""Multiaddrs: what the operator may listen on, what a peer can be dialled at, what we announce.

Owns parsing, the check that a port is free, and turning "any interface" into the addresses of this machine's
interfaces. Only ``/ip4|ip6|dns…/…/tcp/…`` with an optional ``/p2p/<peer id>`` is carried.
"""

import errno
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError
from multiaddr.utils import get_thin_waist_addresses

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_ADDRESS_BYTES, MAX_ADDRESSES

_HOST_PROTOCOLS = frozenset({"ip4", "ip6", "dns", "dns4", "dns6"})
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """``/<protocol>/<host>/tcp/<port>``, and the peer it is said to belong to."""

    protocol: str
    host: str
    port: int
    peer: PeerId | None

    def multiaddr(self) -> Multiaddr:
        """Without the peer id."""
        return Multiaddr(f"/{self.protocol}/{self.host}/tcp/{self.port}")


def parse_tcp_address(text: str) -> TcpAddress:
    """The parts of a multiaddr; ``ConfigError(ADDRESS_INVALID)`` with what is wrong."""
    if len(text.encode()) > MAX_ADDRESS_BYTES:
        raise _invalid(text[:60] + "…", f"it is longer than {MAX_ADDRESS_BYTES} bytes")
    if not text.isprintable() or " " in text:
        raise _invalid(text, "it is not a multiaddr")
    try:
        address = Multiaddr(text)
        names = [protocol.name for protocol in address.protocols()]
        values = [value for _, value in address.items()]
    except (MultiaddrError, ValueError, TypeError) as error:
        raise _invalid(text, "it is not a multiaddr") from error
    if len(names) < 2 or names[0] not in _HOST_PROTOCOLS or names[1] != "tcp" or names[2:] not in ([], ["p2p"]):
        raise _invalid(text, "only TCP is carried")
    peer = PeerId(str(values[2])) if len(names) == 3 else None
    return TcpAddress(names[0], str(values[0]), int(str(values[1])), peer)


def _invalid(text: str, reason: str) -> ConfigError:
    example = "/ip4/0.0.0.0/tcp/4001"
    return ConfigError(ErrorCode.ADDRESS_INVALID, f"{text!r} cannot be used: {reason}; write for example {example}")


def parse_listen_addresses(texts: tuple[str, ...]) -> tuple[Multiaddr, ...]:
    """Addresses to listen on, each checked to be ours and free.

    Raises ``ConfigError``: ``ADDRESS_INVALID`` for one that is malformed or not of this machine, ``PORT_IN_USE``.
    """
    addresses = tuple(parse_tcp_address(text) for text in texts)
    for text, address in zip(texts, addresses, strict=True):
        if address.protocol not in {"ip4", "ip6"}:
            raise _invalid(text, "a name cannot be listened on, only an IP address")
        _check_free(text, address)
    return tuple(address.multiaddr() for address in addresses)


def parse_announced_addresses(texts: tuple[str, ...]) -> tuple[Multiaddr, ...]:
    """Addresses that others shall dial; ``ConfigError(ADDRESS_INVALID)`` for one that leads nowhere."""
    addresses = tuple(parse_tcp_address(text) for text in texts)
    for text, address in zip(texts, addresses, strict=True):
        if address.host in _WILDCARDS or address.port == 0:
            raise _invalid(text, "nobody can dial it")
    return tuple(address.multiaddr() for address in addresses)


def _check_free(text: str, address: TcpAddress) -> None:
    """Binds and lets go, to learn why it would fail: libp2p keeps the reason to itself."""
    is_ip6 = address.protocol == "ip6"
    try:
        with socket.socket(socket.AF_INET6 if is_ip6 else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_ip6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address.host, address.port))
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise port_in_use(text) from error
        reason = "ports below 1024 need privileges" if error.errno == errno.EACCES else str(error.strerror or error)
        raise _invalid(text, reason) from error


def port_in_use(text: str) -> ConfigError:
    """The error for an address on which something else listens."""
    return ConfigError(
        ErrorCode.PORT_IN_USE,
        f"{text} is in use by another program; stop it, or choose another port with --listen (tcp/0 picks a free one)",
    )


def dialable(peer: PeerId, texts: tuple[str, ...]) -> tuple[Multiaddr, ...]:
    """The usable ones of a peer's addresses, without repetition, at most ``MAX_ADDRESSES``.

    Addresses come from peers: bad ones, and those of another peer, are left out. ``ConfigError(ADDRESS_INVALID)`` if
    there are some and none is usable.
    """
    usable: dict[str, Multiaddr] = {}
    failure: ConfigError | None = None
    for text in texts[:MAX_ADDRESSES]:
        try:
            address = parse_tcp_address(text)
        except ConfigError as error:
            failure = failure or error
            continue
        if address.peer in (None, peer) and address.port != 0:
            usable.setdefault(str(address.multiaddr()), address.multiaddr())
    if failure is not None and not usable:
        raise failure
    return tuple(usable.values())


def announced(peer: PeerId, bound: Iterable[Multiaddr]) -> tuple[str, ...]:
    """What others can dial: ``bound`` addresses with "any interface" spelled out, loopback last, peer id appended."""
    found: dict[str, None] = {}
    for address in bound:
        for concrete in _concrete(address):
            found.setdefault(f"{concrete}/p2p/{peer}")
    return tuple(sorted(found, key=_is_loopback))[:MAX_ADDRESSES]


def _concrete(address: Multiaddr) -> list[str]:
    parts = parse_tcp_address(str(address))
    loopback = _WILDCARDS.get(parts.host)
    if loopback is None:
        return [str(parts.multiaddr())]
    interfaces = [str(found) for found in get_thin_waist_addresses(parts.multiaddr())]
    return [*interfaces, f"/{parts.protocol}/{loopback}/tcp/{parts.port}"]


def _is_loopback(text: str) -> bool:
    return text.startswith(("/ip4/127.", "/ip6/::1/"))
