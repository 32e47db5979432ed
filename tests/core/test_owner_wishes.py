"""Caps of owners, and when a machine counts as busy."""

import pytest

from p2pmesh.base.ids import LayerRange
from p2pmesh.core.owner_wishes import ANYTHING, BusyGate, MachineLoad, OwnerWishes, excludes

DIGEST = "0123456789abcdef" * 4


def test_without_wishes_nothing_is_refused() -> None:
    assert ANYTHING.refusal("m", DIGEST, LayerRange(0, 1000)) is None


def test_a_stage_of_more_layers_than_the_owner_gives_is_refused() -> None:
    wishes = OwnerWishes(max_layers=4)
    assert wishes.refusal("m", DIGEST, LayerRange(3, 7)) is None
    assert wishes.refusal("m", DIGEST, LayerRange(3, 8)) == "the owner of this peer gives at most 4 layers, not 5"


@pytest.mark.parametrize(
    ("excluded", "expected"),
    [
        ("Big-Model", True), ("big-model", True), ("big", False), ("", False), (DIGEST, True), (DIGEST[:12], True),
        (DIGEST[:12].upper(), True), (DIGEST[:11], False), ("f" * 64, False),
    ],
)  # fmt: skip
def test_a_model_is_excluded_by_its_name_or_the_first_digits_of_its_digest(excluded: str, expected: bool) -> None:
    assert excludes(("other", excluded), "Big-Model", DIGEST) == expected
    refusal = OwnerWishes(None, (excluded,)).refusal("Big-Model", DIGEST, LayerRange(0, 1))
    assert (refusal is not None) == expected


def busy_after(*others_milli: int) -> list[bool]:
    gate = BusyGate()
    return [gate.note(MachineLoad(others_milli=reading)) for reading in others_milli]


def test_a_machine_is_busy_after_three_readings_and_idle_after_three() -> None:
    assert busy_after(900, 600, 700, 400, 299, 299, 299) == [False, False, True, True, True, True, False]


def test_a_peak_or_a_pause_changes_nothing() -> None:
    assert not any(busy_after(900, 900, 599, 900, 900, 0, 900, 900))
    assert all(busy_after(900, 900, 900, 0, 0, 300, 0, 0, 1000)[2:])


def test_what_is_not_known_is_not_busy() -> None:
    assert not any(busy_after(-1, -1, -1, -1))
