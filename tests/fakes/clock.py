"""Time that a test moves by hand, and chance that repeats."""

import hashlib

from p2pmesh.base.quantities import Micros, UnixMillis


class FakeClock:
    """Implements ``ports.clock.Clock``."""

    def __init__(self, now: int = 0, unix_ms: int = 1_700_000_000_000) -> None:
        self._now = now
        self._unix_ms_at_zero = unix_ms

    def now(self) -> Micros:
        return Micros(self._now)

    def unix_ms(self) -> UnixMillis:
        return UnixMillis(self._unix_ms_at_zero + self._now // 1000)

    def advance(self, *, micros: int) -> None:
        """Both clocks go on by the same time."""
        self._now += micros


class FakeEntropy:
    """Implements ``ports.clock.Entropy``: the same bytes for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._draws = 0

    def random_bytes(self, count: int) -> bytes:
        self._draws += 1
        return hashlib.shake_128(f"{self._seed}:{self._draws}".encode()).digest(count)
