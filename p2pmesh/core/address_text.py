"""Where a multiaddr that somebody typed is wrong: the characters, and what is wrong with them.

Only what peers are reached by is right: ``/ip4|ip6|dns…/<host>/tcp/<port>`` with ``/p2p/<peer>`` and ``/p2p-circuit``
after it. Bytes of multiaddrs are the library's.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from p2pmesh.base.ids import is_peer_id
from p2pmesh.base.limits import MAX_ADDRESS_BYTES

HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")
_KNOWN_OTHERS = frozenset({"udp", "quic", "quic-v1", "ws", "wss", "tls", "webrtc", "webrtc-direct", "unix", "onion3"})
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?(?:\.[A-Za-z0-9_-]+)*\.?\Z")
_MOST_SHOWN = 40
_MOST_EXCERPT = 160


@dataclass(frozen=True, slots=True)
class AddressFault:
    """Characters ``[start, end)`` of the text are wrong; ``reason`` is a clause for a person."""

    start: int
    end: int
    reason: str

    def excerpt(self, text: str) -> tuple[str, ...]:
        """The text with carets under what is wrong; nothing where it cannot be shown as it is."""
        if not text.isascii() or not text.isprintable() or len(text) > _MOST_EXCERPT:
            return ()
        return (text, " " * self.start + "^" * max(1, self.end - self.start))


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    start: int

    def fault(self, reason: str) -> AddressFault:
        return AddressFault(self.start, self.start + len(self.text), reason)

    @property
    def shown(self) -> str:
        text = self.text if len(self.text) <= _MOST_SHOWN else self.text[:_MOST_SHOWN] + "…"
        return repr(text.encode("ascii", "backslashreplace").decode())


def find_address_fault(text: str) -> AddressFault | None:
    """The first thing that is wrong; None for an address that can be used as far as its text says."""
    if not text:
        return AddressFault(0, 0, "it is empty")
    if len(text.encode("utf-8", "replace")) > MAX_ADDRESS_BYTES:
        return AddressFault(MAX_ADDRESS_BYTES, len(text), f"it is longer than {MAX_ADDRESS_BYTES} bytes")
    odd = next((index for index, one in enumerate(text) if not one.isprintable() or one == " "), None)
    if odd is not None:
        return AddressFault(odd, odd + 1, "a blank or a character that cannot be seen")
    if not text.startswith("/"):
        return AddressFault(0, 1, "it must begin with /ip4/, /ip6/ or /dns4/")
    return _fault_of_parts(_parts_of(text), len(text))


def _parts_of(text: str) -> list[_Part]:
    parts, start = [], 1
    for piece in text[1:].split("/"):
        parts.append(_Part(piece, start))
        start += len(piece) + 1
    return parts


def _fault_of_parts(parts: list[_Part], length: int) -> AddressFault | None:
    names = iter(parts)
    for check in (_check_host, _check_port):
        name = next(names, None)
        if name is None:
            return AddressFault(length - 1, length, "something is missing: write /tcp/ and a port after the host")
        fault = check(name, next(names, None), length)
        if fault is not None:
            return fault
    return _fault_after_port(list(names), length)


def _check_host(name: _Part, value: _Part | None, length: int) -> AddressFault | None:
    if name.text not in HOSTS:
        known = name.text in _KNOWN_OTHERS or name.text in ("tcp", "p2p")
        reason = "it must begin with the host" if known else f"{name.shown} is no protocol that is known here"
        return name.fault(f"{reason}: /ip4/, /ip6/ or /dns4/")
    if value is None or not value.text:
        return AddressFault(length - 1, length, f"the host is missing after /{name.text}")
    if name.text in ("ip4", "ip6"):
        family, title = (IPv4Address, "IPv4") if name.text == "ip4" else (IPv6Address, "IPv6")
        try:
            family(value.text)
        except ValueError:
            return value.fault(f"{value.shown} is no {title} address")
        return None
    return None if _NAME.match(value.text) else value.fault(f"{value.shown} is no host name")


def _check_port(name: _Part, value: _Part | None, length: int) -> AddressFault | None:
    if name.text != "tcp":
        reason = f"peers are reached over TCP alone, not {name.shown}: write /tcp/"
        return name.fault(reason if name.text else "a protocol is missing: write /tcp/")
    if value is None or not value.text:
        return AddressFault(length - 1, length, "the port is missing after /tcp")
    if not (value.text.isascii() and value.text.isdecimal() and len(value.text) <= 5 and int(value.text) <= 65_535):
        return value.fault(f"{value.shown} is no port from 0 to 65535")
    return None


def _fault_after_port(rest: list[_Part], length: int) -> AddressFault | None:
    """``/p2p/<peer>``, then perhaps ``/p2p-circuit`` and again ``/p2p/<peer>``."""
    while rest:
        name = rest.pop(0)
        if name.text == "p2p-circuit":
            continue
        if name.text != "p2p":
            return name.fault(f"only /p2p/ and a peer id may follow the port, not {name.shown}")
        if not rest or not rest[0].text:
            return AddressFault(length - 1, length, "the peer id is missing after /p2p")
        peer = rest.pop(0)
        if not is_peer_id(peer.text):
            return peer.fault(f"{peer.shown} is no peer id")
    return None
