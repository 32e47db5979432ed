"""``/mesh-llm/1``: control messages, bytes <-> records.

A message is an unsigned varint length and a msgpack map ``{"kind": …, fields…}``. One stream carries one exchange: the
first message opens it. Which kinds a peer may send, and when, is decided in ``node.control``. Normative text:
``protocols/mesh-llm-1.md``.
"""

from dataclasses import dataclass
from typing import Any

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import ID_BYTES, LayerRange, is_digest, is_mesh_id, ranges_tile
from p2pmesh.base.limits import (
    MAX_ADDRESS_BYTES,
    MAX_ADDRESSES,
    MAX_ANNOUNCEMENT_BYTES,
    MAX_ANNOUNCEMENTS_PER_MESSAGE,
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACT_CHUNK_BYTES,
    MAX_ARTIFACT_REQUEST_BYTES,
    MAX_CHAT_MESSAGES,
    MAX_CLAIM_PEERS,
    MAX_CONTROL_MESSAGE_BYTES,
    MAX_GRAMMAR_BYTES,
    MAX_HIDDEN_SIZE,
    MAX_INVITE_BYTES,
    MAX_KNOWN_PEERS,
    MAX_LANES,
    MAX_LAYERS,
    MAX_LEASE_MS,
    MAX_LINK_CHUNK_BYTES,
    MAX_LINK_PROBE_BYTES,
    MAX_LIVENESS_RECORD_BYTES,
    MAX_LOGIT_BIAS,
    MAX_NAME_BYTES,
    MAX_PASS_BYTES,
    MAX_PASSES,
    MAX_PEERS,
    MAX_PIECE_TEXT_BYTES,
    MAX_PROBE_STEPS,
    MAX_PROMPT_TOKENS,
    MAX_REASON_BYTES,
    MAX_REASONING_EFFORT_BYTES,
    MAX_RETRY_AFTER_S,
    MAX_REVOCATION_BYTES,
    MAX_ROUTE_ENTRIES,
    MAX_SEQUENCE,
    MAX_STAGE_FRAGMENTS,
    MAX_STAGES,
    MAX_STOP_BYTES,
    MAX_STOP_SEQUENCES,
    MAX_TERM,
    MAX_TEXT_BYTES,
    MAX_TOOL_NAME_BYTES,
    MAX_TOOLS,
    MAX_TOOLS_BYTES,
    MAX_TOP_LOGPROBS,
    MAX_TWIN_ANNOUNCEMENTS,
    MAX_VARINT_BYTES,
    MIN_LEASE_MS,
)
from p2pmesh.wire.announcement import PEER_HASH_BYTES, PEER_ID_SHAPE
from p2pmesh.wire.dtype import WireDtype
from p2pmesh.wire.generation import MAX_SEED
from p2pmesh.wire.profile import Profile, ProfileQuery
from p2pmesh.wire.schema import (
    Boolean,
    Bytes,
    Integer,
    Line,
    ListOf,
    Optional,
    Real,
    Record,
    Row,
    Text,
    checked_map,
    declared,
    from_map,
    is_line,
    malformed,
    pack,
    unpack,
)

_ID = Bytes(ID_BYTES, ID_BYTES)
_DIGEST = Text(64, is_digest)
_NAME = Text(MAX_NAME_BYTES, is_line)
_TOKEN = Integer(0, 2**31 - 1)
_TERM = Integer(1, MAX_TERM)
_ANNOUNCEMENT = Bytes(1, MAX_ANNOUNCEMENT_BYTES)
_PASSES = ListOf(Bytes(1, MAX_PASS_BYTES), MAX_PASSES)


