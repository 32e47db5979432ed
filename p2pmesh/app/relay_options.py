"""``--relay``, ``--relay-service``, ``--relay-limit NAME=VALUE``: who leads others here, what we give as a relay."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from p2pmesh.app.option_checks import invalid
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import is_peer_id
from p2pmesh.base.limits import MAX_ADDRESS_BYTES, MAX_ADDRESSES
from p2pmesh.base.quantities import parse_size_bytes
from p2pmesh.core.relaying import ReachSettings, RelayLimits, RelayService

MAX_RELAYS = 8
MOST = 2**48
EXAMPLE = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooW..."

RELAY_LIMITS: Mapping[str, str] = MappingProxyType(
    {
        "reservations": "reservations",
        "reservation-seconds": "reservation_s",
        "circuits": "circuits",
        "circuits-per-peer": "circuits_per_peer",
        "bytes": "circuit_bytes",
        "seconds": "circuit_s",
        "stranger-reservations": "stranger_reservations",
        "stranger-circuits": "stranger_circuits",
        "stranger-bytes": "stranger_circuit_bytes",
        "stranger-seconds": "stranger_circuit_s",
    }
)
"""Names of the command line, and the fields of ``core.relaying.RelayLimits``."""


def read_reach(relays: Iterable[str], service: str, limits: Iterable[str]) -> ReachSettings:
    """The settings; ``ConfigError`` with what is wrong and what to write."""
    return ReachSettings(_read_relays(tuple(relays)), RelayService(service), _read_limits(limits))


def _read_relays(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(texts) > min(MAX_RELAYS, MAX_ADDRESSES):
        raise invalid(f"--relay can be given {MAX_RELAYS} times, not {len(texts)}")
    for text in texts:
        head, mark, peer = text.partition("/p2p/")
        is_whole = bool(mark) and head.count("/") == 4 and head.split("/")[3] == "tcp" and is_peer_id(peer)
        if not is_whole or len(text) > MAX_ADDRESS_BYTES:
            if text.lower().startswith(("ws://", "wss://")):
                text = f"--relay {text[:80]!r} is a relay for listings of pools: give it as --nostr-relay"
                raise ConfigError(ErrorCode.ADDRESS_INVALID, text)
            text = f"--relay {text[:80]!r} must be an address with the relay's peer id, such as {EXAMPLE}"
            raise ConfigError(ErrorCode.ADDRESS_INVALID, text)
    return texts


def _read_limits(texts: Iterable[str]) -> RelayLimits:
    limits = RelayLimits()
    for text in texts:
        name, mark, value = text.partition("=")
        field = RELAY_LIMITS.get(name)
        if not mark or field is None:
            raise invalid(f"--relay-limit {text[:40]!r} must be NAME=VALUE with one of {', '.join(RELAY_LIMITS)}")
        changed: dict[str, Any] = {field: _number(name, value)}
        limits = replace(limits, **changed)
    return limits


def _number(name: str, value: str) -> int:
    try:
        number = parse_size_bytes(value) if name.endswith("bytes") else int(value)
    except ValueError:
        raise invalid(f"--relay-limit {name} must be a number, not {value[:40]!r}") from None
    if not 1 <= number <= MOST:
        raise invalid(f"--relay-limit {name} must be 1 to {MOST}; --relay-service off relays for nobody")
    return number
