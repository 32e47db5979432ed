"""``HOME/listen-port``: the port that a node listened on, which it takes again if it can.

Invites, what peers keep of their fellows, relay reservations and a router's forwarding all name a port. A file that is
missing or makes no sense costs nothing but another port.
"""

from contextlib import suppress
from pathlib import Path

from p2pmesh.adapters.private_files import read_private, write_private
from p2pmesh.base.errors import ConfigError

FILE_NAME = "listen-port"
MAX_FILE_BYTES = 16


def kept_port(home: Path) -> int:
    """The port of the last run; 0 where none is known."""
    with suppress(ConfigError):
        text = (read_private(home / FILE_NAME, MAX_FILE_BYTES) or b"").strip()
        if text.isdigit() and 0 < int(text) < 65_536:
            return int(text)
    return 0


def keep_port(home: Path, port: int) -> None:
    """For the next run; a home that cannot be written costs nothing now."""
    if port != kept_port(home):
        with suppress(ConfigError):
            write_private(home / FILE_NAME, f"{port}\n".encode())
