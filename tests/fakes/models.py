"""A model store in memory: models by name, stage files as bytes that say what they are."""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from p2pmesh.base.errors import ConfigError, ErrorCode, Refused, RemoteProtocolError
from p2pmesh.base.ids import Digest, LayerRange
from p2pmesh.base.quantities import KIB
from p2pmesh.model.gguf import read_index
from p2pmesh.ports.models import ArtifactReception, KnownModel, ModelFile, StageArtifact, StageReads
from p2pmesh.wire.pieces import PieceHasher, PieceList
from tests.fakes.memory_source import MemorySource
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

LAYERS = 6


def _digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def pieces_of(data: bytes) -> PieceList:
    """The piece list of a file."""
    hasher = PieceHasher(len(data))
    hasher.update(data)
    return hasher.finish()


def fake_model(name: str = "fake") -> ModelFile:
    """A model whose index is that of a real file."""
    data = tiny_llama(TinyShape(layers=LAYERS))
    return ModelFile(name, f"/{name}.gguf", _digest_of(data + name.encode()), len(data), read_index(MemorySource(data)))


def file_of(model: ModelFile) -> bytes:
    """What lies on the disk of who has a fake model."""
    return tiny_llama(TinyShape(layers=LAYERS)) + model.name.encode()


class FakeModelStore:
    """Implements ``ports.models.ModelStore``. ``damage`` changes what it serves to others, answer by answer;
    ``holds`` counts those that nobody has released yet."""

    def __init__(self, *models: ModelFile) -> None:
        self.models = models
        self.files: dict[Digest, bytes] = {}
        self.damage: Callable[[bytes], bytes] = lambda data: data
        self.holds: Counter[Digest] = Counter()
        self.released: list[Digest] = []
        self.stage_memory: int | None = None
        self.partial: dict[Digest, dict[int, bytes]] = {}
        self.full_after: int | None = None
        """So many pieces fit onto the disk."""
        self.is_packaged = False
        self.assembling: ConfigError | None = None
        """What assembling fails with."""
        self.adopting: ConfigError | None = None
        """What adopting a whole model fails with."""
        self.portion_bytes = 64 * KIB
        self.portion_s = 0.0
        """A slow disk: so long each portion that is read takes."""
        self.stage_repeats = 7
        """How long stage files are; above 3000 they have several pieces."""

    async def resolve(self, reference: str) -> ModelFile:
        for model in self.models:
            if model.name == reference:
                return model
        raise ConfigError(ErrorCode.MODEL_NOT_FOUND, f"no {reference} here")

    async def list_models(self) -> tuple[ModelFile, ...]:
        return self.models

    async def find_by_digest(self, digest: Digest, size_bytes: int) -> ModelFile | None:
        return next((model for model in self.models if model.digest == digest), None)

    async def adopt(self, name: str, artifact: StageArtifact) -> ModelFile:
        if self.adopting is not None:
            raise self.adopting
        assert self.holds[artifact.digest]
        index = read_index(MemorySource(self.files[artifact.digest]))
        model = ModelFile(name, artifact.path, artifact.digest, artifact.size_bytes, index)
        self.models = (*(one for one in self.models if one.digest != artifact.digest), model)
        return model

    async def cut(self, model: ModelFile, layers: LayerRange) -> StageArtifact:
        if model.digest in self.files and layers == LayerRange(0, model.index.layer_count):
            return self._held(self.files[model.digest])
        return self._held(f"{model.digest}:{layers.start}-{layers.end}:".encode() * self.stage_repeats)

    async def fragments_of(self, model: ModelFile, layers: LayerRange) -> tuple[StageArtifact, ...]:
        """A manifest, and a file a layer, as of a package; none unless ``is_packaged``."""
        if not self.is_packaged:
            return ()
        parts = [b"manifest", *(f"layer {layer} ".encode() * 50_000 for layer in range(layers.start, layers.end))]
        for data in parts:
            self.files[_digest_of(data)] = data
        return tuple(StageArtifact(f"/package/{_digest_of(data)}", _digest_of(data), len(data)) for data in parts)

    async def assemble(
        self, fragments: tuple[StageArtifact, ...], model_digest: Digest, layers: LayerRange
    ) -> StageArtifact:
        assert all(self.holds[fragment.digest] for fragment in fragments)
        if self.assembling is not None:
            raise self.assembling
        assert self.files[fragments[0].digest] == b"manifest"
        return self._held(f"{model_digest}:{layers.start}-{layers.end}:".encode() * self.stage_repeats)

    async def find_artifact(self, digest: Digest) -> StageArtifact | None:
        return self._held(self.files[digest]) if digest in self.files else None

    def release(self, digest: Digest) -> None:
        assert self.holds[digest] > 0, "a release without a hold"
        self.holds[digest] -= 1
        self.released.append(digest)

    async def stage_reads(self, artifact: StageArtifact, *, is_last: bool) -> StageReads:
        return StageReads("llama", artifact.size_bytes)

    async def stage_memory_bytes(self, artifact: StageArtifact, context_tokens: int, lanes: int) -> int:
        return self.stage_memory if self.stage_memory is not None else artifact.size_bytes

    async def piece_list(self, artifact: StageArtifact) -> PieceList:
        return pieces_of(self.files[artifact.digest])

    @asynccontextmanager
    async def receive_artifact(self, digest: Digest, pieces: PieceList) -> AsyncIterator[ArtifactReception]:
        reception = _Reception(self.partial.setdefault(digest, {}), self.full_after)
        yield reception
        data = b"".join(reception.pieces[piece] for piece in sorted(reception.pieces))
        del self.partial[digest]
        if _digest_of(data) != digest:
            raise RemoteProtocolError(ErrorCode.ARTIFACT_CORRUPT, "the bytes have another digest")
        self._held(data)

    async def read_artifact(
        self, artifact: StageArtifact, offset: int, size_bytes: int, sink: Callable[[bytes], Awaitable[None]]
    ) -> None:
        if offset + size_bytes > artifact.size_bytes:
            raise Refused(ErrorCode.REQUEST_INVALID, "beyond the end")
        data = self.damage(self.files[artifact.digest][offset : offset + size_bytes])
        for start in range(0, len(data), self.portion_bytes):
            await trio.sleep(self.portion_s)
            await sink(data[start : start + self.portion_bytes])

    def _held(self, data: bytes) -> StageArtifact:
        digest = _digest_of(data)
        self.files[digest] = data
        self.holds[digest] += 1
        return StageArtifact(f"/stages/{digest}", digest, len(data))


