"""Relays of public listings as the node sees them: a listing put there, taken away, and those of others found.

A relay is a third party: it is asked only through this port, so a node without one contacts none. No call waits for a
relay that is dead: each has its own pace, and what it said last stands in ``states``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Protocol

from p2pmesh.core.listings import RejectionCount
from p2pmesh.wire.listing import Listing, ListingContent


class RelayPhase(Enum):
    """Where the way to a relay stands."""

    UNUSED = "unused"
    """Nothing was asked of it yet."""
    ANSWERING = "answering"
    WAITING = "waiting"
    """It failed, or asked for patience; it is tried again at ``RelayState.retry_s``."""
    REFUSING = "refusing"
    """It does not take our listing, and saying it again would not help; others can still be read there."""


class PublishOutcome(StrEnum):
    """What came of an event at a relay: its ``OK``, by the prefixes of NIP-01 and NIP-42, or what kept it away."""

    ACCEPTED = "accepted"
    RATE_LIMITED = "rate_limited"
    BLOCKED = "blocked"
    AUTH_REQUIRED = "auth_required"
    """It wants to know who we are, and our answer (NIP-42) was not enough."""
    POW_REQUIRED = "pow_required"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    """Beyond its limits (NIP-11) even without what matters least."""
    FAILED = "failed"
    """A fault of the relay's, or no answer in time."""
    UNREACHABLE = "unreachable"
    WAITING = "waiting"
    """Not asked: its pause is not over."""


@dataclass(frozen=True, slots=True)
class RelayReply:
    """One relay's part in a publication or a deletion; ``detail`` is a line for a person."""

    url: str
    outcome: PublishOutcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What became of an event, relay by relay, in the order of the configuration."""

    replies: tuple[RelayReply, ...]

    @property
    def accepted(self) -> int:
        """How many relays have it."""
        return sum(reply.outcome is PublishOutcome.ACCEPTED for reply in self.replies)


@dataclass(frozen=True, slots=True)
class RelayState:
    """What a status page or ``doctor`` shows of a relay. ``retry_s``: until it is tried again; None: it need not be."""

    url: str
    phase: RelayPhase
    detail: str = ""
    failures: int = 0
    """One after another, until now."""
    retry_s: float | None = None


@dataclass(frozen=True, slots=True)
class FoundListings:
    """What the relays had: listings that passed every rule, newest first, one a publisher; and why others did not."""

    listings: tuple[Listing, ...]
    rejections: tuple[RejectionCount, ...]
    answered: tuple[str, ...]
    """URLs of the relays that gave all they had in time."""


@dataclass(frozen=True, slots=True)
class ListingQuery:
    """What is asked. ``publishers``: only theirs (hex public keys); none is everyone's."""

    publishers: tuple[str, ...] = ()
    takes_private: bool = False
    """Also pools at private and loopback addresses: for relays of one's own network."""


def why_silent(states: Iterable[RelayState]) -> str:
    """Of relays none of which answered, what each said last: part of a line for a person."""
    return "; ".join(f"{one.url}: {one.detail or 'no answer in time'}" for one in states)


class Relays(Protocol):
    """The configured relays, by one key of ours."""

    @property
    def publisher(self) -> str:
        """Our own public key, 64 hex digits."""

    async def publish(self, content: ListingContent, timeout_s: float) -> PublishReport:
        """Puts our listing in the place of our former one, at every relay that answers within ``timeout_s``.

        Dated now, for ``wire.listing.LIFE_S``. Never raises but ``LocalProtocolError`` for content no reader takes.
        """

    async def delete(self, timeout_s: float) -> PublishReport:
        """Asks every relay to forget our listing (NIP-09). Never raises."""

    async def fetch(self, query: ListingQuery, timeout_s: float) -> FoundListings:
        """What the relays that answer within ``timeout_s`` have. Never raises; finds nothing where none answers."""

    def states(self) -> tuple[RelayState, ...]:
        """Of each relay, in the order of the configuration."""
