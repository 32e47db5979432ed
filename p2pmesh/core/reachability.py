"""Whether others can dial this node, by the word of several witnesses, and what its NAT does with ports.

``ReachabilityMachine`` owns the answers, the addresses that others saw us at, whom to ask next and the verdict. How a
witness is asked, and that it dials back only to the address that the question came from, is ``adapters.p2p.autonat``'s;
which relays follow from the verdict is ``core.reservations``'.

One network has one vote, whoever speaks for it: keys cost nothing, so a liar with a hundred names on one network is one
liar. A verdict needs two networks, and more of them than disagree. NAT kinds are named by their mapping (RFC 4787,
section 4.1): endpoint-independent is a cone, anything else symmetric.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeVar

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros

K = TypeVar("K")
V = TypeVar("V")

Network = str
"""The part of an address that a vote counts for: 16 bits of IPv4, 32 of IPv6."""


class Reachability(Enum):
    """What the witnesses agree on."""

    UNKNOWN = "unknown"
    PUBLIC = "public"
    PRIVATE = "private"


class NatKind(Enum):
    """What stands between this node and those that saw it."""

    UNKNOWN = "unknown"
    NONE = "none"
    """They see an address of our own interfaces."""
    CONE = "cone"
    """The same port whomever we talk to: a hole can be punched."""
    SYMMETRIC = "symmetric"
    """Another port for each: only peers without a NAT, or behind a full cone, can be met directly."""


class DialBack(Enum):
    """What a witness said."""

    REACHED = "reached"
    FAILED = "failed"
    DECLINED = "declined"
    """It did not try."""


@dataclass(frozen=True, slots=True)
class ReachabilityPolicy:
    """Whom to ask, how often, and what makes a verdict."""

    agreeing_networks: int = 2
    at_once: int = 2
    ask_again_us: int = 900 * MICROS_PER_SECOND
    declined_again_us: int = 120 * MICROS_PER_SECOND
    answer_life_us: int = 2700 * MICROS_PER_SECOND
    witnesses: int = 8
    """Asked in turn; more networks prove no more."""
    capacity: int = 64
    """Answers and observations that are kept, of each."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A peer that can be asked, and where it is."""

    peer: PeerId
    network: Network


@dataclass(frozen=True, slots=True)
class WitnessesChanged:
    """Who can be asked now: directly connected, not on this machine, admitted or one of our relays."""

    witnesses: tuple[Witness, ...]


@dataclass(frozen=True, slots=True)
class WitnessAnswered:
    """The answer of one, and the multiaddr that it reached us at (empty otherwise)."""

    witness: Witness
    outcome: DialBack
    address: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """A witness saw us at this host and port, over a connection that leaves from ``local_port`` here."""

    witness: Witness
    host: str
    port: int
    local_port: int


@dataclass(frozen=True, slots=True)
class OwnHostsChanged:
    """The addresses of our interfaces; when they change, all that was said of the old ones is void.

    ``inner`` of them lead only to containers and the like on this machine, and may come and go.
    """

    hosts: frozenset[str]
    inner: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = WitnessesChanged | WitnessAnswered | Observed | OwnHostsChanged | DeadlinePassed


@dataclass(frozen=True, slots=True)
class AskWitness:
    """Ask this peer to dial us back; answered by ``WitnessAnswered``."""

    witness: Witness


@dataclass(frozen=True, slots=True)
class VerdictChanged:
    """``ReachabilityMachine.verdict``, ``nat``, ``needs_relay`` or the addresses are others than before."""


Effect = AskWitness | VerdictChanged


@dataclass(frozen=True, slots=True)
class _Answer:
    outcome: DialBack
    address: str
    at: Micros
    network: Network


@dataclass(frozen=True, slots=True)
class _Sight:
    host: str
    port: int
    local_port: int
    at: Micros
    network: Network


