"""Names and syntax of ``p2pmesh discover``; part of ``cli.parser``."""

import argparse

from p2pmesh.app.pool_options import DEFAULT_RELAYS
from p2pmesh.base.quantities import parse_size_bytes
from p2pmesh.cli.actions import STATE_HOME, Commands, add_home


def add_discover(commands: Commands) -> None:
    """Adds ``discover`` to the commands."""
    summary = "Show the public pools that relays list, and why others do not count; joins none."
    discover = commands.add_parser("discover", help=summary, description=summary, allow_abbrev=False)
    add = discover.add_argument
    add("--pool-name", "--name", dest="name", metavar="NAME", help="only pools of exactly this name")
    add("--model", metavar="MODEL", help="only pools that serve this model")
    add("--min-memory", metavar="SIZE", type=_size, default=0, help="only pools that offer so much, such as 64GiB")
    add("--region", metavar="TEXT", help="only pools of this region")
    add("--auto", action="store_true", help="dial them, and say which one up --auto would join")
    text = f"a relay to ask; repeatable (default: those of config.toml, or {len(DEFAULT_RELAYS)} public ones)"
    add("--nostr-relay", "--relay", dest="relay", metavar="URL", action="append", default=[], help=text)
    add("--json", action="store_true", help="as JSON")
    add_home(discover, STATE_HOME)


def _size(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
