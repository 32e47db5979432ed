"""Multiaddrs: what the operator may listen on, what a peer can be dialled at.

Owns parsing, the check that a port is free, and what "every interface" is. What of it is announced, and what is dialled
first, is ``core.addresses``'. Only ``/ip4|ip6|dns…/…/tcp/…`` with an optional ``/p2p/<peer id>`` is carried.
"""

import errno
import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_ADDRESS_BYTES, MAX_ADDRESSES

_HOST_PROTOCOLS = frozenset({"ip4", "ip6", "dns", "dns4", "dns6"})
_WILDCARDS = frozenset({"0.0.0.0", "::"})
_FAMILIES = (("ip4", socket.AF_INET, "0.0.0.0"), ("ip6", socket.AF_INET6, "::"))
_PORT_TRIES = 16
_CAUSES_LOOKED_AT = 16
ANOTHER_PEER = "another peer answers there"


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


_LISTEN_FAULTS = {
    errno.EACCES: "ports below 1024 need privileges",
    errno.EADDRNOTAVAIL: "this machine has no such address; one that a router forwards goes to --announce",
}


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


def every_interface(preferred: int = 0) -> tuple[str, ...]:
    """Both address families of every interface, on one free port, ``preferred`` if that is; those that there are.

    One port, because what people forward in a router or open in a firewall is a number.
    """
    families = [one for one in _FAMILIES if _has_family(one[1], one[2])]
    tries = (_free_on(families, port) for port in (preferred, *(0,) * _PORT_TRIES))
    port = next((port for port in tries if port), 0)
    return tuple(f"/{name}/{host}/tcp/{port}" for name, _, host in families)


def _free_on(families: list[tuple[str, socket.AddressFamily, str]], port: int) -> int:
    """``port``, or one of the system's choice for 0, if it is free for each family; else 0."""
    with ExitStack() as stack:
        for name, family, host in families:
            probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            try:
                _bind(probe, name, host, port)
            except OSError:
                return 0
            port = probe.getsockname()[1]
    return port


def _has_family(family: socket.AddressFamily, host: str) -> bool:
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return True
    return False


def _bind(probe: socket.socket, protocol: str, host: str, port: int) -> None:
    """As the listener will: alone on the port, IPv6 apart from IPv4."""
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if protocol == "ip6":
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    probe.bind((host, port))
    probe.listen(1)


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
            _bind(probe, address.protocol, address.host, address.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise port_in_use(text) from error
        raise _invalid(text, _LISTEN_FAULTS.get(error.errno or 0, str(error.strerror or error))) from error


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


def why_dial_failed(error: BaseException) -> str:
    """A few words for the operator, from what libp2p raised and what that was raised from."""
    seen = _causes(error)
    if any(isinstance(one, PeerIDMismatchesPubkey) for one in seen):
        return ANOTHER_PEER
    numbers = [one.errno for one in seen if isinstance(one, OSError) and one.errno]
    return os.strerror(numbers[0]).lower() if numbers else "the handshake failed"


def _causes(error: BaseException) -> list[BaseException]:
    """An error, what it came from, and what groups among them hold; bounded, for errors are made of peers' input."""
    found: list[BaseException] = [error]
    for one in found:
        if len(found) >= _CAUSES_LOOKED_AT:
            break
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        found += [cause for cause in (one.__cause__ or one.__context__, *inner) if cause is not None]
    return found
