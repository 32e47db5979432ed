"""Files between peers: giving ours, fetching theirs, with whom the operator's mode and our own runs allow.

Owns who may have what, and the bounds of giving. How a file comes from several sources is ``node.transfer``'s, where
they are found ``node.artifact_sources``', files on disk the store's.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable, Refused, RemoteProtocolError
from p2pmesh.base.ids import Digest, LayerRange, PeerId
from p2pmesh.base.limits import MAX_ARTIFACT_CHUNK_BYTES
from p2pmesh.base.quantities import KIB, MICROS_PER_SECOND, Micros
from p2pmesh.core.allowance import spend
from p2pmesh.core.artifact_policy import ArtifactTransfer, may_exchange
from p2pmesh.core.transfer import Cause
from p2pmesh.node.artifact_sources import ArtifactSources, FileOrigin, FindProviders, WantedFile
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.transfer import CHUNK_TIMEOUT_S, Found, NoteTransfer, Transfer, TransferCounts, TransferParts
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.models import ModelFile, ModelStore, StageArtifact
from p2pmesh.ports.network import Provider
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.artifacts import ArtifactChunk, FetchArtifact, FetchPieceList, PrepareArtifact
from p2pmesh.wire.pieces import PieceList, checked_piece_list, single_piece_list

MAX_TRANSFERS = 4
"""Files on their way here at a time; each holds a few pieces in memory."""
MAX_GIVEN = 32
MAX_GIVEN_TO_A_PEER = 12
"""A peer fetches a few fragments at once, each by a few requests; whoever is refused waits for seconds."""
MAX_HERE = 32
BUSY_PAUSE_S = 0.03
"""Between two portions of 256 KiB: 8 MiB/s."""
CUT_EACH_US = 60 * MICROS_PER_SECOND
CUT_BURST = 8
SEARCH_ABOVE_BYTES = 8 * 1024 * 1024
"""A smaller file comes from whoever named it sooner than others are found."""
LIST_BYTES_PER_S = 64 * KIB
"""No piece list may come more slowly than so."""
TELL_EVERY_S = 1.0
TELL_AGAIN_S = 20.0
"""Also while nothing new has come: whoever waits for the file must not take us for dead."""

Progress = Callable[[int], Awaitable[None]]
"""Called with the bytes that are here so far."""


@dataclass(frozen=True, slots=True)
class ArtifactPorts:
    """What files between peers stand on."""

    store: ModelStore
    clock: Clock
    note_transfer: NoteTransfer
    report: Report
    wait_to_send: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    """Before each chunk: the owner may give others only so many bytes in a second."""
    wait_to_receive: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint


@dataclass(slots=True)
class Grants:
    """What the rest of the node knows: whom a run of ours gives which file, what goes on, which models are here."""

    is_granted: Callable[[Digest, PeerId], bool] = field(default=lambda digest, peer: False)
    is_busy: Callable[[], bool] = field(default=lambda: False)
    """Whether tokens pass through here: they come first."""
    find_model: Callable[[Digest], ModelFile | None] = field(default=lambda digest: None)


class Artifacts:
    """All files that this node gives and fetches."""

    def __init__(self, overlay: Overlay, ports: ArtifactPorts, mode: ArtifactTransfer) -> None:
        self._overlay = overlay
        self._store = ports.store
        self._ports = ports
        self.mode = mode
        self.grants = Grants()
        self._sources = ArtifactSources(overlay, self.may_exchange, is_searching=mode is not ArtifactTransfer.OFF)
        self._counts = TransferCounts()
        self._given_bytes = 0
        self._giving: Counter[PeerId] = Counter()
        self._turns: dict[Digest, tuple[trio.Lock, int]] = {}
        self._room = trio.CapacityLimiter(MAX_TRANSFERS)
        self._cutting = trio.CapacityLimiter(1)
        self._cuts_full_at = Micros(0)
        self._pace = trio.Lock()
        self._under_way: dict[Digest, Transfer] = {}
        self._here: dict[Digest, None] = {}
        overlay.serve_exchange(FetchArtifact, self._serve)
        overlay.serve_exchange(FetchPieceList, self._serve_piece_list)
        overlay.serve_exchange(PrepareArtifact, self._prepare)

    def search_by(self, find_providers: FindProviders) -> None:
        """How the holders of a digest are found."""
        self._sources.find_providers = find_providers

    # --- what others here ask

    def may_exchange(self, peer: PeerId) -> bool:
        """Whether the operator lets files go to this peer and come from it."""
        trust, board = self._overlay.trust, self._overlay.board
        said = board.find(peer)
        owned = trust.assess(peer, b"" if said is None else said.ownership)
        own_owner = trust.assess(self._overlay.own_peer, board.own().ownership).owner_id
        return may_exchange(self.mode, owned, trust.store, own_owner)

    def held(self) -> tuple[Digest, ...]:
        """Files that came or were cut lately, for those who search them; the newest first."""
        return tuple(reversed(self._here)) if self.mode is not ArtifactTransfer.OFF else ()

    def describe(self) -> dict[str, Any]:
        """For the status."""
        return {
            "mode": self.mode.value,
            "fetched_bytes": self._counts.fetched_bytes + sum(t.counts.fetched_bytes for t in self._under_way.values()),
            "resumed_bytes": self._counts.resumed_bytes,
            "wasted_bytes": self._counts.wasted_bytes + sum(t.counts.wasted_bytes for t in self._under_way.values()),
            "given_bytes": self._given_bytes,
            "under_way": [
                {"digest": digest, "done_bytes": one.done_bytes, "sources": one.source_count}
                for digest, one in self._under_way.items()
            ],
        }

    # --- fetching

    async def holders_of(self, digest: Digest) -> tuple[Provider, ...]:
        """Peers that say they have a file, of those that files are exchanged with."""
        return await self._sources.holders_of(digest)

    def holders_in_view(self, model_digest: Digest) -> tuple[Provider, ...]:
        """Peers that announce a whole model, likewise."""
        return tuple(Provider(peer, ()) for peer in self._sources.holders_in_view(model_digest))

    async def obtain(
        self, wanted: WantedFile, origin: FileOrigin, progress: Progress
    ) -> tuple[StageArtifact, TransferCounts]:
        """The file, from our disk or from peers, and what it cost; pieces of a broken transfer wait for the next.

        The caller has one hold on it, to be released (see ``ModelStore``).
        """
        async with self._turn(wanted.digest):
            found = await self._store.find_artifact(wanted.digest)
            if found is not None:
                return found, TransferCounts()
            async with self._room:
                counts = await self._fetch(wanted, origin, progress)
            try:
                found = await self._store.find_artifact(wanted.digest)
            finally:
                self._store.release(wanted.digest)  # the hold of having received it
        if found is None:
            text = f"the file {wanted.digest} vanished right after it was received"
            raise Refused(ErrorCode.ARTIFACT_UNKNOWN, text)
        if not origin.is_fragment:
            self._note_here(wanted.digest)
        return found, counts

    @asynccontextmanager
    async def _turn(self, digest: Digest) -> AsyncIterator[None]:
        """Two runs that want the same file fetch it once."""
        lock, users = self._turns.get(digest, (trio.Lock(), 0))
        self._turns[digest] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._turns.pop(digest)
            if users > 1:
                self._turns[digest] = (lock, users - 1)

    async def _fetch(self, wanted: WantedFile, origin: FileOrigin, progress: Progress) -> TransferCounts:
        """Takes a hold unless it raises."""
        told = _Told(progress)
        received: list[TransferCounts] = []
        try:
            with unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(told.run)
                    received.append(await self._receive(wanted, origin, told))
                    nursery.cancel_scope.cancel()
        except BaseException:
            if received:  # it came, and the caller is cancelled before it hears of it
                self._store.release(wanted.digest)
            raise
        return received[0]

    async def _receive(self, wanted: WantedFile, origin: FileOrigin, told: "_Told") -> TransferCounts:
        pieces = await self._piece_list(wanted, origin)
        seek = _Seeking(self._sources, wanted, origin)
        parts = TransferParts(
            self._overlay, self._ports.clock, self._ports.note_transfer, seek,
            _DropReport(wanted, origin, self._ports.report), self._ports.wait_to_receive,
        )  # fmt: skip
        counts = TransferCounts()
        try:
            async with self._store.receive_artifact(wanted.digest, pieces) as reception:
                transfer = self._under_way[wanted.digest] = Transfer(parts, wanted, pieces, reception)
                counts = transfer.counts
                told.done_bytes = lambda: transfer.done_bytes
                await transfer.run()
        except RemoteProtocolError as error:
            if error.code is ErrorCode.ARTIFACT_CORRUPT and counts.fetched_bytes + counts.resumed_bytes == (
                wanted.size_bytes
            ):
                error.culprit = origin.peer  # all pieces fit the list: whoever named both named what cannot be
            self._overlay.conduct.note_error(error)
            raise
        finally:
            self._under_way.pop(wanted.digest, None)
            self._counts.add(counts)
        return counts

    async def _piece_list(self, wanted: WantedFile, origin: FileOrigin) -> PieceList:
        """The list by which all else is checked, from whoever named the file, else from anyone who has it."""
        single = single_piece_list(wanted.digest, wanted.size_bytes)
        if single is not None:
            if single.digest != wanted.pieces_digest:
                error = RemoteProtocolError(
                    ErrorCode.ARTIFACT_CORRUPT, "a file of one piece was named with another list"
                )
                error.culprit = origin.peer
                self._overlay.conduct.note_error(error)
                raise error
            return single
        try:
            return await self._ask_piece_list(wanted, origin.peer, origin.addresses)
        except P2PMeshError as error:
            self._overlay.conduct.note_error(error)
            pieces = await self._piece_list_of_others(wanted, origin)
            if pieces is None:
                raise
            return pieces

    async def _piece_list_of_others(self, wanted: WantedFile, origin: FileOrigin) -> PieceList | None:
        """The first that comes; nobody waits then for those who are still cutting the file."""
        came: list[PieceList] = []
        with trio.CancelScope() as search:

            async def found(peer: PeerId, addresses: tuple[str, ...]) -> None:
                try:
                    came.append(await self._ask_piece_list(wanted, peer, addresses))
                    search.cancel()
                except P2PMeshError as error:
                    self._overlay.conduct.note_error(error)

            await self._sources.find(wanted, origin, found)
        return came[0] if came else None

    async def _ask_piece_list(self, wanted: WantedFile, peer: PeerId, addresses: tuple[str, ...]) -> PieceList:
        question = FetchPieceList(wanted.digest, wanted.pieces_digest)
        length = 32 * -(-wanted.size_bytes // PieceList(wanted.size_bytes, b"").piece_bytes)
        stream = await self._overlay.open_exchange(peer, question, addresses)
        hashes = bytearray()
        try:
            with trio.move_on_after(CHUNK_TIMEOUT_S + length / LIST_BYTES_PER_S):
                while len(hashes) < length:
                    hashes += (await stream.expect(ArtifactChunk, CHUNK_TIMEOUT_S)).data
        finally:
            await stream.reset()
        if len(hashes) < length:
            raise PeerUnavailable(ErrorCode.DEADLINE_EXCEEDED, f"peer {peer} sends a piece list too slowly")
        try:
            return checked_piece_list(bytes(hashes), wanted.size_bytes, wanted.pieces_digest)
        except RemoteProtocolError as error:
            error.culprit = peer
            raise

    # --- giving

    async def _serve(self, stream: MessageStream, asked: FetchArtifact) -> None:
        async def send(data: bytes) -> None:
            await self._let_tokens_pass()
            await self._ports.wait_to_send()
            await stream.send(ArtifactChunk(data), CHUNK_TIMEOUT_S)
            self._given_bytes += len(data)

        with self._counted(stream.remote_peer):
            async with self._given(stream.remote_peer, asked.digest, asked.pieces_digest) as (artifact, _):
                await self._store.read_artifact(artifact, asked.offset, asked.size_bytes, send)
        await stream.finish()

    async def _let_tokens_pass(self) -> None:
        """All that is given while tokens are made shares one pace: encrypting it would take their time."""
        if self.grants.is_busy():
            async with self._pace:
                await trio.sleep(BUSY_PAUSE_S)

    async def _serve_piece_list(self, stream: MessageStream, asked: FetchPieceList) -> None:
        with self._counted(stream.remote_peer):
            async with self._given(stream.remote_peer, asked.digest, asked.pieces_digest) as (_, pieces):
                for start in range(0, len(pieces.hashes), MAX_ARTIFACT_CHUNK_BYTES):
                    part = pieces.hashes[start : start + MAX_ARTIFACT_CHUNK_BYTES]
                    await stream.send(ArtifactChunk(part), CHUNK_TIMEOUT_S)
        await stream.finish()

    async def _prepare(self, stream: MessageStream, asked: PrepareArtifact) -> None:
        """Cuts a stage for another's run, where that is allowed; the quota may take it again at once."""
        model = self.grants.find_model(Digest(asked.model_digest))
        layers = LayerRange(asked.layer_start, asked.layer_end)
        if model is None or layers.end > model.index.layer_count or not self.may_exchange(stream.remote_peer):
            raise _unknown(asked.digest)
        self._begin_cut()
        try:
            artifact = await self._store.cut(model, layers)
        finally:
            self._cutting.release()
        self._store.release(artifact.digest)
        if artifact.digest != asked.digest:
            raise _unknown(asked.digest)
        self._note_here(artifact.digest)
        await stream.send(Done())
        await stream.finish()

    def _begin_cut(self) -> None:
        """One at a time and few in an hour: each reads a large file and takes room in the cache."""
        spent = spend(self._cuts_full_at, self._ports.clock.now(), CUT_EACH_US, CUT_BURST)
        if spent is not None:
            with suppress(trio.WouldBlock):
                self._cutting.acquire_nowait()
                self._cuts_full_at = spent
                return
        raise Refused(ErrorCode.OVERLOADED, "this peer cuts no more files for others now; try again in some minutes")

    @asynccontextmanager
    async def _given(
        self, peer: PeerId, asked: str, pieces_digest: str
    ) -> AsyncIterator[tuple[StageArtifact, PieceList]]:
        """A file that the peer may have, held; ``ARTIFACT_UNKNOWN`` for any other, without a word why."""
        digest = Digest(asked)
        if not self.grants.is_granted(digest, peer) and not self.may_exchange(peer):
            raise _unknown(asked)
        artifact = await self._store.find_artifact(digest)
        if artifact is None:
            self._here.pop(digest, None)
            raise _unknown(asked)
        try:
            pieces = await self._store.piece_list(artifact)
            if pieces.digest != pieces_digest:
                raise _unknown(asked)
            yield artifact, pieces
        finally:
            self._store.release(digest)

    @contextmanager
    def _counted(self, peer: PeerId) -> Iterator[None]:
        """A few requests of a peer and of all are served at a time."""
        if self._giving[peer] >= MAX_GIVEN_TO_A_PEER or self._giving.total() >= MAX_GIVEN:
            raise Refused(ErrorCode.OVERLOADED, "this peer gives as many files as it can; try again in some seconds")
        self._giving[peer] += 1
        try:
            yield
        finally:
            self._giving[peer] -= 1
            if not self._giving[peer]:
                del self._giving[peer]

    def _note_here(self, digest: Digest) -> None:
        self._here.pop(digest, None)
        self._here[digest] = None
        if len(self._here) > MAX_HERE:
            del self._here[next(iter(self._here))]


