"""What is kept of prompts, what gives way, and how much a new one shares: whole calls, never the last token."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.core.prefix_index import OpenPrompts, PrefixIndex, PrefixPolicy, SharedPrefix

POLICY = PrefixPolicy(grid_tokens=3, least_tokens=6, most_sequences=3, most_tokens=30)
ONE, TWO, THREE, FOUR = ((bytes([number]) * 16, 0) for number in range(4))


def index_of(*prompts: Sequence[int]) -> PrefixIndex:
    index = PrefixIndex(POLICY)
    for key, prompt in zip((ONE, TWO, THREE, FOUR), prompts, strict=False):
        index.keep(key, prompt)
    return index


@pytest.mark.parametrize(
    ("kept", "prompt", "rows"),
    [
        (range(12), [*range(12), 99], 12),
        (range(12), range(12), 9),  # the last token is always computed
        (range(12), [*range(10), 99, 99], 9),
        (range(14), [*range(14), 99], 12),  # a call that was not whole
        (range(12), [*range(5), 99, 99, 99], None),  # not worth it
        (range(5), range(12), None),  # not kept
        (range(12), [99, *range(12)], None),
        (range(12), [], None),
    ],
)
def test_a_prompt_shares_whole_calls(kept: Sequence[int], prompt: Sequence[int], rows: int | None) -> None:
    assert index_of(list(kept)).find(list(prompt)) == (None if rows is None else SharedPrefix(ONE, rows))


def test_the_longest_is_found_and_of_equals_the_last() -> None:
    index = index_of([*range(6), 50, 50, 50], [*range(9), 60], [*range(6), 70, 70, 70])
    assert index.find([*range(9), 80]) == SharedPrefix(TWO, 9)
    assert index.find([*range(6), 80]) == SharedPrefix(THREE, 6)
    index.use(ONE)
    assert index.find([*range(6), 80]) == SharedPrefix(ONE, 6)


def test_a_prompt_that_goes_on_takes_the_place_of_the_one_before() -> None:
    index = index_of(range(9))
    assert index.keep(TWO, range(12)) == (ONE,)
    assert index.keep(THREE, range(12)) == (THREE,)
    assert index.keep(FOUR, range(9)) == (FOUR,)
    assert index.find(range(13)) == SharedPrefix(TWO, 12)


def test_the_least_recently_used_gives_way_to_numbers_and_to_rows() -> None:
    index = index_of([1] * 6, [2] * 6, [3] * 6)
    index.use(ONE)
    assert index.keep(FOUR, [4] * 6) == (TWO,)
    assert index.keep(TWO, [5] * 21) == (THREE, ONE)
    assert (index.oldest(), index.oldest(besides=FOUR)) == (FOUR, TWO)


class AnyOrder(RuleBasedStateMachine):
    """Against a search of every length in every prompt that was ever kept."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(POLICY)
        self.prompts: dict[tuple[bytes, int], list[int]] = {}

    keys = st.sampled_from((ONE, TWO, THREE, FOUR))
    texts = st.lists(st.integers(0, 1), max_size=20)

    @rule(key=keys, prompt=texts)
    def keep(self, key: tuple[bytes, int], prompt: list[int]) -> None:
        if key in self.prompts:
            self.index.drop(key)
        self.prompts[key] = prompt
        for dropped in self.index.keep(key, prompt):
            del self.prompts[dropped]

    @rule(key=keys)
    def drop(self, key: tuple[bytes, int]) -> None:
        self.index.drop(key)
        self.prompts.pop(key, None)

    @rule(key=keys)
    def use(self, key: tuple[bytes, int]) -> None:
        self.index.use(key)

    @rule(prompt=texts)
    def find(self, prompt: list[int]) -> None:
        found = self.index.find(prompt)
        lengths = [
            rows
            for kept in self.prompts.values()
            for rows in range(6, min(len(prompt), len(kept) + 1), 3)
            if kept[:rows] == prompt[:rows]
        ]
        assert (found.rows if found else 0) == max(lengths, default=0)
        if found:
            assert self.prompts[found.key][: found.rows] == prompt[: found.rows]

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.index) == len(self.prompts) <= 3
        assert sum(self.index.rows(key) for key in self.prompts) <= 30


