"""Says that a command waits, where what it waits for says nothing for long.

Owns a clock of its own in a thread: the commands that wait block. What is said, and where, is theirs.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

SILENCE_S = 2.0


class Silence:
    """A scope within which ``tell`` is called once for each silence longer than ``after_s``, from another thread."""

    def __init__(self, tell: Callable[[], None], after_s: float = SILENCE_S) -> None:
        self._tell = tell
        self._after_s = after_s
        self._heard_at = time.monotonic()
        self._is_told = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="silence", daemon=True)

    def __enter__(self) -> "Silence":
        self._heard_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is told after it."""
        self._ended.set()
        self._thread.join()

    def heard(self) -> None:
        """The silence, if it was one, is over."""
        self._heard_at = time.monotonic()
        self._is_told = False

    def _watch(self) -> None:
        left_s = self._after_s
        while not self._ended.wait(left_s):
            left_s = self._heard_at + self._after_s - time.monotonic()
            if left_s <= 0:
                if not self._is_told:
                    self._is_told = True
                    self._tell()
                left_s = self._after_s
