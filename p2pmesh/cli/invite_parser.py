"""Names and syntax of ``p2pmesh invite`` and ``peer``, and of how ``up`` joins and founds; part of ``cli.parser``."""

import argparse

from p2pmesh.app.config import RequirementOptions
from p2pmesh.app.invite_text import JOIN_VARIABLE, STDIN
from p2pmesh.base.ids import OwnerId, is_peer_id
from p2pmesh.base.quantities import parse_duration_s
from p2pmesh.cli.actions import Commands, OptionGroup, add_action, add_group
from p2pmesh.wire.invite import LIFE_MS

INVITE_ACTIONS = ("create", "list", "revoke", "show")
PEER_ACTIONS = ("remove", "readmit", "forgive")


def add_joining(up: OptionGroup) -> None:
    """How ``up`` comes into a mesh, or what the mesh that it founds requires."""
    joins = up.add_mutually_exclusive_group()
    joins.add_argument("--join", metavar="INVITE", help=f"join the overlay of this invite ({STDIN}: from stdin)")
    joins.add_argument("--join-file", metavar="FILE", help=f"the same, from a file (else ${JOIN_VARIABLE})")
    joins.add_argument("--rejoin", action="store_true", help="join the overlay that this home was in last")
    add = up.add_argument
    add("--require-owner", action="store_true", help="found a mesh of nodes that an owner signed")
    add("--allow-owner", metavar="ID", action="append", default=[], help="found a mesh of these owners; repeatable")
    add("--min-version", metavar="V", help="found a mesh of this p2pmesh version or newer")
    add("--max-version", metavar="V", help="found a mesh of this p2pmesh version or older")


def requirement_options(args: argparse.Namespace) -> RequirementOptions:
    """What a founded mesh shall require; ``ConfigError`` where a value makes no sense."""
    owners = tuple(OwnerId(owner) for owner in args.allow_owner)
    return RequirementOptions(args.require_owner, owners, args.min_version, args.max_version)


def add_invite(commands: Commands) -> None:
    """Adds ``invite`` and its actions to the commands."""
    summary = "Invites to the mesh that this home founded."
    actions = add_group(commands, "invite", summary)
    create = add_action(actions, "create", "Make an invite.")
    hours = LIFE_MS // 3_600_000
    create.add_argument("--expires", metavar="TIME", type=_duration, default=LIFE_MS // 1000, help=f"default: {hours}h")
    create.add_argument("--uses", metavar="N", type=_count, default=0, help="how many peers may join by it; 0: any")
    create.add_argument("--qr", action="store_true", help="as a QR code too")
    add_action(actions, "list", "List the invites that still matter, without the lines themselves.")
    revoke = add_action(actions, "revoke", "Let nobody in by an invite any more.")
    revoke.add_argument("invite", metavar="ID", help="its id, or the invite itself")
    revoke.add_argument("--expel", action="store_true", help="put out everyone who came in by it, too")
    show = add_action(actions, "show", "Show what an invite says.")
    show.add_argument("invite", metavar="INVITE", help=f"the line ({STDIN}: read it from stdin)")
    show.add_argument("--qr", action="store_true", help="as a QR code too")


def add_peer(commands: Commands) -> None:
    """Adds ``peer`` and its actions to the commands."""
    summary = "Members of the mesh: put out, let in again, forgiven."
    actions = add_group(commands, "peer", summary)
    remove = add_action(actions, "remove", "Put a member out, with those whom it let in.")
    remove.add_argument("peer", metavar="PEER_ID", type=_peer)
    remove.add_argument("--force", action="store_true", help="even one that was never seen here")
    readmit = add_action(actions, "readmit", "Let a removed member in again.")
    readmit.add_argument("peer", metavar="PEER_ID", type=_peer)
    forgive = add_action(actions, "forgive", "Lift the ban or throttle of a peer that broke rules, at this node.")
    forgive.add_argument("peer", metavar="PEER_ID", type=_peer)


def _duration(text: str) -> int:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal():
        return int(text[:6])
    raise argparse.ArgumentTypeError(f"{text!r} is no number of uses")


def _peer(text: str) -> str:
    if is_peer_id(text):
        return text
    raise argparse.ArgumentTypeError(f"{text[:80]!r} is no peer id; `p2pmesh status` lists them")
