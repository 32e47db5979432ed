"""Names and syntax of ``p2pmesh package``; part of ``cli.parser``."""

import argparse
from typing import TypeAlias

from p2pmesh.app.config import HOME_VARIABLE, PASSPHRASE_VARIABLE

PACKAGE_ACTIONS = ("build", "verify", "show")

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_package(commands: _Commands) -> None:
    """Adds ``package`` and its actions to the commands."""
    summary = "Models as layer packages: a directory of which each peer needs only its part."
    package = commands.add_parser("package", help=summary, description=summary, allow_abbrev=False)
    actions = package.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_build(actions)
    verified = _add_action(actions, "verify", "Read a package whole and check every rule; exit 28 if one is broken.")
    shown = _add_action(actions, "show", "Show what a package's manifest says.")
    for parser in (verified, shown):
        parser.add_argument("package", metavar="DIR")


def _add_build(actions: _Commands) -> None:
    build = _add_action(actions, "build", "Write the layer package of a model into a new directory.")
    add = build.add_argument
    add("model", metavar="MODEL", help="GGUF file or installed model")
    add("out", metavar="OUT", help="the directory to make")
    add("--sign", action="store_true", help="sign it with the owner key; otherwise nobody answers for it")
    add("--owner-key", metavar="FILE", help="the owner key (default: owner.key in the home)")
    text = f"its passphrase, first line (else ${PASSPHRASE_VARIABLE}, the keychain, or the terminal)"
    add("--passphrase-file", metavar="FILE", help=text)
    add("--home", metavar="DIR", help=f"keys, cache and state (default: ${HOME_VARIABLE} or ~/.p2pmesh)")


def _add_action(actions: _Commands, name: str, summary: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser
