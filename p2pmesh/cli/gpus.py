"""``p2pmesh gpus``: prints the facts of ``app.gpus``."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from p2pmesh.app.config import choose_home
from p2pmesh.app.gpus import describe_machine
from p2pmesh.base.quantities import format_size
from p2pmesh.cli.exit_codes import OK
from p2pmesh.cli.output import describe_table


def run_gpus(args: Namespace) -> int:
    """Prints; 0."""
    facts = describe_machine(choose_home(args.home), is_measuring=args.measure)
    sys.stdout.write((json.dumps(facts, indent=2) if args.json else "\n".join(describe_devices(facts))) + "\n")
    sys.stdout.flush()
    return OK


def describe_devices(facts: Mapping[str, Any]) -> Iterator[str]:
    """Tables of devices and of speeds, what a node would offer, and what to do for a GPU."""
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
    yield from _describe_speeds(facts["speeds"])
    if facts["load_milli"] is not None:
        yield f"its processors were loaded to {facts['load_milli'] // 10} % in the last minute"
    if facts["is_on_battery"]:
        yield f"it runs on battery, {facts['battery_percent']} % are left: stages go to others first"
    where = ", ".join(facts["runs_on"]) or "the processor"
    offers = f"a node here offers {format_size(facts['offered_bytes'])} for stages, which run on {where}"
    yield f"{offers}; {format_size(facts['reserved_bytes'])} more are free and stay with the machine"
    if facts["remedy"] is not None:
        yield facts["remedy"]


def _describe_speeds(speeds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What engines measured at their loads: weights of a model by the time of a token."""
    yield from describe_table(
        [
            {
                "model": speed["architecture"],
                "a token reads": _size_class(speed["size_class"]),
                "decoding": _rate(speed["decode_bytes_per_s"]),
                "prompts": _rate(speed["prefill_bytes_per_s"]),
            }
            for speed in speeds
        ]
    )


def _size_class(size_class: int) -> str:
    """Of ``core.speeds``: the binary digits of MiB."""
    return f"{1 << (size_class - 1)}-{1 << size_class} MiB" if size_class else "below 1 MiB"


def _rate(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s else "?"