# --- admission ---------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Hello:
    """First word of a peer: an invite the first time, its passes ever after, neither if it is the founder itself.

    ``passes`` are sealed, the sender's own first, each signed by the peer of the next, the last by the founder.
    """

    generation: int = declared(Integer(0, 2**16))
    mesh_id: str = declared(Text(32, is_mesh_id))
    invite: str = declared(Text(MAX_INVITE_BYTES))
    passes: tuple[bytes, ...] = declared(_PASSES)
    announcement: bytes = declared(_ANNOUNCEMENT)
    knows: tuple[bytes, ...] = declared(ListOf(Bytes(PEER_HASH_BYTES, PEER_HASH_BYTES), MAX_KNOWN_PEERS), ())
    """Hashes of peers whose announcements the sender holds, and need not be handed."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to an accepted hello, with the sender's own proof and the peers it knows.

    ``granted`` is a pass for the reader, or empty; with ``passes`` after it, it is the reader's proof from now on.
    ``revocation`` is the newest that the sender knows, or empty.
    """

    generation: int = declared(Integer(0, 2**16))
    mesh_id: str = declared(Text(32, is_mesh_id))
    passes: tuple[bytes, ...] = declared(_PASSES)
    announcement: bytes = declared(_ANNOUNCEMENT)
    granted: bytes = declared(Bytes(0, MAX_PASS_BYTES))
    revocation: bytes = declared(Bytes(0, MAX_REVOCATION_BYTES))
    known: tuple[bytes, ...] = declared(ListOf(_ANNOUNCEMENT, MAX_ANNOUNCEMENTS_PER_MESSAGE))


@dataclass(frozen=True, slots=True)
class ProofQuery:
    """Anyone who knows the mesh, before it shows an invite: are you a member of it? It never admits."""

    mesh_id: str = declared(Text(32, is_mesh_id))


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer to a ``ProofQuery``: the sender's passes; none at the founder, whose key is its proof."""

    passes: tuple[bytes, ...] = declared(_PASSES)


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """Anyone, also before admission: which models can be reached through you? It never admits."""


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """A model that the answering peer can route to."""

    model: str = declared(_NAME)
    context_tokens: int = declared(Integer(1, 2**31))


@dataclass(frozen=True, slots=True)
class RouteTable:
    """The answer to a ``RouteQuery``."""

    generation: int = declared(Integer(0, 2**16))
    mesh_id: str = declared(Text(32, is_mesh_id))
    routes: tuple[RouteEntry, ...] = declared(ListOf(Record(RouteEntry), MAX_ROUTE_ENTRIES))
    node_count: int = declared(Integer(0, MAX_PEERS), 0)
    """Nodes that the answering peer sees of a public pool, itself included."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Any request's refusal: an ``ErrorCode`` (a code the reader does not know reads as internal) and a line.

    ``retry_after_s``: when asking again may be of use; 0: nothing is said of that.
    """

    code: str = declared(Text(64))
    message: str = declared(Line(MAX_REASON_BYTES))
    retry_after_s: int = declared(Integer(0, MAX_RETRY_AFTER_S), default=0)


