"""The child of ``probe``: loads the stage, steps it as it will be stepped, prints the seconds a step took.

``P2PMESH_PROBE_TRAP=1`` makes a probe with extra buffer types die of a real SIGILL: for the test of the fallback.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from p2pmesh.adapters.llama.binding import LoadedStage, LoadOptions

_CELLS = 512
_BATCH_ROWS = 32
_WARM_UP_STEPS = 3
_MAX_STEPS = 80
_MEASURE_SECONDS = 0.8
_PAUSE_SECONDS = 0.0003


def main() -> None:
    """Reads the request from the first argument."""
    fields = json.loads(sys.argv[1])
    if fields["use_extra_buffers"] and os.environ.get("P2PMESH_PROBE_TRAP") == "1":
        os.kill(os.getpid(), signal.SIGILL)
    is_whole = fields["is_first"] and fields["is_last"]
    print(json.dumps({"seconds": _alone(_Stepping(fields)) if is_whole else _beside_another(fields)}))


class _Stepping:
    """A loaded stage that makes one decode step at a time."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._stage = LoadedStage(
            LoadOptions(
                fields["path"], fields["is_first"], fields["is_last"], 2, _CELLS, fields["threads"],
                fields["use_extra_buffers"], fields["gpu_layers"], tuple(fields["devices"]),
            )
        )  # fmt: skip
        self._stage.rows.tokens.fill(1)
        self._stage.rows.embeddings.fill(1.0)
        self._position = 0
        self.step(_BATCH_ROWS)

    def step(self, rows: int = 1) -> None:
        """Runs one call of ``rows`` rows."""
        self._stage.rows.positions[:rows] = np.arange(self._position, self._position + rows)
        status = self._stage.decode(rows)
        if status != 0:
            raise SystemExit(f"a call of {rows} rows fails with {status}")
        self._position += rows


def _alone(stage: _Stepping) -> float:
    """Seconds a step takes with a short pause between steps, as a whole model is stepped."""
    return _median_seconds(stage.step, lambda: time.sleep(_PAUSE_SECONDS))


def _beside_another(fields: dict[str, Any]) -> float:
    """Half the seconds that two steps take, one here and one in a second process, in strict alternation.

    Two processes, because OpenMP counts the threads of its own process: two contexts in one would make it give up
    spinning that it does not give up when the other stage is somebody else's.
    """
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        _step_when_told(_Stepping(fields), theirs)
        os._exit(0)
    theirs.close()
    stage = _Stepping(fields)

    def both() -> None:
        stage.step()
        ours.sendall(b"x")
        if not ours.recv(1):
            raise SystemExit("the second process of the probe died")

    with ours:
        return _median_seconds(both, lambda: None) / 2


def _step_when_told(stage: _Stepping, connection: socket.socket) -> None:
    while connection.recv(1):
        stage.step()
        connection.sendall(b"x")


def _median_seconds(step: Callable[[], None], pause: Callable[[], None]) -> float:
    seconds: list[float] = []
    ends = time.perf_counter() + _MEASURE_SECONDS
    while len(seconds) < _WARM_UP_STEPS + _MAX_STEPS and (len(seconds) <= _WARM_UP_STEPS or time.perf_counter() < ends):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
        pause()
    return float(np.median(seconds[_WARM_UP_STEPS:]))


if __name__ == "__main__":
    main()
