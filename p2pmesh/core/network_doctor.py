"""What facts about this machine's network mean for a node, and what to do about each.

A total function over facts that ``app.doctor`` collects; nothing is asked here. Every finding is one sentence of what
is so and one of what to do; nothing to do is said as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.limits import CLOCK_SKEW_MS
from p2pmesh.core.addresses import AddressChoice, LeftOut, is_loopback

CLOCK_NOTICED_MS = 5_000


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    ADVICE = "advice"
    """It works, and could work better."""
    PROBLEM = "problem"


class Topic(StrEnum):
    """What a finding is about, in the order in which they are told."""

    INTERFACES = "interfaces"
    LISTENING = "listening"
    TCP = "tcp"
    UDP = "udp"
    NAT = "nat"
    RELAYS = "relays"
    PEERS = "peers"
    NOSTR = "nostr"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is so, and what to do."""

    topic: Topic
    level: Level
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Contact:
    """An attempt to reach somebody: how long it took, or why it failed."""

    name: str
    took_ms: int | None = None
    detail: str = ""

    @property
    def is_reached(self) -> bool:
        """Whether it was answered."""
        return self.took_ms is not None


@dataclass(frozen=True, slots=True)
class ReachFacts:
    """What a running node knows of how others reach it; words of ``core.reachability``."""

    reachability: str = "unknown"
    nat: str = "unknown"
    observed_hosts: tuple[str, ...] = ()
    confirmed: tuple[str, ...] = ()
    reservations: int = 0
    direct_peers: int = 0
    relayed_peers: int = 0


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """All that was found out. ``reach`` and ``standing`` None: no node runs in the home."""

    addresses: AddressChoice
    discovery: str = "nostr"
    own: tuple[Contact, ...] = ()
    """Our announced addresses, connected to from this machine."""
    multicast_failure: str | None = None
    """Why no multicast of DNS is possible here; empty where it is; None where that was not tried."""
    reach: ReachFacts | None = None
    standing: str | None = None
    """``founder``, ``member``, ``seeking`` or ``put_out``."""
    peers: int = 0
    known: tuple[Contact, ...] = ()
    """Members whose addresses are kept in the home, connected to where no node runs."""
    nostr: tuple[Contact, ...] = ()
    is_nostr_used: bool = False
    """Whether this node publishes or looks for pools at relays."""
    clock_offset_ms: int | None = None
    """How far our clock is ahead of others'."""
    clock_source: str = ""
    is_wsl_nat: bool = False
    """Linux under Windows, behind Windows' own translator."""
    has_network: bool = False
    """Whether an interface has an address that another machine could dial."""


def diagnose(facts: NetworkFacts) -> tuple[Finding, ...]:
    """The findings, in the order of ``Topic``."""
    found = (*_interfaces(facts), *_own(facts), *_tcp(facts), *_udp(facts), *_nat(facts), *_peers(facts))
    return (*found, *_nostr(facts), *_clock(facts))


def has_problem(findings: tuple[Finding, ...]) -> bool:
    """Whether something does not work."""
    return any(one.level is Level.PROBLEM for one in findings)


_NOTHING = "Nothing is to be done."


