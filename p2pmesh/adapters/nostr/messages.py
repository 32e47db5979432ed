"""What a client and a relay say to each other, one JSON array a message (NIP-01, NIP-20, NIP-42): text and records.

Nothing here raises on a relay's bytes: what cannot be read is ``None``.
"""

import json
from dataclasses import dataclass
from typing import Any

from p2pmesh.base.limits import MAX_LISTING_EVENT_BYTES
from p2pmesh.ports.relays import PublishOutcome
from p2pmesh.wire.schema import as_line

_MAX_REASON_BYTES = 200
_MAX_CHALLENGE_BYTES = 1024
_FRAME_BYTES = 512
"""More than what stands round an event in a message."""
_LARGEST = 2**53
_OUTCOMES = {
    "duplicate": PublishOutcome.ACCEPTED,
    "rate-limited": PublishOutcome.RATE_LIMITED,
    "blocked": PublishOutcome.BLOCKED,
    "restricted": PublishOutcome.BLOCKED,
    "auth-required": PublishOutcome.AUTH_REQUIRED,
    "pow": PublishOutcome.POW_REQUIRED,
    "invalid": PublishOutcome.INVALID,
}


@dataclass(frozen=True, slots=True)
class EventMessage:
    """An event of a subscription, as JSON text; ``text`` is empty for one that is too large to be looked at."""

    subscription: str
    text: str
    created_unix_s: int | None = None
    """As it says, unchecked."""


@dataclass(frozen=True, slots=True)
class OkMessage:
    """What became of an event of ours."""

    event_id: str
    outcome: PublishOutcome
    detail: str


@dataclass(frozen=True, slots=True)
class EndMessage:
    """Everything stored was sent (EOSE)."""

    subscription: str


@dataclass(frozen=True, slots=True)
class ClosedMessage:
    """The relay does not go on with a subscription."""

    subscription: str
    outcome: PublishOutcome
    detail: str


@dataclass(frozen=True, slots=True)
class AuthMessage:
    """The challenge to sign."""

    challenge: str


@dataclass(frozen=True, slots=True)
class NoticeMessage:
    """A word for people."""

    text: str


RelayMessage = EventMessage | OkMessage | EndMessage | ClosedMessage | AuthMessage | NoticeMessage


def encode_event(event_text: str) -> str:
    """Publishes an event."""
    return f'["EVENT",{event_text}]'


def encode_auth(event_text: str) -> str:
    """Answers a challenge."""
    return f'["AUTH",{event_text}]'


def encode_request(subscription: str, query: dict[str, Any]) -> str:
    """Asks for stored events."""
    return json.dumps(["REQ", subscription, query], separators=(",", ":"))


def encode_close(subscription: str) -> str:
    """Ends a subscription."""
    return json.dumps(["CLOSE", subscription], separators=(",", ":"))


def outcome_of(is_accepted: bool, reason: str) -> PublishOutcome:
    """What an OK means, by its machine-readable prefix."""
    if is_accepted:
        return PublishOutcome.ACCEPTED
    return _OUTCOMES.get(reason.partition(":")[0].strip().lower(), PublishOutcome.FAILED)


def decode_message(text: str) -> RelayMessage | None:
    """The record of a message; None for one of another kind or form."""
    if len(text) > MAX_LISTING_EVENT_BYTES + _FRAME_BYTES:
        return EventMessage("", "")  # not parsed: nothing else of a relay's is so long
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(plain, list) or not plain or not isinstance(plain[0], str):
        return None
    return _decoded(plain)


def _decoded(plain: list[Any]) -> RelayMessage | None:
    match plain:
        case ["EVENT", str(subscription), event, *_]:
            return EventMessage(subscription, json.dumps(event), _created_of(event))
        case ["OK", str(event_id), bool(is_accepted), *rest]:
            detail = _line(rest)
            return OkMessage(event_id, outcome_of(is_accepted, detail), detail)
        case ["EOSE", str(subscription), *_]:
            return EndMessage(subscription)
        case ["CLOSED", str(subscription), *rest]:
            detail = _line(rest)
            return ClosedMessage(subscription, outcome_of(False, detail), detail)
        case ["AUTH", str(challenge), *_] if _can_be_signed(challenge):
            return AuthMessage(challenge)
        case ["NOTICE", *rest]:
            return _notice(_line(rest))
    return None


def _notice(text: str) -> RelayMessage:
    """Relays from before CLOSED refuse a request by a notice that begins as their OK would; there is one at a time."""
    outcome = outcome_of(False, text)
    is_refusal = outcome is not PublishOutcome.FAILED or text.lower().startswith("error")
    return ClosedMessage("", outcome, text) if is_refusal else NoticeMessage(text)


def _can_be_signed(challenge: str) -> bool:
    """Whether a challenge has a UTF-8 form of bounded length: JSON can spell a lone surrogate."""
    try:
        return len(challenge.encode()) <= _MAX_CHALLENGE_BYTES
    except UnicodeEncodeError:
        return False


def _created_of(event: Any) -> int | None:
    created = event.get("created_at") if isinstance(event, dict) else None
    return created if type(created) is int and 0 <= created <= _LARGEST else None


def _line(rest: list[Any]) -> str:
    return as_line(rest[0], _MAX_REASON_BYTES) if rest and isinstance(rest[0], str) else ""
