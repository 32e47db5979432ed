"""Scenarios as TOML: strict, each mistake one line with its place and what would be right.

The top level says ``world = "runs"``, ``"overlay"``, ``"claims"``, ``"models"`` or ``"pool"``; the other keys are the
fields of that world's records (``sim.scenario`` and its siblings), tables for nested records, and one ``[[faults]]``
table per fault with its ``kind``. Reading files is the caller's.
"""

import dataclasses
import re
import tomllib
from importlib import resources
from typing import Any, TypeVar, get_type_hints

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.sim import models_scenario, overlay_scenario, pool_scenario, scenario
from p2pmesh.sim.claims_scenario import ClaimsScenario
from p2pmesh.sim.models_scenario import ModelsScenario
from p2pmesh.sim.overlay_scenario import OverlayScenario
from p2pmesh.sim.pool_scenario import PoolScenario
from p2pmesh.sim.scenario import Scenario

R = TypeVar("R")
AnyScenario = Scenario | OverlayScenario | ClaimsScenario | ModelsScenario | PoolScenario

MAX_FILE_CHARACTERS = 100_000
MAX_FAULTS = 1000
MAX_ROW = 64
MAX_ABOUT_CHARACTERS = 500

_WORLDS: dict[str, type[Any]] = {
    "runs": Scenario,
    "overlay": OverlayScenario,
    "claims": ClaimsScenario,
    "models": ModelsScenario,
    "pool": PoolScenario,
}
_FAULTS: dict[type[Any], dict[str, type[Any]]] = {
    Scenario: {
        "crash": scenario.Crash,
        "churn": scenario.Churn,
        "partition": scenario.Partition,
        "stage-loss": scenario.StageLoss,
    },
    OverlayScenario: {
        "crash": scenario.Crash,
        "partition": scenario.Partition,
        "turnover": overlay_scenario.Turnover,
        "restart": overlay_scenario.Restart,
        "clock-step": overlay_scenario.ClockStep,
        "slow": overlay_scenario.Slow,
        "loss": overlay_scenario.Loss,
        "false-reports": overlay_scenario.FalseReports,
        "sybils": overlay_scenario.Sybils,
        "eclipse": overlay_scenario.Eclipse,
    },
    ClaimsScenario: {
        "crash": scenario.Crash,
        "churn": scenario.Churn,
        "partition": scenario.Partition,
    },
    ModelsScenario: {
        "crash": scenario.Crash,
        "churn": scenario.Churn,
        "partition": scenario.Partition,
        "leave": models_scenario.Leave,
        "join": models_scenario.Join,
    },
    PoolScenario: {
        "crash": scenario.Crash,
        "partition": scenario.Partition,
        "kill-publisher": pool_scenario.KillPublisher,
        "relay-outage": pool_scenario.RelayOutage,
    },
}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")


def builtin_names() -> tuple[str, ...]:
    """The scenarios that come with the package, by name."""
    files = resources.files("p2pmesh.sim").joinpath("scenarios").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def builtin_scenario(name: str) -> AnyScenario:
    """One of them; ``ConfigError`` for a name that there is not."""
    if name not in builtin_names():
        raise ConfigError(
            ErrorCode.CONFIG_INVALID,
            f"no scenario is called {name!r}; there are {', '.join(builtin_names())}, or name a .toml file",
        )
    file = resources.files("p2pmesh.sim").joinpath("scenarios", f"{name}.toml")
    return decode_scenario(file.read_text(encoding="utf-8"), f"{name}.toml")


def builtin_runs() -> dict[str, Scenario]:
    """Those of the world ``runs``, by name."""
    found = {name: builtin_scenario(name) for name in builtin_names()}
    return {name: item for name, item in found.items() if isinstance(item, Scenario)}


def decode_scenario(text: str, source: str) -> AnyScenario:
    """The scenario of a file's text; ``ConfigError`` names ``source`` and the first thing that is wrong."""
    try:
        return _decode(text)
    except _WrongError as wrong:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"{source}: {wrong}") from None


class _WrongError(Exception):
    """What is wrong, for the person who wrote the file."""


