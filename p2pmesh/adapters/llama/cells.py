"""Which cells of the unified KV cache the sequences hold, and in which order.

Attention adds up a sequence's cells in cell order. So that a sequence's bits do not depend on its neighbours, its
cells must ascend with its positions. llama.cpp takes the first free cell from a moving head on, and moves the head back
to any cell that is freed; a hole left by one sequence would then be filled by the next row of another, out of order.

The cure kept here: the cache is a log. Rows go to its end. What is dropped while another sequence lives is not freed
but handed to a grave sequence, which keeps the hole occupied; when the log is full, or mostly graves, it is rewritten:
each live sequence's cells are saved, the cache cleared, and the cells written back in order. An engine without live
sequences clears the cache. (The scratch row of a padded call sits at the end and is freed before anything else is
added, so it leaves no hole.)

Cells may belong to several sequences that begin alike. A rewrite gives each its own; there is room for that, since
every lane is counted in full.
"""

from typing import Any, Protocol

_GRAVES_WORTH_A_REWRITE = 512


class Cache(Protocol):
    """What the log needs of a loaded stage (``LoadedStage`` has it)."""

    def drop_cells(self, sequence: int, start: int) -> None: ...
    def share_cells(self, source: int, target: int, start: int, end: int = -1) -> None: ...
    def clear_cells(self) -> None: ...
    def save_cells(self, sequence: int) -> Any: ...
    def restore_cells(self, sequence: int, buffer: Any) -> bool: ...


class CellLog:
    """Accounts for the cells of lanes ``0 … lanes - 1``; the lane number is llama.cpp's sequence id."""

    def __init__(self, cache: Cache, lanes: int, cells: int) -> None:
        self._cache = cache
        self._held = [0] * lanes
        self._used = 0
        self._has_graves = False
        self._cells = cells
        self.scratch_sequence = lanes
        self._grave_sequence = lanes + 1

    def held(self, lane: int) -> int:
        """Positions that a lane holds, from 0."""
        return self._held[lane]

    def used(self) -> int:
        """Cells that are not free; the log ends there."""
        return self._used

    def truncate(self, lane: int, start: int) -> None:
        """Drops what a lane holds from position ``start`` on."""
        dropped = self._held[lane] - start
        if dropped <= 0:
            return
        self._held[lane] = start
        if not any(self._held):
            self._clear()
            return
        others_live = any(held for index, held in enumerate(self._held) if index != lane)
        if others_live or self._has_graves:
            self._cache.share_cells(lane, self._grave_sequence, start)
            self._has_graves = True
        else:
            self._used -= dropped
        self._cache.drop_cells(lane, start)

    def copy(self, source: int, target: int, rows: int) -> None:
        """An empty lane holds the first ``rows`` positions of another's from now on."""
        self._cache.share_cells(source, target, 0, rows)
        self._held[target] = rows

    def make_room(self, rows: int) -> tuple[int, ...]:
        """Before a call: rewrites the log if ``rows`` do not fit or graves prevail. The lanes that were lost by it."""
        live = sum(self._held)  # cells of several lanes count for each: the fewer graves seem to be there
        is_full = self._used + rows > self._cells
        if self._has_graves and (is_full or self._used - live >= max(_GRAVES_WORTH_A_REWRITE, live)):
            return self._rewrite()
        return ()

    def grow(self, lane: int, rows: int) -> None:
        """After a call: the lane holds ``rows`` more positions."""
        self._held[lane] += rows
        self._used += rows

    def _clear(self) -> None:
        self._cache.clear_cells()
        self._used = 0
        self._has_graves = False

    def _rewrite(self) -> tuple[int, ...]:
        saved = [(lane, self._cache.save_cells(lane)) for lane, held in enumerate(self._held) if held]
        self._clear()
        lost = [lane for lane, cells in saved if cells is None or not self._cache.restore_cells(lane, cells)]
        for lane in lost:
            self._held[lane] = 0
        self._used = sum(self._held)
        return tuple(lost)
