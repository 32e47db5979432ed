"""Random numbers for pure machines: a counter, mixed with a seed.

The mix is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). It chooses
whom to probe or ask; it keeps no secret, so nothing that an adversary must not guess may come from here.
"""

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15


class Draws:
    """A sequence of draws that depends on the seed alone."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, bound: int) -> int:
        """A whole number in ``[0, bound)``, ``bound`` from 1 to 2^32; its bias is below one in 2^32."""
        self._state = mixed = (self._state + _GAMMA) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % bound
