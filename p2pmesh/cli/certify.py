"""``p2pmesh certify`` and its actions."""

import argparse
import sys

from p2pmesh.app.config import choose_home
from p2pmesh.cli.certify_parser import ALL_CUTS
from p2pmesh.cli.exit_codes import FAILED, OK


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
