"""Whole models of other peers' disks that this node may serve, too, where those who serve them have too much to do.

Asks who has a model what its file is and takes, fetches it by the digest that is announced, and lends it as a shelf
lends the owner's own: it lies among the files of peers, under their quota. Answers the same question of others. Whether
a model is worth it is ``core.serving``'s, how its file comes ``node.artifacts``'.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import trio

from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import Digest, LayerRange, PeerId
from p2pmesh.core.planning.bytes import planning_model
from p2pmesh.node.artifact_sources import FileOrigin, WantedFile
from p2pmesh.node.artifacts import Artifacts
from p2pmesh.node.changes import Changes
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.ports.models import KnownModel, ModelFile, ModelStore
from p2pmesh.ports.network import Provider
from p2pmesh.wire.announcement import Announcement, model_hash_of
from p2pmesh.wire.messages.artifacts import DescribeModel, ModelDescription

MAX_KNOWN = 16
MAX_HERE = 16
MAX_ASKED = 3
"""Holders that are asked for one description."""
MAX_ANSWERING = 16
ASK_AGAIN_S = 60.0
NO_ROOM_S = 3600.0
"""So long a file is left where it is that the owner's quota or disk has no room for."""
DESCRIBE_TIMEOUT_S = 300.0
"""Whoever is asked first may have to read a large file whole, for its pieces."""

