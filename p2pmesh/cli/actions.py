"""Syntax that commands with actions (``p2pmesh invite create``) share; part of ``cli.parser``."""

import argparse
from typing import NoReturn, TypeAlias

from p2pmesh.app.config import HOME_VARIABLE

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
NODES_HOME = "the node's home"
STATE_HOME = "keys, cache and state"


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, instead of after all options that there are; so do its commands' parsers."""

    def error(self, message: str) -> NoReturn:
        """Exits with 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


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
