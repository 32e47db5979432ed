"""What this node gives to others as a relay: places, circuits, and what may pass through one.

``RelayLedger`` counts and decides; the bytes and the messages of circuit relay v2 are ``adapters.p2p.relay``'s. Members
get room for serving models; strangers, who may be on their way in, get what a hello takes: nobody outside can make a
relay carry traffic for him, or take the places of members.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import GIB, KIB, MICROS_PER_SECOND, Micros


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """What a relay gives. Both ends must be members for a circuit to count as one of members."""

    reservations: int = 128
    reservation_s: int = 3600
    circuits: int = 128
    circuits_per_peer: int = 16
    circuit_bytes: int = 64 * GIB
    circuit_s: int = 86_400
    stranger_reservations: int = 8
    stranger_reservations_per_network: int = 4
    stranger_reservation_s: int = 600
    stranger_circuits: int = 16
    stranger_circuits_per_network: int = 4
    stranger_circuit_bytes: int = 4096 * KIB
    stranger_circuit_s: int = 120


class RelayService(StrEnum):
    """Whether this node relays for others: if nothing speaks against it, always, or never."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class ReachSettings:
    """What the operator says: relays to use, each with its peer id, and what is given as one."""

    relays: tuple[str, ...] = ()
    service: RelayService = RelayService.AUTO
    limits: RelayLimits = RelayLimits()


class RelayRefusal(Enum):
    """Why a request was refused."""

    FULL = "full"
    """Of places or circuits, over all or of this peer."""
    NO_RESERVATION = "no_reservation"
    """The peer to be reached keeps no place here."""


@dataclass(frozen=True, slots=True)
class Place:
    """A reservation: who holds it, from where, and until when."""

    peer: PeerId
    network: str
    is_member: bool
    ends_at: Micros


@dataclass(frozen=True, slots=True)
class Circuit:
    """What may pass, both ways together, and until when."""

    number: int
    source: PeerId
    target: PeerId
    network: str
    is_of_members: bool
    most_bytes: int
    ends_at: Micros


class RelayLedger:
    """Places and circuits of one relay."""

    def __init__(self, limits: RelayLimits | None = None) -> None:
        self.limits = limits or RelayLimits()
        self._places: dict[PeerId, Place] = {}
        self._circuits: dict[int, Circuit] = {}
        self._last_number = 0

    def place_count(self, now: Micros) -> int:
        """Reservations that hold."""
        self._expire(now)
        return len(self._places)

    @property
    def circuit_count(self) -> int:
        """Circuits that stand."""
        return len(self._circuits)

    def holds_place(self, peer: PeerId, now: Micros) -> bool:
        """Whether a peer can be reached through us."""
        place = self._places.get(peer)
        return place is not None and place.ends_at > now

    def users(self, now: Micros) -> frozenset[PeerId]:
        """Peers that have a place here or are at an end of a circuit."""
        placed = (peer for peer, place in self._places.items() if place.ends_at > now)
        ends = (end for one in self._circuits.values() for end in (one.source, one.target))
        return frozenset((*placed, *ends))

    def reserve(self, peer: PeerId, network: str, now: Micros, *, is_member: bool) -> Place | RelayRefusal:
        """A place, or the one that the peer has for longer. Members push strangers out, never the other way round."""
        limits = self.limits
        self._expire(now)
        others = {other: place for other, place in self._places.items() if other != peer}
        strangers = [place for place in others.values() if not place.is_member]
        from_there = sum(place.network == network for place in strangers)
        if not is_member and (
            len(strangers) >= limits.stranger_reservations or from_there >= limits.stranger_reservations_per_network
        ):
            return RelayRefusal.FULL
        if len(others) >= limits.reservations:
            if not is_member or not strangers:
                return RelayRefusal.FULL
            del self._places[strangers[0].peer]
        life_s = limits.reservation_s if is_member else limits.stranger_reservation_s
        place = Place(peer, network, is_member, Micros(now + life_s * MICROS_PER_SECOND))
        self._places.pop(peer, None)
        self._places[peer] = place
        return place

    def count_members(self, is_member: Callable[[PeerId], bool]) -> None:
        """Whose places are members' now: who joined through us holds a stranger's no more."""
        self._places = {peer: replace(place, is_member=is_member(peer)) for peer, place in self._places.items()}

    def open_circuit(
        self, source: PeerId, target: PeerId, network: str, now: Micros, *, is_of_members: bool
    ) -> Circuit | RelayRefusal:
        """A circuit from ``source``, which is on ``network``, to a peer that holds a place."""
        limits = self.limits
        if not self.holds_place(target, now):
            return RelayRefusal.NO_RESERVATION
        standing = list(self._circuits.values())
        of_source = sum(source in (one.source, one.target) for one in standing)
        if len(standing) >= limits.circuits or of_source >= limits.circuits_per_peer:
            return RelayRefusal.FULL
        strangers = [one for one in standing if not one.is_of_members]
        from_there = sum(one.network == network for one in strangers)
        if not is_of_members and (
            len(strangers) >= limits.stranger_circuits or from_there >= limits.stranger_circuits_per_network
        ):
            return RelayRefusal.FULL
        self._last_number += 1
        most_bytes = limits.circuit_bytes if is_of_members else limits.stranger_circuit_bytes
        life_s = limits.circuit_s if is_of_members else limits.stranger_circuit_s
        ends_at = Micros(now + life_s * MICROS_PER_SECOND)
        circuit = Circuit(self._last_number, source, target, network, is_of_members, most_bytes, ends_at)
        self._circuits[circuit.number] = circuit
        return circuit

    def extend(self, circuit: Circuit, now: Micros) -> Circuit | None:
        """Both ends have become members: the circuit that it is now. None where it was one of members already."""
        if circuit.is_of_members or circuit.number not in self._circuits:
            return None
        limits = self.limits
        ends_at = Micros(now + limits.circuit_s * MICROS_PER_SECOND)
        longer = Circuit(
            circuit.number, circuit.source, circuit.target, circuit.network, True, limits.circuit_bytes, ends_at
        )
        self._circuits[circuit.number] = longer
        return longer

    def close_circuit(self, circuit: Circuit) -> None:
        """It is over."""
        self._circuits.pop(circuit.number, None)

    def forget(self, peer: PeerId) -> None:
        """The last connection to a peer is gone: nobody can be led to it."""
        self._places.pop(peer, None)

    def _expire(self, now: Micros) -> None:
        self._places = {peer: place for peer, place in self._places.items() if place.ends_at > now}
