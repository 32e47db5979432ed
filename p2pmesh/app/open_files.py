"""Open files of the node's process: as many as the system lets it have, and a share of them for HTTP.

Owns the process's limit and what is said when it is reached. How many connections a server then takes stays with the
server.
"""

import logging
import resource
from collections.abc import Callable
from contextlib import suppress

from p2pmesh.base.limits import MAX_HTTP_CONNECTIONS

MAX_OPEN_FILES = 65_536
HTTP_SERVERS = 2
"""The API and the console, each with connections of its own."""
QUIET_S = 60.0
"""Time between two lines about connections that could not be accepted."""


def raise_open_files_limit() -> int:
    """Raises the soft limit of open files as far as it may go, at most to ``MAX_OPEN_FILES``; the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft
    with suppress(ValueError, OSError):  # macOS may refuse what its hard limit promises; the soft one then stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def http_connections_per_server(open_files: int) -> int:
    """Connections that one HTTP server may hold, so that all servers take at most half of the open files."""
    return max(1, min(MAX_HTTP_CONNECTIONS, open_files // 2 // HTTP_SERVERS))


class AcceptFailures(logging.Filter):
    """Lets one line in ``QUIET_S`` through, without its traceback.

    Trio tries again ten times a second while the process or the system is out of files, and logs a traceback each
    time, for the HTTP servers as for the peers' listener.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._now_s = now_s
        self._quiet_until_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether ``record`` is shown."""
        now_s = self._now_s()
        if now_s < self._quiet_until_s:
            return False
        self._quiet_until_s = now_s + QUIET_S
        record.exc_info = None
        return True
