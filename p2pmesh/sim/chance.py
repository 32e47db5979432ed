"""Chance that depends on (seed, peer, machine) only: one peer more changes no other peer's draws."""

import hashlib
import math
import random

PER_MILLION = 1_000_000


class Chance:
    """Draws of one machine of one peer."""

    def __init__(self, seed: int, peer_id: str, machine: str) -> None:
        key = f"{seed}\0{peer_id}\0{machine}".encode()
        self._random = random.Random(int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "big"))

    def below(self, bound: int) -> int:
        """A whole number in ``[0, bound)``; 0 for a bound of 0."""
        return int(self._random.random() * bound)

    def happens(self, per_million: int) -> bool:
        """Whether something that happens ``per_million`` times in a million happens now; 0 draws nothing."""
        return per_million > 0 and self.below(PER_MILLION) < per_million


MIX_MASK = 2**64 - 1
MIX_STEP = 0x9E3779B97F4A7C15
MIX_FIRST = 0xBF58476D1CE4E5B9
MIX_SECOND = 0x94D049BB133111EB
"""Of splitmix64."""


def mixed(value: int) -> int:
    """64 bits that look random and depend on ``value`` only (the finalizer of splitmix64)."""
    value = (value + MIX_STEP) & MIX_MASK
    value = ((value ^ (value >> 30)) * MIX_FIRST) & MIX_MASK
    value = ((value ^ (value >> 27)) * MIX_SECOND) & MIX_MASK
    return value ^ (value >> 31)


class Draws:
    """Chance for what happens millions of times: a counter through ``mixed``. One stream per (seed, name)."""

    def __init__(self, seed: int, name: str) -> None:
        key = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest()
        self._counter = int.from_bytes(key, "big")

    def below(self, bound: int) -> int:
        """A whole number in ``[0, bound)``, bound at least 1."""
        self._counter = counter = (self._counter + MIX_STEP) & MIX_MASK
        return mixed(counter) % bound

    def happens(self, per_million: int) -> bool:
        """Whether something that happens ``per_million`` times in a million happens now; 0 draws nothing."""
        return per_million > 0 and self.below(PER_MILLION) < per_million

    def gap(self, per_million: int) -> int:
        """How many go well before the next one to which something happens that does so ``per_million`` in a million.

        One draw for a whole run of them, out of a table of equally likely values.
        """
        if per_million <= 0:
            return MIX_MASK
        if per_million >= PER_MILLION:
            return 0
        hazard = max(1, round(-PER_MILLION * math.log1p(-per_million / PER_MILLION)))
        return _EXPONENTIAL[self.below(len(_EXPONENTIAL))] * 1000 // hazard


_EXPONENTIAL = tuple(round(-1000 * math.log((2 * number + 1) / 512)) for number in range(256))
"""Thousandths, rounded, so that no last bit of a logarithm reaches a digest."""
