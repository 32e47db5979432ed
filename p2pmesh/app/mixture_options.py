"""``--mesh-option NAME=VALUE``: what an operator may change of how several models answer as ``mesh``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.mixture.roles import LEAST_MODELS, MixturePolicy, RoleLimits

MOST_MODELS = 32
MAX_SECONDS = 3600.0
MAX_TOKENS = 65_536
MAX_MESSAGES = 1024


@dataclass(frozen=True, slots=True)
class _Option:
    """A number within bounds, and the policy with it."""

    least: float
    most: float
    apply: Callable[[MixturePolicy, float], MixturePolicy]
    is_whole: bool = False


def _seconds(field: str) -> _Option:
    def apply(policy: MixturePolicy, value: float) -> MixturePolicy:
        changed: dict[str, Any] = {field: round(value * MICROS_PER_SECOND)}
        return replace(policy, **changed)

    return _Option(0, MAX_SECONDS, apply)


def _share(field: str) -> _Option:
    def apply(policy: MixturePolicy, value: float) -> MixturePolicy:
        changed: dict[str, Any] = {field: round(1000 * value)}
        return replace(policy, **changed)

    return _Option(0, 1, apply)


def _count(field: str, least: int, most: int) -> _Option:
    def apply(policy: MixturePolicy, value: float) -> MixturePolicy:
        changed: dict[str, Any] = {field: int(value)}
        return replace(policy, **changed)

    return _Option(least, most, apply, is_whole=True)


def _of_role(role: str, field: str, most: int) -> _Option:
    def apply(policy: MixturePolicy, value: float) -> MixturePolicy:
        limits: RoleLimits = getattr(policy, role)
        changed: dict[str, Any] = {field: int(value)}
        whole: dict[str, Any] = {role: replace(limits, **changed)}
        return replace(policy, **whole)

    return _Option(1, most, apply, is_whole=True)


MIXTURE_OPTIONS: Mapping[str, _Option] = MappingProxyType(
    {
        "models": _count("models", LEAST_MODELS, MOST_MODELS),
        **{f"{role}-tokens": _of_role(role, "tokens", MAX_TOKENS) for role in ("fast", "specialist", "strong")},
        "reducer-tokens": _count("reducer_tokens", 1, MAX_TOKENS),
        **{f"{role}-messages": _of_role(role, "messages", MAX_MESSAGES) for role in ("fast", "specialist", "strong")},
        "worker-seconds": _seconds("worker_us"),
        "reducer-seconds": _seconds("reducer_us"),
        "hedge-seconds": _seconds("hedge_us"),
        "grace-seconds": _seconds("grace_us"),
        "patience-seconds": _seconds("patience_us"),
        "confidence": _share("confidence_milli"),
        "tool-confidence": _share("tool_confidence_milli"),
    }
)


def read_mixture(texts: Iterable[str]) -> MixturePolicy:
    """The defaults with these changes, of a name the last; ``ConfigError`` for any that makes no sense."""
    policy = MixturePolicy()
    for text in texts:
        name, mark, value = text.partition("=")
        option = MIXTURE_OPTIONS.get(name)
        if not mark or option is None:
            raise _invalid(f"--mesh-option {text[:40]!r}: write NAME=VALUE, with one of {', '.join(MIXTURE_OPTIONS)}")
        policy = option.apply(policy, _number(name, value, option))
    return policy


def _number(name: str, text: str, option: _Option) -> float:
    bounds = f"{option.least:g} to {option.most:g}"
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not option.least <= value <= option.most or (option.is_whole and value != int(value)):
        kind = "a whole number" if option.is_whole else "a number"
        raise _invalid(f"--mesh-option {name} must be {kind} of {bounds}, not {text[:20]!r}")
    return value


def _invalid(message: str) -> ConfigError:
    return ConfigError(ErrorCode.CONFIG_INVALID, message)
