"""Messages that answer requests of several conversations: not carried out, and why; carried out."""

from dataclasses import dataclass

from p2pmesh.base.limits import MAX_REASON_BYTES, MAX_RETRY_AFTER_S
from p2pmesh.wire.schema import Integer, Line, Text, declared


@dataclass(frozen=True, slots=True)
class Refusal:
    """Any request's refusal: an ``ErrorCode`` (a code the reader does not know reads as internal) and a line.

    ``retry_after_s``: when asking again may be of use; 0: nothing is said of that.
    """

    code: str = declared(Text(64))
    message: str = declared(Line(MAX_REASON_BYTES))
    retry_after_s: int = declared(Integer(0, MAX_RETRY_AFTER_S), default=0)


@dataclass(frozen=True, slots=True)
class Done:
    """A request was carried out."""