class FakeShelf:
    """Implements ``ports.models.ModelShelf``: any of these may be served without being named."""

    def __init__(self, *models: ModelFile) -> None:
        self.models = models
        self.loads: list[str] = []
        self.holds: Counter[Digest] = Counter()
        self.failure: ConfigError | None = None
        self.disk_error: ConfigError | None = None
        """What the next look at the shelf fails with."""

    async def survey(self) -> tuple[KnownModel, ...]:
        if self.disk_error is not None:
            error, self.disk_error = self.disk_error, None
            raise error
        return tuple(KnownModel(model.name, model.path, model.index) for model in self.models)

    async def load(self, known: KnownModel) -> ModelFile:
        self.loads.append(known.name)
        if self.failure is not None:
            raise self.failure
        model = next(model for model in self.models if model.path == known.reference)
        self.holds[model.digest] += 1
        return model

    def release(self, model: ModelFile) -> None:
        assert self.holds[model.digest] > 0, "a release without a hold"
        self.holds[model.digest] -= 1


class _Reception:
    """Implements ``ports.models.ArtifactReception``."""

    def __init__(self, pieces: dict[int, bytes], full_after: int | None) -> None:
        self.pieces = pieces
        self._full_after = full_after

    @property
    def have(self) -> tuple[int, ...]:
        return tuple(sorted(self.pieces))

    async def write_piece(self, piece: int, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self._full_after is not None and len(self.pieces) >= self._full_after:
            raise Refused(ErrorCode.DISK_FULL, "the disk is full")
        self.pieces.setdefault(piece, data)
