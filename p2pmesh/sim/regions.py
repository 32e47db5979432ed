"""How long a way takes in the overlay, and whether there is one: regions, NAT, partitions, slow peers.

Peers go by their numbers. Bytes are ``sim.traffic``'s, who runs is ``sim.overlay``'s.
"""

from p2pmesh.sim.chance import MIX_FIRST, MIX_MASK, MIX_SECOND, MIX_STEP, mixed
from p2pmesh.sim.overlay_scenario import RegionLinks


class Regions:
    """Ways between peers. A peer's region follows from the seed and its number alone."""

    def __init__(self, links: RegionLinks, seed: int) -> None:
        self._links = links
        self._one_way_us = links.one_way_us
        self._seed = mixed(seed)
        self._draws = mixed(self._seed)
        self._regions: list[int] = []
        self._spread, self._jitter = links.spread_percent, links.jitter_percent
        self._slow: dict[int, int] = {}
        self.boundary: int | None = None
        """The first peer beyond the partition, if there is one."""

    def region(self, number: int) -> int:
        """The region of a peer."""
        regions = self._regions
        while number >= len(regions):
            regions.append(self._draw_region(len(regions)))
        return regions[number]

    def _draw_region(self, number: int) -> int:
        weights = self._links.region_weights
        point = mixed(self._seed ^ number) % sum(weights)
        for region, weight in enumerate(weights):
            point -= weight
            if point < 0:
                return region
        raise AssertionError("the weights add up to more than every point")

    def one_way_us(self, a: int, b: int) -> int:
        """From a to b now, jitter included. ``mixed`` is written out twice: this is asked for every probe."""
        regions, spread, jitters = self._regions, self._spread, self._jitter
        if a >= len(regions) or b >= len(regions):
            self.region(max(a, b))
        pair = ((self._seed ^ (a << 32 | b if a < b else b << 32 | a)) + MIX_STEP) & MIX_MASK
        pair = ((pair ^ (pair >> 30)) * MIX_FIRST) & MIX_MASK
        pair = ((pair ^ (pair >> 27)) * MIX_SECOND) & MIX_MASK
        base_us = self._one_way_us[regions[a]][regions[b]] * spread[(pair ^ (pair >> 31)) % len(spread)] // 100
        self._draws = drawn = self._draws + 1
        drawn = (drawn + MIX_STEP) & MIX_MASK
        drawn = ((drawn ^ (drawn >> 30)) * MIX_FIRST) & MIX_MASK
        drawn = ((drawn ^ (drawn >> 27)) * MIX_SECOND) & MIX_MASK
        way_us = base_us + base_us * jitters[(drawn ^ (drawn >> 31)) % len(jitters)] // 100
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
