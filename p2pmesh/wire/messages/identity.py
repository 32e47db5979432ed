"""Messages by which a node learns whether another uses its key."""

from dataclasses import dataclass

from p2pmesh.base.limits import MAX_TWIN_ANNOUNCEMENTS
from p2pmesh.wire.schema import ListOf, declared
from p2pmesh.wire.shapes import SEALED_ANNOUNCEMENT


@dataclass(frozen=True, slots=True)
class IdentityQuery:
    """Asks what is known of the asker itself under another incarnation than in this, its own announcement."""

    announcement: bytes = declared(SEALED_ANNOUNCEMENT)


@dataclass(frozen=True, slots=True)
class IdentityAnswer:
    """Announcements of the asker, sealed as they came, of other incarnations; none if there is no other."""

    announcements: tuple[bytes, ...] = declared(ListOf(SEALED_ANNOUNCEMENT, MAX_TWIN_ANNOUNCEMENTS))
