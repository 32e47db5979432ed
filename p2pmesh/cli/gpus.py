"""``p2pmesh gpus``: prints the facts of ``app.gpus``."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from p2pmesh.app.gpus import describe_machine
from p2pmesh.base.quantities import format_size
from p2pmesh.cli.exit_codes import OK
from p2pmesh.cli.output import describe_table


def run_gpus(args: Namespace) -> int:
    """Prints; 0."""
    facts = describe_machine(is_measuring=args.measure)
    sys.stdout.write((json.dumps(facts, indent=2) if args.json else "\n".join(describe_devices(facts))) + "\n")
    sys.stdout.flush()
    return OK


def describe_devices(facts: Mapping[str, Any]) -> Iterator[str]:
    """A table, what a node would offer, and what to do for a GPU."""
    yield f"llama-cpp-python {facts['llama_cpp_python']}, built for {', '.join(facts['backends'])}"
    yield from describe_table(
        [
            {
                "device": device["name"],
                "type": device["type"].replace("_", " "),
                "backend": device["backend"],
                "free": format_size(device["free_bytes"]),
                "total": format_size(device["total_bytes"]),
                "description": device["description"],
            }
            for device in facts["devices"]
        ]
    )
    if facts["group_left_bytes"] is not None:
        yield f"the limit of this container or service leaves {format_size(facts['group_left_bytes'])}"
    if facts["processor_quota"] is not None:
        allowed = f"{facts['processor_quota']:.2f} of {facts['processors']} processors"
        yield f"its time is limited to {allowed}: engines run {facts['threads']} threads"
    if facts["memory_bytes_per_s"] is not None:
        yield f"its memory copies {facts['memory_bytes_per_s'] / 1e9:.1f} GB/s"
    if facts["is_on_battery"]:
        yield f"it runs on battery, {facts['battery_percent']} % are left: stages go to others first"
    where = ", ".join(facts["runs_on"]) or "the processor"
    yield f"a node here offers {format_size(facts['offered_bytes'])} for stages, which run on {where}"
    if facts["remedy"] is not None:
        yield facts["remedy"]