# --- stages ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class StageEntry:
    """One stage of a placement."""

    peer_id: str = declared(PEER_ID_SHAPE)
    layer_start: int = declared(Integer(0, MAX_LAYERS))
    layer_end: int = declared(Integer(1, MAX_LAYERS))
    addresses: tuple[str, ...] = declared(ListOf(Text(MAX_ADDRESS_BYTES, is_line), MAX_ADDRESSES))

    def __post_init__(self) -> None:
        if self.layer_start >= self.layer_end:
            raise malformed("stage", f"layers [{self.layer_start}, {self.layer_end}) are none")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file that can be fetched."""

    digest: str = declared(_DIGEST)
    size_bytes: int = declared(Integer(1, MAX_ARTIFACT_BYTES))
    pieces_digest: str = declared(_DIGEST)


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Coordinator to a peer: hold stage ``index`` of this run, claimed in ``term``. Until the run serves, the stage
    lives as long as the stream; then as long as the claim.

    ``is_standby``: only keep an engine ready for it, should its peer be lost.
    """

    run_id: bytes = declared(_ID)
    term: int = declared(_TERM)
    model: str = declared(_NAME)
    model_digest: str = declared(_DIGEST)
    model_bytes: int = declared(Integer(1, MAX_ARTIFACT_BYTES))
    layer_count: int = declared(Integer(1, MAX_LAYERS))
    index: int = declared(Integer(0, MAX_STAGES - 1))
    stages: tuple[StageEntry, ...] = declared(ListOf(Record(StageEntry), MAX_STAGES))
    artifact_digest: str = declared(_DIGEST)
    artifact_bytes: int = declared(Integer(1, MAX_ARTIFACT_BYTES))
    needed_bytes: int = declared(Integer(1, MAX_ARTIFACT_BYTES))
    context_tokens: int = declared(Integer(16, 2**24))
    lanes: int = declared(Integer(1, MAX_LANES))
    wire_dtype: int = declared(Integer(int(WireDtype.F32), int(max(WireDtype))))
    pieces_digest: str | None = declared(Optional(_DIGEST), None)
    fragments: tuple[FileEntry, ...] = declared(ListOf(Record(FileEntry), MAX_STAGE_FRAGMENTS), ())
    """Of a layer package: its manifest, then what the stage is assembled from."""
    is_standby: bool = declared(Boolean(), False)

    def __post_init__(self) -> None:
        if self.index >= len(self.stages):
            raise malformed("load_stage", f"index {self.index} of {len(self.stages)} stages")
        if not ranges_tile(tuple(LayerRange(s.layer_start, s.layer_end) for s in self.stages), self.layer_count):
            raise malformed("load_stage", f"the stages do not cover layers [0, {self.layer_count}) once each")
        if len({s.peer_id for s in self.stages}) < len(self.stages):
            raise malformed("load_stage", "a peer holds two stages")


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A peer to the coordinator, on the stream of ``LoadStage``; ``state`` is one of ``core.coordination``'s."""

    run_id: bytes = declared(_ID)
    state: str = declared(Text(32))
    done_bytes: int = declared(Integer(0, MAX_ARTIFACT_BYTES), 0)
    total_bytes: int = declared(Integer(0, MAX_ARTIFACT_BYTES), 0)
    fingerprint: str = declared(Text(128), "")
    exact_width: int = declared(Integer(0, 2**16), 0)
    decode_us: int = declared(Integer(0, 2**32), 0)
    """Measured: what one decoded token of one sequence takes in the stage's engine; 0: not measured."""


@dataclass(frozen=True, slots=True)
class ClaimRun:
    """Coordinator to a peer of its list, itself the first: promise me the model for this run, or go on promising.

    The fields of ``core.claims.Claim``; ``is_serving`` says that the run is published. ``needed_bytes`` is the memory
    that the reader's stage of it will take; 0 if it has none, or has loaded it.
    """

    model_digest: str = declared(_DIGEST)
    run_id: bytes = declared(_ID)
    term: int = declared(_TERM)
    lease_ms: int = declared(Integer(MIN_LEASE_MS, MAX_LEASE_MS))
    peers: tuple[str, ...] = declared(ListOf(PEER_ID_SHAPE, MAX_CLAIM_PEERS))
    is_serving: bool = declared(Boolean())
    needed_bytes: int = declared(Integer(0, MAX_ARTIFACT_BYTES), 0)

    def __post_init__(self) -> None:
        if not self.peers or len(set(self.peers)) < len(self.peers):
            raise malformed("claim_run", "the list is empty, or names a peer twice")


@dataclass(frozen=True, slots=True)
class ClaimGranted:
    """The sender promises the model to this term, for a lease from now."""

    term: int = declared(_TERM)


@dataclass(frozen=True, slots=True)
class ClaimDenied:
    """It does not; ``term`` is the one that it promised (0: none), ``wait_ms`` what is left of that lease."""

    code: str = declared(Text(64))
    message: str = declared(Line(MAX_REASON_BYTES))
    term: int = declared(Integer(0, MAX_TERM))
    wait_ms: int = declared(Integer(0, MAX_LEASE_MS))


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """The coordinator gives a claim back; the run ``is_over``, or left to its successor. Answered by ``Done``."""

    model_digest: str = declared(_DIGEST)
    run_id: bytes = declared(_ID)
    term: int = declared(_TERM)
    is_over: bool = declared(Boolean())


