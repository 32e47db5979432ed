"""The DHT as the overlay sees it: who holds a provider record, what a query costs, what it finds.

Modelled: a record lies with the ``REPLICAS`` live servers whose hashes are closest to its key by XOR; a holder that
crashes takes its copies along, one that comes back comes back empty; records expire; a query takes a number of rounds
that grows with the logarithm of the servers, asks ``PARALLEL`` servers a round, and finds what the servers that are
closest *now* hold and can be reached across a partition. Peers behind NAT are clients.

Left to the adapter (``adapters.p2p``) and its tests with real peers: routing tables and their upkeep, the messages
themselves, signatures and validators. Here a query always reaches the closest live servers, but loses
``STALE_PERCENT`` of its questions to servers that are gone.
"""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

REPLICAS = 8
"""As the adapter asks for: so many servers keep a record, and are asked for it."""
BUCKET = 20
BITS_PER_ROUND = 2
"""Twenty peers closer to the key halve the distance twice at the least, and about four times on average."""
PARALLEL = 3
STALE_PERCENT = 10
HASH_BITS = 64
MAX_RECORDS_PER_KEY = 256


def hash_of(text: str) -> int:
    """Where a peer or a key lies: the leading bits of its sha256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: HASH_BITS // 8], "big")


def _place_of(key: bytes) -> int:
    """A key is a hash already."""
    return int.from_bytes(key[: HASH_BITS // 8], "big")


@dataclass(slots=True)
class _Copy:
    """One record of one provider and the servers that hold it."""

    expires_us: int
    holders: tuple[int, ...]


class Directory:
    """Servers by their hashes and records by their keys. Peers go by number."""

    def __init__(self) -> None:
        self._ring: list[tuple[int, int]] = []
        self._starts: dict[int, int] = {}
        self._records: dict[bytes, dict[int, _Copy]] = {}

    @property
    def server_count(self) -> int:
        """Live servers."""
        return len(self._ring)

    @property
    def record_count(self) -> int:
        """Records that somebody published and that have not been found expired."""
        return sum(len(copies) for copies in self._records.values())

    def join(self, number: int, peer_hash: int, start: int) -> None:
        """A server runs from now on; ``start`` tells its runs apart, since a new one holds nothing."""
        insort(self._ring, (peer_hash, number))
        self._starts[number] = start

    def leave(self, number: int, peer_hash: int) -> None:
        """It is gone, and what it held with it."""
        place = bisect_left(self._ring, (peer_hash, number))
        if place < len(self._ring) and self._ring[place] == (peer_hash, number):
            del self._ring[place]
        self._starts.pop(number, None)

    def rounds(self) -> int:
        """How many questions one after the other a query takes."""
        return 1 + -(-(len(self._ring) // BUCKET).bit_length() // BITS_PER_ROUND)

    def closest(self, key_hash: int, count: int = REPLICAS) -> tuple[int, ...]:
        """The live servers closest to a key, closest first."""
        # Those who share more leading bits with the key are closer: the answer lies in the smallest aligned range
        # that holds enough. Start about there.
        bits = HASH_BITS - (len(self._ring) // count).bit_length()
        near = self._range(key_hash, bits)
        while len(near) < count and bits < HASH_BITS:
            bits += 1
            near = self._range(key_hash, bits)
        found = sorted((peer_hash ^ key_hash, number) for peer_hash, number in near)
        return tuple(number for _, number in found[:count])

    def _range(self, key_hash: int, bits: int) -> list[tuple[int, int]]:
        low = key_hash >> bits << bits
        ring = self._ring
        return ring[bisect_left(ring, (low, -1)) : bisect_left(ring, (low + (1 << bits), -1))]

    def publish(self, key: bytes, provider: int, expires_us: int, can_reach: Callable[[int], bool]) -> tuple[int, ...]:
        """Puts or renews a record with the servers that can be reached; these are returned."""
        copies = self._records.setdefault(key, {})
        holders = tuple(number for number in self.closest(_place_of(key)) if can_reach(number))
        if provider not in copies and len(copies) >= MAX_RECORDS_PER_KEY:
            return holders
        # A holder is remembered with its run: number and start in one integer.
        copies[provider] = _Copy(expires_us, tuple(number << 20 | self._starts[number] for number in holders))
        return holders

    def find(self, key: bytes, now_us: int, can_reach: Callable[[int], bool]) -> tuple[int, ...]:
        """Providers out of the copies that the closest servers hold now, by number."""
        copies = self._records.get(key)
        if not copies:
            return ()
        for provider in [provider for provider, copy in copies.items() if copy.expires_us <= now_us]:
            del copies[provider]
        asked = {
            number << 20 | self._starts[number] for number in self.closest(_place_of(key)) if can_reach(number)
        }  # fmt: skip
        return tuple(sorted(p for p, copy in copies.items() if not asked.isdisjoint(copy.holders)))
