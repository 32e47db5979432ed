"""``/mesh-llm/1``: control messages, bytes <-> records.

A message is an unsigned varint length and a msgpack map ``{"kind": …, fields…}``. One stream carries one exchange: the
first message opens it. What the messages hold is ``wire.messages``'; which kinds a peer may send, and when, is decided
in ``node.overlay``. Normative text: ``protocols/mesh-llm-1.md``.
"""

from typing import Any

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_CONTROL_MESSAGE_BYTES
from p2pmesh.wire.messages.admission import Hello, Proof, ProofQuery, RouteQuery, RouteTable, Welcome
from p2pmesh.wire.messages.answers import Done, Refusal
from p2pmesh.wire.messages.artifacts import (
    ArtifactChunk,
    DescribeModel,
    FetchArtifact,
    FetchPieceList,
    ModelDescription,
    PrepareArtifact,
)
from p2pmesh.wire.messages.claims import ClaimDenied, ClaimGranted, ClaimRun, ReleaseClaim
from p2pmesh.wire.messages.generation import Cancel, Delta, Finished, Generate, Started, Tokenize, Tokenized
from p2pmesh.wire.messages.identity import IdentityAnswer, IdentityQuery
from p2pmesh.wire.messages.links import LinkBytes, LinkProbe
from p2pmesh.wire.messages.liveness import Farewell, Parting, Probe, ProbeAnswer, ProbeReport, ProbeRequest
from p2pmesh.wire.messages.runs import FollowStage, HoldRun, LoadStage, ProbeResult, ProbeRun, PublishRun, StageStatus
from p2pmesh.wire.profile import Profile, ProfileQuery
from p2pmesh.wire.schema import checked_map, from_map, malformed, pack, unpack
from p2pmesh.wire.varint import encode_varint

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
    "describe_model": DescribeModel,
    "model_description": ModelDescription,
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
