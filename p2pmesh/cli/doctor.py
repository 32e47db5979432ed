"""``p2pmesh doctor network``: calls ``app.doctor``, and prints findings as sentences or all of it as JSON."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from p2pmesh.app.config import Discovery, check_typed_relays, choose_home
from p2pmesh.app.config_file import CONFIG_NAME
from p2pmesh.app.doctor import Checkup, DoctorOptions, check_network
from p2pmesh.cli.configs import make_settings
from p2pmesh.cli.exit_codes import FAILED, OK
from p2pmesh.cli.output import describe_table, printable
from p2pmesh.cli.parser import build_parser, up_options
from p2pmesh.core.network_doctor import Level, has_problem

_MARKS = {Level.OK: "ok     ", Level.ADVICE: "advice ", Level.PROBLEM: "PROBLEM"}


def run(args: Namespace) -> int:
    """0; 1 where something does not work. ``ConfigError`` for a file that a node could not start with."""
    checkup = check_network(_options(args))
    if args.json:
        shown = {**checkup.facts, "findings": [asdict(one) for one in checkup.findings]}
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(map(printable, describe(checkup))) + "\n")
    sys.stdout.flush()
    return FAILED if has_problem(checkup.findings) else OK


def _options(args: Namespace) -> DoctorOptions:
    """As a node of this home would be started without options."""
    home = choose_home(args.home)
    settings = make_settings()
    blank = build_parser().parse_args(["up", "--home", str(home)])
    entries = [one for one in settings.read(home / CONFIG_NAME) if one.name != "join_file"]
    up = up_options(settings.merged(blank, entries))
    discovery = None if args.discovery is None else Discovery(args.discovery)
    check_typed_relays(args.nostr_relay, discovery or Discovery.NOSTR)
    return DoctorOptions(
        home, discovery, up.discovery, up.listen, up.announce, up.pool.relays_to_use, up.pool.is_asked_for,
        tuple(args.nostr_relay),
    )  # fmt: skip


def describe(checkup: Checkup) -> Iterator[str]:
    """Interfaces and contacts as tables, then what follows from them."""
    facts = checkup.facts
    yield from describe_table([_interface_row(one) for one in facts["interfaces"]])
    contacts = [*facts["own"], *facts["known_members"], *facts["nostr_relays"]]
    if contacts:
        yield ""
        yield from describe_table([_contact_row(one) for one in contacts])
    yield ""
    for finding in checkup.findings:
        yield f"{_MARKS[finding.level]}  {finding.topic.value}: {finding.text}"
        if finding.level is not Level.OK or not finding.advice.startswith("Nothing"):
            yield f"         {finding.advice}"
    yield ""
    yield "took " + ", ".join(f"{name} {took_ms} ms" for name, took_ms in facts["steps_ms"].items())


def _interface_row(one: dict[str, Any]) -> dict[str, str]:
    reason = one["left_out"]
    return {
        "interface": one["interface"],
        "address": f"{one['address']}/{one['prefix_bits']}",
        "told to peers": "yes" if reason is None else f"no, {str(reason).replace('_', '-')}",
    }


def _contact_row(one: dict[str, Any]) -> dict[str, str]:
    return {
        "contact": one["name"],
        "took": "" if one["took_ms"] is None else f"{one['took_ms']} ms",
        "failure": one["detail"],
    }
