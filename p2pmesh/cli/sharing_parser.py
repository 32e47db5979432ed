"""What an owner gives, when, and how fast, as options of ``up``; part of ``cli.parser``."""

from collections.abc import Callable

from p2pmesh.cli.actions import OptionGroup
from p2pmesh.core.sharing import DEFAULT_IDLE_AFTER_S, DEFAULT_LEAVE_S


def add_sharing(up: OptionGroup, size: Callable[[str], int]) -> None:
    """When this machine gives anything, how it stops, and what is capped; ``size`` reads sizes."""
    add = up.add_argument
    help_text = "share at these local hours, such as 22:00-07:00 or 'Mon-Fri 18:00-24:00'; repeatable (default: always)"
    add("--share-hours", metavar="HOURS", action="append", default=[], help=help_text)
    add("--idle-only", action="store_true", help="share while nobody uses the machine: no keys, no busy programs")
    add(
        "--idle-after",
        metavar="SECONDS",
        type=int,
        default=DEFAULT_IDLE_AFTER_S,
        help="nobody does so long after the last key (default: %(default)s)",
    )
    add(
        "--leave-within",
        metavar="SECONDS",
        type=int,
        default=DEFAULT_LEAVE_S,
        help="when sharing ends, what runs here has so long to end or move (default: %(default)s)",
    )
    add(
        "--upload-limit",
        metavar="SIZE",
        type=size,
        help="a second, to peers: activations first, then files (default: any)",
    )
    add("--download-limit", metavar="SIZE", type=size, help="a second, from peers (default: any)")
    add("--nice", metavar="N", type=int, help="engines give way to other programs, 0 to 19 (default: as the node)")
