"""The child of ``probe``: loads the stage, steps it as it will be stepped, prints the seconds a step took.

``P2PMESH_PROBE_TRAP=1`` makes a probe with extra buffer types die of a real SIGILL: for the test of the fallback.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from p2pmesh.adapters.llama.binding import LoadedStage, LoadOptions, Rows

_CELLS = 512
_BATCH_ROWS = 32
_WARM_UP_STEPS = 3
_MAX_STEPS = 40
_MEASURE_SECONDS = 0.6
_PAUSE_SECONDS = 0.0003


def main() -> None:
    """Reads the request from the first argument."""
    fields = json.loads(sys.argv[1])
    if fields["use_extra_buffers"] and os.environ.get("P2PMESH_PROBE_TRAP") == "1":
        os.kill(os.getpid(), signal.SIGILL)
    stages = [_Stepping(fields)]
    if not (fields["is_first"] and fields["is_last"]):
        stages.append(_Stepping(fields))
    print(json.dumps({"seconds": _alternate(stages)}))


class _Stepping:
    """A loaded stage that makes one decode step at a time."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._stage = LoadedStage(
            LoadOptions(
                fields["path"], fields["is_last"], 2, _CELLS, fields["threads"], fields["use_extra_buffers"],
                fields["gpu_layers"],
            )
        )  # fmt: skip
        self._is_first = bool(fields["is_first"])
        self._position = 0
        self.step(_BATCH_ROWS)

    def step(self, rows: int = 1) -> None:
        """Runs one call of ``rows`` rows."""
        tokens = np.ones(rows, dtype=np.int32) if self._is_first else None
        embeddings = None if self._is_first else np.ones((rows, self._stage.hidden_size), dtype=np.float32)
        positions = np.arange(self._position, self._position + rows, dtype=np.int32)
        outputs = np.ones(rows, dtype=np.int8)
        status = self._stage.decode(Rows(tokens, embeddings, positions, np.zeros(rows, dtype=np.int32), outputs))
        if status != 0:
            raise SystemExit(f"a call of {rows} rows fails with {status}")
        self._position += rows


def _alternate(stages: list[_Stepping]) -> float:
    """Seconds a step takes when the stages step in turn, each in a thread of its own."""
    turns = [threading.Semaphore(0) for _ in stages]
    finished = threading.Semaphore(0)
    stop = threading.Event()

    def work(index: int) -> None:
        while True:
            turns[index].acquire()
            if stop.is_set():
                return
            stages[index].step()
            finished.release()

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(stages))]
    for thread in threads:
        thread.start()
    seconds: list[float] = []
    ends = time.perf_counter() + _MEASURE_SECONDS
    while len(seconds) < _WARM_UP_STEPS + _MAX_STEPS and (len(seconds) <= _WARM_UP_STEPS or time.perf_counter() < ends):
        began = time.perf_counter()
        for turn in turns:
            turn.release()
            finished.acquire()
        seconds.append((time.perf_counter() - began) / len(stages))
        if len(stages) == 1:
            time.sleep(_PAUSE_SECONDS)
    stop.set()
    for turn in turns:
        turn.release()
    return float(np.median(seconds[_WARM_UP_STEPS:]))


if __name__ == "__main__":
    main()
