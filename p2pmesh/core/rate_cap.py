"""A cap on bytes in a second that two classes share: activations, which go first, and files, which take what is left.

Owns the sum, by the generic cell rate algorithm: each class has the moment at which what it was given is made up for.
Files wait for all that was sent, activations for activations alone; so a file that has just gone delays no token.
Control messages are counted and never wait: a node whose probes wait is taken for dead.
"""

from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros

BURST_US = MICROS_PER_SECOND
"""What may go at once, as time at the full rate."""


class RateCap:
    """One direction. ``bytes_per_s`` 0: no cap."""

    def __init__(self, bytes_per_s: int = 0) -> None:
        self.bytes_per_s = bytes_per_s
        self._all_at = Micros(0)
        self._first_at = Micros(0)

    def note(self, size_bytes: int, now: Micros, *, is_first: bool) -> None:
        """Bytes that went; ``is_first`` those that wait for no file."""
        if not self.bytes_per_s:
            return
        cost_us = size_bytes * MICROS_PER_SECOND // self.bytes_per_s
        self._all_at = Micros(max(self._all_at, now) + cost_us)
        if is_first:
            self._first_at = Micros(max(self._first_at, now) + cost_us)

    def wait_us(self, now: Micros, *, is_first: bool) -> int:
        """Until the next bytes of a class may go; 0 for at once."""
        if not self.bytes_per_s:
            return 0
        return max(0, (self._first_at if is_first else self._all_at) - BURST_US - now)
