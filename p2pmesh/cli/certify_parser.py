"""Names and syntax of ``p2pmesh certify``; part of ``cli.parser``."""

import argparse
from pathlib import Path

from p2pmesh.cli.actions import Commands, add_group, add_home
from p2pmesh.wire.dtype import DTYPE_LABELS, LOSSY_DTYPES, WireDtype, dtype_of_label

ALL_CUTS = "all"


def add_certify(commands: Commands) -> None:
    """Adds ``certify`` and its actions to the commands."""
    summary = "Prove by running what would otherwise be assumed."
    actions = add_group(commands, "certify", summary)
    _add_wire(actions)
    _add_families(actions)


def _add_wire(actions: Commands) -> None:
    summary = "Measure what each wire dtype costs a model, and write its certificate."
    wire = actions.add_parser("wire", help=summary, description=summary, allow_abbrev=False)
    add = wire.add_argument
    add("model", metavar="MODEL", help="GGUF file or installed model")
    text = "layers to cut at, or 'all' (default: a quarter, half and three quarters of them)"
    add("--cuts", metavar="L1,L2,…", type=_cuts, help=text)
    add("--dtypes", metavar="D1,D2,…", type=_dtypes, default=LOSSY_DTYPES, help=f"of {', '.join(DTYPE_LABELS[1:])}")
    add("--tokens", metavar="N", type=int, default=512, help="of the fixed text (default: %(default)s)")
    add("--json", action="store_true", help="as JSON")
    add_home(wire, "models, cache and certificates")


def _add_families(actions: Commands) -> None:
    summary = "Run a tiny model of every architecture whole and cut, and say which may be split."
    families = actions.add_parser("families", help=summary, description=summary, allow_abbrev=False)
    add = families.add_argument
    add("--only", metavar="ARCH", action="append", default=[], help="an architecture of llama.cpp; repeatable")
    add("--list", action="store_true", help="run nothing: print what is on record")
    add("--record", metavar="FILE", type=Path, help="write the verdicts, as the record within the package has them")
    add("--json", action="store_true", help="as JSON")


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
