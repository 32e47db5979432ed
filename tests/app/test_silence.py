"""The clock of commands that wait."""

import threading

from p2pmesh.app.silence import Silence

PATIENCE_S = 20.0


def test_each_silence_is_told_once() -> None:
    told = threading.Semaphore(0)
    with Silence(told.release, after_s=0.01) as silence:
        assert told.acquire(timeout=PATIENCE_S)
        assert not told.acquire(timeout=0.1)
        silence.heard()
        assert told.acquire(timeout=PATIENCE_S)


def test_what_ends_in_time_tells_nothing() -> None:
    told: list[int] = []
    with Silence(lambda: told.append(1), after_s=60) as silence:
        silence.heard()
    assert told == []
