"""Who may speak: quarantine from the connection to an accepted hello, bounded in number and time.

Checks of bytes, signatures and invites finish before an event is made (``node.overlay``); here only their outcome
counts.
"""

from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_PEERS, MAX_UNADMITTED_PEERS
from p2pmesh.base.quantities import Micros


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """How long a peer may stay silent, and how many may be silent or admitted at once."""

    hello_us: int = 15_000_000
    max_unadmitted: int = MAX_UNADMITTED_PEERS
    max_admitted: int = MAX_PEERS


@dataclass(frozen=True, slots=True)
class Connected:
    """A first connection to or from a peer."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class HelloAccepted:
    """The peer's proof is valid."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class HelloRefused:
    """It is not."""

    peer: PeerId
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class PutOut:
    """A peer's right to be here has ended: it was revoked, or this operator trusts it no longer."""

    peer: PeerId
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The last connection is gone."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = Connected | HelloAccepted | HelloRefused | PutOut | Disconnected | DeadlinePassed


@dataclass(frozen=True, slots=True)
class Admit:
    """The peer may open streams from now on."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Drop:
    """Close every connection to the peer."""

    peer: PeerId
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Lose:
    """A peer that was admitted is gone."""

    peer: PeerId


Effect = Admit | Drop | Lose


class AdmissionMachine:
    """Unadmitted peers with their deadlines, and the admitted ones."""

    def __init__(self, policy: AdmissionPolicy | None = None) -> None:
        self._policy = policy or AdmissionPolicy()
        self._waiting: dict[PeerId, Micros] = {}
        self._admitted: dict[PeerId, None] = {}

    def is_admitted(self, peer: PeerId) -> bool:
        """Whether the peer may open streams other than a hello."""
        return peer in self._admitted

    def admitted(self) -> tuple[PeerId, ...]:
        """Admitted peers in the order of their admission."""
        return tuple(self._admitted)

    @property
    def has_admitted(self) -> bool:
        """Whether any peer is admitted."""
        return bool(self._admitted)

    @property
    def waiting_count(self) -> int:
        """Peers in quarantine."""
        return len(self._waiting)

    def deadline(self) -> Micros | None:
        """The earliest end of a quarantine."""
        return min(self._waiting.values(), default=None)

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case Connected(peer):
                return self._on_connected(peer, now)
            case HelloAccepted(peer):
                return self._on_accepted(peer)
            case HelloRefused(peer, code):
                return self._on_refused(peer, code)
            case PutOut(peer, code):
                return (*self._on_disconnected(peer), Drop(peer, code))
            case Disconnected(peer):
                return self._on_disconnected(peer)
            case DeadlinePassed():
                return self._on_deadline(now)

    def _on_connected(self, peer: PeerId, now: Micros) -> tuple[Effect, ...]:
        if peer in self._admitted or peer in self._waiting:
            return ()
        # A full quarantine gives up whoever has been silent longest. Turning newcomers away instead would let a few
        # silent strangers lock every member out.
        dropped: tuple[Effect, ...] = ()
        if len(self._waiting) >= self._policy.max_unadmitted:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            dropped = (Drop(oldest, ErrorCode.OVERLOADED),)
        self._waiting[peer] = Micros(now + self._policy.hello_us)
        return dropped

    def _on_accepted(self, peer: PeerId) -> tuple[Effect, ...]:
        if peer in self._admitted:
            return ()
        self._waiting.pop(peer, None)
        if len(self._admitted) >= self._policy.max_admitted:
            return (Drop(peer, ErrorCode.OVERLOADED),)
        self._admitted[peer] = None
        return (Admit(peer),)

    def _on_refused(self, peer: PeerId, code: ErrorCode) -> tuple[Effect, ...]:
        # A peer that stands on a valid hello keeps it: a refused second one must not let a rumour evict it.
        if peer in self._admitted:
            return ()
        self._waiting.pop(peer, None)
        return (Drop(peer, code),)

    def _on_disconnected(self, peer: PeerId) -> tuple[Effect, ...]:
        self._waiting.pop(peer, None)
        if peer not in self._admitted:
            return ()
        del self._admitted[peer]
        return (Lose(peer),)

    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        late = sorted(peer for peer, due in self._waiting.items() if due <= now)
        for peer in late:
            del self._waiting[peer]
        return tuple(Drop(peer, ErrorCode.DEADLINE_EXCEEDED) for peer in late)
