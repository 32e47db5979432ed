"""Messages by which files travel, a request for some bytes at a time; what holds of them is ``core.transfer``'s."""

from dataclasses import dataclass

from p2pmesh.base.limits import (
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACT_CHUNK_BYTES,
    MAX_ARTIFACT_REQUEST_BYTES,
    MAX_LANES,
    MAX_LAYERS,
)
from p2pmesh.wire.schema import Bytes, Integer, declared
from p2pmesh.wire.shapes import DIGEST, check_layers


@dataclass(frozen=True, slots=True)
class FetchArtifact:
    """Asks for bytes of the artifact that has this digest and this piece list."""

    digest: str = declared(DIGEST)
    pieces_digest: str = declared(DIGEST)
    offset: int = declared(Integer(0, MAX_ARTIFACT_BYTES))
    size_bytes: int = declared(Integer(1, MAX_ARTIFACT_REQUEST_BYTES))


@dataclass(frozen=True, slots=True)
class FetchPieceList:
    """Asks for the list of hashes of an artifact's pieces."""

    digest: str = declared(DIGEST)
    pieces_digest: str = declared(DIGEST)


@dataclass(frozen=True, slots=True)
class PrepareArtifact:
    """Asks a peer that has the whole model to cut a stage file of it; answered by ``Done`` once it can be fetched."""

    digest: str = declared(DIGEST)
    model_digest: str = declared(DIGEST)
    layer_start: int = declared(Integer(0, MAX_LAYERS))
    layer_end: int = declared(Integer(1, MAX_LAYERS))

    def __post_init__(self) -> None:
        check_layers("prepare_artifact", self.layer_start, self.layer_end)


@dataclass(frozen=True, slots=True)
class DescribeModel:
    """Asks a peer that has the whole model what its file is, and what it takes of memory in this shape."""

    model_digest: str = declared(DIGEST)
    context_tokens: int = declared(Integer(16, 2**24))
    lanes: int = declared(Integer(1, MAX_LANES))


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The answer: the file, to be fetched under the digest that was asked, and the memory to hold all its layers."""

    size_bytes: int = declared(Integer(1, MAX_ARTIFACT_BYTES))
    pieces_digest: str = declared(DIGEST)
    layer_count: int = declared(Integer(1, MAX_LAYERS))
    needed_bytes: int = declared(Integer(1, MAX_ARTIFACT_BYTES))


@dataclass(frozen=True, slots=True)
class ArtifactChunk:
    """Bytes in order, of an artifact or a piece list, until as many have come as were asked for."""

    data: bytes = declared(Bytes(1, MAX_ARTIFACT_CHUNK_BYTES))
