"""Time and chance from outside."""

from typing import Protocol

from p2pmesh.base.quantities import Micros, UnixMillis


class Clock(Protocol):
    """Two clocks that never mix."""

    def now(self) -> Micros:
        """Monotonic, from the node's start."""

    def unix_ms(self) -> UnixMillis:
        """Wall clock, for signed records only."""


class Entropy(Protocol):
    """Cryptographic randomness."""

    def random_bytes(self, count: int) -> bytes:
        """``count`` unpredictable bytes."""