@dataclass(frozen=True, slots=True)
class _Standing:
    """What others here act on."""

    verdict: Reachability = Reachability.UNKNOWN
    nat: NatKind = NatKind.UNKNOWN
    needs_relay: bool = False
    confirmed: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class ReachabilityMachine:
    """What several witnesses say of this node."""

    def __init__(self, policy: ReachabilityPolicy | None = None) -> None:
        self._policy = policy or ReachabilityPolicy()
        self._own_hosts: frozenset[str] = frozenset()
        self._outer_hosts: frozenset[str] = frozenset()
        """Those that others see us by."""
        self._witnesses: dict[PeerId, Witness] = {}
        self._answers: dict[PeerId, _Answer] = {}
        self._sights: dict[tuple[PeerId, int], _Sight] = {}
        self._due: dict[PeerId, Micros] = {}
        """When a witness is asked next; who is being asked is not among them."""
        self._asked: dict[PeerId, bool] = {}
        """Whether what it answers counts: it was asked about addresses that are ours still."""
        self._standing = _Standing()

    # --- what is known

    @property
    def verdict(self) -> Reachability:
        """Whether others can dial us."""
        return self._standing.verdict

    @property
    def nat(self) -> NatKind:
        """What our NAT does."""
        return self._standing.nat

    @property
    def needs_relay(self) -> bool:
        """Whether relays are worth a reservation: also in doubt, since one costs little, and behind any NAT, since a
        filter may let in those alone that we have spoken to, as witnesses are."""
        return self._standing.needs_relay

    @property
    def confirmed_addresses(self) -> tuple[str, ...]:
        """Multiaddrs at which witnesses of enough networks reached us."""
        return self._standing.confirmed

    @property
    def observed_hosts(self) -> tuple[str, ...]:
        """Addresses that we were seen at and that are not of our interfaces, those of most networks first."""
        return self._standing.hosts

    def witness_counts(self) -> tuple[int, int]:
        """Networks that reached us, and networks that could not."""
        votes = self._votes().values()
        return sum(votes), sum(not vote for vote in votes)

    def mapped_port(self, host: str, local_port: int) -> int | None:
        """The port at which most networks saw what leaves from ``local_port``, ties by the number; None if unseen."""
        counts: dict[int, set[Network]] = {}
        for sight in self._sights.values():
            if sight.host == host and sight.local_port == local_port:
                counts.setdefault(sight.port, set()).add(sight.network)
        return max(counts, key=lambda port: (len(counts[port]), -port), default=None)

    # --- the machine

    def deadline(self) -> Micros | None:
        """When somebody is to be asked, or an answer is too old."""
        ends = [answer.at + self._policy.answer_life_us for answer in self._answers.values()]
        ends += [sight.at + self._policy.answer_life_us for sight in self._sights.values()]
        if len(self._asked) < self._policy.at_once:
            ends += list(self._due.values())
        return Micros(min(ends)) if ends else None

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case WitnessesChanged(witnesses):
                self._on_witnesses(witnesses, now)
            case WitnessAnswered(witness, outcome, address):
                self._on_answer(witness, outcome, address, now)
            case Observed(witness, host, port, local_port):
                sight = _Sight(host, port, local_port, now, witness.network)
                _keep(self._sights, (witness.peer, local_port), sight, self._policy.capacity)
            case OwnHostsChanged(hosts, inner):
                self._on_own_hosts(hosts, inner, now)
            case DeadlinePassed():
                pass
        self._forget_old(now)
        asked = tuple(self._ask(now))
        standing = self._judge()
        is_news, self._standing = standing != self._standing, standing
        return (*asked, VerdictChanged()) if is_news else asked

    def _on_witnesses(self, witnesses: tuple[Witness, ...], now: Micros) -> None:
        """At most so many, of as many networks as there are. Who is being asked will answer, witness or not."""
        chosen: dict[PeerId, Witness] = {}
        per_network: dict[Network, int] = {}
        ordered = []
        for witness in sorted(set(witnesses), key=lambda one: one.peer):
            ordered.append((per_network.get(witness.network, 0), witness.peer, witness))
            per_network[witness.network] = per_network.get(witness.network, 0) + 1
        for _, peer, witness in sorted(ordered, key=lambda one: one[:2])[: self._policy.witnesses]:
            chosen[peer] = witness
        self._witnesses = chosen
        self._due = {
            peer: self._due.get(peer, self._first_due(peer, now)) for peer in chosen if peer not in self._asked
        }

    def _first_due(self, peer: PeerId, now: Micros) -> Micros:
        """Whoever comes back is not asked sooner for it."""
        answer = self._answers.get(peer)
        return now if answer is None else max(now, self._next_due(answer))

    def _next_due(self, answer: _Answer) -> Micros:
        is_declined = answer.outcome is DialBack.DECLINED
        return Micros(answer.at + (self._policy.declined_again_us if is_declined else self._policy.ask_again_us))

    def _on_answer(self, witness: Witness, outcome: DialBack, address: str, now: Micros) -> None:
        counts = self._asked.pop(witness.peer, None)
        if counts is None:
            return  # nobody is heard who was not asked
        if not counts:  # it dialled an address that is ours no more
            if witness.peer in self._witnesses:
                self._due[witness.peer] = now
            return
        answer = _Answer(outcome, address, now, witness.network)
        _keep(self._answers, witness.peer, answer, self._policy.capacity)
        if witness.peer in self._witnesses:
            self._due[witness.peer] = self._next_due(answer)

    def _on_own_hosts(self, hosts: frozenset[str], inner: frozenset[str], now: Micros) -> None:
        self._own_hosts = hosts
        if hosts - inner == self._outer_hosts:
            return
        self._outer_hosts = hosts - inner
        self._answers.clear()
        self._sights.clear()
        self._asked = dict.fromkeys(self._asked, False)
        self._due = {peer: now for peer in self._witnesses if peer not in self._asked}

    def _forget_old(self, now: Micros) -> None:
        oldest = now - self._policy.answer_life_us
        self._answers = {peer: answer for peer, answer in self._answers.items() if answer.at > oldest}
        self._sights = {key: sight for key, sight in self._sights.items() if sight.at > oldest}

    def _ask(self, now: Micros) -> Iterable[Effect]:
        """Those of networks that have not voted first."""
        while len(self._asked) < self._policy.at_once:
            voted = set(self._votes())
            due = [(self._witnesses[peer].network in voted, when, peer) for peer, when in self._due.items()]
            ready = [one for one in due if one[1] <= now]
            if not ready:
                return
            peer = min(ready)[2]
            del self._due[peer]
            self._asked[peer] = True
            yield AskWitness(self._witnesses[peer])

    # --- the verdict

    def _votes(self) -> dict[Network, bool]:
        """The newest answer of each network, ties by peer id."""
        votes: dict[Network, bool] = {}
        for _, _, answer in sorted((answer.at, peer, answer) for peer, answer in self._answers.items()):
            if answer.outcome is not DialBack.DECLINED:
                votes[answer.network] = answer.outcome is DialBack.REACHED
        return votes

    def _judge(self) -> _Standing:
        reached, failed = self.witness_counts()
        verdict = Reachability.UNKNOWN
        if max(reached, failed) >= self._policy.agreeing_networks and reached != failed:
            verdict = Reachability.PUBLIC if reached > failed else Reachability.PRIVATE
        hosts = self._hosts_seen()
        foreign = tuple(host for host in hosts if host not in self._own_hosts)
        is_translated = bool(hosts) and hosts[0] not in self._own_hosts
        is_in_doubt = verdict is not Reachability.PUBLIC and failed > 0
        return _Standing(
            verdict,
            self._nat_kind(hosts[0]) if hosts else NatKind.UNKNOWN,
            is_translated or is_in_doubt,
            self._confirmed() if verdict is Reachability.PUBLIC else (),
            foreign,
        )

    def _hosts_seen(self) -> tuple[str, ...]:
        networks: dict[str, set[Network]] = {}
        for sight in self._sights.values():
            networks.setdefault(sight.host, set()).add(sight.network)
        return tuple(sorted(networks, key=lambda host: (-len(networks[host]), host)))

    def _confirmed(self) -> tuple[str, ...]:
        networks: dict[str, set[Network]] = {}
        for answer in self._answers.values():
            if answer.outcome is DialBack.REACHED and answer.address:
                networks.setdefault(answer.address, set()).add(answer.network)
        return tuple(sorted(a for a in networks if len(networks[a]) >= self._policy.agreeing_networks))

    def _nat_kind(self, host: str) -> NatKind:
        if host in self._own_hosts:
            return NatKind.NONE
        ports: dict[int, dict[Network, int]] = {}
        for sight in self._sights.values():
            if sight.host == host:
                ports.setdefault(sight.local_port, {})[sight.network] = sight.port
        several = [seen for seen in ports.values() if len(seen) >= self._policy.agreeing_networks]
        if any(len(set(seen.values())) > 1 for seen in several):
            return NatKind.SYMMETRIC
        networks = {network for seen in ports.values() for network in seen}
        is_preserved = all(set(seen.values()) == {local} for local, seen in ports.items())
        if several or (is_preserved and len(networks) >= self._policy.agreeing_networks):
            return NatKind.CONE
        return NatKind.UNKNOWN


