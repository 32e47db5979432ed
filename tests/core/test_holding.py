"""Which rows go how far: every stage ends up whole, and none computes what it need not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.holding import Held, Reach

CHUNK, PROMPT, LAST = 4, 10, 17
STAGES = st.lists(st.builds(Held, st.integers(0, 30), st.booleans()), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("rows", "last", "usable"),
    [
        (0, LAST, 0),
        (3, LAST, 0),  # no chunk ends there
        (8, LAST, 8),
        (9, LAST, 8),
        (10, LAST, 10),  # the prompt's last chunk is short
        (13, LAST, 13),
        (17, LAST, 17),
        (18, LAST, 17),  # the last row is sampled, and may be here only because its token got lost
        (30, LAST, 17),
        (10, 9, 8),  # nothing was given out: the last chunk is sampled again
        (8, 9, 8),
    ],
)
def test_what_counts_of_what_a_stage_says_that_it_holds(rows: int, last: int, usable: int) -> None:
    assert Held(rows).usable(CHUNK, PROMPT, last) == Held(usable)
    fixed = usable if rows == usable else 0
    assert Held(rows, is_fixed=True).usable(CHUNK, PROMPT, last) == Held(fixed, is_fixed=True)


@pytest.mark.parametrize(
    ("held", "first", "stages"),
    [
        ([], 0, [0, 0, 0]),
        ([0, 9, 9], 0, [1, 1, 0]),  # the first is new: no other computes a row but the last ones
        ([9, 0, 9], 0, [2, 2, 0]),
        ([9, 9, 0], 0, [0, 0, 0]),  # the last is new: all that it is given must be computed again
        ([0, 0, 0], 0, [0, 0, 0]),
        ([9, 9, 9], 9, [0, 0, 0]),  # nothing is lost but a connection
        ([0, 4, 9], 0, [1, 2, 0]),
        ([9, 4, 9], 4, [0, 2, 0]),
    ],
)
def test_rows_go_to_the_last_stage_that_lacks_them(held: list[int], first: int, stages: list[int]) -> None:
    reach = Reach([Held(rows) for rows in held])
    assert reach.first == first
    assert [reach.stages(row) for row in (0, 4, 9) if row >= first] == [
        count for row, count in zip((0, 4, 9), stages, strict=True) if row >= first
    ]


def test_one_state_that_would_have_to_go_back_is_computed_anew() -> None:
    assert Reach([Held(9, is_fixed=True), Held(8, is_fixed=True)]).first == 0
    assert Reach([Held(9, is_fixed=True), Held(9, is_fixed=True)]).first == 9
    assert Reach([Held(0, is_fixed=True), Held(8, is_fixed=True)]).stages(7) == 1


@given(STAGES)
def test_every_stage_ends_up_with_every_row_and_is_never_asked_to_go_where_it_cannot(held: list[Held]) -> None:
    stages = [one.usable(CHUNK, PROMPT, LAST) for one in held]
    reach = Reach(stages)
    kept = [one.rows for one in stages]
    computed = [0] * len(kept)
    row = reach.first
    while row <= LAST:
        end = min(reach.next_edge(row), LAST + 1)
        for index in range(reach.stages(row) or len(kept)):
            can_go_back = not stages[index].is_fixed or row in (0, kept[index])
            assert row <= kept[index]
            assert can_go_back
            kept[index] = end
            computed[index] += end - row
        row = end
    assert kept == [LAST + 1] * len(kept)
    for index, stage in enumerate(stages):
        needed = min(one.rows for one in stages[index:])
        assert computed[index] == LAST + 1 - needed or (
            computed[index] == LAST + 1 and any(one.is_fixed for one in stages[index:])
        ), stage
