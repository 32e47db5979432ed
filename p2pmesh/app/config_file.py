"""``HOME/config.toml`` as text: which keys stand in which lines, and how mistakes in it are told.

Owns reading and lines. What a key means is the business of ``cli.settings``, since keys are the options of ``up``;
what a value means that of ``app.config``.
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from p2pmesh.app.config import UpOptions
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.core.nearest_name import choose_nearest_name

CONFIG_NAME = "config.toml"
MAX_CONFIG_BYTES = 64 * 1024
MAX_MISTAKES = 64
MAX_SHOWN_CHARACTERS = 200
_KEY = re.compile(r"\s*(?:([A-Za-z0-9_-]+)|\"([^\"]*)\"|'([^']*)')\s*[.=]|\s*\[{1,2}\s*\"?([A-Za-z0-9_-]+)")
_WHERE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_NO_LINE = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of the file, its value as TOML has it, and the line in which it stands, from 1."""

    name: str
    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong in a line, and what to do; line 0 where it is about the whole file."""

    line: int
    text: str
    excerpt: tuple[str, ...] = ()
    """Lines that point at the characters."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a node is asked for by its command line and its file; ``keys`` as the file would name them."""

    options: UpOptions
    keys: Mapping[str, Any]


class SettingsFile(Protocol):
    """The file beside a command line."""

    @property
    def path(self) -> Path:
        """Where it is, or would be."""

    def read(self) -> Reading:
        """Reads it again; raises ``ConfigError`` with every mistake in it."""


class ConfigMistakes(ConfigError):
    """A file with mistakes; its message names them all in one line, ``mistakes`` singly."""

    def __init__(self, path: Path, mistakes: Iterable[Mistake]) -> None:
        self.path = path
        self.mistakes = tuple(sorted(mistakes, key=lambda one: (one.line, one.text)))[:MAX_MISTAKES]
        excerpt = next((one.excerpt for one in self.mistakes if one.excerpt), ())
        super().__init__(ErrorCode.CONFIG_INVALID, "; ".join(self.lines()), excerpt)

    def lines(self) -> tuple[str, ...]:
        """``FILE:LINE: what is wrong``, one a mistake."""
        return tuple(f"{self.path}{f':{one.line}' if one.line else ''}: {one.text}" for one in self.mistakes)

    def told(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each of ``lines`` for a person, and those that point at its characters."""
        yield from zip(self.lines(), (one.excerpt for one in self.mistakes), strict=True)


def read_text(path: Path) -> str | None:
    """The file's text; None where there is none. Raises ``ConfigError`` where it cannot be read or is too large."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:  # a FIFO must not hang us
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(ErrorCode.CONFIG_INVALID, f"{path} is no regular file; move it away")
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror or error}"
        raise ConfigError(ErrorCode.CONFIG_INVALID, text) from None
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"{path} is larger than {MAX_CONFIG_BYTES // 1024} KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigMistakes(path, [Mistake(line, "it is not UTF-8; save the file as UTF-8")]) from None


def read_entries(text: str, path: Path) -> tuple[Entry, ...]:
    """The keys of a file in the order of their lines; raises ``ConfigMistakes`` for what is no TOML."""
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigMistakes(path, [_syntax_mistake(str(error), text)]) from None
    lines = _lines_of(text)
    entries = (Entry(name, value, lines.get(name, _NO_LINE)) for name, value in found.items())
    return tuple(sorted(entries, key=lambda entry: entry.line))


def name_nearest(name: str, known: Iterable[str]) -> str:
    """What to do about an unknown key: the nearest one that there is."""
    near = choose_nearest_name(name.replace("-", "_").lower(), known)
    return f"did you mean {near}?" if near else "`p2pmesh config show` lists the keys"


def shown(value: object) -> str:
    """A value in a message, cut."""
    return repr(value)[:MAX_SHOWN_CHARACTERS]


def _syntax_mistake(message: str, text: str) -> Mistake:
    where = _WHERE.search(message)
    plain = _WHERE.sub("", message.removesuffix(" (at end of document)"))
    line = int(where[1]) if where else text.count("\n") + (not text.endswith("\n"))
    column = f", column {where[2]}" if where else ""
    return Mistake(max(1, line), f"this is no TOML{column}: {plain[:1].lower()}{plain[1:]}")


def _lines_of(text: str) -> dict[str, int]:
    """The line of each key: the first that looks like it and before which the file is whole.

    Within a text of several lines or a list, what comes before is none by itself; so no line of such a value counts.
    """
    found: dict[str, int] = {}
    before = ""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        match = _KEY.match(line)
        if match is not None:
            name = next(part for part in match.groups() if part is not None)
            if name not in found and _is_whole(before):
                found[name] = number
        before += line
    return found


def _is_whole(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return False
    return True