def _interfaces(facts: NetworkFacts) -> Iterator[Finding]:
    topic = Topic.INTERFACES
    if facts.is_wsl_nat:
        text = "This is Linux under Windows with a network of its own: nobody outside this machine reaches it."
        yield Finding(
            topic, Level.PROBLEM, text, "Write networkingMode=mirrored into .wslconfig of Windows and restart WSL."
        )
    told = facts.addresses.announced
    loopback = [text for text in told if is_loopback(text)]
    if not told or len(loopback) == len(told):
        text = "Peers are told no address that another machine could dial."
        advice = "Connect this machine to a network, or give --listen or --announce."
        if loopback and facts.has_network:
            chosen = _host_part(loopback[0])
            text = f"Peers are told {chosen} alone, which no other machine can dial: so --listen or --announce says."
            advice = "Leave that option away to listen on every interface, if others are to dial this node."
        yield Finding(topic, Level.PROBLEM, text, advice)
    else:
        yield Finding(topic, Level.OK, f"Peers are told {_count(len(told), 'address', 'addresses')}.", _NOTHING)
    inner = sorted({one.interface for one in facts.addresses.left_out if one.reason is LeftOut.INNER})
    if inner:
        text = (
            f"Addresses of {', '.join(inner)} are not told: only containers and virtual machines here are behind them."
        )
        yield Finding(
            topic, Level.OK, text, "Give one with --listen or --announce if peers are to dial it all the same."
        )
    down = sorted({one.interface for one in facts.addresses.left_out if one.reason is LeftOut.DOWN})
    if down:
        text = f"{', '.join(down)} has an address and is down."
        yield Finding(topic, Level.ADVICE, text, "Plug the cable in, or switch the interface on, if it is to be used.")


def _host_part(address: str) -> str:
    """A multiaddr's address without its port."""
    return "/".join(address.split("/")[:3])


def _own(facts: NetworkFacts) -> Iterator[Finding]:
    missed = [one for one in facts.own if not one.is_reached]
    for one in missed:
        text = f"This machine does not reach its own {one.name}: {one.detail}."
        yield Finding(Topic.LISTENING, Level.PROBLEM, text, "Let the port through this machine's firewall.")
    if facts.own and not missed:
        yield Finding(Topic.LISTENING, Level.OK, "Every address that peers are told is listened on.", _NOTHING)


def _tcp(facts: NetworkFacts) -> Iterator[Finding]:
    reach = facts.reach
    if reach is None:
        text = "Whether others can dial this machine is found out by peers of a running node, and none runs here."
        yield Finding(Topic.TCP, Level.ADVICE, text, "Start it with p2pmesh up, and ask again a minute later.")
        return
    if reach.reachability == "public":
        confirmed = ", ".join(reach.confirmed) or "its addresses"
        yield Finding(Topic.TCP, Level.OK, f"Peers of other networks dialled this node at {confirmed}.", _NOTHING)
    elif reach.reachability == "private":
        text = "Peers of other networks tried to dial this node and could not."
        advice = f"Forward its TCP port in your router, and give --announce with the address outside{_outside(reach)}."
        yield Finding(Topic.TCP, Level.ADVICE if reach.reservations else Level.PROBLEM, text, advice)
        yield from _relayed(reach)
    else:
        text = "No peers of two other networks have tried yet whether this node can be dialled."
        yield Finding(Topic.TCP, Level.ADVICE, text, "Ask again once it has peers outside this network.")


def _outside(reach: ReachFacts) -> str:
    return f" ({reach.observed_hosts[0]})" if reach.observed_hosts else ""


def _relayed(reach: ReachFacts) -> Iterator[Finding]:
    if reach.reservations:
        text = f"{_count(reach.reservations, 'relay', 'relays')} among the peers passes connections on to this node."
        yield Finding(Topic.RELAYS, Level.OK, text, _NOTHING)
    else:
        text = "No peer relays for this node, so those outside cannot reach it."
        yield Finding(
            Topic.RELAYS, Level.PROBLEM, text, "Join a mesh with a member that can be dialled, or give --relay."
        )


def _udp(facts: NetworkFacts) -> Iterator[Finding]:
    """UDP carries nothing between peers; it finds them on the local network."""
    if facts.multicast_failure is None:
        return
    if not facts.multicast_failure:
        yield Finding(Topic.UDP, Level.OK, "Multicast DNS can be spoken here; nothing else needs UDP.", _NOTHING)
        return
    is_used = facts.discovery == "mdns"
    advice = "Stop what holds UDP port 5353, or let multicast through." if is_used else "Nothing is to be done."
    text = f"Multicast DNS cannot be spoken here: {facts.multicast_failure}."
    yield Finding(Topic.UDP, Level.PROBLEM if is_used else Level.OK, text, advice)


