"""A node of ``p2pmesh chaos``: ``python -m p2pmesh.cli.chaos_node up …``, one that can be made to lie.

It is told so by lines on its standard input, and ends where they end: whoever started it is gone.
"""

import sys
from argparse import Namespace

from p2pmesh.app.chaos_lies import Liar, LyingNetwork, end_this_process
from p2pmesh.app.up import run_up
from p2pmesh.cli.main import main
from p2pmesh.cli.output import JsonPrinter
from p2pmesh.cli.parser import up_options


def _up(args: Namespace) -> int:
    liar = Liar()
    liar.follow(sys.stdin, end_this_process)
    return run_up(up_options(args), JsonPrinter(sys.stdout).emit, lambda network: LyingNetwork(network, liar))


if __name__ == "__main__":
    sys.exit(main(commands={"up": _up}))
