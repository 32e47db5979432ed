"""What an operator may change of the model ``mesh``."""

import pytest

from p2pmesh.app.mixture_options import MIXTURE_OPTIONS, read_mixture
from p2pmesh.base.errors import ConfigError
from p2pmesh.core.mixture.roles import MixturePolicy, RoleLimits


def test_nothing_is_the_published_defaults() -> None:
    assert read_mixture(()) == MixturePolicy()


def test_each_option_changes_something_and_only_that() -> None:
    for name in MIXTURE_OPTIONS:
        assert read_mixture([f"{name}=3" if MIXTURE_OPTIONS[name].is_whole else f"{name}=1"]) != MixturePolicy()
    changed = read_mixture(["grace-seconds=0.5", "fast-tokens=64", "fast-messages=2", "confidence=0.75", "models=3"])
    assert changed == MixturePolicy(models=3, fast=RoleLimits(64, 2), grace_us=500_000, confidence_milli=750)
    assert read_mixture(["models=3", "models=4"]).models == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("grace", "write NAME=VALUE, with one of models, fast-tokens"),
        ("speed=1", "write NAME=VALUE"),
        ("models=1", "models must be a whole number of 2 to 32, not '1'"),
        ("models=2.5", "a whole number"),
        ("confidence=1.1", "a number of 0 to 1"),
        ("grace-seconds=nan", "a number of 0 to 3600"),
        ("grace-seconds=", "a number of 0 to 3600"),
        ("fast-tokens=0", "a whole number of 1"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_mixture([text])
    assert told in raised.value.message
    assert "\n" not in raised.value.message
