"""What an operator may change of how answers are made."""

import pytest

from p2pmesh.app.answer_options import GUARDRAIL_OPTIONS, MIXTURE_OPTIONS, read_guardrails, read_mixture
from p2pmesh.base.errors import ConfigError
from p2pmesh.core.guardrails.policy import GuardrailMode, GuardrailPolicy
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


def test_guardrails_are_off_and_as_published() -> None:
    assert read_guardrails("off", ()) == GuardrailPolicy()
    policy = GuardrailPolicy()
    assert policy.mode is GuardrailMode.OFF
    assert (policy.tool_retries, policy.structured_retries, policy.below_millions) == (1, 2, 9000)
    assert (policy.compact_from_percent, policy.compact_to_percent, policy.rescue_bytes) == (90, 80, 65536)


def test_each_guardrail_option_changes_something() -> None:
    for name in GUARDRAIL_OPTIONS:
        value = 95 if name == "compact-from" else 7
        assert read_guardrails("off", [f"{name}={value}"]) != GuardrailPolicy()
    changed = read_guardrails("enforce", ["below-billions=0.5", "compact-to=50", "tool-retries=0"])
    expected = GuardrailPolicy(GuardrailMode.ENFORCE, tool_retries=0, below_millions=500, compact_to_percent=50)
    assert changed == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("compact-to=95", "compact-to: 95 % is more than compact-from, 90 %"),
        ("tool-retries=9", "--guardrail-option tool-retries must be a whole number of 0 to 8, not '9'"),
        ("retries=1", "--guardrail-option 'retries=1': write NAME=VALUE, with one of tool-retries"),
    ],
)
def test_guardrail_options_that_make_no_sense_are_told(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_guardrails("off", [text])
    assert told in raised.value.message
