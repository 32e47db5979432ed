"""How long a way takes in the overlay, and whether there is one: regions, NAT, partitions, slow peers.

Peers go by their numbers. Bytes are ``sim.traffic``'s, who runs is ``sim.overlay``'s.
"""

from p2pmesh.sim.chance import mixed
from p2pmesh.sim.overlay_scenario import RegionLinks

_HASH_MASK = 2**30 - 1
"""A hash of one machine digit: this is asked for every probe."""
_JITTERS = 1 << 16
"""Drawn at the start, and used in turn: the same share of each value, and no order that anything could follow."""


class Regions:
    """Ways between peers. A peer's region follows from the seed and its number alone."""

    def __init__(self, links: RegionLinks, seed: int) -> None:
        self._weights = links.region_weights
        self._ways_us = tuple(
            tuple(tuple(way_us * percent // 100 for percent in links.spread_percent) for way_us in row)
            for row in links.one_way_us
        )
        """From region to region, for each value of the spread."""
        self._spreads = len(links.spread_percent)
        self._seed = mixed(seed)
        start, jitters = mixed(self._seed), links.jitter_percent
        self._jitters = [jitters[mixed(start + turn) % len(jitters)] for turn in range(_JITTERS)]
        self._turn = 0
        self._regions: list[int] = []
        self._hashes: list[int] = []
        """Of two peers the hashes, one xor the other, choose the spread of their link: any two are independent."""
        self._slow: dict[int, int] = {}
        self.boundary: int | None = None
        """The first peer beyond the partition, if there is one."""

    def region(self, number: int) -> int:
        """The region of a peer."""
        regions = self._regions
        while number >= len(regions):
            drawn = mixed(self._seed ^ len(regions))
            regions.append(self._region_at(drawn % sum(self._weights)))
            self._hashes.append(mixed(drawn) & _HASH_MASK)
        return regions[number]

    def _region_at(self, point: int) -> int:
        for region, weight in enumerate(self._weights):
            point -= weight
            if point < 0:
                return region
        raise AssertionError("the weights add up to more than every point")

    def one_way_us(self, a: int, b: int) -> int:
        """From a to b now, jitter included."""
        regions, hashes = self._regions, self._hashes
        if a >= len(regions) or b >= len(regions):
            self.region(max(a, b))
        self._turn = turn = (self._turn + 1) % _JITTERS
        base_us = self._ways_us[regions[a]][regions[b]][(hashes[a] ^ hashes[b]) % self._spreads]
        way_us = base_us + base_us * self._jitters[turn] // 100
        slow = self._slow
        return way_us + slow.get(a, 0) + slow.get(b, 0) if slow else way_us

    # --- faults -----------------------------------------------------------------
    def partition(self, boundary: int | None) -> None:
        """Cuts peers below ``boundary`` off the others; None heals."""
        self.boundary = boundary

    def same_side(self, a: int, b: int) -> bool:
        """Whether no partition lies between them."""
        return self.boundary is None or (a < self.boundary) == (b < self.boundary)

    def slow_down(self, numbers: tuple[int, ...], delay_us: int) -> None:
        """Every way to and from these peers takes so much longer; 0 ends it."""
        for number in numbers:
            if delay_us:
                self._slow[number] = delay_us
            else:
                self._slow.pop(number, None)
