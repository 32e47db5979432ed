"""Which peer drives a request: a total function of what is announced.

This node before others; otherwise rendezvous hashing over the drivers of the model, so that equal keys meet equal
drivers without state. Who may be asked at all is decided before (``core.ownership``).
Health, affinity and speed have their room here and are not weighed yet.
"""

import hashlib
from collections.abc import Callable, Iterable

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_KNOWN_MODELS
from p2pmesh.wire.announcement import Announcement, ServedModel


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


def choose_driver(
    model: str,
    key: bytes,
    own_peer: PeerId,
    own_models: frozenset[str],
    announcements: Iterable[Announcement],
    rank: Callable[[Announcement], int] = lambda _: 0,
) -> PeerId | None:
    """The peer that drives ``model`` for requests with this ``key``; None if nobody does.

    Of other peers only those of the lowest ``rank`` are asked.
    """
    if model in own_models:
        return own_peer
    ranked = [
        (rank(announcement), PeerId(announcement.peer_id))
        for announcement in announcements
        if any(served.name == model for served in announcement.models)
    ]
    lowest = min((rank_of for rank_of, _ in ranked), default=0)
    drivers = sorted(peer for rank_of, peer in ranked if rank_of == lowest)
    fixed_key = hashlib.blake2b(key, digest_size=32).digest()  # all of the key counts, however long it is
    return max(drivers, key=lambda peer: (_weight(fixed_key, peer), peer), default=None)


def _weight(key: bytes, peer: PeerId) -> bytes:
    return hashlib.blake2b(peer.encode(), key=key, digest_size=16).digest()