@dataclass(frozen=True, slots=True)
class FollowStage:
    """A coordinator that took a run over: tell me of its stage with you, as on the stream of ``LoadStage``."""

    model_digest: str = declared(_DIGEST)
    run_id: bytes = declared(_ID)
    term: int = declared(_TERM)


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """Coordinator to the driver: make one real token go through every stage, and time up to ``steps`` after it."""

    run_id: bytes = declared(_ID)
    steps: int = declared(Integer(0, MAX_PROBE_STEPS), 0)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The token of a probe, what it took, and the median of the steps after it; 0 where none was asked for or came."""

    token: int = declared(_TOKEN)
    elapsed_us: int = declared(Integer(0, 2**53))
    step_us: int = declared(Integer(0, 2**53), 0)


@dataclass(frozen=True, slots=True)
class PublishRun:
    """Coordinator to the driver: the run may be routed to from now on. Equal ``fingerprint``, equal bits.

    ``predicted_us`` is what a token is predicted to take, 0 unknown: the driver compares it with what it then takes.
    """

    run_id: bytes = declared(_ID)
    fingerprint: str = declared(Text(128))
    predicted_us: int = declared(Integer(0, 2**53), 0)


@dataclass(frozen=True, slots=True)
class HoldRun:
    """Coordinator to the driver: begin nothing new, once nobody has asked for anything for ``quiet_ms``.

    Answered by ``Done`` when no sequence is left; requests wait until the stream ends.
    """

    run_id: bytes = declared(_ID)
    quiet_ms: int = declared(Integer(0, 3_600_000))


@dataclass(frozen=True, slots=True)
class Done:
    """A request was carried out."""


# --- artifacts ---------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FetchArtifact:
    """Asks for bytes of the artifact that has this digest and this piece list."""

    digest: str = declared(_DIGEST)
    pieces_digest: str = declared(_DIGEST)
    offset: int = declared(Integer(0, MAX_ARTIFACT_BYTES))
    size_bytes: int = declared(Integer(1, MAX_ARTIFACT_REQUEST_BYTES))


@dataclass(frozen=True, slots=True)
class FetchPieceList:
    """Asks for the list of hashes of an artifact's pieces."""

    digest: str = declared(_DIGEST)
    pieces_digest: str = declared(_DIGEST)


@dataclass(frozen=True, slots=True)
class PrepareArtifact:
    """Asks a peer that has the whole model to cut a stage file of it; answered by ``Done`` once it can be fetched."""

    digest: str = declared(_DIGEST)
    model_digest: str = declared(_DIGEST)
    layer_start: int = declared(Integer(0, MAX_LAYERS))
    layer_end: int = declared(Integer(1, MAX_LAYERS))

    def __post_init__(self) -> None:
        if self.layer_start >= self.layer_end:
            raise malformed("prepare_artifact", f"layers [{self.layer_start}, {self.layer_end}) are none")


@dataclass(frozen=True, slots=True)
class ArtifactChunk:
    """Bytes in order, of an artifact or a piece list, until as many have come as were asked for."""

    data: bytes = declared(Bytes(1, MAX_ARTIFACT_CHUNK_BYTES))


# --- links and identity ------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LinkProbe:
    """Asks for that many bytes, to time them."""

    size_bytes: int = declared(Integer(1, MAX_LINK_PROBE_BYTES))


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """Bytes without a meaning, until as many have come as were asked for."""

    data: bytes = declared(Bytes(1, MAX_LINK_CHUNK_BYTES))


@dataclass(frozen=True, slots=True)
class IdentityQuery:
    """Asks what is known of the asker itself under another incarnation than in this, its own announcement."""

    announcement: bytes = declared(_ANNOUNCEMENT)


@dataclass(frozen=True, slots=True)
class IdentityAnswer:
    """Announcements of the asker, sealed as they came, of other incarnations; none if there is no other."""

    announcements: tuple[bytes, ...] = declared(ListOf(_ANNOUNCEMENT, MAX_TWIN_ANNOUNCEMENTS))


