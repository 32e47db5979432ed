"""The log of every event and effect, folded into a digest and counted as it grows."""

import hashlib

from p2pmesh.base.quantities import Micros
from p2pmesh.core.membership import AnnouncementReceived

_FOLD_AT = 4096


class Journal:
    """Two runs are the same run exactly if their digests are equal."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._lines: list[str] = []
        self._events = 0

    @property
    def events(self) -> int:
        """Events that machines have handled."""
        return self._events

    def note(self, now: Micros, where: str, event: object, effects: tuple[object, ...]) -> None:
        """One event that a machine at ``where`` handled, with its effects."""
        self._events += 1
        if isinstance(event, AnnouncementReceived):  # nearly all events; the whole record would be most of the time
            said = event.announcement
            what = f"{said.peer_id} {said.incarnation} {said.sequence} {event.lives_us}"
        else:
            what = repr(event)
        self.write(f"{now} {where} {what} {effects!r}" if effects else f"{now} {where} {what}")

    def write(self, line: str) -> None:
        """A line that is no machine's: a request's outcome, a fault."""
        self._lines.append(line)
        if len(self._lines) >= _FOLD_AT:
            self._fold()

    def digest(self) -> str:
        """32 hex digits over all lines so far."""
        self._fold()
        return self._hash.hexdigest()

    def _fold(self) -> None:
        if self._lines:
            self._hash.update("\n".join([*self._lines, ""]).encode())
            self._lines.clear()
