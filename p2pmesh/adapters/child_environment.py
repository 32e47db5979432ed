"""The environment of our child processes: ours, and what their interpreter and llama.cpp read at their start."""

import os
from pathlib import Path

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


def child_environment() -> dict[str, str]:
    """For a child that runs a module of this package, which it finds from wherever we were started."""
    path = os.pathsep.join((_PACKAGE_ROOT, os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path}


def engine_environment(spin_count: int | None = None) -> dict[str, str]:
    """For a child that loads llama.cpp; ``spin_count`` is how long its idle threads spin, OpenMP's own if None."""
    environment = child_environment()
    environment["GGML_NO_BACKTRACE"] = "1"  # its backtrace starts a debugger that would outlive the child
    if spin_count is not None:
        environment["GOMP_SPINCOUNT"] = str(spin_count)
    return environment
