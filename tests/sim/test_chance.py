"""Chance per (seed, peer, machine)."""

from p2pmesh.sim.chance import Chance

PINNED = [481, 989, 78, 758, 620]


def draws(chance: Chance) -> list[int]:
    return [chance.below(1000) for _ in range(20)]


def test_equal_names_draw_equally_and_any_other_name_does_not() -> None:
    first = draws(Chance(1, "peer", "gossip"))
    assert draws(Chance(1, "peer", "gossip")) == first
    for other in (Chance(2, "peer", "gossip"), Chance(1, "reep", "gossip"), Chance(1, "peer", "link")):
        assert draws(other) != first


def test_draws_are_the_same_on_every_machine() -> None:
    assert draws(Chance(7, "peer", "gossip"))[:5] == PINNED


def test_draws_stay_below_their_bound_and_never_happens_never_draws() -> None:
    chance = Chance(1, "peer", "gossip")
    assert not any(chance.happens(0) for _ in range(100))
    assert draws(chance) == draws(Chance(1, "peer", "gossip"))
    assert {chance.below(3) for _ in range(100)} == {0, 1, 2}
    assert all(chance.happens(1_000_000) for _ in range(100))
