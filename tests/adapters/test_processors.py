"""Threads of engines."""

import pytest

from p2pmesh.adapters import processors
from p2pmesh.adapters.processors import allowed_processors, usable_threads


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (8.0, 8), (2.5, 2), (0.3, 1), (64.0, 8)])
def test_whole_processors_within_the_quota(quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "processor_quota", lambda: quota)
    monkeypatch.setattr(processors, "allowed_processors", lambda: 8)
    assert usable_threads() == expected


def test_a_system_without_affinity_counts_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(processors.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(processors.os, "cpu_count", lambda: 3)
    assert allowed_processors() == 3
