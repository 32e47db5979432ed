"""How many bytes this machine's memory copies in a second: measured in a child process, in a fraction of a second.

Run as a program it prints the figure, for as many threads as its argument says. Each thread copies blocks that are
larger than caches; a copy reads and writes, and counts once.
"""

import subprocess
import sys
import threading
import time

from p2pmesh.adapters.child_environment import child_environment
from p2pmesh.adapters.child_runs import run_module

MAX_BLOCK_BYTES = 48 * 2**20
BLOCKS_BYTES = 128 * 2**20
"""Of all threads together, and as much again that they copy to."""
MEASURE_S = 0.2
DEADLINE_S = 10.0
MAX_THREADS = 16
"""More do not make memory faster."""


def measure_memory_bytes_per_s(threads: int) -> int:
    """Blocks for about half a second; 0 where it cannot be measured, since nothing depends on it alone."""
    count, environment = str(min(threads, MAX_THREADS)), child_environment()
    try:
        finished = run_module("p2pmesh.adapters.bandwidth", count, timeout_s=DEADLINE_S, environment=environment)
        return max(0, int(finished.stdout)) if finished.returncode == 0 else 0
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def _copy_for_a_while(threads: int) -> int:
    import numpy as np

    block_bytes = min(MAX_BLOCK_BYTES, BLOCKS_BYTES // threads)
    copied = [0] * threads
    is_over = threading.Event()
    all_ready = threading.Barrier(threads + 1)

    def copy(number: int) -> None:
        source = np.ones(block_bytes // 8, dtype=np.int64)
        target = np.zeros_like(source)
        all_ready.wait(DEADLINE_S)
        while not is_over.is_set():
            np.copyto(target, source)
            copied[number] += block_bytes

    workers = [threading.Thread(target=copy, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    all_ready.wait(DEADLINE_S)
    began = time.perf_counter()
    is_over.wait(MEASURE_S)
    is_over.set()
    for worker in workers:
        worker.join()
    return round(sum(copied) / (time.perf_counter() - began))


if __name__ == "__main__":
    print(_copy_for_a_while(int(sys.argv[1])))
