"""Real time and real chance: the only places that read trio's clock, the wall clock and the system's entropy."""

import secrets
import time

import trio

from p2pmesh.base.quantities import Micros, UnixMillis, micros


class TrioClock:
    """Implements ``ports.clock.Clock``; to be made inside ``trio.run``, time counts from there."""

    def __init__(self) -> None:
        self._started_s = trio.current_time()

    def now(self) -> Micros:
        """Monotonic, from the node's start."""
        return micros(trio.current_time() - self._started_s)

    def unix_ms(self) -> UnixMillis:
        """Wall clock, for signed records only."""
        return UnixMillis(time.time_ns() // 1_000_000)


class SystemEntropy:
    """Implements ``ports.clock.Entropy``."""

    def random_bytes(self, count: int) -> bytes:
        """``count`` unpredictable bytes."""
        return secrets.token_bytes(count)
