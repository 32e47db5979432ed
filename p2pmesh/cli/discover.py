"""``p2pmesh discover``: calls ``app.discover``, and prints its facts as JSON or as a table."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from p2pmesh.app.config import choose_home
from p2pmesh.app.config_file import CONFIG_NAME
from p2pmesh.app.discover import DiscoverOptions, run_discover
from p2pmesh.base.quantities import format_age, format_size
from p2pmesh.cli.configs import make_settings
from p2pmesh.cli.exit_codes import OK
from p2pmesh.cli.output import describe_table, printable

MOST_SHOWN_MODELS = 3
MOST_SHOWN_POOLS = 50
_OF_CLOCKS = ("expired", "dated_ahead")


def run(args: Namespace) -> int:
    """Prints what is listed; 0, also where nothing is."""
    home = choose_home(args.home)
    relays = tuple(args.relay) or _relays_of_file(home)
    facts = run_discover(DiscoverOptions(home, relays, args.name, args.model, args.min_memory, args.region, args.auto))
    text = json.dumps(facts, indent=2) if args.json else "\n".join(map(printable, describe_pools(facts)))
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return OK


def _relays_of_file(home: Path) -> tuple[str, ...]:
    """The relays that ``config.toml`` names for ``up``; none where it names none."""
    entries = make_settings().read(home / CONFIG_NAME)
    return next((tuple(entry.value) for entry in entries if entry.name == "nostr_relay"), ())


def describe_pools(facts: Mapping[str, Any]) -> Iterator[str]:
    """Pools as lines for a person, then relays, then what was left out."""
    pools = facts["pools"]
    yield from describe_table([_row(pool) for pool in pools[:MOST_SHOWN_POOLS]])
    if len(pools) > MOST_SHOWN_POOLS:
        yield f"and {len(pools) - MOST_SHOWN_POOLS} more; --json shows all"
    answered = [relay for relay in facts["relays"] if relay["answered"]]
    yield f"{_count(len(pools), 'pool')} at {len(answered)} of {_count(len(facts['relays']), 'relay')}{_remark(facts)}"
    for relay in facts["relays"]:
        if not relay["answered"]:
            yield f"no answer from {relay['url']}: {relay['detail'] or 'none in time'}"
    for one in facts["rejections"]:
        words = one["reason"].replace("_", " ")
        yield f"left out: {one['count']} {words} (first: {one['detail']})"
    if not pools and any(one["reason"] in _OF_CLOCKS for one in facts["rejections"]):
        yield "is the clock of this machine right? it decides which listings are of now"
    if "choice" in facts:
        yield _choice(facts["choice"], pools)


def _row(pool: Mapping[str, Any]) -> dict[str, str]:
    cap = f" of {pool['max_clients']}" if pool["max_clients"] else ""
    return {
        "pool": _name(pool),
        "nodes": str(pool["nodes"]),
        "memory": format_size(pool["memory_bytes"]),
        "serving": _models(pool["serving"]),
        "clients": f"{pool['clients']}{cap}",
        "region": pool["region"] or "-",
        "score": str(pool["score"]),
        "listed": f"{format_age(1000 * pool['listed_s_ago'])} ago",
    }


def _name(pool: Mapping[str, Any]) -> str:
    """Its name; without one, so much of the mesh id that two can be told apart."""
    return pool["name"] or f"(no name, {pool['mesh_id'][:8]})"


def _models(names: Sequence[str]) -> str:
    more = len(names) - MOST_SHOWN_MODELS
    shown = ", ".join(names[:MOST_SHOWN_MODELS]) or "nothing yet"
    return f"{shown} and {more} more" if more > 0 else shown


def _remark(facts: Mapping[str, Any]) -> str:
    hidden = f"; {_count(facts['hidden'], 'other')} not of the kind that you asked for" if facts["hidden"] else ""
    claims = ", by their own word" if facts["pools"] else ""
    return f"{claims}{hidden}"


def _choice(choice: Mapping[str, Any] | None, pools: Sequence[Mapping[str, Any]]) -> str:
    if choice is None:
        return f"up --auto would serve alone: {_why_alone(pools)}"
    away = f"{choice['round_trip_us'] / 1000:.1f} ms away"
    return f"up --auto would join {_name(choice)}: {choice['score']} points by what it answered, {away}"


def _why_alone(pools: Sequence[Mapping[str, Any]]) -> str:
    if not pools:
        return "none is listed"
    if not any(pool["is_open"] for pool in pools):
        return "all of them have names, and are joined by those alone (--pool-name NAME, of discover and up)"
    return "none of them answered, or they are full"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