class _Seeking:
    """The search of one transfer: first those that are known, then others, for a small file only if that failed.

    Who is told first is asked first. So of many small files each has a first source of its own.
    """

    def __init__(self, sources: ArtifactSources, wanted: WantedFile, origin: FileOrigin) -> None:
        self._sources = sources
        self._wanted = wanted
        self._origin = origin
        self._is_first = True
        self._told: set[PeerId] = set()
        self._preparing: set[PeerId] = set()

    async def __call__(self, found: Found) -> None:
        known = (Provider(self._origin.peer, self._origin.addresses), *self._origin.others)
        turn = int(self._wanted.digest[:8], 16) % len(known)
        for one in known[turn:] + known[:turn]:
            await found(one.peer, one.addresses)
        is_first, self._is_first = self._is_first, False
        if not is_first or self._wanted.size_bytes > SEARCH_ABOVE_BYTES:

            async def tell(peer: PeerId, addresses: tuple[str, ...]) -> None:
                self._told.add(peer)
                await found(peer, addresses)

            await self._sources.find(self._wanted, self._origin, tell, self._told, self._preparing)


class _DropReport:
    """Tells the operator of sources that were left; that a peer lacks one fragment of many is no news."""

    def __init__(self, wanted: WantedFile, origin: FileOrigin, report: Report) -> None:
        self._wanted = wanted
        self._origin = origin
        self._report = report

    def __call__(self, peer: PeerId, cause: Cause) -> None:
        if cause is Cause.UNKNOWN and self._origin.is_fragment:
            return
        fields = {"peer_id": peer, "digest": self._wanted.digest, "cause": cause.value}
        self._report("artifact_source_dropped", fields)


class _Told:
    """Says how far a transfer is, when that changed and from time to time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.done_bytes: Callable[[], int] = lambda: 0

    async def run(self) -> None:
        """Until cancelled."""
        told, told_at = -1, trio.current_time()
        while True:
            done = self.done_bytes()
            if done != told or trio.current_time() - told_at >= TELL_AGAIN_S:
                told, told_at = done, trio.current_time()
                await self._progress(done)
            await trio.sleep(TELL_EVERY_S)


def _unknown(digest: str) -> Refused:
    return Refused(ErrorCode.ARTIFACT_UNKNOWN, f"there is no file {digest} to be had here")
