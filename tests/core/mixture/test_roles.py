"""Who is asked as what."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.core.auto_model import Kind
from p2pmesh.core.mixture.roles import MixturePolicy, Role, Worker, assign_roles, mixable


def test_the_largest_is_strong_and_the_smallest_fast_in_any_order() -> None:
    names = ("a-7B", "b-0.5B", "c-70B", "d-14B")
    expected = (
        Worker("c-70B", Role.STRONG),
        Worker("d-14B", Role.SPECIALIST),
        Worker("a-7B", Role.SPECIALIST),
        Worker("b-0.5B", Role.FAST),
    )
    assert {assign_roles(order, Kind.CHAT, 8) for order in permutations(names)} == {expected}


def test_two_models_are_a_strong_and_a_fast_one() -> None:
    assert assign_roles(["x-1B", "y-3B"], Kind.CHAT, 8) == (Worker("y-3B", Role.STRONG), Worker("x-1B", Role.FAST))


def test_a_name_without_a_size_passes_for_no_strong_model() -> None:
    assert assign_roles(["giant", "tiny-135M"], Kind.CHAT, 8)[0] == Worker("tiny-135M", Role.STRONG)


def test_specialists_are_those_made_for_the_kind_before_larger_ones() -> None:
    names = ["big-70B", "writer-13B", "coder-7B", "plain-9B", "small-1B"]
    asked = assign_roles(names, Kind.CODE, 3)
    assert [worker.model for worker in asked] == ["big-70B", "coder-7B", "small-1B"]
    assert [worker.model for worker in assign_roles(names, Kind.CHAT, 3)] == ["big-70B", "writer-13B", "small-1B"]


@pytest.mark.parametrize("name", ["mesh", "auto"])
def test_nobody_is_asked_under_a_virtual_name(name: str) -> None:
    """Not even where a peer announces a model of that name: a request fans out once."""
    assert mixable([name, "a", "a"]) == ("a",)
    assert assign_roles([name, "a"], Kind.CHAT, 8) == (Worker("a", Role.STRONG),)
    assert assign_roles([name], Kind.CHAT, 8) == ()


@given(
    names=st.sets(st.sampled_from(["mesh", "auto", *(f"m{n}-{n}B" for n in range(12))])),
    kind=st.sampled_from(Kind),
    most=st.integers(2, 8),
)
def test_each_model_has_one_role_within_the_bound(names: set[str], kind: Kind, most: int) -> None:
    asked = assign_roles(names, kind, most)
    real = names - {"mesh", "auto"}
    assert len({worker.model for worker in asked}) == len(asked) == min(most, len(real))
    assert [worker.role for worker in asked].count(Role.STRONG) == min(1, len(real))
    assert [worker.role for worker in asked].count(Role.FAST) == (len(real) > 1)


def test_the_published_limits_are_the_defaults() -> None:
    policy = MixturePolicy()
    limits = [policy.limits_of(role) for role in (Role.FAST, Role.SPECIALIST, Role.STRONG)]
    assert [(one.tokens, one.messages) for one in limits] == [(256, 1), (512, 4), (1024, 10)]
    assert policy.reducer_tokens == 2048
    times = (policy.worker_us, policy.reducer_us, policy.hedge_us, policy.grace_us, policy.patience_us)
    assert times == (60_000_000, 60_000_000, 5_000_000, 3_000_000, 20_000_000)
    assert (policy.confidence_milli, policy.tool_confidence_milli) == (500, 600)
