"""Events of a node's services on their way to the operator: with what only ``up`` knows, many alike folded into one.

Which events are folded is ``app.event_folding``'s.
"""

from typing import Any

import trio

from p2pmesh.app.event_folding import EventFolding
from p2pmesh.app.events import Emit, EventName
from p2pmesh.base.quantities import micros

FOLDED_TOLD_EVERY_S = 10.0


class NodeEvents:
    """Of one ``up``, whichever node it runs."""

    def __init__(self, emit: Emit, api_url: str) -> None:
        self._emit = emit
        self._api_url = api_url
        self._folding = EventFolding()

    def report(self, name: str, fields: dict[str, Any]) -> None:
        """Implements ``node.reporting.Report``."""
        if name == EventName.READY.value:
            fields = {"api_url": self._api_url, **fields}
        for event in self._folding.take(EventName(name), fields, micros(trio.current_time())):
            self._emit(event)

    async def keep_telling(self) -> None:
        """A peer may stop before the count of what it did is told."""
        while True:
            await trio.sleep(FOLDED_TOLD_EVERY_S)
            for event in self._folding.take_due(micros(trio.current_time())):
                self._emit(event)
