"""Mutated frames against every decoder: ``python -m tests.fuzz [--frames N] [--seed S] [--json]``.

Nothing but a ``P2PMeshError`` with a code of the registry may come out, and memory may neither peak nor grow.
"""

import base64
import gc
import random
import time
import tomllib
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.wire.invite import PREFIX
from tests.fuzz.corpus import Reader, Sample, readers, samples, with_prefix, without_prefix
from tests.fuzz.mutation import mutate_bytes, mutate_msgpack

REGISTRY = tomllib.loads((Path(__file__).parents[2] / "protocols" / "registry.toml").read_text())
MAX_CRASHES = 20
WARM_SHARE = 0.1
"""Memory is compared from here on: before, tables of types and free lists fill."""


@dataclass(slots=True)
class FuzzReport:
    """What came of it; memory in bytes."""

    frames: int = 0
    seed: int = 0
    seconds: float = 0.0
    samples: int = 0
    readers: int = 0
    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    crashes: list[str] = field(default_factory=list)
    rss_start_bytes: int = 0
    rss_warm_bytes: int = 0
    rss_end_bytes: int = 0
    rss_peak_bytes: int = 0

    @property
    def frames_per_s(self) -> int:
        """How fast it went."""
        return round(self.frames / max(self.seconds, 1e-9))


class Fuzzer:
    """One seeded series of mutated frames."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.samples = samples()
        self.readers = readers()
        self._codes = frozenset(REGISTRY["errors"]["codes"])
        self._takers = {sample: self._takers_of(sample) for sample in self.samples}

    def _takers_of(self, sample: Sample) -> tuple[Reader, ...]:
        """Who reads a sample to its end, or at least refuses it late; otherwise all of them."""
        found = []
        for reader in self.readers:
            try:
                reader.read(sample.data)
            except P2PMeshError:
                continue
            found.append(reader)
        return tuple(found) or self.readers

    def next_frame(self) -> tuple[bytes, Reader]:
        """A mutated frame and who gets it: mostly whom it is meant for, sometimes anyone."""
        chance = self._chance
        sample = chance.choice(self.samples)
        likely = chance.random() < 0.9
        reader = chance.choice(self._takers[sample] if likely else self.readers)
        return self.mutate(sample), reader

    def mutate(self, sample: Sample) -> bytes:
        """One mutation of a sample."""
        chance = self._chance
        if sample.data.startswith(PREFIX.encode()) and chance.random() < 0.7:
            return self._mutate_invite(sample.data)
        if chance.random() < 0.25:
            return mutate_bytes(sample.data, self._other, chance)
        body = without_prefix(sample.prefix, sample.data)
        if sample.prefix == "engine" and body:
            body = body[:1] + mutate_msgpack(body[1:], chance)
        elif sample.prefix == "frame" or chance.random() < 0.3:
            body = mutate_bytes(body, self._other, chance)
        else:
            body = mutate_msgpack(body, chance)
        return with_prefix(sample.prefix, body)

    def _mutate_invite(self, data: bytes) -> bytes:
        text = data.decode()
        coded = text[len(PREFIX) :]
        try:
            record = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
        except ValueError:
            return mutate_bytes(data, self._other, self._chance)
        changed = mutate_msgpack(record, self._chance)
        return (PREFIX + base64.urlsafe_b64encode(changed).decode().rstrip("=")).encode()

    def _other(self) -> bytes:
        return self._chance.choice(self.samples).data

    def try_frame(self, data: bytes, reader: Reader, report: FuzzReport) -> None:
        """Reads one frame, and notes what comes out of it."""
        try:
            reader.read(data)
        except P2PMeshError as error:
            report.refused[error.code.value] += 1
            if error.code.value not in self._codes or "\n" in error.message or len(error.message) > 4096:
                report.crashes.append(f"{reader.name}: {error.code} {error.message[:200]!r} on {data[:300].hex()}")
        except Exception as error:  # noqa: BLE001  exactly what must not happen
            report.crashes.append(f"{reader.name}: {error!r} on {data[:2000].hex()}")
        else:
            report.taken += 1


def fuzz(frames: int, seed: int) -> FuzzReport:
    """Tries ``frames`` mutated frames; stops early after ``MAX_CRASHES``."""
    process = psutil.Process()
    fuzzer = Fuzzer(seed)
    report = FuzzReport(seed=seed, samples=len(fuzzer.samples), readers=len(fuzzer.readers))
    gc.collect()
    report.rss_start_bytes = process.memory_info().rss
    warm = int(frames * WARM_SHARE)
    began = time.perf_counter()
    for number in range(frames):
        if number == warm:
            report.rss_warm_bytes = process.memory_info().rss
        if number % 5000 == 0:
            report.rss_peak_bytes = max(report.rss_peak_bytes, process.memory_info().rss)
        data, reader = fuzzer.next_frame()
        fuzzer.try_frame(data, reader, report)
        report.frames += 1
        if len(report.crashes) >= MAX_CRASHES:
            break
    report.seconds = time.perf_counter() - began
    gc.collect()
    report.rss_end_bytes = process.memory_info().rss
    report.rss_peak_bytes = max(report.rss_peak_bytes, report.rss_end_bytes)
    return report


def heaviest_frame(frames: int, seed: int) -> tuple[int, float, str]:
    """The most that reading one frame allocates at a time: bytes, times its length, and by which reader."""
    fuzzer, report = Fuzzer(seed), FuzzReport()
    heaviest = (0, 0.0, "")
    tracemalloc.start()
    try:
        for _ in range(frames):
            data, reader = fuzzer.next_frame()
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            fuzzer.try_frame(data, reader, report)
            _, peak = tracemalloc.get_traced_memory()
            heaviest = max(heaviest, (peak - before, (peak - before) / max(1, len(data)), reader.name))
    finally:
        tracemalloc.stop()
    return heaviest
