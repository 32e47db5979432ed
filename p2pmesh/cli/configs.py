"""``p2pmesh config``, and the file beside what is typed for ``up``: from arguments to ``cli.settings`` and its answers
to text."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p2pmesh.app.config import choose_home
from p2pmesh.app.config_file import ConfigMistakes, Entry, Reading
from p2pmesh.base.errors import P2PMeshError
from p2pmesh.cli.exit_codes import EXIT_CODES, OK
from p2pmesh.cli.origins import name_file
from p2pmesh.cli.output import describe_reload, describe_table, printable
from p2pmesh.cli.parser import build_parser, up_options
from p2pmesh.cli.settings import Settings, as_rows, config_path, is_there, require_file


def make_settings() -> Settings:
    """Of this command line."""
    return Settings(build_parser(), up_options)


class FileOfUp:
    """The file beside what was typed for ``up``; implements ``app.live_settings.SettingsFile``."""

    def __init__(self, args: Namespace, argv: Sequence[str]) -> None:
        self._args = Namespace(**{name: value for name, value in vars(args).items() if name != "file"})
        self._settings = make_settings()
        self._typed = self._settings.typed(argv)
        self._path = config_path(args)
        self._counted: tuple[Entry, ...] = ()
        if args.config:
            require_file(self._path)

    @property
    def path(self) -> Path:
        """Where it is, or would be."""
        return self._path

    def merged(self) -> Namespace:
        """What ``up`` is asked for; ``ConfigError`` where the file makes no sense."""
        if not is_there(self._path):
            return self._args
        entries = self._settings.read(self._path)
        self._counted = self._settings.counted(self._typed, entries)
        return self._settings.merged(self._args, self._counted)

    def name_in(self, error: P2PMeshError) -> None:
        """Puts into the message of an error which lines of the file it is about."""
        name_file(error, self._path, self._counted)

    def read(self) -> Reading:
        """For a node that is up already, so that no invite is read again.

        One that looks for a pool, or founded its mesh, has none.
        """
        merged = self.merged()
        keys = self._settings.values_of(merged)
        has_joined = bool(merged.join or merged.join_file or merged.rejoin) and not merged.auto
        joined = Namespace(**vars(merged) | {"join": None, "join_file": None, "rejoin": has_joined})
        try:
            return Reading(up_options(joined), keys)
        except P2PMeshError as error:
            self.name_in(error)
            raise


def run_config(args: Namespace) -> int:
    """One action; 0, or the exit code of what is wrong."""
    if args.action == "reload":
        return _reload(args)
    path = require_file(config_path(args))
    return _validate(path, is_json=args.json) if args.action == "validate" else _show(path, is_json=args.json)


def _validate(path: Path, *, is_json: bool) -> int:
    settings = make_settings()
    try:
        count = len(settings.read(path))
    except ConfigMistakes as error:
        return _tell_mistakes(error, is_json=is_json)
    text = f"{path}: {count} settings, all of them valid" if count != 1 else f"{path}: 1 setting, valid"
    _print(json.dumps({"file": str(path), "settings": count, "mistakes": []}, indent=2) if is_json else text)
    return OK


def _tell_mistakes(error: ConfigMistakes, *, is_json: bool) -> int:
    if is_json:
        told: list[dict[str, Any]] = [{"line": one.line or None, "message": one.text} for one in error.mistakes]
        _print(json.dumps({"file": str(error.path), "mistakes": told}, indent=2))
    else:
        for line, pointers in error.told():
            shown = (line, *(f"  {pointer}" for pointer in pointers))
            sys.stderr.write("".join(f"{printable(one)}\n" for one in shown))
    return EXIT_CODES[error.code]


def _show(path: Path, *, is_json: bool) -> int:
    rows = as_rows(make_settings().effective(path))
    _print(json.dumps({"file": str(path), "settings": rows}, indent=2) if is_json else "\n".join(describe_table(rows)))
    return OK


def _reload(args: Namespace) -> int:
    from p2pmesh.app.client import ask_console

    told = ask_console(choose_home(args.home), "POST", "/api/config/reload", {})
    _print(json.dumps(told, indent=2) if args.json else "\n".join(describe_reload(told)))
    return OK


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