def _nat(facts: NetworkFacts) -> Iterator[Finding]:
    nat = facts.reach.nat if facts.reach is not None else "unknown"
    if nat == "none":
        yield Finding(
            Topic.NAT, Level.OK, "Others see this machine at an address of its own: there is no NAT.", _NOTHING
        )
    elif nat == "cone":
        text = "A NAT of the kind through which direct connections can be made stands before this machine."
        yield Finding(Topic.NAT, Level.OK, text, _NOTHING)
    elif nat == "symmetric":
        text = "The NAT before this machine takes another port for every peer, so most connections stay relayed."
        advice = "Forward a TCP port in your router, or use IPv6, for direct connections."
        yield Finding(Topic.NAT, Level.ADVICE, text, advice)


def _peers(facts: NetworkFacts) -> Iterator[Finding]:
    topic = Topic.PEERS
    if facts.reach is not None:
        paths = f"{facts.reach.direct_peers} direct, {facts.reach.relayed_peers} relayed"
        if facts.peers:
            yield Finding(topic, Level.OK, f"{_count(facts.peers, 'peer', 'peers')} connected: {paths}.", _NOTHING)
        elif facts.standing == "founder":
            text = "Nobody has joined this mesh yet, or nobody is connected now."
            yield Finding(topic, Level.ADVICE, text, "Give others the invite that p2pmesh invite create makes.")
        else:
            text = "No member of the mesh is reached."
            yield Finding(topic, Level.PROBLEM, text, "See that one of them runs, and ask for a fresh invite.")
    for one in facts.known:
        if one.is_reached:
            yield Finding(topic, Level.OK, f"{one.name} answers within {one.took_ms} ms.", _NOTHING)
        else:
            advice = "See that it runs; an invite of today holds its address of today."
            yield Finding(topic, Level.ADVICE, f"{one.name} does not answer: {one.detail}.", advice)


def _nostr(facts: NetworkFacts) -> Iterator[Finding]:
    answered = sum(one.is_reached for one in facts.nostr)
    if facts.nostr and not answered:
        level = Level.PROBLEM if facts.is_nostr_used else Level.ADVICE
        text = "No relay of Nostr answers, so public pools are neither found nor listed."
        yield Finding(Topic.NOSTR, level, text, "See whether TCP port 443 is let out, or give --nostr-relay.")
        return
    for one in facts.nostr:
        if not one.is_reached:
            text = f"{one.name} does not answer: {one.detail}."
            yield Finding(Topic.NOSTR, Level.OK, text, "The other relays do; leave it away if that lasts.")
    if answered:
        yield Finding(Topic.NOSTR, Level.OK, f"{_count(answered, 'relay', 'relays')} of Nostr answered.", _NOTHING)


def _clock(facts: NetworkFacts) -> Iterator[Finding]:
    offset = facts.clock_offset_ms
    if offset is None:
        if facts.discovery == "none" and facts.reach is None:
            text = "Nobody was asked for the time, since nobody but invited peers may be."
            yield Finding(Topic.CLOCK, Level.OK, text, "Start the node: its peers tell.")
        return
    far = f"{abs(offset) / 1000:.1f} s {'ahead of' if offset > 0 else 'behind'} that of {facts.clock_source}"
    if abs(offset) <= CLOCK_NOTICED_MS:
        yield Finding(Topic.CLOCK, Level.OK, f"The clock agrees with that of {facts.clock_source}.", _NOTHING)
    elif abs(offset) <= CLOCK_SKEW_MS:
        text = f"The clock is {far}; 30 s are forgiven."
        yield Finding(Topic.CLOCK, Level.ADVICE, text, "Have the system set it, such as by timedatectl set-ntp true.")
    else:
        text = f"The clock is {far}: what this node signs is refused as of the future or the past."
        yield Finding(Topic.CLOCK, Level.PROBLEM, text, "Have the system set it, such as by timedatectl set-ntp true.")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
