"""``p2pmesh doctor network``: facts about this machine's network, from the node that runs here or without one.

Collects; what the facts mean is ``core.network_doctor``'s. Whom it contacts: the node of the home, this machine's own
addresses, members whose addresses the home keeps, and relays of Nostr only where looking for others by them is allowed.
"""

import email.utils
import errno
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_low
from typing import Any

import httpx
import trio

from p2pmesh.adapters.clock import SystemEntropy, TrioClock
from p2pmesh.adapters.credential_files import load_newest_membership
from p2pmesh.adapters.identity import Ed25519Verifier
from p2pmesh.adapters.interfaces import SystemInterfaces
from p2pmesh.adapters.nostr.keys import PublisherKey
from p2pmesh.adapters.nostr.relays import NostrRelays, RelaySettings
from p2pmesh.adapters.nostr.urls import checked_relays
from p2pmesh.app.claims import now_unix_ms
from p2pmesh.app.client import fetch_status
from p2pmesh.app.config import Discovery
from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.core.addresses import AddressChoice, InterfaceAddress, choose_announced, is_told, why_left_out
from p2pmesh.core.network_doctor import Contact, Finding, NetworkFacts, ReachFacts, diagnose
from p2pmesh.ports.relays import ListingQuery

CONNECT_TIMEOUT_S = 3.0
RELAY_TIMEOUT_S = 5.0
DATE_TIMEOUT_S = 2.0
MAX_CONTACTED = 8
MAX_CAUSES = 8
MDNS_PORT = 5353
NOT_CHOSEN = "not_chosen"
"""Peers are told other addresses, by ``--listen`` or ``--announce``."""
EVERY_INTERFACE = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")
_KERNEL_RELEASE = Path("/proc/sys/kernel/osrelease")


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """``listen`` and ``announce`` are those that a node here would have; ``relays`` are asked with ``nostr`` alone.

    ``typed_relays`` count before those of a node that runs, and these before ``relays``.
    """

    home: Path
    discovery: Discovery | None
    configured_discovery: Discovery
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    relays: tuple[str, ...]
    is_pool_wanted: bool
    typed_relays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkup:
    """What came of it: facts for a program, findings for a person."""

    facts: Mapping[str, Any]
    findings: tuple[Finding, ...]


def check_network(options: DoctorOptions, ask_node: Callable[[Path], dict[str, Any]] = fetch_status) -> Checkup:
    """Takes as long as the slowest contact, some seconds at most. ``ask_node`` gives the status of a home's node.

    ``ConfigError`` for a relay that is none.
    """
    steps: dict[str, int] = {}
    interfaces = _timed(steps, "interfaces", SystemInterfaces().survey)
    status = _timed(steps, "node", lambda: _status_of(options.home, ask_node))
    discovery = _discovery(options, status)
    own = _own_addresses(options, interfaces, status)
    relays = _relays(options, status) if discovery is Discovery.NOSTR else ()
    known = () if status else _kept_addresses(options.home)
    contacts = _timed(steps, "contacts", lambda: _contact_all(own if status else (), known, relays))
    ahead_ms, source = _clock(status, contacts.relay_offsets)
    facts = NetworkFacts(
        addresses=_choice(options, own, interfaces),
        discovery=discovery.value,
        own=contacts.own,
        multicast_failure=_multicast_failure(status),
        reach=_reach_of(status),
        standing=status.get("admission", {}).get("standing") if status else None,
        peers=sum(bool(peer.get("is_admitted")) for peer in status.get("peers", ())),
        known=contacts.known,
        nostr=contacts.nostr,
        is_nostr_used=options.is_pool_wanted or bool(status.get("pool")),
        clock_offset_ms=ahead_ms,
        clock_source=source,
        is_wsl_nat=_is_wsl_nat(interfaces),
        has_network=any(why_left_out(one) is None for one in interfaces),
    )
    return Checkup(_as_json(facts, interfaces, status, steps), diagnose(facts))


def _timed(steps: dict[str, int], name: str, step: Callable[[], Any]) -> Any:
    started = time.monotonic()
    found = step()
    steps[name] = round((time.monotonic() - started) * 1000)
    return found


