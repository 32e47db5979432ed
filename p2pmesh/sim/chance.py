"""Chance that depends on (seed, peer, machine) only: one peer more changes no other peer's draws."""

import hashlib
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
