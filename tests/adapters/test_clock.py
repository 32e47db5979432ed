"""Real clocks and entropy keep their ports' promises."""

import time

import trio
from trio.testing import MockClock

from p2pmesh.adapters.clock import SystemEntropy, TrioClock


async def test_monotonic_time_counts_from_the_start(autojump_clock: MockClock) -> None:
    clock = TrioClock()
    assert clock.now() == 0
    await trio.sleep(2.5)
    assert clock.now() == 2_500_000


async def test_wall_clock_is_in_milliseconds() -> None:
    before = int(time.time() * 1000)
    assert before <= TrioClock().unix_ms() <= int(time.time() * 1000) + 1


def test_entropy_gives_as_much_as_asked_and_never_the_same() -> None:
    entropy = SystemEntropy()
    assert entropy.random_bytes(0) == b""
    assert len({entropy.random_bytes(16) for _ in range(100)}) == 100
