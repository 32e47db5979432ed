"""Names and syntax of ``p2pmesh package``; part of ``cli.parser``."""

import argparse
from functools import partial

from p2pmesh.app.config import PASSPHRASE_VARIABLE
from p2pmesh.cli.actions import STATE_HOME, Commands, add_action, add_group, add_home

PACKAGE_ACTIONS = ("build", "verify", "show")


def add_package(commands: Commands) -> None:
    """Adds ``package`` and its actions to the commands."""
    summary = "Models as layer packages: a directory of which each peer needs only its part."
    add = partial(add_action, add_group(commands, "package", summary), home=None)
    _add_build(add("build", "Write the layer package of a model into a new directory."))
    verified = add("verify", "Read a package whole and check every rule; exit 28 if one is broken.")
    shown = add("show", "Show what a package's manifest says.")
    for parser in (verified, shown):
        parser.add_argument("package", metavar="DIR")


def _add_build(build: argparse.ArgumentParser) -> None:
    add = build.add_argument
    add("model", metavar="MODEL", help="GGUF file or installed model")
    add("out", metavar="OUT", help="the directory to make")
    add("--sign", action="store_true", help="sign it with the owner key; otherwise nobody answers for it")
    add("--owner-key", metavar="FILE", help="the owner key (default: owner.key in the home)")
    text = f"its passphrase, first line (else ${PASSPHRASE_VARIABLE}, the keychain, or the terminal)"
    add("--passphrase-file", metavar="FILE", help=text)
    add_home(build, STATE_HOME)
