"""Real NATs on one machine: network namespaces, veth pairs and nftables, with an internet in the middle.

``198.51.100.10`` is a public host, ``203.0.113.2`` and ``192.0.2.2`` are the routers of two homes, with one machine
behind each. Only names that begin with ``reach`` are made and removed.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

INTERNET, RELAY = "reach-net", "reach-relay"
HOMES = {"a": ("203.0.113", "10.71.1"), "b": ("192.0.2", "10.72.1")}
"""The network that a home's router is on, and the one behind it."""
RELAY_HOST = "198.51.100.10"


class Nat(Enum):
    """What a router does (RFC 4787): all keep ports but the last one."""

    FULL_CONE = "full cone"
    """Everything that comes to it goes to the machine behind it."""
    RESTRICTED = "restricted"
    """Likewise, from hosts that the machine has sent something to."""
    PORT_RESTRICTED = "port restricted"
    """From those ports of hosts alone: what every Linux router does."""
    SYMMETRIC = "symmetric"
    """And another port for each connection."""


def why_not() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not installed (packages iproute2, nftables)"
    made = subprocess.run(["ip", "netns", "add", "reach-try"], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces are not permitted here: {made.stderr.strip()}"
    try:
        _inside("reach-try", "nft", "-f", "-", stdin=_rules(Nat.FULL_CONE, "10.0.0.1"))
    except subprocess.CalledProcessError as error:  # a kernel without what a router does
        return f"this machine cannot be a router: {error.stderr.strip()[:200]}"
    finally:
        subprocess.run(["ip", "netns", "del", "reach-try"], check=True)
    return None


def host_in(home: str) -> str:
    """The namespace of the machine in a home."""
    return f"reach-host-{home}"


def _router_of(home: str) -> str:
    return f"reach-nat-{home}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _inside(namespace: str, *words: str, stdin: str | None = None) -> None:
    command = ["ip", "netns", "exec", namespace, *words]
    subprocess.run(command, check=True, capture_output=True, text=True, input=stdin)


def _link(one: str, other: str, names: tuple[str, str], addresses: tuple[str, str]) -> None:
    _ip("link", "add", names[0], "netns", one, "type", "veth", "peer", "name", names[1], "netns", other)
    for namespace, name, address in zip((one, other), names, addresses, strict=True):
        _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", name)
        _ip("-n", namespace, "link", "set", name, "up")


@contextmanager
def nat_lab() -> Iterator[None]:
    """The internet, a public host and two homes; all gone afterwards."""
    _clear()
    try:
        for namespace in _namespaces():
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _link(INTERNET, RELAY, ("net-r", "wan"), ("198.51.100.1", RELAY_HOST))
        _ip("-n", RELAY, "route", "add", "default", "via", "198.51.100.1")
        for home, (outside, inside) in HOMES.items():
            router = _router_of(home)
            _link(INTERNET, router, (f"net-{home}", "wan"), (f"{outside}.1", f"{outside}.2"))
            _link(router, host_in(home), ("lan", "eth"), (f"{inside}.1", f"{inside}.2"))
            _ip("-n", router, "route", "add", "default", "via", f"{outside}.1")
            _ip("-n", host_in(home), "route", "add", "default", "via", f"{inside}.1")
        for namespace in (INTERNET, *(_router_of(home) for home in HOMES)):
            _inside(namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        yield
    finally:
        _clear()


def _namespaces() -> tuple[str, ...]:
    return (INTERNET, RELAY, *(_router_of(home) for home in HOMES), *(host_in(home) for home in HOMES))


def _clear() -> None:
    for namespace in _namespaces():
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, text=True)


def set_nat(home: str, kind: Nat) -> None:
    """Has a home's router behave so from now on; what it translated before is forgotten."""
    router, inside = _router_of(home), f"{HOMES[home][1]}.2"
    _inside(router, "nft", "flush", "ruleset")
    _inside(router, "nft", "-f", "-", stdin=_rules(kind, inside))


def _rules(kind: Nat, inside: str) -> str:
    is_open = kind in (Nat.FULL_CONE, Nat.RESTRICTED)
    masquerade = "masquerade fully-random" if kind is Nat.SYMMETRIC else "masquerade"
    to_inside = f"iifname wan tcp dport 1024-65535 dnat to {inside}" if is_open else ""
    if kind is Nat.FULL_CONE:
        inward = "iifname wan accept"
    elif kind is Nat.RESTRICTED:
        inward = "iifname wan ip saddr @spoken accept"
    else:
        inward = "iifname wan ct state established,related accept"
    return f"""
table ip home {{
  set spoken {{
    type ipv4_addr
    flags dynamic,timeout
    timeout 5m
  }}
  chain out {{
    type nat hook postrouting priority 100
    policy accept
    oifname wan {masquerade}
  }}
  chain into {{
    type nat hook prerouting priority -100
    policy accept
    {to_inside}
  }}
  chain through {{
    type filter hook forward priority 0
    policy drop
    iifname lan update @spoken {{ ip daddr }}
    iifname lan accept
    {inward}
  }}
  chain here {{
    type filter hook input priority 0
    policy accept
    iifname wan drop
  }}
}}
"""
