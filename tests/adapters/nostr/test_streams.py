"""What is said of a stream that does not come about."""

import pytest
import trio

from p2pmesh.adapters.nostr.streams import line_of


def broken_by(cause: BaseException) -> BaseException:
    error = trio.BrokenResourceError()
    error.__cause__ = cause
    return error


def all_failed(*causes: Exception) -> BaseException:
    error = OSError("all attempts failed")
    error.__cause__ = causes[0] if len(causes) == 1 else ExceptionGroup("several", list(causes))
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(111, "Connection refused"), "Connection refused"),
        (all_failed(OSError(111, "Connection refused")), "Connection refused"),
        (all_failed(OSError(113, "No route to host"), OSError(111, "Connection refused")), "No route to host"),
        (broken_by(ConnectionResetError(104, "Connection reset by peer")), "Connection reset by peer"),
        (trio.BrokenResourceError(), "BrokenResourceError"),
        (ValueError("a\nb"), "a b"),
    ],
)
def test_the_cause_is_told_in_a_line(error: BaseException, line: str) -> None:
    assert line_of(error) == line
