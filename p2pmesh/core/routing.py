"""Which peer drives a request: a total function of what is announced, measured and remembered.

In this order: drivers that are not cooling down, unless all are; the lowest rank (trust, suspicion); the driver that
answered this conversation before, unless another is far faster; a small share of requests for drivers whose speed is
not known yet; the shortest expected time; of about equal ones the nearest, this node first; of those rendezvous
hashing, so that equal keys meet equal drivers without state. Who may be asked at all is decided before
(``core.ownership``).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import DEFAULT_LANES, MAX_KNOWN_MODELS
from p2pmesh.core.affinity import Tie
from p2pmesh.core.driver_records import DriverView
from p2pmesh.wire.announcement import Announcement, ServedModel

NEUTRAL_TOKENS_PER_S = 25
LEAST_TOKENS_PER_S, MOST_TOKENS_PER_S = 5, 100
ENOUGH_ANSWERS = 3
"""Of a driver, before its speed counts; Mesh LLM's, as are the speeds above."""
EXPLORED_PERCENT = 15
"""Of requests, for drivers whose speed is not known; Mesh LLM's."""
_ANSWER_TOKENS = 100
"""Of the answer whose expected time is compared."""
_EQUAL_PERCENT = 20
"""Expected times that differ by less are equal: measurements vary as much."""
_FAR_FASTER = 2
"""So many times faster must another driver be for a conversation to leave its cache: as an idle one is than one whose
lanes are full."""
_NEARNESS_US = 5_000
"""Round trips that differ by less are equally near."""


def served_models(announcements: Iterable[Announcement]) -> dict[str, ServedModel]:
    """One entry a model name, sorted by name; the first announcement of a name gives its facts.

    At most ``MAX_KNOWN_MODELS``: peers may announce names by the thousand, and the earlier announcements count.
    """
    found: dict[str, ServedModel] = {}
    for announcement in announcements:
        for model in announcement.models:
            if len(found) < MAX_KNOWN_MODELS:
                found.setdefault(model.name, model)
    return dict(sorted(found.items()))


class RouteReason(StrEnum):
    """Why a driver was chosen."""

    ONLY = "only"
    SESSION = "session"
    PREFIX = "prefix"
    CLIENT = "client"
    EXPLORED = "explored"
    FASTEST = "fastest"


_REASON_OF_TIE = {
    Tie.SESSION: RouteReason.SESSION,
    Tie.PREFIX: RouteReason.PREFIX,
    Tie.CLIENT: RouteReason.CLIENT,
}


@dataclass(frozen=True, slots=True)
class DriverChoice:
    """A peer that drives the model. ``rtt_us`` is 0 for this node and None where it was not measured."""

    peer: PeerId
    rank: int = 0
    rtt_us: int | None = None
    seen: DriverView = DriverView()

    @property
    def is_known(self) -> bool:
        """Whether enough was measured of it."""
        return self.seen.token_us is not None and self.seen.answers >= ENOUGH_ANSWERS

    @property
    def expected_us(self) -> int:
        """For an answer of 100 tokens, with what runs there for us already."""
        fastest, slowest = 1_000_000 // MOST_TOKENS_PER_S, 1_000_000 // LEAST_TOKENS_PER_S
        token_us = 1_000_000 // NEUTRAL_TOKENS_PER_S
        if self.is_known and self.seen.token_us is not None:
            token_us = max(fastest, min(slowest, self.seen.token_us))
        alone_us = (self.rtt_us or 0) + (self.seen.start_us or 0) + _ANSWER_TOKENS * token_us
        return alone_us * (DEFAULT_LANES + self.seen.in_flight) // DEFAULT_LANES


def choose_driver(
    choices: Sequence[DriverChoice], key: bytes, remembered: tuple[PeerId, Tie] | None = None
) -> tuple[PeerId, RouteReason] | None:
    """Who drives a request with this ``key``, and why; None if nobody does. The order of ``choices`` is no matter."""
    well = [choice for choice in choices if not choice.seen.is_cooling] or list(choices)
    lowest = min((choice.rank for choice in well), default=0)
    asked = {choice.peer: choice for choice in well if choice.rank == lowest}
    if len(asked) <= 1:
        return next(((peer, RouteReason.ONLY) for peer in asked), None)
    best_us = min(choice.expected_us for choice in asked.values())
    if remembered is not None:
        tied = asked.get(remembered[0])
        if tied is not None and tied.expected_us <= _FAR_FASTER * best_us:
            return tied.peer, _REASON_OF_TIE[remembered[1]]
    unknown = sorted(peer for peer, choice in asked.items() if not choice.is_known)
    if len(unknown) < len(asked) and unknown and _draw(key) < EXPLORED_PERCENT:
        return _by_weight(unknown, key), RouteReason.EXPLORED
    equal = [choice for choice in asked.values() if choice.expected_us * 100 <= best_us * (100 + _EQUAL_PERCENT)]
    nearest = min(_nearness(choice) for choice in equal)
    return _by_weight([choice.peer for choice in equal if _nearness(choice) == nearest], key), RouteReason.FASTEST


def _nearness(choice: DriverChoice) -> int:
    """This node is nearest of all; a way that was not measured is the farthest."""
    if choice.rtt_us is None:
        return 1 << 62
    return -1 if choice.rtt_us == 0 else choice.rtt_us // _NEARNESS_US


def _draw(key: bytes) -> int:
    """0 to 99, of the key alone."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"explore").digest(), "big") % 100


def _by_weight(peers: Iterable[PeerId], key: bytes) -> PeerId:
    fixed_key = hashlib.blake2b(key, digest_size=32).digest()  # all of the key counts, however long it is
    return max(peers, key=lambda peer: (_weight(fixed_key, peer), peer))


def _weight(key: bytes, peer: PeerId) -> bytes:
    return hashlib.blake2b(peer.encode(), key=key, digest_size=16).digest()
