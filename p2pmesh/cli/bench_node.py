"""A node of ``p2pmesh bench api``: ``python -m p2pmesh.cli.bench_node up …``, whose driver can be asked directly."""

import sys
from argparse import Namespace

from p2pmesh.app.bench_driver import obey
from p2pmesh.app.up import run_up
from p2pmesh.cli.main import main
from p2pmesh.cli.output import JsonPrinter
from p2pmesh.cli.parser import up_options


def _up(args: Namespace) -> int:
    return run_up(up_options(args), JsonPrinter(sys.stdout).emit, beside=obey)


if __name__ == "__main__":
    sys.exit(main(commands={"up": _up}))