# --- the node ------------------------------------------------------------------
def _status_of(home: Path, ask_node: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What the running node tells; nothing where none runs."""
    try:
        return ask_node(home)
    except P2PMeshError as error:
        if error.code is ErrorCode.NODE_NOT_RUNNING:
            return {}
        raise


def _discovery(options: DoctorOptions, status: Mapping[str, Any]) -> Discovery:
    """What was typed, also by naming a relay; a node that runs knows better than the file how it was started."""
    if options.discovery is not None:
        return options.discovery
    if options.typed_relays:
        return Discovery.NOSTR
    told = status.get("discovery")
    return Discovery(told) if told else options.configured_discovery


def _relays(options: DoctorOptions, status: Mapping[str, Any]) -> tuple[str, ...]:
    """What was typed; else what the running node uses for its pool, by option or by file; else what the file says."""
    if options.typed_relays:
        return checked_relays(options.typed_relays, "--nostr-relay")
    pool = status.get("pool") or {}
    used = tuple(str(one["url"]) for one in pool.get("relays", ()))
    return used or checked_relays(options.relays, "--nostr-relay")


def _own_addresses(
    options: DoctorOptions, interfaces: tuple[InterfaceAddress, ...], status: Mapping[str, Any]
) -> tuple[str, ...]:
    """What peers are told, without the peer id; empty where a node would listen on every interface."""
    told = tuple(str(text).partition("/p2p/")[0] for text in status.get("addresses", ()) if "/p2p-circuit" not in text)
    return told or options.announce or choose_announced(options.listen, interfaces).announced


def _choice(options: DoctorOptions, own: tuple[str, ...], interfaces: tuple[InterfaceAddress, ...]) -> AddressChoice:
    """What is told and what not; where the operator chose, nothing else is worth a word."""
    every = choose_announced(EVERY_INTERFACE, interfaces)
    is_chosen = bool(options.listen or options.announce)
    return AddressChoice(own, () if is_chosen else every.left_out) if own else every


def _reach_of(status: Mapping[str, Any]) -> ReachFacts | None:
    if not status:
        return None
    reach = status.get("reach", {})
    paths = reach.get("paths", {})
    return ReachFacts(
        reach.get("reachability", "unknown"), reach.get("nat", "unknown"), tuple(reach.get("observed_hosts", ())),
        tuple(reach.get("confirmed_addresses", ())), len(reach.get("reservations", ())), paths.get("direct", 0),
        paths.get("relayed", 0),
    )  # fmt: skip


def _kept_addresses(home: Path) -> tuple[str, ...]:
    """Where members were, of the mesh that the home joined last."""
    membership = load_newest_membership(home)
    return () if membership is None else membership.addresses[:MAX_CONTACTED]


# --- contacts --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Contacts:
    own: tuple[Contact, ...]
    known: tuple[Contact, ...]
    nostr: tuple[Contact, ...]
    relay_offsets: tuple[int, ...]


def _contact_all(own: Iterable[str], known: Iterable[str], relays: Iterable[str]) -> _Contacts:
    """All at once, each with its own deadline."""
    with ThreadPoolExecutor(max_workers=4 * MAX_CONTACTED) as pool:
        own_tasks = [pool.submit(_connect, text) for text in list(own)[:MAX_CONTACTED]]
        known_tasks = [pool.submit(_connect, text) for text in list(known)[:MAX_CONTACTED]]
        relay_tasks = [pool.submit(_ask_relay, url) for url in list(relays)[:MAX_CONTACTED]]
        relayed = [task.result() for task in relay_tasks]
        return _Contacts(
            tuple(task.result() for task in own_tasks),
            tuple(task.result() for task in known_tasks),
            tuple(contact for contact, _ in relayed),
            tuple(offset for _, offset in relayed if offset is not None),
        )


def _connect(address: str) -> Contact:
    """A TCP connection to a multiaddr, given up at once; addresses through relays are not tried."""
    name, parts = address.partition("/p2p/")[0], address.split("/")
    if len(parts) < 5 or parts[3] != "tcp":
        return Contact(name, None, "it cannot be tried from here")
    started = time.monotonic()
    try:
        with socket.create_connection((parts[2], int(parts[4])), CONNECT_TIMEOUT_S):
            return Contact(name, round((time.monotonic() - started) * 1000))
    except (OSError, ValueError) as error:
        return Contact(name, None, _words_of(error))


def _ask_relay(url: str) -> tuple[Contact, int | None]:
    """A visit as ``discover`` and ``up`` make it; plain HTTP need not be answered, but where it is it has the time."""
    started = time.monotonic()
    failure = trio.run(_visit_relay, url)
    if failure is not None:
        return Contact(url, None, failure), None
    took_ms = round((time.monotonic() - started) * 1000)
    return Contact(url, took_ms), _ask_date(url)


async def _visit_relay(url: str) -> str | None:
    """Why a relay answered no question in time; None where it did. It is asked for what a new key listed: nothing."""
    key = PublisherKey.fresh()
    relays = NostrRelays(RelaySettings((url,), key, Ed25519Verifier().is_signature_of), TrioClock(), SystemEntropy())
    found = await relays.fetch(ListingQuery((key.public,)), RELAY_TIMEOUT_S)
    return None if found.answered else relays.states()[0].detail or "no answer in time"


def _ask_date(url: str) -> int | None:
    """How far we are ahead of the head of what a relay says of itself (NIP-11); None where it says nothing."""
    try:
        with (
            httpx.Client(timeout=DATE_TIMEOUT_S, trust_env=False) as client,
            client.stream("GET", "http" + url.removeprefix("ws"), headers={"accept": "application/nostr+json"}) as head,
        ):
            return _offset_of(head.headers.get("date"), now_unix_ms())
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return None


def _offset_of(date: str | None, now_ms: int) -> int | None:
    """How far we are ahead of an HTTP Date, which is cut to whole seconds."""
    if date is None:
        return None
    try:
        said_ms = round(email.utils.parsedate_to_datetime(date).timestamp() * 1000)
    except ValueError:
        return None
    return now_ms - (said_ms + 500)


def _words_of(error: BaseException) -> str:
    """What the system said, below whatever a library made of it."""
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if cause is None:
            break
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return (str(error) or type(error).__name__).lower()[:120]


# --- the rest ------------------------------------------------------------------
def _clock(status: Mapping[str, Any], relay_offsets: tuple[int, ...]) -> tuple[int | None, str]:
    """Peers' hellos count before relays' answers: they need no third party."""
    told = status.get("clock", {})
    if told.get("ahead_ms") is not None:
        return int(told["ahead_ms"]), f"{told['peers']} of its peers"
    return (median_low(relay_offsets), "relays") if relay_offsets else (None, "")


def _multicast_failure(status: Mapping[str, Any]) -> str | None:
    """Whether the port of multicast DNS can be shared. No group is joined, for that would send a packet."""
    lan = status.get("lan")
    if lan is not None:
        return str(lan["detail"])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(("", MDNS_PORT))
    except OSError as error:
        return "UDP port 5353 is held by another" if error.errno == errno.EADDRINUSE else _words_of(error)
    return ""


def _is_wsl_nat(interfaces: tuple[InterfaceAddress, ...]) -> bool:
    """Windows gives Linux beside it an address of 172.16.0.0/12 where it translates; mirrored it has the machine's."""
    try:
        is_wsl = "microsoft" in _KERNEL_RELEASE.read_text().lower()
    except OSError:
        return False
    told = [one.address for one in interfaces if why_left_out(one) is None and ":" not in one.address]
    return is_wsl and bool(told) and all(text.startswith("172.") for text in told)


def _why_untold(one: InterfaceAddress, facts: NetworkFacts) -> str | None:
    """Why peers are not told an interface's address, which may be for what the operator chose; None if they are."""
    if is_told(one, facts.addresses.announced):
        return None
    return why_left_out(one) or NOT_CHOSEN


def _as_json(
    facts: NetworkFacts, interfaces: tuple[InterfaceAddress, ...], status: Mapping[str, Any], steps: Mapping[str, int]
) -> dict[str, Any]:
    return {
        "is_running": bool(status),
        "discovery": facts.discovery,
        "interfaces": [{**asdict(one), "left_out": _why_untold(one, facts)} for one in interfaces],
        "announced": list(facts.addresses.announced),
        "left_out": [asdict(one) for one in facts.addresses.left_out],
        "own": [asdict(one) for one in facts.own],
        "known_members": [asdict(one) for one in facts.known],
        "multicast_failure": facts.multicast_failure,
        "reach": status.get("reach"),
        "lan": status.get("lan"),
        "peers": facts.peers,
        "nostr_relays": [asdict(one) for one in facts.nostr],
        "clock": {"ahead_ms": facts.clock_offset_ms, "source": facts.clock_source},
        "is_wsl_nat": facts.is_wsl_nat,
        "steps_ms": dict(steps),
    }
