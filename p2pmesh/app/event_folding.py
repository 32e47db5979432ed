"""Events about peers on their way out: a few equal ones a minute are told, the rest is one line with a count."""

from collections.abc import Mapping
from typing import Any

from p2pmesh.app.events import Event, EventName, folded
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.folding import FoldingMachine, FoldingPolicy

_FOLDED = frozenset(
    {
        EventName.PEER_JOINED,
        EventName.PEER_LEFT,
        EventName.PEER_FAILED,
        EventName.PEER_SUSPECTED,
        EventName.PEER_RECOVERED,
        EventName.REPORTER_MUTED,
        EventName.PEER_REFUSED,
        EventName.VISIBILITY_ASYMMETRIC,
        EventName.ARTIFACT_SOURCE_DROPPED,
    }
)

_Subject = tuple[EventName, str | None]
"""An event and its peer; None stands for all peers for which there was no room."""


class EventFolding:
    """Lets events through, or counts them."""

    def __init__(self, policy: FoldingPolicy | None = None) -> None:
        self._policy = policy or FoldingPolicy()
        self._machine: FoldingMachine[_Subject] = FoldingMachine(self._policy)

    def take(self, name: EventName, fields: Mapping[str, Any], now: Micros) -> list[Event]:
        """What is to be told when this event comes: counts that are due, and the event unless it is folded."""
        told = self.take_due(now)
        if self._is_told(name, fields.get("peer_id"), now):
            told.append(Event(name, fields))
        return told

    def take_due(self, now: Micros) -> list[Event]:
        """Counts of windows that are over."""
        window_s = self._policy.window_us // MICROS_PER_SECOND
        return [folded(name, peer, count, window_s) for (name, peer), count in self._machine.take_due(now)]

    def _is_told(self, name: EventName, peer: Any, now: Micros) -> bool:
        if name not in _FOLDED or not isinstance(peer, str):
            return True
        subject: _Subject = (name, peer)
        return self._machine.is_shown(subject if self._machine.has_room_for(subject) else (name, None), now)