Told = Callable[[int, int], None]
"""Called with the bytes that are here so far, and all."""


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A model that others serve: its name there, and its file."""

    name: str
    digest: Digest


@dataclass(frozen=True, slots=True)
class Replica:
    """A model as it could be held here: ``needed_bytes`` of memory, by the word of who has it."""

    name: str
    file: WantedFile
    origin: FileOrigin
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """What replicas stand on; ``find_model`` finds one of those whose files are here and known."""

    overlay: Overlay
    artifacts: Artifacts
    store: ModelStore
    find_model: Callable[[Digest], ModelFile | None]
    serving: ServingOptions | None
    """How a replica would be served; None: nothing is fetched."""


class Replicas:
    """Those that this node could have, and those that it has. Implements ``ports.models.ModelShelf`` for these.

    Models are keyed by ``wire.announcement.model_hash_of`` their names.
    """

    def __init__(self, parts: ReplicaParts, report: Report) -> None:
        self._parts = parts
        self._report = report
        self._wanted: Mapping[bytes, ServedFile] = {}
        self._known: dict[bytes, Replica] = {}
        self._here: dict[str, ModelFile] = {}
        """By digest; the one that came last is the last."""
        self._not_before: dict[bytes, float] = {}
        """When a model that could not be described or fetched is asked for again."""
        self._changes = Changes()
        self._answering = 0
        self._reading = trio.Lock()
        self.described = Changes()
        """Marked when more is known."""
        parts.overlay.serve_exchange(DescribeModel, self._describe)

    # --- what could be had -------------------------------------------------------------
    def want(self, wanted: Mapping[bytes, ServedFile]) -> None:
        """These would be worth it, the first most; what was known of others is forgotten."""
        wanted = dict(list(wanted.items())[:MAX_KNOWN])
        if self._parts.serving is None or wanted == self._wanted:
            return
        self._wanted = wanted
        digests = {model: served.digest for model, served in wanted.items()}
        self._known = {model: one for model, one in self._known.items() if one.file.digest == digests.get(model)}
        self._changes.mark()

    @property
    def known(self) -> Mapping[bytes, Replica]:
        """Those that are wanted, as far as somebody has described them."""
        return self._known

    async def run(self) -> None:
        """Asks for descriptions until cancelled."""
        while True:
            seen = self._changes.count
            for model, file in tuple(self._wanted.items()):
                if model not in self._known and self._not_before.get(model, 0.0) <= trio.current_time():
                    await self._learn(model, file)
            with trio.move_on_after(ASK_AGAIN_S):
                await self._changes.wait_beyond(seen)

    async def _learn(self, model: bytes, file: ServedFile) -> None:
        replica = await self._ask(file)
        if replica is None:
            self._leave_for(model, ASK_AGAIN_S)
        elif self._wanted.get(model) == file:
            self._known[model] = replica
            self.described.mark()

    def _leave_for(self, model: bytes, seconds: float) -> None:
        now = trio.current_time()
        later = {one: until for one, until in self._not_before.items() if until > now}
        self._not_before = dict(list(later.items())[-MAX_KNOWN:]) | {model: now + seconds}
        self._known.pop(model, None)

    async def _ask(self, file: ServedFile) -> Replica | None:
        """By the first holder that answers, of those that files are taken from."""
        asked = 0
        for holders in (self._holders_in_view, self._parts.artifacts.holders_of):
            for holder in await holders(file.digest):
                asked += 1
                if asked > MAX_ASKED:
                    return None
                try:
                    return await self._ask_holder(file, holder)
                except P2PMeshError as error:
                    self._parts.overlay.conduct.note_error(error)
        return None

    async def _holders_in_view(self, digest: Digest) -> tuple[Provider, ...]:
        return self._parts.artifacts.holders_in_view(digest)

    async def _ask_holder(self, file: ServedFile, holder: Provider) -> Replica:
        serving = self._parts.serving
        assert serving is not None
        question = DescribeModel(file.digest, serving.context_tokens, serving.lanes)
        stream = await self._parts.overlay.open_exchange(holder.peer, question, holder.addresses)
        try:
            described = await stream.expect(ModelDescription, DESCRIBE_TIMEOUT_S)
        finally:
            await stream.reset()
        wanted = WantedFile(file.digest, described.size_bytes, Digest(described.pieces_digest))
        layers = LayerRange(0, described.layer_count)
        origin = FileOrigin(holder.peer, holder.addresses, file.digest, layers)
        return Replica(file.name, wanted, origin, described.needed_bytes)

    # --- what is had --------------------------------------------------------------------
    async def fetch(self, model: bytes, replica: Replica, reason: str, told: Told) -> KnownModel:
        """A model from peers, or what is left of it here; it lies on the shelf from then on.

        Raises ``P2PMeshError``; another holder is asked some time later.
        """
        size_bytes = replica.file.size_bytes
        facts = {"model": replica.name, "bytes": size_bytes}
        self._report("replica_fetching", {**facts, "reason": reason, "source": replica.origin.peer})

        async def progress(done_bytes: int) -> None:
            told(done_bytes, size_bytes)

        try:
            file, cost = await self._obtain(replica, progress)
        except P2PMeshError as error:
            self._leave_for(model, NO_ROOM_S if error.code is ErrorCode.DISK_FULL else ASK_AGAIN_S)
            raise
        self._report("replica_fetched", facts | cost)
        self._here.pop(file.digest, None)
        self._here[file.digest] = file
        while len(self._here) > MAX_HERE:
            del self._here[next(iter(self._here))]
        return _known_of(file)

    async def _obtain(
        self, replica: Replica, progress: Callable[[int], Awaitable[None]]
    ) -> tuple[ModelFile, dict[str, object]]:
        artifact, counts = await self._parts.artifacts.obtain(replica.file, replica.origin, progress)
        try:
            return await self._parts.store.adopt(replica.name, artifact), counts.as_fields()
        finally:
            self._parts.store.release(artifact.digest)

    async def survey(self) -> tuple[KnownModel, ...]:
        """Those whose files the quota has left here."""
        for digest in tuple(self._here):
            if await self._parts.store.find_artifact(Digest(digest)) is None:
                self._here.pop(digest, None)
            else:
                self._parts.store.release(Digest(digest))
        return tuple(_known_of(file) for file in self._here.values())

    async def load(self, known: KnownModel) -> ModelFile:
        """See ``ports.models``."""
        artifact = await self._parts.store.find_artifact(Digest(known.reference))
        if artifact is None:
            self._here.pop(known.reference, None)
            text = f"the file of {known.name} made way for others: it is fetched again where it is still worth it"
            raise ConfigError(ErrorCode.MODEL_NOT_FOUND, text)
        try:
            return await self._parts.store.adopt(known.name, artifact)
        except BaseException:
            self._parts.store.release(artifact.digest)
            raise

    def release(self, model: ModelFile) -> None:
        """See ``ports.models``."""
        self._parts.store.release(model.digest)

    # --- what others ask ------------------------------------------------------------------
    async def _describe(self, stream: MessageStream, asked: DescribeModel) -> None:
        """A crowd asks for one file at once: it is read for the first of them."""
        if self._answering >= MAX_ANSWERING:
            raise Refused(ErrorCode.OVERLOADED, "this peer describes as many models as it can; try again in a minute")
        self._answering += 1
        try:
            async with self._reading:
                description = await self._description(stream.remote_peer, asked)
        finally:
            self._answering -= 1
        await stream.send(description)
        await stream.finish()

    async def _description(self, peer: PeerId, asked: DescribeModel) -> ModelDescription:
        model, store = self._parts.find_model(Digest(asked.model_digest)), self._parts.store
        if model is None or not self._parts.artifacts.may_exchange(peer):
            raise _unknown(asked)
        whole = LayerRange(0, model.index.layer_count)
        artifact = await store.cut(model, whole)
        try:
            pieces = await store.piece_list(artifact)
        finally:
            store.release(artifact.digest)
        if artifact.digest != asked.model_digest:
            raise _unknown(asked)
        shape = planning_model(model.index, [(asked.context_tokens, asked.lanes)]).least
        return ModelDescription(artifact.size_bytes, pieces.digest, whole.end, shape.bytes_of(whole))


def served_files(peers: Iterable[Announcement]) -> dict[bytes, ServedFile]:
    """What peers serve, by the hashes of its names; of several files of one name the one that most serve."""
    counts = Counter(ServedFile(one.name, Digest(one.digest)) for peer in peers for one in peer.models)
    ranked = sorted(counts, key=lambda file: (counts[file], file.digest))
    return {model_hash_of(file.name): file for file in ranked}


def _known_of(file: ModelFile) -> KnownModel:
    return KnownModel(file.name, file.digest, file.index)


def _unknown(asked: DescribeModel) -> Refused:
    return Refused(ErrorCode.ARTIFACT_UNKNOWN, f"there is no model {asked.model_digest} to be had here")
