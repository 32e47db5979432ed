"""Refused peers as an operator hears of them: once per peer and reason and hour, with how often it happened.

A peer that was put out asks again for as long as it runs; each of its questions as a line of its own would hide all
else. What a refusal is and means stays in ``core.credentials``.
"""

from dataclasses import dataclass
from typing import Any

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros

TELL_AGAIN_US = 3600 * MICROS_PER_SECOND
MAX_REMEMBERED = 256
"""Peers and reasons; beyond, the one that was refused longest ago is forgotten."""


@dataclass(slots=True)
class _Refused:
    code: ErrorCode
    message: str
    count: int = 0
    untold: int = 0
    told_at: Micros | None = None


class RefusalBook:
    """Who was refused, why, and how often; the latest last."""

    def __init__(self) -> None:
        self._refused: dict[tuple[PeerId, str], _Refused] = {}

    def note(self, peer: PeerId, code: ErrorCode, message: str, now: Micros) -> int:
        """Counts a refusal. How many to tell of now, this one and those that were not told; 0: nothing new."""
        key = (peer, f"{code.value} {message.partition(':')[0]}")
        entry = self._refused.pop(key, None) or _Refused(code, message)
        while len(self._refused) >= MAX_REMEMBERED:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = entry
        entry.message = message
        entry.count += 1
        entry.untold += 1
        if entry.told_at is not None and now - entry.told_at < TELL_AGAIN_US:
            return 0
        entry.told_at = now
        told, entry.untold = entry.untold, 0
        return told

    def describe(self, limit: int) -> list[dict[str, Any]]:
        """The latest ``limit``, one for each peer and reason, as values that JSON can hold."""
        latest = list(self._refused.items())[-limit:]
        return [
            {"peer_id": peer, "code": entry.code.value, "message": entry.message, "count": entry.count}
            for (peer, _), entry in latest
        ]
