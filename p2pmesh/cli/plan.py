"""``p2pmesh plan``: calls ``app.plan``, and prints its facts as JSON or as a table."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from p2pmesh.app.config import choose_home
from p2pmesh.app.plan import PlanOptions, make_plan
from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.quantities import format_size
from p2pmesh.cli.exit_codes import EXIT_CODES, OK
from p2pmesh.cli.output import describe_table, printable
from p2pmesh.wire.dtype import dtype_of_label

MOST_SHOWN_UNUSED = 20
_WHY_NOT = {
    "more_peers": "one peer more",
    "another_driver": "the coordinator would not drive",
    "slower": "slower",
    "smaller_context": "a shorter context, or fewer lanes",
    "more_to_fetch": "more stages to fetch",
    "fuller": "a fuller peer",
}


def run_plan(args: Namespace) -> int:
    """Prints the plan; 0, or the exit code of a refused placement."""
    facts = make_plan(_options(args))
    text = json.dumps(facts, indent=2) if args.json else "\n".join(map(printable, describe_plan(facts)))
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return OK if facts["refusal"] is None else EXIT_CODES[ErrorCode.PLACEMENT_REFUSED]


def _options(args: Namespace) -> PlanOptions:
    return PlanOptions(
        home=choose_home(args.home),
        model=args.model,
        peers=args.peers,
        context_tokens=args.context,
        lanes=args.lanes,
        stage_count=args.split,
        target_ms=args.target_tpot,
        prompt_tokens=args.prompt,
        wire_dtype=dtype_of_label(args.wire_dtype),
    )


def describe_plan(facts: Mapping[str, Any]) -> Iterator[str]:
    """The plan as lines for a person."""
    layers, peers = _count(facts["layer_count"], "layer"), _count(facts["peer_count"], "peer")
    yield f"{facts['model']}, {layers}; {peers} from {facts['peers_from']}"
    if facts["refusal"] is not None:
        yield f"no placement ({facts['refusal']['reason']}): {facts['refusal']['message']}"
    else:
        by_id = {peer["peer"]: peer for peer in facts["peers"]}
        yield from _describe_placement(facts["placement"], facts["wire_dtype"], by_id)
    yield from _describe_runner_ups(facts["runner_ups"])
    yield from _describe_unused(facts["unused"])


def _describe_placement(
    placement: Mapping[str, Any], wire_dtype: str, peers: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    lanes = _count(placement["lanes"], "lane")
    yield f"context {placement['context_tokens']} tokens, {lanes}, {wire_dtype} between peers"
    yield ""
    rows = [
        {
            "stage": str(at),
            "peer": stage["label"],
            "layers": _layers(stage),
            "needs": format_size(stage["needed_bytes"]),
            "of": format_size(stage["offered_bytes"]),
            "full": f"{100 * stage['needed_bytes'] // max(1, stage['offered_bytes'])} %",
            "reads": _speed(peers[stage["peer"]]["decode_bytes_per_s"]),
            "owner": _wishes(peers[stage["peer"]]),
        }
        for at, stage in enumerate(placement["stages"])
    ]
    yield from describe_table(rows)
    yield ""
    yield from _describe_estimate(placement["estimate"], len(rows))
    yield from _describe_first_token(placement["first_token"])


def _speed(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s else "?"


def _wishes(peer: Mapping[str, Any]) -> str:
    parts = [f"at most {peer['max_layers']} layers"] if peer["max_layers"] is not None else []
    parts += ["rather not"] if peer["spared"] else []
    return ", ".join(parts) or "-"


def _describe_estimate(estimate: Mapping[str, Any], stages: int) -> Iterator[str]:
    parts = ("compute", "network", "transfer", "overhead")
    listed = ", ".join(f"{part} {_ms(estimate[f'{part}_us'])}" for part in parts)
    yield f"a token is predicted to take {_ms(estimate['tpot_us'])} ms: {listed}"
    missed_us = estimate["tpot_us"] - estimate["target_us"]
    verdict = "met" if estimate["decode_tpot_target_met"] else f"missed by {_ms(missed_us)} ms"
    yield f"the target of {_ms(estimate['target_us'])} ms is {verdict}"
    if stages > 1:
        network = estimate["estimated_decode_network_ms_per_token"]
        hops = f"the longest hop of {_ms(estimate['max_hop_us'])} ms, {stages} times"
        yield f"by upstream's rule the network alone takes {network:.1f} ms: {hops}"
    if estimate["unknown_speeds"]:
        yield f"nobody has measured the speed of {estimate['unknown_speeds']} of these peers; a usual one is assumed"
    if estimate["unknown_links"]:
        yield f"nobody has measured {estimate['unknown_links']} of these links; 50 ms one way are assumed"


def _describe_first_token(first: Mapping[str, Any] | None) -> Iterator[str]:
    if first is None:
        yield "nobody has measured how fast these peers read prompts: the time to a first token is not predicted"
        return
    prompt = _count(first["prompt_tokens"], "token")
    yield f"the first token after a prompt of {prompt} is predicted within {_ms(first['ttft_us'])} ms"
    if first["unknown_speeds"]:
        unknown = first["unknown_speeds"]
        yield f"nobody has measured how fast {unknown} of these peers read prompts; that of the others is assumed"


def _describe_runner_ups(others: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if others:
        yield ""
        yield "also possible:"
    for other in others:
        stages = ", ".join(f"{stage['label']} {_layers(stage)}" for stage in other["stages"])
        why = _WHY_NOT.get(other["why_not"], other["why_not"])
        first = other["first_token"]
        after = "" if first is None else f", the first after {_ms(first['ttft_us'])} ms"
        yield f"  {_ms(other['estimate']['tpot_us'])} ms{after}  {stages}  ({why})"


def _describe_unused(unused: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if unused:
        yield ""
        yield "no stage on:"
    for refusal in unused[:MOST_SHOWN_UNUSED]:
        yield f"  {refusal['label']}: {refusal['message']} ({refusal['reason']})"
    if len(unused) > MOST_SHOWN_UNUSED:
        yield f"  and {len(unused) - MOST_SHOWN_UNUSED} more; --json lists them"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _layers(stage: Mapping[str, Any]) -> str:
    return f"{stage['layers'][0]}-{stage['layers'][1] - 1}"


def _ms(microseconds: int) -> str:
    return f"{microseconds / 1000:.1f}"