# --- liveness ----------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Probe:
    """Are you alive? With how fresh the asker knows the asked one; (0, 0) if it does not care."""

    nonce: bytes = declared(_ID)
    incarnation: int = declared(Integer(0, 2**53))
    sequence: int = declared(Integer(0, 2**53))


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """A sealed ``LifeProof`` for the nonce; the announcement where the asker's is older, else empty."""

    proof: bytes = declared(Bytes(1, MAX_LIVENESS_RECORD_BYTES))
    announcement: bytes = declared(Bytes(0, MAX_ANNOUNCEMENT_BYTES))


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Ask that peer for me, with my nonce."""

    nonce: bytes = declared(_ID)
    peer_id: str = declared(PEER_ID_SHAPE)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The proof as the asked one gave it; empty where it did not answer."""

    proof: bytes = declared(Bytes(0, MAX_LIVENESS_RECORD_BYTES))


@dataclass(frozen=True, slots=True)
class Farewell:
    """A sealed ``Leaving`` of the sender, besides the gossip; nothing answers it."""

    leaving: bytes = declared(Bytes(1, MAX_LIVENESS_RECORD_BYTES))


@dataclass(frozen=True, slots=True)
class Parting:
    """The sender has no use for this connection. Answered by ``Done`` if the other has none either; then it ends."""


# --- generation --------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CallEntry:
    """A call of a tool that an assistant made."""

    id: str = declared(Text(MAX_TOOL_NAME_BYTES))
    name: str = declared(Text(MAX_TOOL_NAME_BYTES, is_line))
    arguments: str = declared(Text(MAX_TEXT_BYTES))


@dataclass(frozen=True, slots=True)
class MessageEntry:
    """One message of a conversation."""

    role: str = declared(Text(32))
    content: str = declared(Text(MAX_TEXT_BYTES))
    calls: tuple[CallEntry, ...] = declared(ListOf(Record(CallEntry), MAX_TOOLS), ())
    answers: str = declared(Text(MAX_TOOL_NAME_BYTES), "")
    name: str = declared(Text(MAX_TOOL_NAME_BYTES, is_line), "")


@dataclass(frozen=True, slots=True)
class ToolUseEntry:
    """Fields of ``ToolUse``."""

    tools: str = declared(Text(MAX_TOOLS_BYTES))
    choice: str = declared(Text(32))
    only: str = declared(Text(MAX_TOOL_NAME_BYTES, is_line))
    may_repeat: bool = declared(Boolean())


@dataclass(frozen=True, slots=True)
class BiasEntry:
    """What is added to the logit of a token."""

    token: int = declared(_TOKEN)
    bias: float = declared(Real())


@dataclass(frozen=True, slots=True)
class SamplingEntry:
    """Fields of ``SamplingParameters``, whose own ranges apply on top."""

    temperature: float = declared(Real())
    top_k: int = declared(Integer(0, 2**31))
    top_p: float = declared(Real())
    min_p: float = declared(Real())
    presence_penalty: float = declared(Real())
    frequency_penalty: float = declared(Real())
    repeat_penalty: float = declared(Real())
    seed: int = declared(Integer(0, MAX_SEED))
    logit_bias: tuple[BiasEntry, ...] = declared(ListOf(Row(BiasEntry), MAX_LOGIT_BIAS), ())


