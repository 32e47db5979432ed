import errno
import logging
import os
import resource
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.app.open_files import (
    HTTP_SERVERS,
    MAX_OPEN_FILES,
    QUIET_S,
    AcceptFailures,
    http_connections_per_server,
    raise_open_files_limit,
)
from p2pmesh.base.limits import MAX_HTTP_CONNECTIONS

LISTENER_LOG = logging.getLogger("trio.serve_listeners")


@pytest.fixture
def hard_limit() -> Iterator[int]:
    """The soft limit is far below the hard one for the time of a test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_goes_up_within_bounds(hard_limit: int) -> None:
    wanted = MAX_OPEN_FILES if hard_limit == resource.RLIM_INFINITY else min(hard_limit, MAX_OPEN_FILES)
    assert raise_open_files_limit() == wanted
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard_limit)
    assert raise_open_files_limit() == wanted


def test_a_limit_that_may_not_go_up_stays(hard_limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_open_files_limit() == 256
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("open_files", "connections"), [(1, 1), (256, 64), (1024, 256), (MAX_OPEN_FILES, MAX_HTTP_CONNECTIONS)]
)
def test_http_takes_at_most_half_of_the_files(open_files: int, connections: int) -> None:
    assert http_connections_per_server(open_files) == connections
    assert open_files == 1 or connections * HTTP_SERVERS <= open_files // 2


class FullListener(trio.abc.Listener[trio.SocketStream]):
    """A listener of a process that is out of files."""

    def __init__(self) -> None:
        self.tries = 0

    async def accept(self) -> trio.SocketStream:
        self.tries += 1
        if self.tries == 50:
            raise OSError(errno.EBADF, "closed")
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def aclose(self) -> None:
        return


async def test_running_out_of_files_is_one_line(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    listener, quiet = FullListener(), AcceptFailures(trio.current_time)
    LISTENER_LOG.addFilter(quiet)
    try:
        with pytest.RaisesGroup(OSError, allow_unwrapped=True, flatten_subgroups=True):
            await trio.serve_listeners(trio.aclose_forcefully, [listener])
    finally:
        LISTENER_LOG.removeFilter(quiet)
    assert listener.tries == 50
    assert len(caplog.records) == 1
    assert "EMFILE" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_later_shortage_is_told_again() -> None:
    now_s = [0.0]
    quiet = AcceptFailures(lambda: now_s[0])
    record = logging.LogRecord("x", logging.ERROR, "", 0, "full", (), None)
    shown = []
    for moment in (0.0, 1.0, QUIET_S, QUIET_S + 1):
        now_s[0] = moment
        shown.append(quiet.filter(record))
    assert shown == [True, False, True, False]