def _keep(table: dict[K, V], key: K, value: V, capacity: int) -> None:
    """Puts an entry at the end of a bounded table; the oldest goes."""
    table.pop(key, None)
    table[key] = value
    if len(table) > capacity:
        del table[next(iter(table))]


def network_of(host: str) -> Network | None:
    """The network of an address; None for one of this machine, for a name, and for what is no address."""
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        return None
    if isinstance(address, IPv4Address):
        return ".".join(str(address).split(".")[:2]) + ".0.0/16"
    return address.exploded[:9] + "::/32"


# --- what is told of it -------------------------------------------------------
@dataclass(frozen=True, slots=True)
class HeldReservation:
    """A relay that keeps a place for us, and the address that others dial through it."""

    relay: PeerId
    address: str
    left_s: int


@dataclass(frozen=True, slots=True)
class RelayLoad:
    """What this node gives to others as a relay."""

    is_offered: bool
    """Whether it answers requests at all."""
    is_announced: bool
    """Whether it tells that it does: only once witnesses reached it, or its operator said so."""
    reservations: int = 0
    circuits: int = 0


@dataclass(frozen=True, slots=True)
class ReachReport:
    """How this node can be reached, for the status and for ``doctor network``."""

    verdict: Reachability = Reachability.UNKNOWN
    nat: NatKind = NatKind.UNKNOWN
    needs_relay: bool = False
    reached_networks: int = 0
    failed_networks: int = 0
    observed_hosts: tuple[str, ...] = ()
    """Addresses that others saw and that are not of our interfaces."""
    confirmed_addresses: tuple[str, ...] = ()
    reservations: tuple[HeldReservation, ...] = ()
    relaying: RelayLoad = RelayLoad(is_offered=False, is_announced=False)
    relayed_peers: int = 0
    direct_peers: int = 0
