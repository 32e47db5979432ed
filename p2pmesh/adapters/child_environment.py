"""The environment of our child processes: ours, and what their interpreter and llama.cpp read at their start."""

import os
from pathlib import Path

from p2pmesh.adapters.processors import fill_processors

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


def child_environment() -> dict[str, str]:
    """For a child that runs a module of this package, which it finds from wherever we were started."""
    path = os.pathsep.join((_PACKAGE_ROOT, os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path}


def engine_environment(spin_count: int | None = None, threads: int | None = None) -> dict[str, str]:
    """For a child that loads llama.cpp; ``spin_count`` is how long its idle threads spin, OpenMP's own if None.

    An engine with as many ``threads`` as it may use processors has each of them stay on one. After some idle
    milliseconds the kernel else often wakes two on one processor, where they wait for each other until it looks again:
    a step that takes 2.2 ms took 7.7 after a pause of 10 ms and 8.7 after one of 40, and bound 3.6 and 3.8. Fewer
    threads are not bound: all engines of a machine would choose the same processors. Who has told OpenMP otherwise
    in our own environment is obeyed.
    """
    environment = child_environment()
    environment["GGML_NO_BACKTRACE"] = "1"  # its backtrace starts a debugger that would outlive the child
    if spin_count is not None:
        environment["GOMP_SPINCOUNT"] = str(spin_count)
    if threads is not None and fill_processors(threads) and not any(name in environment for name in _BINDING):
        environment["OMP_PROC_BIND"] = "true"
    return environment
