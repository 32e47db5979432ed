"""Record and replay: what a machine was told, as JSON lines, so that a field bug becomes a test.

The first line names the machine, ``{"machine": "generation"}``, and may say how it was made, as ``"setup"``. Each other
line is one event with its time,
``{"now": 1200, "event": "CreditArrived", "fields": {"position": 256}}``. Bytes travel as hex, enums by value, nested
records as maps, and what a field is by default is left out, so that one may join. Deadline events are recorded like any
other; a runner that keeps deadlines itself is given the rest.
"""

import dataclasses
import json
import types
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.quantities import Micros
from p2pmesh.core import admission, coordination, generation, membership
from p2pmesh.sim.runner import Machine
from p2pmesh.wire.announcement import Announcement

E = TypeVar("E")
F = TypeVar("F")
Recorded = tuple[Micros, Any]
"""A time and an event of the machine that the recording names."""

MACHINES: dict[str, types.ModuleType] = {
    "admission": admission,
    "coordination": coordination,
    "generation": generation,
    "membership": membership,
}
_RECORDED_AS: dict[Any, type[Any]] = {membership.Announced: Announcement}
"""What a machine knows by a few properties only is recorded whole."""
MAX_LINE_CHARACTERS = 1_000_000


def event_classes(machine: str) -> dict[str, type[Any]]:
    """The events of a machine by their names; ``ConfigError`` for a machine that there is not."""
    if machine not in MACHINES:
        raise ConfigError(
            ErrorCode.CONFIG_INVALID, f"no machine is called {machine!r}; there are {', '.join(sorted(MACHINES))}"
        )
    return {kind.__name__: kind for kind in get_args(MACHINES[machine].Event)}


def encode_recording(machine: str, events: Iterable[Recorded], setup: dict[str, Any] | None = None) -> str:
    """The lines of a recording."""
    known = event_classes(machine)
    lines = [json.dumps({"machine": machine, "setup": setup} if setup else {"machine": machine})]
    for now, event in events:
        name = type(event).__name__
        if known.get(name) is not type(event):
            raise TypeError(f"{name} is no event of {machine}")
        lines.append(json.dumps({"now": now, "event": name, "fields": _encode_fields(event)}))
    return "\n".join([*lines, ""])


def recorded_setup(text: str) -> dict[str, Any]:
    """How the machine of a recording was made, unchecked; empty where it does not say."""
    lines = text.lstrip().splitlines()
    setup = _json_map(1, lines[0]).get("setup", {}) if lines else {}
    return setup if isinstance(setup, dict) else {}


def decode_recording(text: str) -> tuple[str, tuple[Recorded, ...]]:
    """The machine's name and its events; ``ConfigError`` names the first line that is wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise _wrong(1, "the recording is empty")
    machine = _json_map(1, lines[0]).get("machine")
    known = event_classes(str(machine))
    events: list[Recorded] = []
    for number, line in enumerate(lines[1:], start=2):
        now, event = _decode_line(number, line, known)
        if events and now < events[-1][0]:
            raise _wrong(number, "time goes back")
        events.append((now, event))
    return str(machine), tuple(events)


def replay(machine: Machine[E, F], events: Sequence[tuple[Micros, E]]) -> tuple[tuple[Micros, F], ...]:
    """Feeds a machine its recorded events, deadline events included; all effects with the time of their event."""
    return tuple((now, effect) for now, event in events for effect in machine.handle(event, now))


def _wrong(number: int, text: str) -> ConfigError:
    return ConfigError(ErrorCode.CONFIG_INVALID, f"line {number} of the recording: {text}")


def _json_map(number: int, line: str) -> dict[str, Any]:
    if len(line) > MAX_LINE_CHARACTERS:
        raise _wrong(number, f"longer than {MAX_LINE_CHARACTERS} characters")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise _wrong(number, "not JSON") from None
    if not isinstance(value, dict):
        raise _wrong(number, "not a JSON object")
    return value


def _decode_line(number: int, line: str, known: dict[str, type[Any]]) -> Recorded:
    value = _json_map(number, line)
    kind = known.get(str(value.get("event")))
    now = value.get("now")
    if kind is None or not isinstance(now, int) or isinstance(now, bool) or now < 0:
        raise _wrong(number, 'needs a known "event" and a "now" in microseconds')
    try:
        return Micros(now), _decode_record(kind, value.get("fields", {}))
    except (ValueError, TypeError) as cause:
        raise _wrong(number, str(cause)) from None


# --- values -------------------------------------------------------------------
def _encode_fields(record: Any) -> dict[str, Any]:
    given = ((field, getattr(record, field.name)) for field in dataclasses.fields(record))
    return {field.name: _encode(value) for field, value in given if value != field.default}


def _encode(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return _encode_fields(value)
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def _decode_record(kind: type[Any], fields: Any) -> Any:
    hints = get_type_hints(kind)
    needed = {field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING}
    if not isinstance(fields, dict) or not needed <= set(fields) <= set(hints):
        raise ValueError(f"{kind.__name__} has the fields {', '.join(hints) or 'none'}")
    return kind(**{name: _decode(hint, fields[name]) for name, hint in hints.items() if name in fields})


def _decode(hint: Any, value: Any) -> Any:
    hint = getattr(hint, "__supertype__", hint)
    hint = _RECORDED_AS.get(hint, hint)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is no list")
        parts = get_args(hint)
        if parts[-1] is Ellipsis:
            return tuple(_decode(parts[0], item) for item in value)
        return tuple(_decode(part, item) for part, item in zip(parts, value, strict=True))
    if get_origin(hint) in (Union, types.UnionType):
        raise TypeError(f"{hint} is not recorded yet")
    if dataclasses.is_dataclass(hint):
        return _decode_record(hint, value)  # type: ignore[arg-type]
    if issubclass(hint, Enum):
        return hint(value)
    if hint is bytes:
        return bytes.fromhex(value)
    if type(value) is not hint:
        raise ValueError(f"{value!r} is no {hint.__name__}")
    return value
