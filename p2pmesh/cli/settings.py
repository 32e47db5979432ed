"""What ``config.toml`` may say: the options of ``up``, by their long names, read as the command line reads them.

Owns which keys there are, how their values become options, and what wins: the command line, then the file, then the
default. Every mistake is found, not only the first. What may change while a node runs is ``app.live_settings``'.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pmesh.app.config import UpOptions, choose_home
from p2pmesh.app.config_file import (
    CONFIG_NAME,
    ConfigMistakes,
    Entry,
    Mistake,
    name_nearest,
    read_entries,
    read_text,
    shown,
)
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError

REFUSED = {
    "home": "the file lies in the home; give --home, or $P2PMESH_HOME",
    "config": "give it on the command line",
    "join": "an invite is a secret; write join_file with the name of a file that holds it",
    "rejoin": "give it on the command line",
}
"""Options that are no keys, and why."""
MakeOptions = Callable[[argparse.Namespace], UpOptions]


@dataclass(frozen=True, slots=True)
class Setting:
    """An effective value and where it came from."""

    key: str
    value: Any
    source: str


class Settings:
    """The keys of ``config.toml``. ``parser`` is that of the whole command line, ``make`` the options of its ``up``."""

    def __init__(self, parser: argparse.ArgumentParser, make: MakeOptions) -> None:
        self._make = make
        self._parser = parser
        actions = (action for action in _up_of(self._parser)._actions if action.dest != "help")
        self._actions = {_key_of(action): action for action in actions}
        self._keys = tuple(sorted(set(self._actions) - set(REFUSED)))

    @property
    def keys(self) -> tuple[str, ...]:
        """What the file may say."""
        return self._keys

    def typed(self, argv: Sequence[str]) -> frozenset[str]:
        """The names under which options of ``up`` were given on the command line."""
        actions = _up_of(self._parser)._actions  # argparse offers no other way to its options
        defaults = [action.default for action in actions]
        try:
            for action in actions:
                action.default = argparse.SUPPRESS
            return frozenset(vars(self._parser.parse_args(list(argv))))
        finally:
            for action, default in zip(actions, defaults, strict=True):
                action.default = default

    def read(self, path: Path) -> tuple[Entry, ...]:
        """The entries of a file whose every value makes sense, also together; raises ``ConfigMistakes`` with all
        that do not. A file that is not there says nothing."""
        text = read_text(path)
        if text is None:
            return ()
        entries = read_entries(text, path)
        mistakes = [mistake for entry in entries if (mistake := self._check(entry, path)) is not None]
        if not mistakes:
            mistakes = self._check_together(entries, path)
        if mistakes:
            raise ConfigMistakes(path, mistakes)
        return entries

    def counted(self, typed: Iterable[str], entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Those of a file's entries that count: nothing was typed in their place."""
        given = set(typed)
        if given & {"join", "join_file", "rejoin"}:
            given.add("join_file")
        return tuple(entry for entry in entries if self._actions[entry.name].dest not in given)

    def merged(self, args: argparse.Namespace, counted: Iterable[Entry]) -> argparse.Namespace:
        """What ``up`` was asked for, with the file's values that count."""
        merged = argparse.Namespace(**vars(args))
        for entry in counted:
            action = self._actions[entry.name]
            setattr(merged, action.dest, _converted(action, entry.value))
        return merged

    def effective(self, path: Path) -> tuple[Setting, ...]:
        """Every key with its value for a node that is started without options, and whether the file says so."""
        entries = {entry.name: entry for entry in self.read(path)}
        return tuple(
            Setting(key, entries[key].value, f"line {entries[key].line}")
            if key in entries
            else Setting(key, _plain(self._actions[key].default), "default")
            for key in self._keys
        )

    def values_of(self, merged: argparse.Namespace) -> dict[str, Any]:
        """By key, as ``up`` was asked for them."""
        return {key: getattr(merged, self._actions[key].dest) for key in self._keys}

    # --- one entry ---------------------------------------------------------------
    def _check(self, entry: Entry, path: Path) -> Mistake | None:
        text = self._why_no_option(entry)
        if text is not None:
            return Mistake(entry.line, text)
        error = self._refusal((entry,), path)
        return None if error is None else _mistake_of(entry, f"{entry.name}: ", error)

    def _why_no_option(self, entry: Entry) -> str | None:
        if entry.name in REFUSED:
            return f"{entry.name} cannot be set here: {REFUSED[entry.name]}"
        if _is_section(entry.value):
            return f"{shown(entry.name)} is a section, and there are none: the keys stand by themselves, as port = 9337"
        action = self._actions.get(entry.name)
        if action is None:
            return f"{shown(entry.name)} is no setting; {name_nearest(entry.name, self._keys)}"
        try:
            _converted(action, entry.value)
        except ValueError as error:
            return f"{entry.name}: {error}"
        return None

    def _check_together(self, entries: Sequence[Entry], path: Path) -> list[Mistake]:
        """What only contradicts another key is told at the last key that makes the contradiction."""
        for count in range(1, len(entries) + 1):
            error = self._refusal(entries[:count], path)
            if error is not None:
                return [_mistake_of(entries[count - 1], "", error)]
        return []

    def _refusal(self, entries: Iterable[Entry], path: Path) -> P2PMeshError | None:
        blank = self._parser.parse_args(["up", "--home", str(path.parent)])
        tried = (entry for entry in entries if entry.name != "join_file")  # not before a node needs what is in it
        try:
            self._make(self.merged(blank, tried))
        except P2PMeshError as error:
            return error
        return None