TestAnyOrder = AnyOrder.TestCase


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40))
def test_halving_finds_what_counting_finds(one: list[int], other: list[int]) -> None:
    policy = PrefixPolicy(grid_tokens=1, least_tokens=1, most_sequences=1, most_tokens=99)
    index = PrefixIndex(policy)
    index.keep(ONE, one)
    found = index.find([*other, 9])
    equal = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    assert (found.rows if found else 0) == (min(len(one), len(other)) if equal is None else equal)


REQUEST, OTHER = ONE[0], TWO[0]


@pytest.mark.parametrize(
    ("open_one", "prompt", "request_id", "rows"),
    [
        (range(8), range(8), OTHER, 6),
        (range(8), [*range(6), 99], OTHER, 6),  # the calls that can be shared are the same
        (range(8), range(10), OTHER, None),  # this one has more to share than the other gives
        (range(8), [*range(5), 99, 99], OTHER, None),
        (range(7), range(6), OTHER, None),  # one call, the last token being sampled: not worth it for another request
        (range(5), range(5), OTHER, None),
        (range(5), range(5), REQUEST, 3),  # for a choice of the same one it is
        (range(3), range(3), REQUEST, None),
    ],
)
def test_a_prompt_waits_for_one_that_has_all_its_rows(
    open_one: Sequence[int], prompt: Sequence[int], request_id: bytes, rows: int | None
) -> None:
    prompts = OpenPrompts(POLICY)
    prompts.add(ONE, open_one)
    assert prompts.find_coming(prompt, request_id) == (None if rows is None else ONE)
    assert prompts.find_read(prompt, request_id) is None
    prompts.note_read(ONE)
    assert prompts.find_coming(prompt, request_id) is None
    assert prompts.find_read(prompt, request_id) == (None if rows is None else SharedPrefix(ONE, rows))
    prompts.remove(ONE)
    assert prompts.find_read(prompt, request_id) is None


class OpenInAnyOrder(RuleBasedStateMachine):
    """Nobody waits for one that is read, over, or of other tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts = OpenPrompts(POLICY)
        self.open: dict[tuple[bytes, int], tuple[list[int], bool]] = {}

    keys = st.sampled_from((ONE, TWO, THREE))
    texts = st.lists(st.integers(0, 1), min_size=1, max_size=9)

    @rule(key=keys, prompt=texts)
    def add(self, key: tuple[bytes, int], prompt: list[int]) -> None:
        self.prompts.add(key, prompt)
        self.open[key] = (prompt, False)

    @rule(key=keys)
    def note_read(self, key: tuple[bytes, int]) -> None:
        self.prompts.note_read(key)
        if key in self.open:
            self.open[key] = (self.open[key][0], True)

    @rule(key=keys)
    def remove(self, key: tuple[bytes, int]) -> None:
        self.prompts.remove(key)
        self.open.pop(key, None)

    @rule(prompt=texts, request_id=st.sampled_from((REQUEST, OTHER)))
    def find(self, prompt: list[int], request_id: bytes) -> None:
        rows = (len(prompt) - 1) // 3 * 3
        alike = {
            key: is_read
            for key, (other, is_read) in self.open.items()
            if (len(other) - 1) // 3 * 3 == rows >= (3 if key[0] == request_id else 6) and other[:rows] == prompt[:rows]
        }
        coming = self.prompts.find_coming(prompt, request_id)
        assert (coming in alike and not alike[coming]) if coming else all(alike.values())
        read = self.prompts.find_read(prompt, request_id)
        assert (alike[read.key] and read.rows == rows) if read else not any(alike.values())

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.prompts) == len(self.open)


TestOpenInAnyOrder = OpenInAnyOrder.TestCase
