"""What goes into ``core.membership`` and what comes out of it: policy, events, effects, and a peer as it is shown.

Users import these from ``core.membership``; what they lead to is decided there. All are immutable; the three that a
simulation makes by the million are not frozen, since that makes each take three times as long, and nobody changes them.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros


class Announced(Protocol):
    """What the machine reads of an announcement; it keeps and returns the object that it was given."""

    @property
    def peer_id(self) -> str:
        """Who says it."""

    @property
    def incarnation(self) -> int:
        """Grows with each start of the peer."""

    @property
    def sequence(self) -> int:
        """Grows with each announcement of an incarnation."""


class MemberState(StrEnum):
    """What is believed of a peer."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    FAILED = "failed"
    LEFT = "left"
    EXCLUDED = "excluded"


GONE = frozenset({MemberState.FAILED, MemberState.LEFT, MemberState.EXCLUDED})
"""States of peers that do not count any more."""


@dataclass(frozen=True, slots=True)
class MembershipPolicy:
    """Times in microseconds, and bounds. The protocol document derives the bound on detection from these."""

    probe_interval_us: int = 10_000_000
    probe_timeout_us: int = 3_000_000
    helpers: int = 3
    indirect_timeout_us: int = 5_000_000
    suspect_us: int = 10_000_000
    longest_suspicion_us: int = 40_000_000
    """However often a suspect speaks without answering."""
    tombstone_us: int = 300_000_000
    mute_us: int = 600_000_000
    asymmetry_repeat_us: int = 3_600_000_000
    """The same pair is told of once in this long."""
    refute_us: int = 5_000_000
    """However many report us, we answer once in this long."""
    max_verifications: int = 32
    """Probes that others' reports may have us make at once."""
    capacity: int = 256


# --- events -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AnnouncementReceived:
    """A checked announcement that lives ``lives_us`` from now."""

    announcement: Announced
    lives_us: int


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """A peer is connected and admitted."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The last connection to an admitted peer broke."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class ConnectionParted:
    """The last connection to an admitted peer ended because both ends agreed that neither needs it."""

    peer: PeerId


@dataclass(slots=True, unsafe_hash=True)
class ProbeAnswered:
    """The peer itself answered; also late answers count."""

    peer: PeerId
    ticket: int
    rtt_us: int


@dataclass(frozen=True, slots=True)
class ProbeUnanswered:
    """The probe cannot be answered any more (a refused dial, a broken stream); silence is the machine's own to time."""

    peer: PeerId
    ticket: int


@dataclass(frozen=True, slots=True)
class IndirectAnswered:
    """A helper's word; ``is_alive`` only with the peer's own proof."""

    helper: PeerId
    peer: PeerId
    ticket: int
    is_alive: bool


@dataclass(frozen=True, slots=True)
class DownReported:
    """A report, signed by ``reporter``, that it reaches ``peer`` in that incarnation neither itself nor by others."""

    reporter: PeerId
    peer: PeerId
    incarnation: int


@dataclass(frozen=True, slots=True)
class LeavingHeard:
    """The peer's own signed word that this incarnation of it ends."""

    peer: PeerId
    incarnation: int


@dataclass(frozen=True, slots=True)
class PeerExcluded:
    """We will have nothing to do with the peer: it is banned, or put out of the overlay."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class OutOfEarshot:
    """The peer announces where we do not listen: nothing that concerns it would reach us, not even its end."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = (
    AnnouncementReceived
    | ConnectionOpened
    | ConnectionLost
    | ConnectionParted
    | ProbeAnswered
    | ProbeUnanswered
    | IndirectAnswered
    | DownReported
    | LeavingHeard
    | PeerExcluded
    | OutOfEarshot
    | DeadlinePassed
)


# --- effects ------------------------------------------------------------------
@dataclass(slots=True, unsafe_hash=True)
class SendProbe:
    """Ask the peer itself. The same ticket may be sent twice: any answer with it will do."""

    peer: PeerId
    ticket: int


@dataclass(frozen=True, slots=True)
class SendIndirectProbe:
    """Ask ``helper`` to ask ``peer``."""

    helper: PeerId
    peer: PeerId
    ticket: int


@dataclass(frozen=True, slots=True)
class ReportDown:
    """Gossip that the peer is reached by nobody we asked."""

    peer: PeerId
    incarnation: int


@dataclass(slots=True, unsafe_hash=True)
class PeerJoined:
    """A peer that was not in view, or had failed or left."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerChanged:
    """A peer in view announces something else, or is a new incarnation."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerSuspected:
    """It may be gone; it still counts."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerRecovered:
    """A suspect was heard."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerFailed:
    """It does not count any more."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """It said that it goes; it does not count any more."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerForgotten:
    """It does not count: its tombstone is over, its announcement expired, it made room, or it is excluded."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class ReporterMuted:
    """A report of this peer proved false."""

    reporter: PeerId


@dataclass(frozen=True, slots=True)
class AsymmetryFound:
    """We do not reach ``peer``, but ``witness`` does."""

    peer: PeerId
    witness: PeerId


@dataclass(frozen=True, slots=True)
class RefuteSelf:
    """``reporter`` says that we are down; announce anew."""

    reporter: PeerId


Effect = (
    SendProbe
    | SendIndirectProbe
    | ReportDown
    | PeerJoined
    | PeerChanged
    | PeerSuspected
    | PeerRecovered
    | PeerFailed
    | PeerLeft
    | PeerForgotten
    | ReporterMuted
    | AsymmetryFound
    | RefuteSelf
)


# --- what is shown ------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class MemberView:
    """One peer as it stands, for status and for invariants."""

    peer: PeerId
    state: MemberState
    heard_at: Micros
    rtt_us: int | None
    witness: PeerId | None
    """Who last reached it for us; None if it was we."""
    is_connected: bool
