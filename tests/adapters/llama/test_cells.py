"""The cell log keeps every sequence's cells in ascending order, against a cache that places rows like llama.cpp."""

from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.adapters.llama.cells import CellLog

LANES = 3
CELLS = 120


class FakeCache:
    """First free cell from a moving head; freed cells pull the head back; far ahead, it starts over."""

    def __init__(self) -> None:
        self.cells: list[set[tuple[int, int]]] = [set() for _ in range(CELLS)]
        self.head = 0

    def place(self, rows: list[tuple[int, int]]) -> None:
        if self.head > sum(map(bool, self.cells)) + 2 * len(rows):
            self.head = 0
        for row in rows:
            while self.cells[self.head % CELLS]:
                self.head += 1
            self.cells[self.head % CELLS].add(row)
            self.head = self.head % CELLS + 1

    def drop_cells(self, sequence: int, start: int) -> None:
        for index, owners in enumerate(self.cells):
            kept = {owner for owner in owners if owner[0] != sequence or owner[1] < start}
            if owners and not kept:
                self.head = min(self.head, index)
            self.cells[index] = kept

    def share_cells(self, source: int, target: int, start: int, end: int = -1) -> None:
        stop = CELLS if end < 0 else end
        for owners in self.cells:
            owners |= {(target, position) for owner, position in owners if owner == source and start <= position < stop}

    def clear_cells(self) -> None:
        self.cells = [set() for _ in range(CELLS)]
        self.head = 0

    def save_cells(self, sequence: int) -> list[int]:
        return self.positions(sequence)

    def restore_cells(self, sequence: int, buffer: list[int]) -> bool:
        self.place([(sequence, position) for position in buffer])
        return True

    def positions(self, sequence: int) -> list[int]:
        return [position for owners in self.cells for owner, position in owners if owner == sequence]


def grow(cache: FakeCache, log: CellLog, lane: int, rows: int) -> None:
    assert log.make_room(rows + 1) == ()
    start = log.held(lane)
    placed = [(lane, start + index) for index in range(rows)]
    cache.place([*placed, (log.scratch_sequence, 0)])
    cache.drop_cells(log.scratch_sequence, 0)
    log.grow(lane, rows)


STEPS = st.tuples(
    st.integers(0, LANES - 1), st.sampled_from(["grow", "cut", "copy"]), st.integers(0, 40), st.integers(0, LANES - 1)
)


@given(st.lists(STEPS, max_size=120))
@settings(max_examples=300)
def test_the_cells_of_a_sequence_ascend_whatever_its_neighbours_do(steps):
    cache = FakeCache()
    log = CellLog(cache, LANES, CELLS)
    for lane, what, amount, source in steps:
        room = CELLS // LANES - 1 - log.held(lane)
        if what == "grow" and room > 0:
            grow(cache, log, lane, 1 + amount % min(room, 8))
        elif what == "cut":
            log.truncate(lane, min(amount, log.held(lane)))
        elif what == "copy" and log.held(lane) == 0 and log.held(source) > 0:
            log.copy(source, lane, 1 + amount % log.held(source))
        for each in range(LANES):
            assert cache.positions(each) == list(range(log.held(each)))
    assert log.used() == sum(map(bool, cache.cells))


def test_an_idle_engine_starts_at_the_first_cell_again():
    cache = FakeCache()
    log = CellLog(cache, LANES, CELLS)
    grow(cache, log, 0, 5)
    grow(cache, log, 1, 5)
    log.truncate(0, 0)
    assert log.used() == 10
    log.truncate(1, 0)
    assert log.used() == 0
    assert cache.head == 0


def test_without_the_graves_a_hole_would_break_the_order():
    cache = FakeCache()
    cache.place([(0, position) for position in range(5)])
    cache.place([(1, position) for position in range(5)])
    cache.drop_cells(0, 0)
    cache.place([(1, 5)])
    assert cache.positions(1) != list(range(6))
