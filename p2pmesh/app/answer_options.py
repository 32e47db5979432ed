"""``--mesh-option`` and ``--guardrail-option NAME=VALUE``: what an operator may change of how answers are made."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from p2pmesh.app.option_checks import invalid
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.guardrails.policy import GuardrailMode, GuardrailPolicy
from p2pmesh.core.mixture.roles import LEAST_MODELS, MixturePolicy, RoleLimits

MOST_MODELS = 32
MAX_SECONDS = 3600.0
MAX_TOKENS = 65_536
MAX_MESSAGES = 1024
MAX_RETRIES = 8
MAX_RESCUE_BYTES = 1_048_576
MAX_BILLIONS = 100_000.0

P = TypeVar("P", MixturePolicy, GuardrailPolicy)


@dataclass(frozen=True, slots=True)
class Option(Generic[P]):
    """A number within bounds, and a policy with it."""

    least: float
    most: float
    apply: Callable[[P, float], P]
    is_whole: bool = False


def _number_of(field: str, least: float, most: float, scale: int = 1, *, is_whole: bool = False) -> Option[P]:
    def apply(policy: P, value: float) -> P:
        changed: dict[str, Any] = {field: round(scale * value)}
        return replace(policy, **changed)

    return Option(least, most, apply, is_whole)


def _of_role(role: str, field: str, most: int) -> Option[MixturePolicy]:
    def apply(policy: MixturePolicy, value: float) -> MixturePolicy:
        limits: RoleLimits = getattr(policy, role)
        changed: dict[str, Any] = {field: int(value)}
        whole: dict[str, Any] = {role: replace(limits, **changed)}
        return replace(policy, **whole)

    return Option(1, most, apply, is_whole=True)


_ROLES = ("fast", "specialist", "strong")
_TIMES = ("worker", "reducer", "hedge", "grace", "patience")

MIXTURE_OPTIONS: Mapping[str, Option[MixturePolicy]] = MappingProxyType(
    {
        "models": _number_of("models", LEAST_MODELS, MOST_MODELS, is_whole=True),
        **{f"{role}-tokens": _of_role(role, "tokens", MAX_TOKENS) for role in _ROLES},
        "reducer-tokens": _number_of("reducer_tokens", 1, MAX_TOKENS, is_whole=True),
        **{f"{role}-messages": _of_role(role, "messages", MAX_MESSAGES) for role in _ROLES},
        **{f"{one}-seconds": _number_of(f"{one}_us", 0, MAX_SECONDS, MICROS_PER_SECOND) for one in _TIMES},
        "confidence": _number_of("confidence_milli", 0, 1, 1000),
        "tool-confidence": _number_of("tool_confidence_milli", 0, 1, 1000),
    }
)

GUARDRAIL_OPTIONS: Mapping[str, Option[GuardrailPolicy]] = MappingProxyType(
    {
        "tool-retries": _number_of("tool_retries", 0, MAX_RETRIES, is_whole=True),
        "structured-retries": _number_of("structured_retries", 0, MAX_RETRIES, is_whole=True),
        "below-billions": _number_of("below_millions", 0, MAX_BILLIONS, 1000),
        "compact-from": _number_of("compact_from_percent", 1, 100, is_whole=True),
        "compact-to": _number_of("compact_to_percent", 1, 100, is_whole=True),
        "rescue-bytes": _number_of("rescue_bytes", 0, MAX_RESCUE_BYTES, is_whole=True),
    }
)


def read_mixture(texts: Iterable[str]) -> MixturePolicy:
    """The defaults with these changes, of a name the last; ``ConfigError`` for any that makes no sense."""
    return _read("--mesh-option", texts, MIXTURE_OPTIONS, MixturePolicy())


def read_guardrails(mode: str, texts: Iterable[str]) -> GuardrailPolicy:
    """The same for guardrails."""
    policy = _read("--guardrail-option", texts, GUARDRAIL_OPTIONS, GuardrailPolicy(GuardrailMode(mode)))
    if policy.compact_to_percent > policy.compact_from_percent:
        text = f"{policy.compact_to_percent} % is more than compact-from, {policy.compact_from_percent} %"
        raise invalid(f"--guardrail-option compact-to: {text}")
    return policy


def _read(flag: str, texts: Iterable[str], options: Mapping[str, Option[P]], policy: P) -> P:
    for text in texts:
        name, mark, value = text.partition("=")
        option = options.get(name)
        if not mark or option is None:
            raise invalid(f"{flag} {text[:40]!r}: write NAME=VALUE, with one of {', '.join(options)}")
        policy = option.apply(policy, _number(f"{flag} {name}", value, option))
    return policy


def _number(what: str, text: str, option: Option[P]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not option.least <= value <= option.most or (option.is_whole and value != int(value)):
        kind = "a whole number" if option.is_whole else "a number"
        raise invalid(f"{what} must be {kind} of {option.least:g} to {option.most:g}, not {text[:20]!r}")
    return value