def _is_section(value: Any) -> bool:
    """``[name]``, ``[[name]]``, or what a dotted key makes."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value))


def _mistake_of(entry: Entry, prefix: str, error: P2PMeshError) -> Mistake:
    excerpt = error.excerpt if isinstance(error, ConfigError) else ()
    return Mistake(entry.line, prefix + error.message, excerpt)


def config_path(args: argparse.Namespace) -> Path:
    """The file that counts: ``--config``, else the home's."""
    given = getattr(args, "config", None)
    return Path(given) if given else choose_home(args.home) / CONFIG_NAME


def is_there(path: Path) -> bool:
    """Whether there is such a file or directory; ``ConfigError`` where that cannot be seen."""
    try:
        return path.exists()
    except OSError as error:
        text = f"{path} cannot be looked for: {error.strerror}; check its owner, or choose another --home"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, text) from None


def require_file(path: Path) -> Path:
    """Refuses a file that was named and is not there."""
    if not is_there(path) or not path.is_file():
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"{path} is no file; write settings into it, or leave it away")
    return path


def as_rows(settings: Iterable[Setting]) -> list[Mapping[str, Any]]:
    """For a table: values as the file would have them."""
    return [{"key": one.key, "value": _toml(one.value), "from": one.source} for one in settings]


def _up_of(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    for action in parser._actions:  # argparse offers no other way to a command's parser
        if isinstance(action, argparse._SubParsersAction):
            found: argparse.ArgumentParser = action.choices["up"]
            return found
    raise LookupError("the parser has no commands")


def _key_of(action: argparse.Action) -> str:
    """Its long name, as TOML has it."""
    return max(action.option_strings, key=len).removeprefix("--").replace("-", "_")


def _converted(action: argparse.Action, value: Any) -> Any:
    """A value of the file as the option's; ``ValueError`` with what to write instead."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise _unfit(f"it is true or false, not {shown(value)}")
        return value
    if isinstance(action, argparse._AppendAction):  # of options that may be given several times
        if not isinstance(value, list):
            raise _unfit(f"it is a list such as [{_example(action)}], not {shown(value)}")
        return [_one(action, one) for one in value]
    if value == []:
        return action.default
    if isinstance(value, list):
        value = ",".join(_text_of(one) for one in value)
    return _one(action, value)


def _one(action: argparse.Action, value: Any) -> Any:
    text = _text_of(value)
    kind = action.type or str
    try:
        made = kind(text)  # type: ignore[operator]
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from None
    except (ValueError, TypeError):
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"it is {what}, not {shown(value)}") from None
    if action.choices is not None and made not in action.choices:
        allowed = ", ".join(map(str, action.choices))
        raise ValueError(f"it is one of {allowed}, not {shown(value)}")
    return made


def _text_of(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _unfit(f"it is a text or a number, not {shown(value)}")
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def _unfit(text: str) -> ValueError:
    return ValueError(text)


def _example(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest
    return f'"{name.lower()}"'


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)
