"""Names and syntax of ``p2pmesh plan``; part of ``cli.parser``."""

import argparse
from pathlib import Path

from p2pmesh.base.limits import DEFAULT_CONTEXT_TOKENS, DEFAULT_LANES
from p2pmesh.cli.actions import STATE_HOME, Commands, add_home, finite_number
from p2pmesh.core.planning.request import DEFAULT_TARGET_US
from p2pmesh.wire.dtype import DTYPE_LABELS, WireDtype


def add_plan(commands: Commands) -> None:
    """Adds ``plan`` to the commands."""
    summary = "Show where a model would go, what a token would take, and what else was possible; loads nothing."
    plan = commands.add_parser("plan", help=summary, description=summary, allow_abbrev=False)
    add = plan.add_argument
    add("model", metavar="MODEL", help="GGUF file or installed model")
    add("--peers", type=Path, metavar="FILE", help="peers and links, .toml or .json (default: the running node's)")
    context = "tokens of a request; auto: as many as cost no peer and no time"
    _add_amount(plan, ("--context", "--ctx-size"), DEFAULT_CONTEXT_TOKENS, context)
    _add_amount(plan, ("--lanes",), DEFAULT_LANES, "requests at a time; auto: as many as cost no context, at most 4")
    add("--split", metavar="auto|N", type=_amount, default=None, help="stages: as few as fit (auto), or exactly N")
    target_ms = DEFAULT_TARGET_US // 1000
    add("--target-tpot", type=finite_number, metavar="MS", default=target_ms, help="ms a token (default: %(default)s)")
    prompt = "tokens of the prompt whose first token is predicted (default: 512, or what the context has room for)"
    add("--prompt", type=int, metavar="N", default=None, help=prompt)
    add("--wire-dtype", choices=DTYPE_LABELS, default=WireDtype.F32.label, help="of activations between peers")
    add("--json", action="store_true", help="as JSON")
    add_home(plan, STATE_HOME)


def _add_amount(plan: argparse.ArgumentParser, names: tuple[str, ...], default: int, text: str) -> None:
    plan.add_argument(*names, type=_amount, metavar="N|auto", default=default, help=f"{text} (default: %(default)s)")


def _amount(text: str) -> int | None:
    if text == "auto":
        return None
    if text.isascii() and text.isdecimal():
        return int(text[:12])
    raise argparse.ArgumentTypeError(f"{text!r} is neither 'auto' nor a number")
