"""A model store in memory: models by name, stage files as bytes that say what they are."""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from p2pmesh.base.errors import ConfigError, ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import Digest, LayerRange
from p2pmesh.model.gguf import read_index
from p2pmesh.ports.models import ArtifactWriter, ModelFile, StageArtifact
from tests.fakes.memory_source import MemorySource
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

LAYERS = 6
_PIECE_BYTES = 100


def _digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def fake_model(name: str = "fake") -> ModelFile:
    """A model whose index is that of a real file."""
    data = tiny_llama(TinyShape(layers=LAYERS))
    return ModelFile(name, f"/{name}.gguf", _digest_of(data + name.encode()), len(data), read_index(MemorySource(data)))


class FakeModelStore:
    """Implements ``ports.models.ModelStore``. ``damage`` changes what it serves to others;
    ``holds`` counts those that nobody has released yet."""

    def __init__(self, *models: ModelFile) -> None:
        self.models = models
        self.files: dict[Digest, bytes] = {}
        self.damage: Callable[[bytes], bytes] = lambda data: data
        self.holds: Counter[Digest] = Counter()
        self.released: list[Digest] = []
        self.stage_memory: int | None = None

    async def resolve(self, reference: str) -> ModelFile:
        for model in self.models:
            if model.name == reference:
                return model
        raise ConfigError(ErrorCode.MODEL_NOT_FOUND, f"no {reference} here")

    async def list_models(self) -> tuple[ModelFile, ...]:
        return self.models

    async def find_by_digest(self, digest: Digest, size_bytes: int) -> ModelFile | None:
        return next((model for model in self.models if model.digest == digest), None)

    async def cut(self, model: ModelFile, layers: LayerRange) -> StageArtifact:
        return self._held(f"{model.digest}:{layers.start}-{layers.end}:".encode() * 7)

    async def find_artifact(self, digest: Digest) -> StageArtifact | None:
        return self._held(self.files[digest]) if digest in self.files else None

    def release(self, digest: Digest) -> None:
        assert self.holds[digest] > 0, "a release without a hold"
        self.holds[digest] -= 1
        self.released.append(digest)

    async def stage_memory_bytes(self, artifact: StageArtifact, context_tokens: int, lanes: int) -> int:
        return self.stage_memory if self.stage_memory is not None else artifact.size_bytes

    @asynccontextmanager
    async def receive_artifact(self, digest: Digest, size_bytes: int) -> AsyncIterator[ArtifactWriter]:
        writer = _Writer()
        yield writer
        if _digest_of(bytes(writer.data)) != digest:
            raise RemoteProtocolError(ErrorCode.ARTIFACT_CORRUPT, "the bytes have another digest")
        self._held(bytes(writer.data))

    async def read_artifact(
        self, artifact: StageArtifact, offset: int, sink: Callable[[bytes], Awaitable[None]]
    ) -> None:
        data = self.damage(self.files[artifact.digest])
        for start in range(offset, len(data), _PIECE_BYTES):
            await sink(data[start : start + _PIECE_BYTES])

    def _held(self, data: bytes) -> StageArtifact:
        digest = _digest_of(data)
        self.files[digest] = data
        self.holds[digest] += 1
        return StageArtifact(f"/stages/{digest}", digest, len(data))


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, data: bytes) -> None:
        self.data += data
