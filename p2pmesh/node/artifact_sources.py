"""Where a file may be had: whom to ask for it, apart from the peer that named it.

Owns the search: provider records of its digest, and peers that announce the whole model and may cut it. Whoever is
found is a hint; what comes of it is ``node.transfer``'s, and whom files are exchanged with ``core.artifact_policy``'s.
"""

from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from dataclasses import dataclass

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import Digest, LayerRange, PeerId
from p2pmesh.node.overlay import Overlay
from p2pmesh.ports.network import Provider
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.artifacts import PrepareArtifact

MAX_PREPARING = 3
"""Peers that are asked to cut the same file at a time."""
PREPARE_TIMEOUT_S = 300.0
"""To read a range of a large model from a slow disk takes minutes."""

FindProviders = Callable[[Digest], Awaitable[tuple[Provider, ...]]]
MayExchange = Callable[[PeerId], bool]
Found = Callable[[PeerId, tuple[str, ...]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file as it was named to us."""

    digest: Digest
    size_bytes: int
    pieces_digest: Digest


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """Who named a file, where that peer is, and what else is known of the file.

    ``model_digest`` and ``layers``: it is the stage file of those layers of that model. ``others``: further peers that
    are likely to have it. ``is_fragment``: it is one of many of its kind.
    """

    peer: PeerId
    addresses: tuple[str, ...]
    model_digest: Digest | None = None
    layers: LayerRange | None = None
    others: tuple[Provider, ...] = ()
    is_fragment: bool = False


class ArtifactSources:
    """The search for other sources; ``is_searching`` False asks nobody, not even the records."""

    def __init__(self, overlay: Overlay, may_exchange: MayExchange, *, is_searching: bool) -> None:
        self._overlay = overlay
        self._may_exchange = may_exchange
        self._is_searching = is_searching
        self.find_providers: FindProviders = _find_nobody

    async def holders_of(self, digest: Digest) -> tuple[Provider, ...]:
        """Peers that provide a file, of those that files are exchanged with."""
        if not self._is_searching:
            return ()
        found = await self.find_providers(digest)
        return tuple(one for one in found if one.peer != self._overlay.own_peer and self._may_exchange(one.peer))

    async def find(
        self,
        wanted: WantedFile,
        origin: FileOrigin,
        found: Found,
        known: Container[PeerId] = (),
        preparing: set[PeerId] | None = None,
    ) -> None:
        """Tells of each source as it is found; returns when the search is over, at once where nobody else is asked.

        ``known`` are sources already, and need not prepare the file again. ``preparing`` are those that are at it, kept
        up for searches for the same file beside each other.
        """
        if not self._is_searching:
            return

        async def offer(peer: PeerId, addresses: tuple[str, ...]) -> None:
            if peer not in (self._overlay.own_peer, origin.peer) and self._may_exchange(peer):
                await found(peer, addresses)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._from_records, wanted.digest, offer)
            if origin.model_digest is not None and origin.layers is not None:
                question = PrepareArtifact(wanted.digest, origin.model_digest, origin.layers.start, origin.layers.end)
                asked = set() if preparing is None else preparing
                holders = [
                    peer
                    for peer in self.holders_in_view(origin.model_digest)
                    if peer != origin.peer and peer not in known and peer not in asked
                ]
                for peer in holders[: MAX_PREPARING - len(asked)]:
                    asked.add(peer)
                    nursery.start_soon(self._from_model, peer, question, offer, asked)

    async def _from_records(self, digest: Digest, offer: Found) -> None:
        for provider in await self.find_providers(digest):
            await offer(provider.peer, provider.addresses)

    def holders_in_view(self, model_digest: Digest) -> list[PeerId]:
        """Peers of the view that say they have the model and that files are exchanged with; connected ones first."""
        if not self._is_searching:
            return []
        peers = [
            PeerId(said.peer_id)
            for said in self._overlay.board.others()
            if any(model.digest == model_digest for model in said.on_disk)
        ]
        return sorted(
            (peer for peer in peers if self._may_exchange(peer)),
            key=lambda peer: (not self._overlay.is_admitted(peer), peer),
        )

    async def _from_model(self, peer: PeerId, question: PrepareArtifact, offer: Found, asked: set[PeerId]) -> None:
        try:
            with suppress(P2PMeshError):  # one that does not is no source
                stream = await self._overlay.open_exchange(peer, question)
                try:
                    await stream.expect(Done, PREPARE_TIMEOUT_S)
                finally:
                    await stream.reset()
                await offer(peer, ())
        finally:
            asked.discard(peer)


async def _find_nobody(_: Digest) -> tuple[Provider, ...]:
    return ()