@dataclass(frozen=True, slots=True)
class Generate:
    """An ingress to a driver; exactly one of ``messages``, ``text`` and ``tokens`` is not nil."""

    request_id: bytes = declared(_ID)
    model: str = declared(_NAME)
    sampling: SamplingEntry = declared(Record(SamplingEntry))
    messages: tuple[MessageEntry, ...] | None = declared(
        Optional(ListOf(Record(MessageEntry), MAX_CHAT_MESSAGES)), None
    )
    text: str | None = declared(Optional(Text(MAX_TEXT_BYTES)), None)
    tokens: tuple[int, ...] | None = declared(Optional(ListOf(_TOKEN, MAX_PROMPT_TOKENS)), None)
    stop: tuple[str, ...] = declared(ListOf(Text(MAX_STOP_BYTES), MAX_STOP_SEQUENCES), ())
    max_tokens: int | None = declared(Optional(Integer(1, 2**31 - 1)), None)
    sequence: int = declared(Integer(0, MAX_SEQUENCE), 0)
    history: tuple[int, ...] = declared(ListOf(_TOKEN, MAX_PROMPT_TOKENS), ())
    top_logprobs: int | None = declared(Optional(Integer(0, MAX_TOP_LOGPROBS)), None)
    reasoning_effort: str = declared(Text(MAX_REASONING_EFFORT_BYTES), "")
    grammar: str = declared(Text(MAX_GRAMMAR_BYTES), "")
    tools: ToolUseEntry | None = declared(Optional(Record(ToolUseEntry)), None)
    continues: bytes | None = declared(Optional(_ID), None)
    wants_embedding: bool = declared(Boolean(), False)
    client: bytes | None = declared(Optional(_ID), None)


@dataclass(frozen=True, slots=True)
class Tokenize:
    """An ingress to a driver; one form of prompt, as in ``Generate``. ``tokens`` asks for their text."""

    model: str = declared(_NAME)
    messages: tuple[MessageEntry, ...] | None = declared(
        Optional(ListOf(Record(MessageEntry), MAX_CHAT_MESSAGES)), None
    )
    text: str | None = declared(Optional(Text(MAX_TEXT_BYTES)), None)
    tokens: tuple[int, ...] | None = declared(Optional(ListOf(_TOKEN, MAX_PROMPT_TOKENS)), None)
    add_special: bool = declared(Boolean(), True)
    reasoning_effort: str = declared(Text(MAX_REASONING_EFFORT_BYTES), "")
    tools: ToolUseEntry | None = declared(Optional(Record(ToolUseEntry)), None)


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Ids of what was asked, or the text of the ids."""

    tokens: tuple[int, ...] = declared(ListOf(_TOKEN, MAX_PROMPT_TOKENS))
    text: str = declared(Text(MAX_TEXT_BYTES))


@dataclass(frozen=True, slots=True)
class RoutedStageEntry:
    """A stage on a request's way."""

    peer_id: str = declared(PEER_ID_SHAPE)
    layer_start: int = declared(Integer(0, MAX_LAYERS))
    layer_end: int = declared(Integer(1, MAX_LAYERS))

    def __post_init__(self) -> None:
        if self.layer_start >= self.layer_end:
            raise malformed("stage", f"layers [{self.layer_start}, {self.layer_end}) are none")


@dataclass(frozen=True, slots=True)
class Started:
    """The head of the journal."""

    prompt_tokens: tuple[int, ...] = declared(ListOf(_TOKEN, MAX_PROMPT_TOKENS))
    run_id: bytes = declared(_ID)
    fingerprint: str = declared(Text(128))
    max_tokens: int = declared(Integer(0, 2**31 - 1))
    is_reasoning: bool = declared(Boolean(), False)
    call_format: str = declared(Text(32, is_line), "")
    model_digest: str | None = declared(Optional(_DIGEST), None)
    stages: tuple[RoutedStageEntry, ...] = declared(ListOf(Row(RoutedStageEntry), MAX_STAGES), ())
    cached_tokens: int = declared(Integer(0, MAX_PROMPT_TOKENS), 0)


