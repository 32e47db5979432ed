"""Messages of a coordinator to the peers of its run: stages are loaded and followed, the driver's run is proved,
published and held. Which comes when is ``core.coordination``'s.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import LayerRange, ranges_tile
from p2pmesh.base.limits import (
    MAX_ADDRESS_BYTES,
    MAX_ADDRESSES,
    MAX_ARTIFACT_BYTES,
    MAX_LANES,
    MAX_LAYERS,
    MAX_PROBE_STEPS,
    MAX_STAGE_FRAGMENTS,
    MAX_STAGES,
)
from p2pmesh.wire.dtype import WireDtype
from p2pmesh.wire.schema import Boolean, Integer, ListOf, Optional, Record, Text, declared, is_line, malformed
from p2pmesh.wire.shapes import DIGEST, ID, NAME, PEER_ID, TERM, TOKEN, check_layers


@dataclass(frozen=True, slots=True)
class StageEntry:
    """One stage of a placement."""

    peer_id: str = declared(PEER_ID)
    layer_start: int = declared(Integer(0, MAX_LAYERS))
    layer_end: int = declared(Integer(1, MAX_LAYERS))
    addresses: tuple[str, ...] = declared(ListOf(Text(MAX_ADDRESS_BYTES, is_line), MAX_ADDRESSES))

    def __post_init__(self) -> None:
        check_layers("stage", self.layer_start, self.layer_end)

    @property
    def layers(self) -> LayerRange:
        """Those that it holds."""
        return LayerRange(self.layer_start, self.layer_end)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file that can be fetched."""

    digest: str = declared(DIGEST)
    size_bytes: int = declared(Integer(1, MAX_ARTIFACT_BYTES))
    pieces_digest: str = declared(DIGEST)


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Coordinator to a peer: hold stage ``index`` of this run, claimed in ``term``. Until the run serves, the stage
    lives as long as the stream; then as long as the claim.

    ``is_standby``: only keep an engine ready for it, should its peer be lost.
    """

    run_id: bytes = declared(ID)
    term: int = declared(TERM)
    model: str = declared(NAME)
    model_digest: str = declared(DIGEST)
    model_bytes: int = declared(Integer(1, MAX_ARTIFACT_BYTES))
    layer_count: int = declared(Integer(1, MAX_LAYERS))
    index: int = declared(Integer(0, MAX_STAGES - 1))
    stages: tuple[StageEntry, ...] = declared(ListOf(Record(StageEntry), MAX_STAGES))
    artifact_digest: str = declared(DIGEST)
    artifact_bytes: int = declared(Integer(1, MAX_ARTIFACT_BYTES))
    needed_bytes: int = declared(Integer(1, MAX_ARTIFACT_BYTES))
    context_tokens: int = declared(Integer(16, 2**24))
    lanes: int = declared(Integer(1, MAX_LANES))
    wire_dtype: int = declared(Integer(int(WireDtype.F32), int(max(WireDtype))))
    pieces_digest: str | None = declared(Optional(DIGEST), None)
    fragments: tuple[FileEntry, ...] = declared(ListOf(Record(FileEntry), MAX_STAGE_FRAGMENTS), ())
    """Of a layer package: its manifest, then what the stage is assembled from."""
    is_standby: bool = declared(Boolean(), False)

    def __post_init__(self) -> None:
        if self.index >= len(self.stages):
            raise malformed("load_stage", f"index {self.index} of {len(self.stages)} stages")
        if not ranges_tile(tuple(stage.layers for stage in self.stages), self.layer_count):
            raise malformed("load_stage", f"the stages do not cover layers [0, {self.layer_count}) once each")
        if len({s.peer_id for s in self.stages}) < len(self.stages):
            raise malformed("load_stage", "a peer holds two stages")

    @property
    def stage(self) -> StageEntry:
        """The one that is to be held."""
        return self.stages[self.index]

    @property
    def layers(self) -> LayerRange:
        """Of that stage."""
        return self.stage.layers

    @property
    def reserved_bytes(self) -> int:
        """Memory that is kept for that stage: whatever is said that it needs, it holds its file."""
        return max(self.needed_bytes, self.artifact_bytes)


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A peer to the coordinator, on the stream of ``LoadStage``; ``state`` is one of ``core.coordination``'s."""

    run_id: bytes = declared(ID)
    state: str = declared(Text(32))
    done_bytes: int = declared(Integer(0, MAX_ARTIFACT_BYTES), 0)
    total_bytes: int = declared(Integer(0, MAX_ARTIFACT_BYTES), 0)
    fingerprint: str = declared(Text(128), "")
    exact_width: int = declared(Integer(0, 2**16), 0)
    decode_us: int = declared(Integer(0, 2**32), 0)
    """Measured: what one decoded token of one sequence takes in the stage's engine; 0: not measured."""


@dataclass(frozen=True, slots=True)
class FollowStage:
    """A coordinator that took a run over: tell me of its stage with you, as on the stream of ``LoadStage``."""

    model_digest: str = declared(DIGEST)
    run_id: bytes = declared(ID)
    term: int = declared(TERM)


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """Coordinator to the driver: make one real token go through every stage, and time up to ``steps`` after it."""

    run_id: bytes = declared(ID)
    steps: int = declared(Integer(0, MAX_PROBE_STEPS), 0)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The token of a probe, what it took, and the median of the steps after it; 0 where none was asked for or came."""

    token: int = declared(TOKEN)
    elapsed_us: int = declared(Integer(0, 2**53))
    step_us: int = declared(Integer(0, 2**53), 0)


@dataclass(frozen=True, slots=True)
class PublishRun:
    """Coordinator to the driver: the run may be routed to from now on. Equal ``fingerprint``, equal bits.

    ``predicted_us`` is what a token is predicted to take, 0 unknown: the driver compares it with what it then takes.
    """

    run_id: bytes = declared(ID)
    fingerprint: str = declared(Text(128))
    predicted_us: int = declared(Integer(0, 2**53), 0)


@dataclass(frozen=True, slots=True)
class HoldRun:
    """Coordinator to the driver: begin nothing new, once nobody has asked for anything for ``quiet_ms``.

    Answered by ``Done`` when no sequence is left; requests wait until the stream ends.
    """

    run_id: bytes = declared(ID)
    quiet_ms: int = declared(Integer(0, 2**32))
