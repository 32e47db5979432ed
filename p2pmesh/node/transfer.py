"""One file on its way here: runs ``TransferMachine``, asks, reads, checks each piece as it streams.

Owns the bytes that come, and says whose wrong ones were. What is asked of whom is the machine's, where pieces lie the
store's. A piece is written once its hash is right, so nothing unchecked is on disk.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.core import transfer
from p2pmesh.core.transfer import Cause
from p2pmesh.node.artifact_sources import WantedFile
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.runner import MachineRunner
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.models import ArtifactReception
from p2pmesh.wire.messages.artifacts import ArtifactChunk, FetchArtifact
from p2pmesh.wire.pieces import PieceList

CHUNK_TIMEOUT_S = 30.0
MAX_QUEUED_EVENTS = 1024
MAX_KNOWN = 64
"""Peers whose addresses are kept for one file; the machine asks fewer."""
SEARCH_S = 20.0
"""Longer than records are searched. Whoever cuts the file may take minutes, and no lost source waits for that."""

NoteTransfer = Callable[[PeerId, int, int], None]
"""Called with a peer, bytes that came from it, and the microseconds that they took."""
Found = Callable[[PeerId, tuple[str, ...]], Awaitable[None]]
Seek = Callable[[Found], Awaitable[None]]
"""Tells of sources as they are found, until it has found all."""

_CAUSES = {
    ErrorCode.ARTIFACT_CORRUPT: Cause.UNKNOWN,  # said in a refusal, of what it has itself
    ErrorCode.ARTIFACT_UNKNOWN: Cause.UNKNOWN,
    ErrorCode.REQUEST_INVALID: Cause.UNKNOWN,
    ErrorCode.OVERLOADED: Cause.BUSY,
    ErrorCode.DEADLINE_EXCEEDED: Cause.SLOW,
}
_ERRORS = {
    Cause.WRONG: ErrorCode.ARTIFACT_CORRUPT,
    Cause.SLOW: ErrorCode.DEADLINE_EXCEEDED,
    Cause.LOST: ErrorCode.PEER_UNREACHABLE,
    Cause.BUSY: ErrorCode.OVERLOADED,
    Cause.UNKNOWN: ErrorCode.ARTIFACT_UNKNOWN,
}


@dataclass(slots=True)
class TransferCounts:
    """Bytes of transfers. ``resumed``: found on disk, of earlier tries; ``wasted``: came, and made no piece."""

    fetched_bytes: int = 0
    resumed_bytes: int = 0
    wasted_bytes: int = 0
    sources: dict[PeerId, int] = field(default_factory=dict)
    """Bytes of pieces by the peer that they came from."""

    def as_fields(self) -> dict[str, object]:
        """As event fields."""
        return {
            "fetched_bytes": self.fetched_bytes,
            "resumed_bytes": self.resumed_bytes,
            "wasted_bytes": self.wasted_bytes,
            "sources": [{"peer_id": peer, "bytes": size_bytes} for peer, size_bytes in self.sources.items()],
        }

    def add(self, other: "TransferCounts") -> None:
        """Of another transfer, its sources apart."""
        self.fetched_bytes += other.fetched_bytes
        self.resumed_bytes += other.resumed_bytes
        self.wasted_bytes += other.wasted_bytes


@dataclass(frozen=True, slots=True)
class TransferParts:
    """What a transfer stands on. ``note_dropped`` hears of sources that were left, and why."""

    overlay: Overlay
    clock: Clock
    note_transfer: NoteTransfer
    seek: Seek
    note_dropped: Callable[[PeerId, Cause], None]
    wait_to_receive: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint


class Transfer:
    """The transfer of one file into ``reception``."""

    def __init__(
        self, parts: TransferParts, wanted: WantedFile, pieces: PieceList, reception: ArtifactReception
    ) -> None:
        self._parts = parts
        self._wanted = wanted
        self._pieces = pieces
        self._reception = reception
        self.counts = TransferCounts(resumed_bytes=sum(pieces.length_of(piece) for piece in reception.have))
        self._machine = transfer.TransferMachine(pieces.count, pieces.piece_bytes, reception.have)
        self._runner: MachineRunner[transfer.Event, transfer.Effect] = MachineRunner(
            self._machine, parts.clock, self._perform, transfer.DeadlinePassed(), MAX_QUEUED_EVENTS
        )
        self._addresses: dict[PeerId, tuple[str, ...]] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._written: set[int] = set()
        """Pieces that came here; the machine does not hear of one whose request is given up while it is written."""
        self._nursery: trio.Nursery | None = None
        self._is_over = False
        self._failure: P2PMeshError | None = None

    @property
    def done_bytes(self) -> int:
        """What is here so far."""
        return self.counts.resumed_bytes + self.counts.fetched_bytes

    @property
    def source_count(self) -> int:
        """Peers that are asked now, or would be."""
        return len(self._machine.sources)

    async def run(self) -> None:
        """Until all pieces are here; raises why they cannot be had, or what our own disk says."""
        with unwrapped():
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._runner.post(transfer.TransferStarted())
                await self._runner.run(lambda: self._is_over)
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _perform(self, effect: transfer.Effect) -> None:
        assert self._nursery is not None
        match effect:
            case transfer.AskPieces(request):
                scope = self._scopes[request] = trio.CancelScope()
                self._nursery.start_soon(self._ask, effect, scope)
            case transfer.CancelRequest(request):
                if request in self._scopes:
                    self._scopes[request].cancel()
            case transfer.DropSource(peer, cause):
                if cause is Cause.UNKNOWN:
                    self._addresses.pop(peer, None)
                self._parts.note_dropped(peer, cause)
            case transfer.SeekSources():
                self._nursery.start_soon(self._seek)
            case transfer.Complete():
                self._is_over = True
            case transfer.GiveUp(cause, text):
                code = ErrorCode.ARTIFACT_UNKNOWN if cause is None else _ERRORS[cause]
                text = f"the file {self._wanted.digest[:12]} cannot be had from any peer: {text}"
                self._failure = RemoteProtocolError(code, text)
                self._is_over = True

    async def _seek(self) -> None:
        """A search that takes long goes on beside those that follow it."""
        assert self._nursery is not None
        is_over = trio.Event()
        self._nursery.start_soon(self._search, is_over)
        with trio.move_on_after(SEARCH_S):
            await is_over.wait()
        await self._runner.put(transfer.SeekEnded(is_whole=is_over.is_set()))

    async def _search(self, is_over: trio.Event) -> None:
        await self._parts.seek(self._found)
        is_over.set()

    async def _found(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        if peer not in self._addresses and len(self._addresses) >= MAX_KNOWN:
            return
        if addresses or peer not in self._addresses:
            self._addresses[peer] = addresses
        await self._runner.put(transfer.SourceFound(peer))

    # --- one request

    async def _ask(self, ask: transfer.AskPieces, scope: trio.CancelScope) -> None:
        try:
            with scope:
                cause = await self._take_pieces(ask)
                if cause is not None:
                    await self._runner.put(transfer.RequestFailed(ask.request, cause))
        finally:
            del self._scopes[ask.request]

    async def _take_pieces(self, ask: transfer.AskPieces) -> Cause | None:
        """What went wrong with the peer; what goes wrong with our own disk is raised."""
        start = ask.first * self._pieces.piece_bytes
        last = ask.first + ask.count - 1
        size_bytes = last * self._pieces.piece_bytes + self._pieces.length_of(last) - start
        question = FetchArtifact(self._wanted.digest, self._wanted.pieces_digest, start, size_bytes)
        try:
            stream = await self._parts.overlay.open_exchange(ask.peer, question, self._addresses.get(ask.peer, ()))
        except P2PMeshError as error:
            return self._cause_of(error)
        incoming = _Incoming(stream, size_bytes, self._parts)
        kept_bytes = 0
        try:
            for piece in range(ask.first, last + 1):
                data = await self._read_piece(incoming, piece)
                if isinstance(data, Cause):
                    return data
                if await self._write(piece, data):
                    kept_bytes += len(data)
                    self._count(ask.peer, len(data))
                await self._runner.put(transfer.PieceVerified(ask.request, piece))
            return None
        finally:
            self.counts.wasted_bytes += incoming.received_bytes - kept_bytes
            if incoming.timed_bytes:
                self._parts.note_transfer(ask.peer, incoming.timed_bytes, incoming.elapsed_us)
            await stream.reset()

    async def _read_piece(self, incoming: "_Incoming", piece: int) -> bytes | Cause:
        try:
            data, digest = await incoming.take(self._pieces.length_of(piece))
            if digest != self._pieces.hash_of(piece):
                text = f"piece {piece} of {self._wanted.digest[:12]} has another hash than the file's"
                raise RemoteProtocolError(ErrorCode.ARTIFACT_CORRUPT, text, culprit=incoming.peer)
        except P2PMeshError as error:
            return self._cause_of(error)
        return data

    async def _write(self, piece: int, data: bytes) -> bool:
        """Whether it is this one that stays: the last pieces are asked of two peers."""
        if self._machine.is_here(piece) or piece in self._written:
            return False
        await self._reception.write_piece(piece, data)
        is_first = piece not in self._written
        self._written.add(piece)
        return is_first

    def _count(self, peer: PeerId, size_bytes: int) -> None:
        self.counts.fetched_bytes += size_bytes
        self.counts.sources[peer] = self.counts.sources.get(peer, 0) + size_bytes

    def _cause_of(self, error: P2PMeshError) -> Cause:
        """Whoever broke a rule is not asked again; nor is whoever says no. Any other trouble may pass."""
        is_culprit = isinstance(error, RemoteProtocolError) and error.culprit is not None
        self._parts.overlay.conduct.note_error(error)
        return Cause.WRONG if is_culprit else _CAUSES.get(error.code, Cause.LOST)


class _Incoming:
    """The bytes of one answer, in whatever chunks they come; timed from the first chunk to the last."""

    def __init__(self, stream: MessageStream, size_bytes: int, parts: TransferParts) -> None:
        self._stream = stream
        self._size_bytes = size_bytes
        self._clock = parts.clock
        self._wait_to_receive = parts.wait_to_receive
        self._rest = memoryview(b"")
        self._first: tuple[int, int] | None = None
        self.received_bytes = 0
        self.timed_bytes = 0
        self.elapsed_us = 0

    @property
    def peer(self) -> PeerId:
        """Who sends them."""
        return self._stream.remote_peer

    async def take(self, count: int) -> tuple[bytes, bytes]:
        """The next ``count`` bytes and their sha256, which is made as they come."""
        data, digest = bytearray(), hashlib.sha256()
        while len(data) < count:
            if not self._rest:
                self._rest = memoryview(await self._next_chunk())
            part, self._rest = self._rest[: count - len(data)], self._rest[count - len(data) :]
            digest.update(part)
            data += part
        return bytes(data), digest.digest()

    async def _next_chunk(self) -> bytes:
        await self._wait_to_receive()
        chunk = await self._stream.expect(ArtifactChunk, CHUNK_TIMEOUT_S)
        self.received_bytes += len(chunk.data)
        if self.received_bytes > self._size_bytes:
            text = f"more bytes came than the {self._size_bytes} that were asked for"
            raise RemoteProtocolError(ErrorCode.ARTIFACT_CORRUPT, text, culprit=self.peer)
        now = self._clock.now()
        if self._first is None:
            self._first = (self.received_bytes, now)
        self.timed_bytes, self.elapsed_us = self.received_bytes - self._first[0], now - self._first[1]
        return chunk.data