@dataclass(frozen=True, slots=True)
class CandidateEntry:
    """A token that was likely where another stands."""

    token: int = declared(_TOKEN)
    piece: bytes = declared(Bytes(0, MAX_PIECE_TEXT_BYTES))
    logprob: float = declared(Real())


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """``TokenLogprob``: of the token, and of the likeliest at its position."""

    token: int = declared(_TOKEN)
    piece: bytes = declared(Bytes(0, MAX_PIECE_TEXT_BYTES))
    logprob: float = declared(Real())
    top: tuple[CandidateEntry, ...] = declared(ListOf(Row(CandidateEntry), MAX_TOP_LOGPROBS))


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens as they arise, and the text that is complete."""

    tokens: tuple[int, ...] = declared(ListOf(_TOKEN, 1024))
    text: str = declared(Text(MAX_TEXT_BYTES))
    logprobs: tuple[LogprobEntry, ...] = declared(ListOf(Row(LogprobEntry), 1024), ())
    embedding: bytes = declared(Bytes(0, 4 * MAX_HIDDEN_SIZE), b"")


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a generation."""

    reason: str = declared(Text(32))
    text: str = declared(Text(MAX_TEXT_BYTES))
    completion_tokens: int = declared(Integer(0, 2**31))
    stop: str = declared(Text(MAX_STOP_BYTES), "")


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ingress to driver, on the stream of ``Generate``."""


KINDS: dict[str, type] = {
    "hello": Hello,
    "welcome": Welcome,
    "proof_query": ProofQuery,
    "proof": Proof,
    "route_query": RouteQuery,
    "route_table": RouteTable,
    "refusal": Refusal,
    "load_stage": LoadStage,
    "stage_status": StageStatus,
    "claim_run": ClaimRun,
    "claim_granted": ClaimGranted,
    "claim_denied": ClaimDenied,
    "release_claim": ReleaseClaim,
    "follow_stage": FollowStage,
    "probe_run": ProbeRun,
    "probe_result": ProbeResult,
    "publish_run": PublishRun,
    "hold_run": HoldRun,
    "done": Done,
    "fetch_artifact": FetchArtifact,
    "fetch_piece_list": FetchPieceList,
    "prepare_artifact": PrepareArtifact,
    "artifact_chunk": ArtifactChunk,
    "link_probe": LinkProbe,
    "link_bytes": LinkBytes,
    "identity_query": IdentityQuery,
    "identity_answer": IdentityAnswer,
    "profile_query": ProfileQuery,
    "profile": Profile,
    "probe": Probe,
    "probe_answer": ProbeAnswer,
    "probe_request": ProbeRequest,
    "probe_report": ProbeReport,
    "farewell": Farewell,
    "parting": Parting,
    "generate": Generate,
    "started": Started,
    "delta": Delta,
    "finished": Finished,
    "cancel": Cancel,
    "tokenize": Tokenize,
    "tokenized": Tokenized,
}
_KIND_OF = {cls: kind for kind, cls in KINDS.items()}


def encode_control(message: Any) -> bytes:
    """A message with its length prefix.

    ``MESSAGE_TOO_LARGE`` can be a client's doing (a long conversation), so it is no ``LocalProtocolError``; a field
    beyond its own limit is one.
    """
    body = pack({"kind": _KIND_OF[type(message)], **checked_map(message)})
    if len(body) > MAX_CONTROL_MESSAGE_BYTES:
        raise RemoteProtocolError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a message of {len(body)} bytes; allowed {MAX_CONTROL_MESSAGE_BYTES}",
        )
    return encode_varint(len(body)) + body


def decode_control(body: bytes) -> Any:
    """The record of a message without its prefix; unknown kinds are refused, unknown fields left out."""
    value = unpack(body, "message")
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise malformed("message", "not a map with a kind")
    cls = KINDS.get(value["kind"])
    if cls is None:
        raise RemoteProtocolError(ErrorCode.MESSAGE_KIND_UNKNOWN, f"control message kind {value['kind'][:64]!r}")
    return from_map(cls, value, value["kind"])


def encode_varint(number: int) -> bytes:
    """Unsigned LEB128, as in multiformats."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode_varint(prefix: bytes, limit: int) -> int | None:
    """The number, or None while the prefix is incomplete; at most ``MAX_VARINT_BYTES``, minimal form, ``<= limit``."""
    number = 0
    for index, byte in enumerate(prefix):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if byte == 0 and index > 0:
                raise malformed("length", "not in minimal form")
            if number > limit:
                raise RemoteProtocolError(
                    ErrorCode.MESSAGE_TOO_LARGE, f"a message of {number} bytes; allowed are {limit}"
                )
            return number
        if index + 1 >= MAX_VARINT_BYTES:
            raise malformed("length", f"longer than {MAX_VARINT_BYTES} bytes")
    return None