def _decode(text: str) -> AnyScenario:
    if len(text) > MAX_FILE_CHARACTERS:
        raise _WrongError(f"longer than {MAX_FILE_CHARACTERS} characters")
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as cause:
        raise _WrongError(f"not TOML: {str(cause) or 'nested too deep'}".splitlines()[0]) from None
    world = table.pop("world", None)
    kind = _WORLDS.get(world) if isinstance(world, str) else None
    if kind is None:
        raise _WrongError(f"world is {world!r}; it is one of {', '.join(map(repr, _WORLDS))}")
    faults = _decode_faults(table.pop("faults", []), _FAULTS[kind])
    decoded = dataclasses.replace(_decode_record(kind, table, "", skip=("faults",)), faults=faults)
    _check_whole(decoded)
    return decoded  # type: ignore[no-any-return]


def _decode_faults(value: Any, kinds: dict[str, type[Any]]) -> tuple[Any, ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value) or len(value) > MAX_FAULTS:
        raise _WrongError(f"faults are at most {MAX_FAULTS} tables, each under [[faults]]")
    faults = []
    for number, table in enumerate(value):
        kind = kinds.get(str(table.get("kind")))
        if kind is None:
            raise _WrongError(f"faults[{number}].kind is {table.get('kind')!r}; it is one of {', '.join(kinds)}")
        rest = {key: item for key, item in table.items() if key != "kind"}
        faults.append(_decode_record(kind, rest, f"faults[{number}]."))
    return tuple(faults)


def _decode_record(kind: type[R], table: dict[str, Any], path: str, skip: tuple[str, ...] = ()) -> R:
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name not in skip}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise _WrongError(f"{path}{key} is no key; there are {', '.join(fields)}")
    hints = get_type_hints(kind)
    values = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _decode_value(hints[name], table[name], field.metadata.get("range"), path + name)
        elif field.default is dataclasses.MISSING:
            raise _WrongError(f"{path}{name} is missing")
    return kind(**values)


def _decode_value(hint: Any, value: Any, bounds: tuple[int, int] | None, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise _WrongError(f"{path} is no table")
        return _decode_record(hint, value, f"{path}.")  # type: ignore[arg-type]
    if hint is str:
        return _decode_text(value, path)
    assert bounds is not None, path
    if hint in (int, int | None):
        return _decode_number(value, bounds, path)
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_ROW:
        raise _WrongError(f"{path} is no list of 1 to {MAX_ROW} items")
    inner = int if hint == tuple[int, ...] else tuple[int, ...]
    return tuple(_decode_value(inner, item, bounds, f"{path}[{number}]") for number, item in enumerate(value))


def _decode_number(value: Any, bounds: tuple[int, int], path: str) -> int:
    low, high = bounds
    if type(value) is not int or not low <= value <= high:
        raise _WrongError(f"{path} is {value!r}; it is a whole number from {low} to {high}")
    return value


def _decode_text(value: Any, path: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_ABOUT_CHARACTERS or not value.isprintable():
        raise _WrongError(f"{path} is no line of at most {MAX_ABOUT_CHARACTERS} characters")
    if path == "name" and not _NAME.match(value):
        raise _WrongError(f"name is {value!r}; write small letters, digits and hyphens")
    return value


def _check_whole(decoded: Any) -> None:
    """What no single number shows."""
    for number, fault in enumerate(decoded.faults):
        start, end = getattr(fault, "at_us", getattr(fault, "from_us", 0)), getattr(fault, "until_us", None)
        if end is not None and end <= start:
            raise _WrongError(f"faults[{number}].until_us is {end}; it comes after {start}")
    if isinstance(decoded, OverlayScenario):
        regions, rows = len(decoded.links.region_weights), decoded.links.one_way_us
        if len(rows) != regions or any(len(row) != regions for row in rows):
            raise _WrongError(f"links.one_way_us is no table of {regions} by {regions}, as region_weights has regions")
        if sum(decoded.links.region_weights) == 0:
            raise _WrongError("links.region_weights are all 0")
