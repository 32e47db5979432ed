"""Which connections of a large overlay end when nothing needs them."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.core.connections import DEFAULT_POLICY, ConnectionPolicy, Standing, choose_idle, is_large

LONG_US = 10 * DEFAULT_POLICY.idle_us
POLICY = ConnectionPolicy(standing=3, near_kept=2, ended_at_once=9)
CONNECTIONS = st.lists(
    st.builds(Standing, st.from_regex(r"[a-z]{1,9}", fullmatch=True).map(PeerId), st.booleans(), st.booleans(),
              st.integers(0, LONG_US)),
    max_size=40, unique_by=lambda one: one.peer,
)  # fmt: skip


def standing(name: str, *, near: bool = False, used: bool = False, idle_us: int = LONG_US) -> Standing:
    return Standing(PeerId(name), near, used, idle_us)


def test_an_overlay_is_large_beyond_what_one_can_be_connected_to_or_where_it_is_cut() -> None:
    assert not is_large(32, has_shards=False)
    assert is_large(33, has_shards=False)
    assert is_large(3, has_shards=True)


def test_a_handful_stays_however_idle() -> None:
    assert choose_idle([standing(name) for name in "abc"], POLICY) == ()


def test_those_to_other_shards_end_first_the_longest_idle_before_the_others() -> None:
    far = [standing("a", idle_us=LONG_US - 2), standing("b"), standing("c", idle_us=LONG_US - 1)]
    near = [standing(name, near=True) for name in "defg"]
    assert choose_idle([*near, *far], POLICY) == ("b", "c", "a", "d")


def test_some_of_our_own_shards_stay_and_whatever_is_used() -> None:
    near = [standing(name, near=True) for name in "abcd"]
    used = [standing(name, used=True) for name in "efgh"]
    assert choose_idle([*near, *used], POLICY) == ("a", "b")


def test_what_was_used_a_moment_ago_is_not_idle() -> None:
    assert choose_idle([standing(name, idle_us=DEFAULT_POLICY.idle_us - 1) for name in "abcdef"], POLICY) == ()


def test_only_some_end_at_once() -> None:
    assert len(choose_idle([standing(f"p{n}") for n in range(90)])) == DEFAULT_POLICY.ended_at_once


@given(CONNECTIONS)
def test_nothing_needed_ends_and_enough_stay(connections: list[Standing]) -> None:
    chosen = choose_idle(connections, POLICY)
    by_peer = {one.peer: one for one in connections}
    assert len(set(chosen)) == len(chosen) <= POLICY.ended_at_once
    assert not any(by_peer[peer].is_used or by_peer[peer].idle_us < POLICY.idle_us for peer in chosen)
    if chosen:
        assert len(connections) - len(chosen) >= POLICY.standing
    near = sum(one.is_near for one in connections)
    left = near - sum(by_peer[peer].is_near for peer in chosen)
    assert left >= min(near, POLICY.near_kept)
