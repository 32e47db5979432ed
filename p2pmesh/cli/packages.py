"""``p2pmesh package``: which command of ``app`` an action is."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from p2pmesh.app import package_commands
from p2pmesh.app.claims import OwnerFiles
from p2pmesh.app.config import choose_home
from p2pmesh.app.passphrase import PassphraseSources
from p2pmesh.base.errors import ErrorCode
from p2pmesh.cli.auth import ask_passphrase
from p2pmesh.cli.exit_codes import EXIT_CODES, OK


def run_package(args: Namespace) -> tuple[dict[str, Any], int]:
    """What to print, and the exit code."""
    if args.action == "verify":
        facts, is_valid = package_commands.verify_package(Path(args.package))
        return facts, OK if is_valid else EXIT_CODES[ErrorCode.PACKAGE_INVALID]
    if args.action == "show":
        return package_commands.show(Path(args.package)), OK
    home = choose_home(args.home)
    return package_commands.build(home, args.model, Path(args.out), _signing(args, home)), OK


def _signing(args: Namespace, home: Path) -> package_commands.Signing | None:
    if not args.sign:
        return None
    file = None if args.passphrase_file is None else Path(args.passphrase_file)
    sources = PassphraseSources(file, ask=ask_passphrase if sys.stdin.isatty() else None)
    return package_commands.Signing(OwnerFiles.of(home, args.owner_key), sources)
