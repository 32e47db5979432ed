"""Stage files between peers: serving ours, fetching theirs, both streamed and checked by digest."""

from collections.abc import Awaitable, Callable

from p2pmesh.base.errors import ErrorCode, Refused, RemoteProtocolError
from p2pmesh.base.ids import Digest, PeerId
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.overlay import Overlay
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.models import ArtifactWriter, ModelStore, StageArtifact
from p2pmesh.wire.control import ArtifactChunk, FetchArtifact

CHUNK_TIMEOUT_S = 30.0
Progress = Callable[[int], Awaitable[None]]
"""Called with the bytes that have arrived so far."""
NoteTransfer = Callable[[PeerId, int, int], None]
"""Called with a peer, bytes that came from it, and the microseconds that they took."""


class Artifacts:
    """Serves stage files that were cut here, and fetches those of others."""

    def __init__(self, overlay: Overlay, store: ModelStore, clock: Clock, note_transfer: NoteTransfer) -> None:
        self._overlay = overlay
        self._store = store
        self._clock = clock
        self._note_transfer = note_transfer
        overlay.serve_exchange(FetchArtifact, self._serve)

    async def obtain(
        self, digest: Digest, size_bytes: int, source: PeerId, addresses: tuple[str, ...], progress: Progress
    ) -> StageArtifact:
        """The artifact, from our disk or from ``source``; nothing of a broken transfer is kept.

        The caller has one hold on it, to be released (see ``ModelStore``).
        """
        found = await self._store.find_artifact(digest)
        if found is not None:
            return found
        await self._fetch(digest, size_bytes, source, addresses, progress)
        try:
            found = await self._store.find_artifact(digest)
        finally:
            self._store.release(digest)  # the hold of having received it
        if found is None:
            raise Refused(ErrorCode.ARTIFACT_UNKNOWN, f"the stage file {digest} vanished right after it was received")
        return found

    async def _fetch(
        self, digest: Digest, size_bytes: int, source: PeerId, addresses: tuple[str, ...], progress: Progress
    ) -> None:
        """Takes a hold unless it raises: after the store's scope nothing here waits, so nothing can be cancelled."""
        received_bytes = 0
        timed = _Timed(progress, self._clock)
        try:
            async with self._store.receive_artifact(digest, size_bytes) as writer:
                stream = await self._overlay.open_exchange(source, FetchArtifact(digest, 0), addresses)
                try:
                    received_bytes = await _copy(stream, writer, timed.note)
                    self._note_transfer(source, timed.size_bytes, timed.elapsed_us)
                finally:
                    await stream.reset()
        except RemoteProtocolError as error:
            # The size is what the coordinator said, the digest is what the source was asked for: bytes in full number
            # that are not the digest's are the source's own doing, anything else may be the coordinator's.
            if error.code is ErrorCode.ARTIFACT_CORRUPT and received_bytes == size_bytes:
                error.culprit = source
            self._overlay.conduct.note_error(error)
            raise

    async def _serve(self, stream: MessageStream, asked: FetchArtifact) -> None:
        digest = Digest(asked.digest)
        artifact = await self._store.find_artifact(digest)
        if artifact is None:
            raise Refused(ErrorCode.ARTIFACT_UNKNOWN, f"no stage file {asked.digest} here")

        async def send(data: bytes) -> None:
            await stream.send(ArtifactChunk(data), CHUNK_TIMEOUT_S)

        try:
            await self._store.read_artifact(artifact, asked.offset, send)
        finally:
            self._store.release(digest)
        await send(b"")
        await stream.finish()


class _Timed:
    """Bytes of a transfer after its first chunk, and the time from that to the last: without the round trip."""

    def __init__(self, progress: Progress, clock: Clock) -> None:
        self._progress = progress
        self._clock = clock
        self._first: tuple[int, int] | None = None
        self.size_bytes = 0
        self.elapsed_us = 0

    async def note(self, received_bytes: int) -> None:
        """In place of the progress that it passes on."""
        now = self._clock.now()
        if self._first is None:
            self._first = (received_bytes, now)
        self.size_bytes, self.elapsed_us = received_bytes - self._first[0], now - self._first[1]
        await self._progress(received_bytes)


async def _copy(stream: MessageStream, writer: ArtifactWriter, progress: Progress) -> int:
    """Every chunk up to the empty one; how many bytes they were."""
    received_bytes = 0
    while True:
        chunk = await stream.expect(ArtifactChunk, CHUNK_TIMEOUT_S)
        if not chunk.data:
            return received_bytes
        await writer.write(chunk.data)
        received_bytes += len(chunk.data)
        await progress(received_bytes)
