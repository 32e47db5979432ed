"""How many engines this peer keeps ready for stages that others may lose, and for how many of whom.

Counted apart from stages: engines that are wanted in case keep no run from loading, nor one peer's all others'. How
they wait is ``node.engine_shelf``'s.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import PeerId

MAX_FOR_A_PEER = 8
"""That one coordinator may have kept here."""


class StandbyRoom:
    """Room for ``most`` engines, of which ``most_loading`` may not be up yet; for one peer one less of these."""

    def __init__(self, most: int, most_loading: int) -> None:
        self._most = most
        self._most_loading = most_loading
        self._taken: list[tuple[PeerId, trio.Event]] = []
        """By whom, and whether the engine is up."""

    @contextmanager
    def taken_for(self, peer: PeerId) -> Iterator[trio.Event]:
        """A place for one engine, whose event is to be set once it is up; raises ``Refused`` where there is none."""
        loading = _loading([is_up for _, is_up in self._taken])
        if len(self._taken) >= self._most or loading >= self._most_loading:
            ready = len(self._taken) - loading
            text = f"this peer keeps {ready} engines ready and loads {loading}; try again later"
            raise Refused(ErrorCode.OVERLOADED, text)
        theirs = [is_up for other, is_up in self._taken if other == peer]
        if len(theirs) >= MAX_FOR_A_PEER or _loading(theirs) >= self._most_loading - 1:
            text = f"this peer keeps or loads {len(theirs)} engines for you, and leaves room for others"
            raise Refused(ErrorCode.OVERLOADED, text)
        place = (peer, trio.Event())
        self._taken.append(place)
        try:
            yield place[1]
        finally:
            self._taken.remove(place)


def _loading(engines: list[trio.Event]) -> int:
    return sum(not is_up.is_set() for is_up in engines)
