"""Syntax that commands with actions (``p2pmesh invite create``) share; part of ``cli.parser``."""

import argparse
import math
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from p2pmesh.app.config import HOME_VARIABLE
from p2pmesh.core.nearest_name import choose_nearest_name

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
OptionGroup: TypeAlias = argparse._ActionsContainer
"""A parser, or a group of its options with a heading of its own."""
NODES_HOME = "the node's home"
STATE_HOME = "keys, cache and state"


def finite_number(text: str) -> float:
    """A number as an option takes it; ``ValueError`` for any other text, ``nan`` and ``inf`` among them."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


_NUMBERS: dict[Any, str] = {int: "whole number", finite_number: "number"}


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, instead of after all options that there are; so do its commands' parsers.

    What a command does not know is told by that command, which has the options to look at.
    """

    def parse_known_args(  # type: ignore[override]  # as argparse calls it, of commands too
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuses what is left over, which argparse would hand to the parser above."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        return found, unknown

    def _meant(self, unknown: Sequence[str]) -> str:
        """The option that is nearest to the first that is mistyped."""
        typed = next((text.partition("=")[0] for text in unknown if text.startswith("--")), "")
        names = (name.removeprefix("--") for name in self._option_string_actions if name.startswith("--"))
        near = choose_nearest_name(typed.removeprefix("--").replace("_", "-").lower(), names)
        return f" (did you mean --{near}?)" if near else ""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """As argparse does, in words where it would name a type of Python."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            words = _NUMBERS.get(action.type)
            if words is None:
                raise
            raise argparse.ArgumentError(action, f"{arg_string[:80]!r} is no {words}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse does, with the nearest choice instead of all that there are, if one is near."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError:
            near = choose_nearest_name(value, map(str, action.choices or ())) if isinstance(value, str) else None
            if near is None:
                raise
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} (did you mean {near}?)") from None

    def error(self, message: str) -> NoReturn:
        """Exits with 2; the line is a note of the ``SystemExit``, for programs that read another stream."""
        line = f"{self.prog}: {message}; see {self.prog} --help"
        try:
            self.exit(2, line + "\n")
        except SystemExit as ending:
            ending.add_note(line)
            raise


def add_group(commands: Commands, name: str, summary: str) -> Commands:
    """Adds a command that has actions; they are added to the result."""
    group = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    return group.add_subparsers(dest="action", metavar="ACTION", required=True)


def add_action(actions: Commands, name: str, summary: str, home: str | None = NODES_HOME) -> argparse.ArgumentParser:
    """Adds an action with ``--json``, and with ``--home`` unless ``home``, what is there, is None."""
    parser = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    if home is not None:
        add_home(parser, home)
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser


def add_home(parser: argparse.ArgumentParser, home: str) -> None:
    """``--home``; ``home`` says what is there."""
    parser.add_argument("--home", metavar="DIR", help=f"{home} (default: ${HOME_VARIABLE} or ~/.p2pmesh)")
