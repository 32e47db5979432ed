"""Memory bandwidth, from a real child."""

import subprocess

import pytest

from p2pmesh.adapters import bandwidth
from p2pmesh.adapters.bandwidth import measure_memory_bytes_per_s


def test_memory_copies_something() -> None:
    assert measure_memory_bytes_per_s(1) > 10_000_000


@pytest.mark.parametrize("failure", [OSError(), subprocess.TimeoutExpired("child", 1), ValueError()])
def test_what_cannot_be_measured_is_unknown(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(bandwidth.subprocess, "run", fail)
    assert measure_memory_bytes_per_s(2) == 0
