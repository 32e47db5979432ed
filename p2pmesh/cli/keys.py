"""``p2pmesh key``: from arguments to ``app.api_keys`` and its answers to text."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from p2pmesh.app import api_keys
from p2pmesh.app.config import choose_home
from p2pmesh.cli.output import describe_table, describe_value


def run_key(args: Namespace) -> int:
    """One action; 0, or ``P2PMeshError``."""
    home = choose_home(args.home)
    match args.action:
        case "create":
            told = api_keys.create_api_key(home, args.name, args.max_requests, args.per_minute)
            lines = _describe_made(told)
        case "list":
            told = api_keys.list_api_keys(home)
            lines = _describe_list(told)
        case "revoke":
            told = api_keys.revoke_api_key(home, args.key)
            lines = describe_value(told)
        case _:
            told = api_keys.allow_any_key(home)
            lines = iter(["any API key is accepted"])
    sys.stdout.write((json.dumps(told, indent=2) if args.json else "\n".join(lines)) + "\n")
    sys.stdout.flush()
    return 0


def _describe_made(made: dict[str, Any]) -> Iterator[str]:
    yield f"key {made['id']}; it is shown this once:"
    yield f"  {made['key']}"


def _describe_list(listed: dict[str, Any]) -> Iterator[str]:
    if listed["any_key_is_accepted"]:
        yield "any API key is accepted; make one with p2pmesh key create, and only such are"
        return
    rows = [
        {
            "id": key["id"],
            "name": key["name"],
            "at a time": str(key["max_requests"] or "any"),
            "a minute": str(key["per_minute"] or "any"),
        }
        for key in listed["keys"]
    ]
    yield from describe_table(rows) if rows else ("no API key is accepted; p2pmesh key create makes one",)
