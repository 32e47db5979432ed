"""Names and syntax of ``p2pmesh doctor``; part of ``cli.parser``."""

import argparse

from p2pmesh.app.config import Discovery
from p2pmesh.cli.actions import STATE_HOME, Commands, add_home


def add_doctor(commands: Commands) -> None:
    """Adds ``doctor`` to the commands."""
    doctor = commands.add_parser("doctor", help="Find out what does not work here, and what to do.", allow_abbrev=False)
    actions = doctor.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "Check this machine's network, with the node that runs here or without one."
    network: argparse.ArgumentParser = actions.add_parser(
        "network", help=summary, description=summary, allow_abbrev=False
    )
    ways = [item.value for item in Discovery]
    text = "with nostr relays are asked, else nobody but peers (default: as the node that runs, or config.toml)"
    network.add_argument("--discovery", choices=ways, help=text)
    text = "a relay to ask; repeatable (default: those of the node that runs, of config.toml, or public ones)"
    network.add_argument("--nostr-relay", "--relay", metavar="URL", action="append", default=[], help=text)
    network.add_argument("--json", action="store_true", help="as JSON")
    add_home(network, STATE_HOME)
