"""Tells a node that takes its time from one that answers nothing at all, while a command waits for it.

Owns when the node is asked whether it lives, and how long it has for that. What is waited for, and what a silence of
that means, is the command's.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import trio

from p2pmesh.app.run_file import RunFile, is_process_stopped
from p2pmesh.app.silence import SILENCE_S
from p2pmesh.base.errors import ErrorCode, PeerUnavailable

LIFE_DEADLINE_S = 5.0
"""Whoever answers out of its memory answers within it, on a busy machine too."""
ASK_AGAIN_S = 2.0
_T = TypeVar("_T")


class NodeWatch:
    """Of one request to the node of ``home``.

    ``tell`` is called once for each silence longer than ``silence_s`` in which the node lives.
    """

    def __init__(
        self, node: RunFile, home: Path, tell: Callable[[], None] = lambda: None, silence_s: float = SILENCE_S
    ) -> None:
        self._node = node
        self._home = home
        self._tell = tell
        self._silence_s = silence_s
        self._heard_at = self._lived_at = time.monotonic()
        self._is_told = False

    def heard(self) -> None:
        """What was waited for went on, from any thread; the silence, if it was one, is over."""
        self._heard_at = self._lived_at = time.monotonic()
        self._is_told = False

    def lives(self) -> None:
        """The node sent something, if not what is waited for; from any thread."""
        self._lived_at = time.monotonic()

    def during(self, request: Callable[[], _T]) -> _T:
        """What ``request`` gives, which blocks, in another thread.

        Raises what it raises, and ``PeerUnavailable(NODE_UNRESPONSIVE)`` once the node answers nothing: then the thread
        is left to itself, for there is no way to end it.
        """
        results: list[_T] = []
        try:
            trio.run(self._during, lambda: results.append(request()))
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:  # of the two tasks one failed, and the other was cancelled
                raise group.exceptions[0] from None
            raise
        return results[0]

    async def _during(self, request: Callable[[], None]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            # libp2p brings stubs of an older trio, which do not know the keyword
            await trio.to_thread.run_sync(request, abandon_on_cancel=True)  # type: ignore[call-arg]
            nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        while True:
            await trio.sleep(max(0.0, self._heard_at + self._silence_s - time.monotonic()))
            if not self._is_silent_since(self._heard_at):
                continue
            if self._is_silent_since(self._lived_at):
                await self._require_life()
            if not self._is_told and self._is_silent_since(self._heard_at):
                self._is_told = True
                self._tell()
            await trio.sleep(ASK_AGAIN_S)

    def _is_silent_since(self, moment_s: float) -> bool:
        return time.monotonic() - moment_s >= self._silence_s

    async def _require_life(self) -> None:
        """Asks at the console, which few use: that a port takes no more clients is no sign of death."""
        asked_at = time.monotonic()
        with trio.move_on_after(LIFE_DEADLINE_S):
            with suppress(OSError, ValueError, trio.BrokenResourceError):  # the request finds that out, and can tell
                await _ask_for_life(self._node.console_url)
            self.lives()
        if self._lived_at < asked_at:
            raise self._unresponsive()

    def _unresponsive(self) -> PeerUnavailable:
        pid = self._node.pid
        if is_process_stopped(pid):
            text = f"is stopped: `kill -CONT {pid}` lets it go on, or `fg` in its terminal"
        else:
            text = f"does not answer: see its log; if it hangs, end it with `kill {pid}` and start it again"
        return PeerUnavailable(ErrorCode.NODE_UNRESPONSIVE, f"the node of {self._home} (process {pid}) {text}")


async def _ask_for_life(url: str) -> None:
    """Returns with the first byte of an answer, whatever it is, or with the end of the connection."""
    place = urlsplit(url)
    async with await trio.open_tcp_stream(place.hostname or "", place.port or 80) as stream:
        await stream.send_all(f"GET /livez HTTP/1.1\r\nhost: {place.netloc}\r\n\r\n".encode())
        await stream.receive_some(1)
