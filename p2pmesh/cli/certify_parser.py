"""Names and syntax of ``p2pmesh certify``, and its actions; part of ``cli.parser`` and ``cli.main``."""

import argparse
import sys
from pathlib import Path
from typing import TypeAlias

from p2pmesh.app.config import HOME_VARIABLE, choose_home
from p2pmesh.cli.exit_codes import FAILED, OK
from p2pmesh.wire.dtype import DTYPE_LABELS, LOSSY_DTYPES, WireDtype, dtype_of_label

CERTIFY_ACTIONS = ("wire", "families")
ALL_CUTS = "all"

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_certify(commands: _Commands) -> None:
    """Adds ``certify`` and its actions to the commands."""
    summary = "Prove by running what would otherwise be assumed."
    certify = commands.add_parser("certify", help=summary, description=summary, allow_abbrev=False)
    actions = certify.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_wire(actions)
    _add_families(actions)


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


def _add_families(actions: _Commands) -> None:
    summary = "Run a tiny model of every architecture whole and cut, and say which may be split."
    families = actions.add_parser("families", help=summary, description=summary, allow_abbrev=False)
    add = families.add_argument
    add("--only", metavar="ARCH", action="append", default=[], help="an architecture of llama.cpp; repeatable")
    add("--list", action="store_true", help="run nothing: print what is on record")
    add("--record", metavar="FILE", type=Path, help="write the verdicts, as the record within the package has them")
    add("--json", action="store_true", help="as JSON")


def run_certify_families(args: argparse.Namespace) -> int:
    """``certify families``; the exit code: a failure where an architecture is worse than its record."""
    from p2pmesh.app.certify_families import CertifyFamiliesOptions, certify_families

    options = CertifyFamiliesOptions(tuple(args.only), args.record, args.list, args.json)
    return OK if certify_families(options, sys.stdout) else FAILED


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
