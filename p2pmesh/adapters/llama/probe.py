"""What only a run can tell about this machine, asked in child processes that may die of it.

Two questions, answered once per machine, build and model (whole, and in parts), and kept in the cache directory:

- does llama.cpp run with its extra buffer types (repacked weights, AMX)? Some virtual machines announce instructions
  that trap; a child that dies of it means no, and the engine says so in its notes;
- how long may OpenMP's idle threads spin after a graph? They take the core that another stage on this machine needs.
  A part of a model is measured as it will live there: two processes step in strict alternation. A whole model is
  measured alone, with a short pause between steps.

Bounded by a deadline; what could not be measured falls back to ``DEFAULT_SPIN_COUNT`` and no extra buffers.
"""

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from p2pmesh.adapters.child_runs import run_module
from p2pmesh.adapters.llama.exits import describe_exit, last_line_of
from p2pmesh.adapters.llama.findings import load_findings, store_findings

DEFAULT_SPIN_COUNT = 2_000
SPIN_CANDIDATES = (2_000, 300)
"""OpenMP's own default is none of them: with one other busy process on two cores it made a step sixty times slower.

A spin of 20,000 is as fast as these for one stream, and no longer for many: 16 of them over two stages on two cores
got 24 tokens/s, against 95 with 2,000 and 131 with 300. While one stage's threads spin, the other's wait for them.
So it is beside other work: among processes of low priority a step took 50 ms with 2,000, and 17 with 300.
"""

DEADLINE_SECONDS = 20.0
_PROCEDURE = "threads bound"
"""Names what is kept on disk: findings of another procedure are not read."""
_TIE = 1.15
"""Measurements are noisy, and what spins less suffers less from others on the machine: the shortest spin within this
factor of the fastest is chosen."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """The stage as it will be loaded. ``digest`` is the whole model's: findings hold for all its parts."""

    path: str
    digest: str
    is_first: bool
    is_last: bool
    threads: int
    gpu_layers: int
    devices: tuple[str, ...]
    cache_directory: str


@dataclass(frozen=True, slots=True)
class ProbeFindings:
    """How to load and run the stage."""

    use_extra_buffers: bool
    spin_count: int
    notes: tuple[str, ...] = ()


def probe(request: ProbeRequest, environment: Mapping[str, str]) -> ProbeFindings:
    """Findings from the cache, or measured now; blocks for a few seconds the first time."""
    cached = _load(request)
    if cached is not None:
        return cached
    findings, is_measured = _measure(request, environment)
    if is_measured:
        store_findings(Path(request.cache_directory), _name(request), asdict(findings))
    return findings


def _measure(request: ProbeRequest, environment: Mapping[str, str]) -> tuple[ProbeFindings, bool]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    notes: list[str] = []
    speeds: dict[int, float] = {}
    first = _run_child(request, True, DEFAULT_SPIN_COUNT, environment, deadline)
    use_extra = first.seconds is not None
    if not use_extra:
        notes.append(f"no extra buffer types: with them, {first.cause}")
        first = _run_child(request, False, DEFAULT_SPIN_COUNT, environment, deadline)
    if first.seconds is not None:
        speeds[DEFAULT_SPIN_COUNT] = first.seconds
        for candidate in SPIN_CANDIDATES:
            if candidate not in speeds:
                run = _run_child(request, use_extra, candidate, environment, deadline)
                if run.seconds is not None:
                    speeds[candidate] = run.seconds
    return ProbeFindings(use_extra, choose_spin(speeds), tuple(notes)), bool(speeds)


def choose_spin(seconds: Mapping[int, float]) -> int:
    """The shortest spin that is about as fast as the fastest."""
    if not seconds:
        return DEFAULT_SPIN_COUNT
    fastest = min(seconds.values())
    return min(spin for spin, measured in seconds.items() if measured <= fastest * _TIE)


@dataclass(frozen=True, slots=True)
class _Run:
    """One probe child: seconds a step took, or why there is none."""

    seconds: float | None
    cause: str = ""


def _run_child(
    request: ProbeRequest, use_extra: bool, spin: int, environment: Mapping[str, str], deadline: float
) -> _Run:
    child_environment = dict(environment) | {"GOMP_SPINCOUNT": str(spin)}
    fields = json.dumps(asdict(request) | {"use_extra_buffers": use_extra})
    left = deadline - time.monotonic()
    if left <= 0:
        return _Run(None, "there was no time left to try")
    try:
        finished = run_module(
            "p2pmesh.adapters.llama.probe_child", fields, timeout_s=left, environment=child_environment
        )
    except OSError as error:
        return _Run(None, f"no process can be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return _Run(None, "the probe took too long")
    if finished.returncode != 0:
        return _Run(None, describe_exit(finished.returncode, last_line_of(finished.stderr)))
    try:
        return _Run(float(json.loads(finished.stdout)["seconds"]))
    except (ValueError, KeyError, TypeError):
        return _Run(None, "the probe's answer cannot be read")


def _name(request: ProbeRequest) -> str:
    part = "whole" if request.is_first and request.is_last else "part"
    machine = "\n".join(
        (
            _PROCEDURE,
            request.digest,
            part,
            str(request.threads),
            str(request.gpu_layers),
            *request.devices,
            machine_facts(),
        )
    )
    return f"probe-{hashlib.sha256(machine.encode()).hexdigest()[:32]}"


def machine_facts() -> str:
    """CPU model and flags, where the system tells, and the build; another machine on the same home asks again."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    facts = dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features")))
    return "\n".join((*facts, metadata.version("llama-cpp-python"), str(os.cpu_count())))


def _load(request: ProbeRequest) -> ProbeFindings | None:
    fields = load_findings(Path(request.cache_directory), _name(request))
    if fields is None:
        return None
    try:
        notes = tuple(map(str, fields["notes"]))
        return ProbeFindings(bool(fields["use_extra_buffers"]), int(fields["spin_count"]), notes)
    except (ValueError, KeyError, TypeError):
        return None
