"""Names and syntax of how ``up`` publishes and finds public pools; part of ``cli.parser``."""

import argparse

from p2pmesh.app.pool_options import DEFAULT_RELAYS, PoolChoice
from p2pmesh.cli.actions import OptionGroup


def add_pool(up: OptionGroup) -> None:
    """Options about public pools."""
    add = up.add_argument
    add("--publish", action="store_true", help="found a public pool and list it at relays, for strangers to join")
    add("--auto", action="store_true", help="join the best public pool that is listed; with none, serve alone")
    add("--pool-name", metavar="NAME", default="", help="the pool's name: to publish under, or to look for exactly")
    text = "join no pool of this id, as pool_joined told it; repeatable"
    add("--avoid-pool", metavar="MESH_ID", action="append", default=[], help=text)
    add("--region", metavar="TEXT", help="where the pool is, in its listing")
    help_text = "serve so many clients of other peers at a time, and list the pool only below that; 0: no cap"
    add("--max-clients", metavar="N", type=int, default=0, help=help_text)
    text = f"a relay for listings; repeatable (default: {len(DEFAULT_RELAYS)} public ones)"
    add("--nostr-relay", metavar="URL", action="append", default=[], help=text)


def pool_choice(args: argparse.Namespace) -> PoolChoice:
    """What was asked; ``ConfigError`` where a value makes no sense."""
    return PoolChoice(
        args.publish, args.auto, args.pool_name, args.region, args.max_clients, tuple(args.nostr_relay),
        frozenset(args.avoid_pool),
    )  # fmt: skip
