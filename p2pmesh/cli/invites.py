"""``p2pmesh invite`` and ``p2pmesh peer``: from arguments to ``app.invites`` and its answers to text."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from p2pmesh.app import invites
from p2pmesh.app.config import choose_home
from p2pmesh.app.invite_text import read_invite_text
from p2pmesh.base.ids import PeerId
from p2pmesh.cli.output import describe_table, describe_value
from p2pmesh.cli.qr import print_qr


def run_invite(args: Namespace) -> int:
    """One action of ``invite``; 0, or ``P2PMeshError``."""
    home = choose_home(args.home)
    match args.action:
        case "create":
            made = invites.create_invite(home, args.expires, args.uses)
            _print(made, _describe_made(made), is_json=args.json)
            _print_code(made["invite"], args)
        case "list":
            listed = invites.list_invites(home)
            _print(listed, _describe_list(listed), is_json=args.json)
        case "revoke":
            revoked = invites.revoke_invite(home, args.invite, is_expelling=args.expel)
            _print(revoked, describe_value(revoked), is_json=args.json)
        case _:
            text = read_invite_text(args.invite, None, {}, sys.stdin) or ""
            shown = invites.show_invite(text)
            _print(shown, describe_value(_readable(shown)), is_json=args.json)
            _print_code(text, args)
    return 0


def run_peer(args: Namespace) -> int:
    """One action of ``peer``; 0, or ``P2PMeshError``."""
    home, peer = choose_home(args.home), PeerId(args.peer)
    if args.action == "readmit":
        readmitted = invites.readmit_peer(home, peer)
        text = f"peer {peer} may come in again by its pass or an invite; if it runs, it asks within 15 minutes"
        _print(readmitted, iter([text]), is_json=args.json)
        return 0
    if args.action == "forgive":
        forgiven = invites.forgive_peer(home, peer)
        was = "is banned no longer" if forgiven["was_banned"] else "was not banned; whatever it did is forgotten"
        _print(forgiven, iter([f"peer {peer} {was}"]), is_json=args.json)
        return 0
    removed = invites.remove_peer(home, peer, is_forced=args.force)
    _print(removed, _describe_removed(removed), is_json=args.json)
    return 0


def _print_code(text: str, args: Namespace) -> None:
    if args.qr and not args.json:
        print_qr(text.strip(), sys.stdout)


def _print(value: dict[str, Any], lines: Iterator[str], *, is_json: bool) -> None:
    sys.stdout.write((json.dumps(value, indent=2) if is_json else "\n".join(lines)) + "\n")
    sys.stdout.flush()


def _describe_made(made: dict[str, Any]) -> Iterator[str]:
    count = made["max_uses"]
    uses = f"for {count} peer{'s' * (count != 1)}" if count else "for any number of peers"
    yield f"invite {made['id']}, {uses}, until {_time(made['expires_unix_ms'])}"
    yield "another machine joins with:"
    yield f"  p2pmesh up --join {made['invite']}"
    if "note" in made:
        yield f"note: {made['note']}"


def _describe_list(listed: dict[str, Any]) -> Iterator[str]:
    rows = [
        {
            "id": entry["id"],
            "state": entry["state"],
            "uses": f"{entry['uses']} of {entry['max_uses']}" if entry["max_uses"] else str(entry["uses"]),
            "expires": _time(entry["expires_unix_ms"]),
        }
        for entry in listed["invites"]
    ]
    yield from describe_table(rows) if rows else ("no invites; make one with p2pmesh invite create",)
    for peer in listed["removed_peers"]:
        yield f"removed: {peer}"


def _describe_removed(removed: dict[str, Any]) -> Iterator[str]:
    yield f"peer {removed['peer_id']} is out, and so is whoever it let in"
    for invite_id in removed["invites"]:
        yield f"it came by invite {invite_id}, which may let it in under another key: p2pmesh invite revoke {invite_id}"


def _readable(shown: dict[str, Any]) -> dict[str, Any]:
    return {("expires" if k == "expires_unix_ms" else k): (_time(v) if k == "expires_unix_ms" else v)
            for k, v in shown.items()}  # fmt: skip


def _time(unix_ms: int) -> str:
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # a time that no calendar holds, in an invite that somebody made
        return "the end of time"
