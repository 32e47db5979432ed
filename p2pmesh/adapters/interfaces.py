"""The interfaces of this machine, by psutil, and what Linux alone tells of bridges and IPv6 addresses.

Owns how facts are read; what they mean is ``core.addresses``. A fact that a system does not tell counts as good.
"""

import socket
import time
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from p2pmesh.core.addresses import InterfaceAddress

MAX_INTERFACE_ADDRESSES = 256
_NET_CLASS = Path("/sys/class/net")
_IP6_TABLE = Path("/proc/net/if_inet6")
_TENTATIVE, _DEPRECATED, _DUPLICATE = 0x40, 0x20, 0x08  # linux/if_addr.h
_PREFIX_BITS = {socket.AF_INET: 32, socket.AF_INET6: 128}


KEPT_S = 1.0
"""A survey takes a millisecond and dozens of system calls; what a node says of itself is asked for all the time."""


class SystemInterfaces:
    """Implements ``ports.interfaces.Interfaces``; what it says may be a second old."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._found: tuple[InterfaceAddress, ...] = ()
        self._found_at_s = float("-inf")

    def survey(self) -> tuple[InterfaceAddress, ...]:
        """At most ``MAX_INTERFACE_ADDRESSES``."""
        now_s = self._now_s()
        if now_s - self._found_at_s >= KEPT_S:
            self._found, self._found_at_s = self._look(), now_s
        return self._found

    @staticmethod
    def _look() -> tuple[InterfaceAddress, ...]:
        try:
            found, stats = psutil.net_if_addrs(), psutil.net_if_stats()
        except (OSError, RuntimeError):
            return ()
        unsettled = _unsettled()
        listed = [
            _describe(name, one, stats, unsettled)
            for name, addresses in sorted(found.items())
            for one in addresses
            if one.family in _PREFIX_BITS
        ]
        return tuple(listed[:MAX_INTERFACE_ADDRESSES])


def _describe(name: str, one: Any, stats: Mapping[str, Any], unsettled: frozenset[str]) -> InterfaceAddress:
    address = one.address.partition("%")[0]
    is_bridge, has_uplink = _bridge(name)
    return InterfaceAddress(
        interface=name,
        address=address,
        prefix_bits=_prefix_bits(one),
        is_up=name not in stats or stats[name].isup,
        is_bridge=is_bridge,
        has_uplink=has_uplink,
        is_unsettled=address in unsettled,
    )


def _prefix_bits(one: Any) -> int:
    """Of the netmask; without one the address stands for itself alone."""
    whole = _PREFIX_BITS[one.family]
    if not one.netmask:
        return whole
    try:
        if one.family == socket.AF_INET:
            return ip_network(f"0.0.0.0/{one.netmask}").prefixlen
        return int.from_bytes(socket.inet_pton(socket.AF_INET6, one.netmask), "big").bit_count()
    except (ValueError, OSError):
        return whole


def _bridge(name: str) -> tuple[bool, bool]:
    """Whether an interface is a bridge, and whether one of its ports is a device of the machine."""
    folder = _NET_CLASS / name
    try:
        if not (folder / "bridge").is_dir():
            return False, False
        ports = [port.name for port in (folder / "brif").iterdir()]
    except OSError:
        return False, False
    return True, any((_NET_CLASS / port / "device").exists() for port in ports)


def _unsettled() -> frozenset[str]:
    """IPv6 addresses that should not be given out: being checked, taken by another, or on their way out."""
    try:
        lines = _IP6_TABLE.read_text().splitlines()
    except OSError:
        return frozenset()
    found = set()
    for line in lines:
        fields = line.split()
        if len(fields) >= 6 and int(fields[4], 16) & (_TENTATIVE | _DEPRECATED | _DUPLICATE):
            found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])))
    return frozenset(found)
