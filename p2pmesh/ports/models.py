"""Models on this machine's disk."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from p2pmesh.base.ids import Digest, LayerRange
from p2pmesh.model.gguf import GgufIndex


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A whole model: its name for clients, its file, what it holds.

    Of a model in several files, ``path`` is the first; digest, size and index are those of the file that they were
    split from. ``source`` is where it was fetched from, pinned to a commit; empty for a file of the operator's own.
    """

    name: str
    path: str
    digest: Digest
    size_bytes: int
    index: GgufIndex
    source: str = ""


@dataclass(frozen=True, slots=True)
class StageArtifact:
    """A stage GGUF on disk."""

    path: str
    digest: Digest
    size_bytes: int


class ArtifactWriter(Protocol):
    """A file that is being received; it appears under its name only when it is whole and its digest is right."""

    async def write(self, data: bytes) -> None:
        """Appends; ``Refused(DISK_FULL)``, ``RemoteProtocolError(ARTIFACT_CORRUPT)`` beyond the announced size."""


class ModelStore(Protocol):
    """Finds models, cuts stages, keeps received stages. Blocking work runs off the event loop.

    Three calls take a hold on the file that they give: every ``cut``, every ``find_artifact`` that finds one, every
    clean exit of ``receive_artifact``. A held file is not evicted. Holds are counted: each needs exactly
    one ``release`` of its digest, also after errors. A whole model is held in the same way, so callers need not ask.
    """

    async def resolve(self, reference: str) -> ModelFile:
        """A path, the name of a pip-installed model or of one in the home; ``ConfigError`` says what is wrong."""

    async def list_models(self) -> tuple[ModelFile, ...]:
        """All that ``resolve`` would find by name."""

    async def find_by_digest(self, digest: Digest, size_bytes: int) -> ModelFile | None:
        """A local whole model with this digest, if any."""

    async def cut(self, model: ModelFile, layers: LayerRange) -> StageArtifact:
        """The stage GGUF of a range, written by streaming, or from the cache; the whole range is the model itself.

        Takes a hold.
        """

    async def find_artifact(self, digest: Digest) -> StageArtifact | None:
        """A cut or received stage by its digest, its bytes checked once per change of the file.

        Takes a hold if it finds one.
        """

    def release(self, digest: Digest) -> None:
        """Gives back one hold; without any left the quota may take the file."""

    async def stage_memory_bytes(self, artifact: StageArtifact, context_tokens: int, lanes: int) -> int:
        """Bytes of weights and KV cache that loading this file takes at the least; raises if it is no GGUF."""

    def receive_artifact(self, digest: Digest, size_bytes: int) -> AbstractAsyncContextManager[ArtifactWriter]:
        """Receives a stage; at a clean exit it is checked and kept, otherwise nothing stays.

        A clean exit takes a hold.
        """

    async def read_artifact(
        self, artifact: StageArtifact, offset: int, sink: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Streams an artifact's bytes from ``offset`` into ``sink``, in pieces of at most 1 MiB."""
