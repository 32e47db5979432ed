"""Names and syntax of ``p2pmesh certify``, and its actions; part of ``cli.parser`` and ``cli.main``."""

import argparse
import sys
from typing import TypeAlias

from p2pmesh.app.config import HOME_VARIABLE, choose_home
from p2pmesh.wire.dtype import DTYPE_LABELS, LOSSY_DTYPES, WireDtype, dtype_of_label

CERTIFY_ACTIONS = ("wire",)
ALL_CUTS = "all"

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_certify(commands: _Commands) -> None:
    """Adds ``certify`` and its actions to the commands."""
    summary = "Prove by running what would otherwise be assumed."
    certify = commands.add_parser("certify", help=summary, description=summary, allow_abbrev=False)
    actions = certify.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_wire(actions)


def _add_wire(actions: _Commands) -> None:
    summary = "Measure what each wire dtype costs a model, and write its certificate."
    wire = actions.add_parser("wire", help=summary, description=summary, allow_abbrev=False)
    add = wire.add_argument
    add("model", metavar="MODEL", help="GGUF file or installed model")
    text = "layers to cut at, or 'all' (default: a quarter, half and three quarters of them)"
    add("--cuts", metavar="L1,L2,…", type=_cuts, help=text)
    add("--dtypes", metavar="D1,D2,…", type=_dtypes, default=LOSSY_DTYPES, help=f"of {', '.join(DTYPE_LABELS[1:])}")
    add("--tokens", metavar="N", type=int, default=512, help="of the fixed text (default: %(default)s)")
    add("--json", action="store_true", help="as JSON")
    add("--home", metavar="DIR", help=f"models, cache and certificates (default: ${HOME_VARIABLE} or ~/.p2pmesh)")


def run_certify_wire(args: argparse.Namespace) -> int:
    """``certify wire``; the exit code."""
    from p2pmesh.app.certify_wire import CertifyWireOptions, certify_wire

    options = CertifyWireOptions(
        home=choose_home(args.home),
        model=args.model,
        cuts=None if args.cuts == ALL_CUTS else args.cuts,
        takes_all_cuts=args.cuts == ALL_CUTS,
        dtypes=args.dtypes,
        token_count=args.tokens,
        is_json=args.json,
    )
    return certify_wire(options, sys.stdout)


def _cuts(text: str) -> tuple[int, ...] | str:
    if text == ALL_CUTS:
        return ALL_CUTS
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layers; write for example 10,20, or all") from None


def _dtypes(text: str) -> tuple[WireDtype, ...]:
    try:
        dtypes = tuple(dict.fromkeys(dtype_of_label(part) for part in text.split(",")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if WireDtype.F32 in dtypes:
        raise argparse.ArgumentTypeError("f32 is what the others are measured against; leave it away")
    return dtypes
