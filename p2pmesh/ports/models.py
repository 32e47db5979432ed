"""Models on this machine's disk."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from p2pmesh.base.ids import Digest, LayerRange
from p2pmesh.model.gguf import GgufIndex
from p2pmesh.wire.pieces import PieceList


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
class KnownModel:
    """A model of this machine as its header tells: its name for clients, what names its file, what it holds."""

    name: str
    reference: str
    index: GgufIndex


class ModelShelf(Protocol):
    """Models of this machine that its owner lets be served without naming them."""

    async def survey(self) -> tuple[KnownModel, ...]:
        """All of them now, each name once; no file is read whole. Those that cannot be served are left out."""

    async def load(self, known: KnownModel) -> ModelFile:
        """The model, read whole where its digest is not known; ``ConfigError`` if it is not what it was.

        Takes a hold, to be given back with ``release``.
        """

    def release(self, model: ModelFile) -> None:
        """Gives back the hold of one ``load``."""


@dataclass(frozen=True, slots=True)
class StageArtifact:
    """A stage GGUF on disk."""

    path: str
    digest: Digest
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StageReads:
    """What a decoded token reads of a stage file; ``output_bytes`` of it are the output head's, where it has one."""

    architecture: str
    read_bytes: int
    output_bytes: int = 0


class ArtifactReception(Protocol):
    """A file that is being received in pieces; it appears under its name only when it is whole and its digest right."""

    @property
    def have(self) -> tuple[int, ...]:
        """Pieces that are here already, from an earlier try; their hashes were checked."""

    async def write_piece(self, piece: int, data: bytes) -> None:
        """Keeps a piece whose hash is right; nothing for one that is here. ``Refused(DISK_FULL)``."""


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

    async def adopt(self, name: str, artifact: StageArtifact) -> ModelFile:
        """A whole model that came from peers, held by the caller: found by its digest from then on.

        ``ConfigError`` if it cannot be served.
        """

    async def cut(self, model: ModelFile, layers: LayerRange) -> StageArtifact:
        """The stage GGUF of a range, written by streaming, or from the cache; the whole range is the model itself.

        Takes a hold.
        """

    async def fragments_of(self, model: ModelFile, layers: LayerRange) -> tuple[StageArtifact, ...]:
        """Of a layer package, its manifest and the files that the stage is cut from; none of any other model."""

    async def assemble(
        self, fragments: tuple[StageArtifact, ...], model_digest: Digest, layers: LayerRange
    ) -> StageArtifact:
        """The stage GGUF of a range out of fetched fragments, the manifest first, all of them held.

        Takes a hold. ``ConfigError(PACKAGE_INVALID)`` if they are not what the manifest says, or of another model.
        """

    async def find_artifact(self, digest: Digest) -> StageArtifact | None:
        """A cut or received stage by its digest, its bytes checked once per change of the file.

        Takes a hold if it finds one.
        """

    def release(self, digest: Digest) -> None:
        """Gives back one hold; without any left the quota may take the file."""

    async def stage_reads(self, artifact: StageArtifact, *, is_last: bool) -> StageReads:
        """Weights that a decoded token reads of a stage file, the output head only at the last stage."""

    async def stage_memory_bytes(self, artifact: StageArtifact, context_tokens: int, lanes: int) -> int:
        """Bytes of weights and KV cache that loading this file takes at the least; raises if it is no GGUF."""

    async def piece_list(self, artifact: StageArtifact) -> PieceList:
        """The hashes of an artifact's pieces; reads the whole file the first time."""

    def receive_artifact(self, digest: Digest, pieces: PieceList) -> AbstractAsyncContextManager[ArtifactReception]:
        """Receives a file; at a clean exit it is checked and kept, otherwise its pieces wait for another try.

        A clean exit takes a hold.
        """

    async def read_artifact(
        self, artifact: StageArtifact, offset: int, size_bytes: int, sink: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Streams ``size_bytes`` of an artifact from ``offset`` into ``sink``, in portions of at most 256 KiB."""
