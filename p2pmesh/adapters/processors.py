"""How many threads an engine gets: the processors that this process may use, within the quota of its control groups."""

import os

from p2pmesh.adapters.cgroups import processor_quota


def usable_threads() -> int:
    """At least 1. A share of a processor is no thread: one that is stopped halfway keeps all others waiting."""
    quota = processor_quota()
    processors = allowed_processors()
    return processors if quota is None else max(1, min(processors, int(quota)))


def allowed_processors() -> int:
    """Processors that the system may run this process on."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fill_processors(threads: int) -> bool:
    """Whether so many threads are one for each processor of ours, on a system that can bind them."""
    return hasattr(os, "sched_getaffinity") and threads == allowed_processors()
