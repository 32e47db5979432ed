"""Writes ``protocols/vectors``: ``python -m tests.wire.regenerate``, then read the difference before you commit it.

The vectors are normative, this is not: the tests read the files only, so a change of the codec cannot change what it is
checked against. Keys come from fixed seeds, so the bytes are the same each time.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np

from p2pmesh.wire import (
    announcement,
    begin,
    control,
    generation,
    invite,
    profile,
    stage,
    token_report,
)
from p2pmesh.wire.messages.admission import Hello, Proof, ProofQuery, RouteEntry, RouteQuery, RouteTable, Welcome
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
from p2pmesh.wire.messages.generation import (
    BiasEntry,
    CallEntry,
    Cancel,
    CandidateEntry,
    Delta,
    Finished,
    Generate,
    LogprobEntry,
    MessageEntry,
    RoutedStageEntry,
    SamplingEntry,
    Started,
    Tokenize,
    Tokenized,
    ToolUseEntry,
)
from p2pmesh.wire.messages.identity import IdentityAnswer, IdentityQuery
from p2pmesh.wire.messages.links import LinkBytes, LinkProbe
from p2pmesh.wire.messages.liveness import Farewell, Parting, Probe, ProbeAnswer, ProbeReport, ProbeRequest
from p2pmesh.wire.messages.runs import (
    FileEntry,
    FollowStage,
    HoldRun,
    LoadStage,
    ProbeResult,
    ProbeRun,
    PublishRun,
    StageEntry,
    StageStatus,
)
from p2pmesh.wire.schema import pack, to_map
from p2pmesh.wire.varint import encode_varint
from tests.wire import liveness_vectors, vectors
from tests.wire.grammar_vectors import grammars
from tests.wire.keys import FOUNDER, JOINER, STRANGER
from tests.wire.lan_vectors import lan_records
from tests.wire.listing_vectors import listings
from tests.wire.ownership_vectors import ownership_claims
from tests.wire.package_vectors import layer_packages
from tests.wire.signed_vectors import (
    ADDRESSES,
    DIGEST,
    FOUNDERS_PASS,
    INVITE,
    ISSUED_MS,
    REQUEST_ID,
    REVOCATION,
    RUN_ID,
    Case,
    announcement_of,
    announcements,
    invites,
    key_table,
    passes,
    revocations,
    sealed_revocation,
)

# --- control ------------------------------------------------------------------
INVITE_LINE = invite.encode_invite(INVITE, FOUNDER.public_key, FOUNDER.sign)
OF_FOUNDER, OF_JOINER = (
    announcement.encode_announcement(announcement_of(key), key.public_key, key.sign) for key in (FOUNDER, JOINER)
)
REVOKED = sealed_revocation(to_map(REVOCATION))
TWO_STAGES = (
    StageEntry(FOUNDER.peer_id, 0, 15, ADDRESSES),
    StageEntry(JOINER.peer_id, 15, 30, ADDRESSES),
)
SAMPLED = SamplingEntry(0.7, 40, 0.95, 0.05, 0.5, -0.5, 1.1, generation.MAX_SEED,
                        (BiasEntry(3, -100.0), BiasEntry(9, 2.5)))  # fmt: skip
GREEDY = SamplingEntry(0.0, 0, 1.0, 0.0, 0.0, 0.0, 1.0, 0)
CHAT = (MessageEntry("system", "Be brief."), MessageEntry("user", "Grüße, 世界 🦙"))
CALLED = (
    MessageEntry("user", "Weather?", name="Ann"),
    MessageEntry("assistant", "", (CallEntry("call_1", "get_weather", '{"city":"Bern"}'),)),
    MessageEntry("tool", "rain", (), "call_1"),
)
WEATHER = '[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object"}}}]'


Messages = list[tuple[str, Any]]
ADMISSION: Messages = [
    ("hello of a joiner", Hello(1, FOUNDER.mesh_id, INVITE_LINE, (), OF_JOINER)),
    ("hello of a member", Hello(1, FOUNDER.mesh_id, "", (FOUNDERS_PASS,), OF_JOINER,
                                (announcement.peer_hash_of(STRANGER.peer_id),))),
    ("hello of the founder", Hello(1, FOUNDER.mesh_id, "", (), OF_FOUNDER)),
    ("welcome by the founder", Welcome(1, FOUNDER.mesh_id, (), OF_FOUNDER, FOUNDERS_PASS, b"", (OF_JOINER,))),
    ("welcome by a member", Welcome(1, FOUNDER.mesh_id, (FOUNDERS_PASS,), OF_JOINER, b"", REVOKED, ())),
    ("proof_query", ProofQuery(FOUNDER.mesh_id)),
    ("proof of a member", Proof((FOUNDERS_PASS,))),
    ("proof of the founder", Proof(())),
    ("route_query", RouteQuery()),
    ("route_table", RouteTable(1, FOUNDER.mesh_id, (RouteEntry("smollm2-135m", 4096),))),
    ("route_table of a public pool", RouteTable(1, FOUNDER.mesh_id, (), 7)),
    ("refusal", Refusal("invite_expired", "the invite expired 5 minutes ago; ask for a new one")),
    ("refusal for a while", Refusal("overloaded", "256 requests wait for this model; try again later", 41)),
]  # fmt: skip

RUNS: Messages = [
    ("load_stage", LoadStage(RUN_ID, 7, "smollm2-135m", DIGEST, 144_000_000, 30, 1, TWO_STAGES, "cd" * 32,
                             72_000_000, 120_000_000, 4096, 4, 2, "ef" * 32)),
    ("load_stage of files that are not given out",
     LoadStage(RUN_ID, 7, "smollm2-135m", DIGEST, 144_000_000, 30, 1, TWO_STAGES, "cd" * 32,
               72_000_000, 120_000_000, 4096, 4, 2)),
    ("load_stage of a layer package",
     LoadStage(RUN_ID, 7, "smollm2-135m", DIGEST, 144_000_000, 30, 1, TWO_STAGES, "cd" * 32,
               72_000_000, 120_000_000, 4096, 4, 2, "ef" * 32,
               (FileEntry("01" * 32, 9000, "02" * 32),
                FileEntry("03" * 32, 2_000_000, "04" * 32)))),
    ("stage_status", StageStatus(RUN_ID, "downloading", 1_048_576, 72_000_000)),
    ("stage_status ready", StageStatus(RUN_ID, "ready", 0, 0, "b9200-avx2-t2-f16", 8, 15_600)),
    ("claim_run", ClaimRun(DIGEST, RUN_ID, 7, 15_000, (FOUNDER.peer_id, JOINER.peer_id), False)),
    ("claim_run of a stage", ClaimRun(DIGEST, RUN_ID, 8, 15_000, (FOUNDER.peer_id,), False, 2**40)),
    ("claim_run that serves", ClaimRun(DIGEST, RUN_ID, 2**53 - 1, 60_000, (JOINER.peer_id,), True)),
    ("claim_granted", ClaimGranted(7)),
    ("claim_denied", ClaimDenied("model_leased", "another coordinates it for 9 s more", 6, 9_000)),
    ("release_claim", ReleaseClaim(DIGEST, RUN_ID, 7, True)),
    ("follow_stage", FollowStage(DIGEST, RUN_ID, 8)),
    ("probe_run", ProbeRun(RUN_ID, 16)),
    ("probe_result", ProbeResult(42, 135_000, 61_500)),
    ("publish_run", PublishRun(RUN_ID, "b9200-avx2-t2-f16", 63_000)),
    ("hold_run", HoldRun(RUN_ID, 60_000)),
    ("done", Done()),
]  # fmt: skip

FILES_AND_MACHINES: Messages = [
    ("fetch_artifact", FetchArtifact("cd" * 32, "ef" * 32, 1_048_576, 4_194_304)),
    ("fetch_piece_list", FetchPieceList("cd" * 32, "ef" * 32)),
    ("prepare_artifact", PrepareArtifact("cd" * 32, DIGEST, 15, 30)),
    ("describe_model", DescribeModel(DIGEST, 4096, 4)),
    ("model_description", ModelDescription(4_920_000_000, "ef" * 32, 32, 5_610_000_000)),
    ("artifact_chunk", ArtifactChunk(b"GGUF\x03\0\0\0")),
    ("link_probe", LinkProbe(262_144)),
    ("link_bytes", LinkBytes(bytes(64))),
    ("identity_query", IdentityQuery(OF_JOINER)),
    ("identity_answer", IdentityAnswer((OF_JOINER, OF_JOINER))),
    ("identity_answer of one who knows of no other", IdentityAnswer(())),
    ("profile_query", profile.ProfileQuery()),
    ("profile of a machine that tells nothing", profile.Profile()),
    ("profile", profile.Profile(8, 2500, 730, 120, 80, 2**33, 12 * 10**9, (
        profile.DeviceEntry("CUDA0", "CUDA", "gpu", 2**33, 2**34, True),
        profile.DeviceEntry("CPU", "CPU", "cpu", 2**34, 2**35, False)), (
        profile.SpeedEntry("llama", 9, 6 * 10**9, 9 * 10**10),), ("big-model", DIGEST))),
]  # fmt: skip

LIVENESS: Messages = [
    ("probe", Probe(REQUEST_ID, ISSUED_MS, 7)),
    ("probe_answer with an announcement", ProbeAnswer(b"proof", OF_JOINER)),
    ("probe_answer", ProbeAnswer(b"proof", b"")),
    ("probe_request", ProbeRequest(REQUEST_ID, JOINER.peer_id)),
    ("probe_report", ProbeReport(b"proof")),
    ("probe_report of silence", ProbeReport(b"")),
    ("farewell", Farewell(b"leaving")),
    ("parting", Parting()),
]  # fmt: skip

GENERATION: Messages = [
    ("generate from a chat", Generate(REQUEST_ID, "smollm2-135m", SAMPLED, messages=CHAT,
                                      stop=("\n\n", "END"), max_tokens=64, sequence=1, top_logprobs=20,
                                      reasoning_effort="low")),
    ("generate from text", Generate(REQUEST_ID, "smollm2-135m", GREEDY, text="Once")),
    ("generate from tokens", Generate(REQUEST_ID, "smollm2-135m", GREEDY, tokens=(1, 2, 2**31 - 1))),
    ("generate after a loss", Generate(REQUEST_ID, "smollm2-135m", SAMPLED, tokens=(1, 2), max_tokens=9,
                                       history=(7, 2**31 - 1), continues=bytes(range(16)))),
    ("generate under a grammar", Generate(REQUEST_ID, "smollm2-135m", GREEDY, text="Yes?",
                                          grammar='root ::= "yes" | "no"')),
    ("generate with tools", Generate(REQUEST_ID, "smollm2-135m", GREEDY, messages=CALLED,
                                     tools=ToolUseEntry(WEATHER, "auto", "", True))),
    ("started with tools", Started((1,), RUN_ID, "b9200-avx2-t2-f16", 4093, False, "hermes")),
    ("generate an embedding", Generate(REQUEST_ID, "smollm2-135m", GREEDY, text="Once", max_tokens=1,
                                       wants_embedding=True)),
    ("generate for a client", Generate(REQUEST_ID, "smollm2-135m", GREEDY, text="Once",
                                       client=bytes(range(16, 32)))),
    ("delta with an embedding", Delta((0,), "", (), struct.pack("<2f", 0.5, -1.0))),
    ("tokenize a text", Tokenize("smollm2-135m", text="Once", add_special=False)),
    ("tokenize a chat", Tokenize("smollm2-135m", messages=CHAT, reasoning_effort="none")),
    ("tokenize a chat with tools", Tokenize("smollm2-135m", messages=CALLED,
                                            tools=ToolUseEntry(WEATHER, "auto", "", True))),
    ("tokenize what is tokens", Tokenize("smollm2-135m", tokens=(1, 2**31 - 1))),
    ("tokenized", Tokenized((1, 4093), "")),
    ("tokenized text", Tokenized((), "Grüße")),
    ("started", Started((1, 4093, 198), RUN_ID, "b9200-avx2-t2-f16", 4093)),
    (
        "started with its route",
        Started(
            (1,), RUN_ID, "b9200-avx2-t2-f16", 9, model_digest=DIGEST,
            stages=(
                RoutedStageEntry(FOUNDER.peer_id, 0, 10), RoutedStageEntry(JOINER.peer_id, 10, 22),
            ),
        ),
    ),
    ("started within reasoning", Started((1,), RUN_ID, "b9200-avx2-t2-f16", 9, True)),
    ("delta with log probabilities", Delta((7,), "", (LogprobEntry(7, b"\xf0\x9f", -0.5, (
        CandidateEntry(7, b"\xf0\x9f", -0.5), CandidateEntry(9, b"", -9999.0))),))),
    ("delta", Delta((3575, 198), " world\n")),
    ("delta whose text lags", Delta((240,), "")),
    ("finished", Finished("stop", "", 17)),
    ("finished by a stop sequence", Finished("stop", "", 17, "\nUser:")),
    ("cancel", Cancel()),
]  # fmt: skip


def control_messages() -> Messages:
    return [*ADMISSION, *RUNS, *FILES_AND_MACHINES, *LIVENESS, *GENERATION]


def framed(body: bytes) -> bytes:
    return encode_varint(len(body)) + body


SAMPLING = to_map(dict(control_messages())["generate from text"].sampling)
TOOL_USE = to_map(ToolUseEntry("[]", "auto", "", True))
CALL = to_map(CallEntry("call_1", "get_weather", "{}"))
ASKED = to_map(MessageEntry("user", "hello"))
FIRST_STAGE, SECOND_STAGE = to_map(dict(control_messages())["load_stage"])["stages"]
FILE_ENTRY = to_map(FileEntry("01" * 32, 9000, "02" * 32))
BROKEN_FIELDS: list[tuple[str, dict[str, Case]]] = [
    ("hello of a joiner", {
        "hello without a mesh id": {"mesh_id": ...},
        "hello with a mesh id of 31 digits": {"mesh_id": "0" * 31},
        "hello with a mesh id in upper case": {"mesh_id": "A" * 32},
        "hello with an empty announcement": {"announcement": b""},
        "hello with an announcement as text": {"announcement": "x"},
        "hello with generation true": {"generation": True},
        "hello with generation -1": {"generation": -1},
        "hello with generation 65537": {"generation": 65537},
        "hello with an invite of 8193 bytes": {"invite": "x" * 8193},
        "hello with an invite of nil": {"invite": None},
    }),
    ("hello of a member", {
        "hello with 9 passes": {"passes": [b"x"] * 9},
        "hello with an empty pass": {"passes": [b""]},
        "hello with a pass of 161 bytes": {"passes": [bytes(161)]},
        "hello with a pass as text": {"passes": ["x"]},
        "hello that knows 257 peers": {"knows": [bytes(8)] * 257},
        "hello that knows a hash of 9 bytes": {"knows": [bytes(9)]},
        "hello that knows a peer by its id": {"knows": [STRANGER.peer_id]},
    }),
    ("hello of a joiner", {
        "hello without passes": {"passes": ...},
    }),
    ("welcome by a member", {
        "welcome with 65 announcements": {"known": [b"x"] * 65},
        "welcome with a map of announcements": {"known": {}},
        "welcome with a grant of nil": {"granted": None},
        "welcome with a grant of 161 bytes": {"granted": bytes(161)},
        "welcome without a revocation": {"revocation": ...},
        "welcome with a revocation of 49153 bytes": {"revocation": bytes(49153)},
    }),
    ("route_table", {
        "route_table with 257 routes": {"routes": [{"model": "m", "context_tokens": 1}] * 257},
        "route_table with a route without a context": {"routes": [{"model": "m"}]},
        "route_table with a control character": {"routes": [{"model": "\x1b", "context_tokens": 1}]},
        "route_table of 10001 nodes": {"node_count": 10_001},
    }),
    ("refusal", {
        "refusal with a code of 65 bytes": {"code": "c" * 65},
        "refusal with a message of 1025 bytes": {"message": "m" * 1025},
        "refusal for less than no time": {"retry_after_s": -1},
        "refusal for more than an hour": {"retry_after_s": 3601},
        "refusal for a time as text": {"retry_after_s": "41"},
    }),
    ("claim_run", {
        "claim_run of term 0": {"term": 0},
        "claim_run of term 2^53": {"term": 2**53},
        "claim_run of term true": {"term": True},
        "claim_run without a term": {"term": ...},
        "claim_run with a run id of 15 bytes": {"run_id": bytes(15)},
        "claim_run with a digest in upper case": {"model_digest": "A" * 64},
        "claim_run with a lease of 999 ms": {"lease_ms": 999},
        "claim_run with a lease of 60001 ms": {"lease_ms": 60_001},
        "claim_run without peers": {"peers": []},
        "claim_run with a peer twice": {"peers": [FOUNDER.peer_id, FOUNDER.peer_id]},
        "claim_run with 66 peers": {"peers": [FOUNDER.peer_id] * 66},
        "claim_run with a peer that is none": {"peers": ["peer"]},
        "claim_run with peers as text": {"peers": FOUNDER.peer_id},
        "claim_run that serves once": {"is_serving": 1},
        "claim_run without saying whether it serves": {"is_serving": ...},
    }),
    ("claim_granted", {
        "claim_granted of term 0": {"term": 0},
        "claim_granted without a term": {"term": ...},
    }),
    ("claim_denied", {
        "claim_denied with a term of -1": {"term": -1},
        "claim_denied with a wait of 60001 ms": {"wait_ms": 60_001},
        "claim_denied with a code of 65 bytes": {"code": "c" * 65},
        "claim_denied with a message as bytes": {"message": b"no"},
    }),
    ("release_claim", {
        "release_claim without a run id": {"run_id": ...},
        "release_claim of term 0": {"term": 0},
        "release_claim with a digest of 63 digits": {"model_digest": "a" * 63},
        "release_claim without saying whether the run is over": {"is_over": ...},
        "release_claim that is over once": {"is_over": 1},
    }),
    ("follow_stage", {
        "follow_stage of term 0": {"term": 0},
        "follow_stage without a run id": {"run_id": ...},
        "follow_stage with a run id of 17 bytes": {"run_id": bytes(17)},
        "follow_stage with a digest as bytes": {"model_digest": bytes(64)},
    }),
    ("load_stage", {
        "load_stage with a run id of 15 bytes": {"run_id": bytes(15)},
        "load_stage without a term": {"term": ...},
        "load_stage of term 0": {"term": 0},
        "load_stage of term 2^53": {"term": 2**53},
        "load_stage with a run id of 17 bytes": {"run_id": bytes(17)},
        "load_stage with a run id as text": {"run_id": "0" * 16},
        "load_stage without stages": {"stages": []},
        "load_stage with an index beyond its stages": {"index": 2},
        "load_stage with an index of 64": {"index": 64},
        "load_stage with a gap between layers": {"stages": [FIRST_STAGE, {**SECOND_STAGE, "layer_start": 16}]},
        "load_stage with layers twice": {"stages": [FIRST_STAGE, {**SECOND_STAGE, "layer_start": 14}]},
        "load_stage with an empty range": {"stages": [{**FIRST_STAGE, "layer_end": 0}, SECOND_STAGE]},
        "load_stage with a range backwards": {"stages": [{**FIRST_STAGE, "layer_start": 20}, SECOND_STAGE]},
        "load_stage with fewer layers than its stages": {"layer_count": 29},
        "load_stage with one peer twice": {"stages": [FIRST_STAGE, {**SECOND_STAGE, "peer_id": FOUNDER.peer_id}]},
        "load_stage with 65 stages": {"stages": [FIRST_STAGE] * 65},
        "load_stage with 1025 layers": {"layer_count": 1025},
        "load_stage with wire dtype 0": {"wire_dtype": 0},
        "load_stage with wire dtype 7": {"wire_dtype": 7},
        "load_stage with no lanes": {"lanes": 0},
        "load_stage with 65 lanes": {"lanes": 65},
        "load_stage with a digest of 63 digits": {"artifact_digest": "a" * 63},
        "load_stage with a digest and a line feed": {"artifact_digest": "a" * 63 + "\n"},
        "load_stage with an artifact of no bytes": {"artifact_bytes": 0},
        "load_stage with a piece list of 63 digits": {"pieces_digest": "a" * 63},
        "load_stage with an empty piece list": {"pieces_digest": ""},
        "load_stage with a control character in the name": {"model": "a\x07b"},
    }),
    ("load_stage of a layer package", {
        "load_stage with 1029 fragments": {"fragments": [FILE_ENTRY] * 1029},
        "load_stage with a fragment of no bytes": {"fragments": [{**FILE_ENTRY, "size_bytes": 0}]},
        "load_stage with a fragment without a piece list": {"fragments": [{"digest": "01" * 32, "size_bytes": 1}]},
        "load_stage with fragments of nil": {"fragments": None},
    }),
    ("stage_status", {
        "stage_status with a state as number": {"state": 3},
        "stage_status with negative progress": {"done_bytes": -1},
        "stage_status of a call that took longer than an hour": {"decode_us": 2**32 + 1},
    }),
    ("probe_result", {
        "probe_result with a negative token": {"token": -1},
        "probe_result with a token of 2^31": {"token": 2**31},
        "probe_result with a negative step": {"step_us": -1},
    }),
    ("probe_run", {
        "probe_run with more steps than may be asked for": {"steps": 65},
        "probe_run with negative steps": {"steps": -1},
        "probe_run with steps as text": {"steps": "16"},
    }),
    ("hold_run", {
        "hold_run with a negative time": {"quiet_ms": -1},
        "hold_run of more than 2^32 ms": {"quiet_ms": 2**32 + 1},
        "hold_run without a time": {"quiet_ms": ...},
    }),
    ("publish_run", {
        "publish_run with a negative prediction": {"predicted_us": -1},
        "publish_run with a prediction of more than 2^53": {"predicted_us": 2**53 + 1},
    }),
    ("fetch_artifact", {
        "fetch_artifact with a negative offset": {"offset": -1},
        "fetch_artifact with a digest in upper case": {"digest": "AB" * 32},
        "fetch_artifact without a piece list": {"pieces_digest": ...},
        "fetch_artifact with an empty piece list": {"pieces_digest": ""},
        "fetch_artifact of no bytes": {"size_bytes": 0},
        "fetch_artifact of 4194305 bytes": {"size_bytes": 4_194_305},
        "fetch_artifact from beyond 2^40": {"offset": 2**40 + 1},
    }),
    ("fetch_piece_list", {
        "fetch_piece_list without a piece list": {"pieces_digest": ...},
        "fetch_piece_list with a digest of 65 digits": {"digest": "a" * 65},
    }),
    ("prepare_artifact", {
        "prepare_artifact of no layers": {"layer_end": 15},
        "prepare_artifact of layers backwards": {"layer_start": 30, "layer_end": 15},
        "prepare_artifact up to layer 1025": {"layer_end": 1025},
        "prepare_artifact without a model": {"model_digest": ...},
    }),
    ("describe_model", {
        "describe_model by a name": {"model_digest": "tiny-llama"},
        "describe_model of 15 tokens": {"context_tokens": 15},
        "describe_model without lanes": {"lanes": 0},
        "describe_model of no shape": {"context_tokens": ..., "lanes": ...},
    }),
    ("model_description", {
        "model_description of an empty file": {"size_bytes": 0},
        "model_description of more than 2^40 bytes": {"size_bytes": 2**40 + 1},
        "model_description without a piece list": {"pieces_digest": ...},
        "model_description of no layers": {"layer_count": 0},
        "model_description of 1025 layers": {"layer_count": 1025},
        "model_description that needs no memory": {"needed_bytes": 0},
    }),
    ("artifact_chunk", {
        "artifact_chunk as text": {"data": "GGUF"},
        "artifact_chunk of no bytes": {"data": b""},
        "artifact_chunk of 1 MiB and a byte": {"data": bytes(1_048_577)},
        "artifact_chunk without data": {"data": ...},
    }),
    ("link_probe", {
        "link_probe of no bytes": {"size_bytes": 0},
        "link_probe of 262145 bytes": {"size_bytes": 262_145},
        "link_probe of a negative size": {"size_bytes": -1},
        "link_probe of a size as float": {"size_bytes": 1024.0},
    }),
    ("link_bytes", {
        "link_bytes without a byte": {"data": b""},
        "link_bytes of 32769 bytes": {"data": bytes(32_769)},
        "link_bytes as text": {"data": "x"},
    }),
    ("identity_query", {
        "identity_query without an announcement": {"announcement": ...},
        "identity_query with an announcement of nil": {"announcement": None},
        "identity_query with an empty announcement": {"announcement": b""},
        "identity_query with an announcement of 32769 bytes": {"announcement": bytes(32_769)},
    }),
    ("identity_answer", {
        "identity_answer with three announcements": {"announcements": [b"x"] * 3},
        "identity_answer with an empty announcement": {"announcements": [b""]},
        "identity_answer with an announcement as text": {"announcements": ["x"]},
        "identity_answer of nil": {"announcements": None},
    }),
    ("profile", {
        "profile with a negative number of threads": {"threads": -1},
        "profile with a battery of 101 percent": {"battery_percent": 101},
        "profile with a battery as text": {"battery_percent": "full"},
        "profile with more than all processors in use": {"others_milli": 1001},
        "profile with 17 devices": {"devices": [["CPU", "CPU", "cpu", 1, 2, True]] * 17},
        "profile with a device as a map": {"devices": [{"name": "CPU"}]},
        "profile with a device of five values": {"devices": [["CPU", "CPU", "cpu", 1, 2]]},
        "profile with a device whose name breaks the line": {"devices": [["C\nPU", "CPU", "cpu", 1, 2, True]]},
        "profile with 25 speeds": {"speeds": [["llama", 1, 1, 1]] * 25},
        "profile with a speed beyond the limit": {"speeds": [["llama", 1, 2**48 + 1, 1]]},
        "profile with a size class of 65": {"speeds": [["llama", 65, 1, 1]]},
        "profile with 65 excluded models": {"excluded_models": ["m"] * 65},
        "profile with an excluded model of 257 bytes": {"excluded_models": ["m" * 257]},
        "profile with an excluded model as bytes": {"excluded_models": [b"m"]},
        "profile with a negative cap on what it sends": {"up_bytes_per_s": -1},
        "profile with a cap on what it receives beyond the limit": {"down_bytes_per_s": 2**48 + 1},
    }),
    ("probe", {
        "probe with a nonce of 15 bytes": {"nonce": bytes(15)},
        "probe without a nonce": {"nonce": ...},
        "probe with an incarnation of -1": {"incarnation": -1},
        "probe with a sequence beyond 2^53": {"sequence": 2**53 + 1},
    }),
    ("probe_answer", {
        "probe_answer with an empty proof": {"proof": b""},
        "probe_answer with a proof of 1025 bytes": {"proof": bytes(1025)},
        "probe_answer with an announcement of 32769 bytes": {"announcement": bytes(32_769)},
        "probe_answer with an announcement of nil": {"announcement": None},
    }),
    ("probe_request", {
        "probe_request with a nonce as text": {"nonce": "0" * 16},
        "probe_request of no peer id": {"peer_id": "nobody"},
        "probe_request without a peer": {"peer_id": ...},
    }),
    ("probe_report", {
        "probe_report with a proof of 1025 bytes": {"proof": bytes(1025)},
        "probe_report of nil": {"proof": None},
    }),
    ("farewell", {
        "farewell of no bytes": {"leaving": b""},
        "farewell of 1025 bytes": {"leaving": bytes(1025)},
    }),
    ("generate from text", {
        "generate without sampling": {"sampling": ...},
        "generate with sampling nil": {"sampling": None},
        "generate with a NaN temperature": {"sampling": {**SAMPLING, "temperature": float("nan")}},
        "generate with an infinite top_p": {"sampling": {**SAMPLING, "top_p": float("inf")}},
        "generate with a temperature as text": {"sampling": {**SAMPLING, "temperature": "1"}},
        "generate with a negative seed": {"sampling": {**SAMPLING, "seed": -1}},
        "generate with 5 stops": {"stop": ["a"] * 5},
        "generate with a stop of 1025 bytes": {"stop": ["a" * 1025]},
        "generate with max_tokens 0": {"max_tokens": 0},
        "generate with a sequence of 128": {"sequence": 128},
    }),
    ("generate from tokens", {
        "generate with a negative token": {"tokens": [1, -1]},
        "generate with a true among tokens": {"tokens": [1, True]},
        "generate with a float among tokens": {"tokens": [1, 2.0]},
        "generate with a list among tokens": {"tokens": [1] * 65 + [[1]]},
    }),
    ("generate after a loss", {
        "generate with a negative token in its history": {"history": [7, -1]},
        "generate with a history as bytes": {"history": b"\7"},
        "generate with a history of nil": {"history": None},
        "generate that continues an id of 15 bytes": {"continues": bytes(15)},
        "generate that continues an id of 17 bytes": {"continues": bytes(17)},
        "generate that continues text": {"continues": "0" * 16},
    }),
    ("generate for a client", {
        "generate for a client of 15 bytes": {"client": bytes(15)},
        "generate for a client of 17 bytes": {"client": bytes(17)},
        "generate for a client in text": {"client": "0" * 16},
        "generate for an empty client": {"client": b""},
    }),
    ("generate from a chat", {
        "generate with a message without content": {"messages": [{"role": "user"}]},
        "generate with a message as text": {"messages": ["hello"]},
    }),
    ("generate under a grammar", {
        "generate with a grammar of 131073 bytes": {"grammar": "#" * 131073},
        "generate with a grammar of nil": {"grammar": None},
        "generate with a grammar as bytes": {"grammar": b"root"},
    }),
    ("generate with tools", {
        "generate with tools as text": {"tools": "[]"},
        "generate with tools without a choice": {"tools": {"tools": "[]", "only": "", "may_repeat": True}},
        "generate with a tool's name of 65 bytes": {"tools": {**TOOL_USE, "only": "x" * 65}},
        "generate with a tool's name of two lines": {"tools": {**TOOL_USE, "only": "a\nb"}},
        "generate with tools repeated by a number": {"tools": {**TOOL_USE, "may_repeat": 1}},
        "generate with a call without arguments": {"messages": [{**ASKED, "calls": [{"id": "1", "name": "f"}]}]},
        "generate with 129 calls in a message": {"messages": [{**ASKED, "calls": [CALL] * 129}]},
        "generate with an answered call of nil": {"messages": [{**ASKED, "answers": None}]},
        "generate with a participant of nil": {"messages": [{**ASKED, "name": None}]},
        "generate with a participant of two lines": {"messages": [{**ASKED, "name": "a\nb"}]},
        "generate with a participant of 65 bytes": {"messages": [{**ASKED, "name": "b" * 65}]},
    }),
    ("started with tools", {
        "started with a call format of 33 bytes": {"call_format": "x" * 33},
        "started with a call format of nil": {"call_format": None},
    }),
    ("publish_run", {
        "publish_run without a fingerprint": {"fingerprint": ...},
        "publish_run with a fingerprint of 129 bytes": {"fingerprint": "f" * 129},
    }),
    ("started with its route", {
        "started with a stage of no layers": {"stages": [[FOUNDER.peer_id, 3, 3]]},
        "started with a stage of nobody": {"stages": [["", 0, 3]]},
        "started with a stage that lacks its end": {"stages": [[FOUNDER.peer_id, 0]]},
        "started with 65 stages": {"stages": [[FOUNDER.peer_id, one, one + 1] for one in range(65)]},
        "started with half a digest": {"model_digest": "ab" * 16},
    }),
    ("started", {
        "started with a run id of no bytes": {"run_id": b""},
        "started without a limit": {"max_tokens": ...},
    }),
    ("delta", {
        "delta with 1025 tokens": {"tokens": [1] * 1025},
    }),
    ("finished", {
        "finished with a count of -1": {"completion_tokens": -1},
        "finished by a stop sequence of nil": {"stop": None},
        "finished by a stop sequence of 1025 bytes": {"stop": "x" * 1025},
    }),
]  # fmt: skip
"""By the name of a valid case, the fields to set in it and what that makes of it; one set to ``...`` is left out."""


RAW_CONTROL: list[tuple[str, bytes, str]] = [
    ("empty message", b"\x00", "message_malformed"),
    ("length not minimal", b"\x81\x00\xc0", "message_malformed"),
    ("length of five bytes", b"\x80\x80\x80\x80\x01", "message_malformed"),
    ("length of 2 MiB and one", encode_varint(2 * 1024 * 1024 + 1), "message_too_large"),
    ("length of 256 MiB less one", b"\xff\xff\xff\x7f", "message_too_large"),
    ("nil", framed(b"\xc0"), "message_malformed"),
    ("a list", framed(pack(["hello"])), "message_malformed"),
    ("a number", framed(b"\x01"), "message_malformed"),
    ("the byte that msgpack never uses", framed(b"\xc1"), "message_malformed"),
    ("a map without a kind", framed(pack({})), "message_malformed"),
    ("a kind as number", framed(pack({"kind": 1})), "message_malformed"),
    ("a kind as bytes", framed(pack({"kind": b"done"})), "message_malformed"),
    ("a kind nobody knows", framed(pack({"kind": "goodbye"})), "message_kind_unknown"),
    ("a kind in upper case", framed(pack({"kind": "DONE"})), "message_kind_unknown"),
    ("an empty kind", framed(pack({"kind": ""})), "message_kind_unknown"),
    ("a kind that is a record's method", framed(pack({"kind": "__class__"})), "message_kind_unknown"),
    ("kind twice", framed(b"\x82" + pack("kind") + pack("done") + pack("kind") + pack("done")), "message_malformed"),
    ("a number as key", framed(b"\x82" + pack("kind") + pack("done") + b"\x01\x01"), "message_malformed"),
    ("bytes as key", framed(b"\x82" + pack("kind") + pack("done") + pack(b"x") + b"\x01"), "message_malformed"),
    ("a list as key", framed(b"\x82" + pack("kind") + pack("done") + b"\x90\x01"), "message_malformed"),
    ("bytes after the map", framed(pack({"kind": "done"}) + b"\xc0"), "message_malformed"),
    ("a map cut short", framed(pack({"kind": "done"})[:-1]), "message_malformed"),
    ("a map of 2^32 - 1 pairs declared", framed(b"\xdf\xff\xff\xff\xff"), "message_malformed"),
    ("a list of 2^32 - 1 items declared", framed(b"\x81\xa4kind\xdd\xff\xff\xff\xff"), "message_malformed"),
    ("a text of 2^32 - 1 bytes declared", framed(b"\x81\xa4kind\xdb\xff\xff\xff\xff"), "message_malformed"),
    ("a value of 2^32 - 1 bytes declared", framed(b"\x81\xa4kind\xc6\xff\xff\xff\xff"), "message_malformed"),
    ("text that is not UTF-8", framed(b"\x81\xa4kind\xa2\xc3\x28"), "message_malformed"),
    ("text with an encoded surrogate", framed(b"\x81\xa4kind\xa3\xed\xa0\x80"), "message_malformed"),
    ("an extension", framed(b"\x82\xa4kind\xa4done\xa1x\xd4\x05\x00"), "message_malformed"),
    ("an extension of no bytes", framed(b"\x82\xa4kind\xa4done\xa1x\xc7\x00\x05"), "message_malformed"),
    ("a timestamp", framed(b"\x82\xa4kind\xa4done\xa1x\xd6\xff\x00\x00\x00\x00"), "message_malformed"),
    ("nine levels in an unknown field", framed(b"\x82\xa4kind\xa4done\xa1x" + b"\x91" * 8 + b"\xc0"),
     "message_malformed"),
]  # fmt: skip


def control_invalid() -> list[Case]:
    valid = dict(control_messages())
    kind_of = {cls: kind for kind, cls in control.KINDS.items()}
    cases: list[Case] = [{"name": name, "bytes": data.hex(), "error": error} for name, data, error in RAW_CONTROL]
    for base, changes in BROKEN_FIELDS:
        whole = {"kind": kind_of[type(valid[base])], **to_map(valid[base])}
        for name, change in changes.items():
            body = pack({key: value for key, value in {**whole, **change}.items() if value is not ...})
            cases.append({"name": name, "bytes": framed(body).hex(), "error": "message_malformed"})
    head = b"\x82\xa4kind\xa4done\xa1x"
    cases += [
        {"name": "nesting of 1024 levels", "parts": in_parts(head, ("91", 1024), ("c0", 1))},
        {"name": "8193 empty lists in an unknown field", "parts": in_parts(head, ("dc2001", 1), ("90", 8193))},
        {"name": "524289 numbers in an unknown field", "parts": in_parts(head, ("dd00080001", 1), ("00", 524_289))},
    ]
    for case in cases[-3:]:
        case["error"] = "message_malformed"
    hello = {"name": "65537 bytes before admission", "bytes": "818004", "admitted": False}
    return [*cases, {**hello, "error": "message_too_large"}]


def in_parts(head: bytes, *parts: tuple[str, int]) -> list[list[Any]]:
    size = len(head) + sum(len(bytes.fromhex(part)) * times for part, times in parts)
    return [[(encode_varint(size) + head).hex(), 1], *([part, times] for part, times in parts)]


def control_document() -> Case:
    valid = []
    for name, message in control_messages():
        encoded = control.encode_control(message)
        kind = next(kind for kind, cls in control.KINDS.items() if cls is type(message))
        valid.append({"name": name, "kind": kind, "bytes": encoded.hex(), "value": vectors.to_json(message)})
    readable = [
        {
            "name": "an unknown field is left out",
            "kind": "done",
            "bytes": framed(pack({"kind": "done", "later": {"a": [1, [2]]}})).hex(),
            "value": {},
        },
        {
            "name": "fields in another order",
            "kind": "probe_run",
            "bytes": framed(pack({"steps": 3, "run_id": RUN_ID, "kind": "probe_run"})).hex(),
            "value": {"run_id": RUN_ID.hex(), "steps": 3},
        },
        {
            "name": "defaults may be missing",
            "kind": "stage_status",
            "bytes": framed(pack({"kind": "stage_status", "run_id": RUN_ID, "state": "loading"})).hex(),
            "value": vectors.to_json(StageStatus(RUN_ID, "loading")),
        },
        {
            "name": "integers and lengths not in the shortest form",
            "kind": "finished",
            "bytes": framed(
                b"\xde\x00\x04\xd9\x04kind\xa8finished\xa6reason\xda\x00\x04stop\xa4text\xa0"
                b"\xb1completion_tokens\xcf" + (5).to_bytes(8, "big")
            ).hex(),
            "value": {"reason": "stop", "text": "", "completion_tokens": 5, "stop": ""},
        },
        {
            "name": "control characters of a refusal become spaces",
            "kind": "refusal",
            "bytes": framed(pack({"kind": "refusal", "code": "internal", "message": "a\x1b[2J\nb"})).hex(),
            "value": {"code": "internal", "message": "a [2J b", "retry_after_s": 0},
        },
    ]
    keys = key_table(FOUNDER, JOINER)
    return {"protocol": "/mesh-llm/1", "keys": keys, "valid": valid, "readable": readable, "invalid": control_invalid()}


# --- stage frames -------------------------------------------------------------
def frames() -> list[tuple[str, stage.StageFrame]]:
    kinds, dtypes = stage.FrameKind, stage.WireDtype
    zero = bytes(16)
    rows = np.asarray([[0.5, -1.0, 2.0, 65504.0], [0.0, -0.0, 6e-8, 1.0]], dtype="<f4")
    wide = rows_of_width(73, 2)
    body = begin.encode_begin(begin.Begin(generation.SamplingParameters(temperature=0.7, top_k=40, seed=7), 600))
    asking = begin.encode_begin(
        begin.Begin(generation.SamplingParameters(logit_bias=((3, -100.0), (9, 2.5))), 600, top_logprobs=20)
    )
    told = token_report.encode_reports((token_report.TokenReport(-0.5, ((44, -0.5), (9, -9999.0))),))
    lazy = generation.Grammar('root ::= "<call>" [a-z]+', ("<call>", "{"), is_at_start=True)
    held = begin.encode_begin(
        begin.Begin(generation.SamplingParameters(), 600, None, 64, generation.Grammar('root ::= "a"'))
    )
    waits = begin.encode_begin(begin.Begin(generation.SamplingParameters(), 600, None, 64, lazy))
    going_on = begin.encode_begin(begin.Begin(generation.SamplingParameters(seed=7), 600, continues=bytes(range(16))))
    prefix = begin.Prefix(bytes(range(16)), 127, 480, begin.digest_tokens(range(480)))
    shares = begin.encode_begin(begin.Begin(generation.SamplingParameters(seed=7), 600, prefix=prefix))
    both = begin.Begin(generation.SamplingParameters(seed=7), 600, continues=bytes(range(16)), prefix=prefix)
    goes_on_or_shares = begin.encode_begin(both)
    make = stage.StageFrame
    return [
        ("open by stage 1", make(kinds.OPEN, zero, RUN_ID, position=1)),
        ("open by stage 63", make(kinds.OPEN, zero, RUN_ID, position=63)),
        ("return_open", make(kinds.RETURN_OPEN, zero, RUN_ID)),
        ("begin", make(kinds.BEGIN, REQUEST_ID, RUN_ID, body=body)),
        ("begin of choice 127", make(kinds.BEGIN, REQUEST_ID, RUN_ID, 127, body=body)),
        ("begin that asks for log probabilities", make(kinds.BEGIN, REQUEST_ID, RUN_ID, body=asking)),
        ("begin under a grammar", make(kinds.BEGIN, REQUEST_ID, RUN_ID, body=held)),
        ("begin under a grammar that waits", make(kinds.BEGIN, REQUEST_ID, RUN_ID, body=waits)),
        ("prefill to the first stage", make(kinds.PREFILL, REQUEST_ID, RUN_ID, 0, 0, (1, 2, 3))),
        ("prefill in f32", make(kinds.PREFILL, REQUEST_ID, RUN_ID, 0, 256, (9, 10), 4, dtypes.F32,
                                body=rows.tobytes())),
        ("last prefill in f16", make(kinds.PREFILL, REQUEST_ID, RUN_ID, 1, 512, (9, 10), 4, dtypes.F16,
                                     stage.FrameFlag.SAMPLE, rows.astype("<f2").tobytes())),
        ("decode in f16", make(kinds.DECODE, REQUEST_ID, RUN_ID, 0, 600, (42,), 4, dtypes.F16,
                               body=rows[:1].astype("<f2").tobytes())),
        ("decode widened to f32", make(kinds.DECODE, REQUEST_ID, RUN_ID, 0, 601, (43,), 4, dtypes.F32,
                                       stage.FrameFlag.WIDENED, rows[:1].tobytes())),
        ("decode replayed", make(kinds.DECODE, REQUEST_ID, RUN_ID, 0, 602, (44, 45), 4, dtypes.F32,
                                 stage.FrameFlag.REPLAY, rows.tobytes())),
        ("decode replayed by two stages", make(kinds.DECODE, REQUEST_ID, RUN_ID, 0, 602, (44, 45), 4, dtypes.F32,
                                               stage.FrameFlag.REPLAY, rows.tobytes(), 2)),
        ("prefill by 63 stages", make(kinds.PREFILL, REQUEST_ID, RUN_ID, 0, 0, (1, 2, 3), stages=63)),
        ("decode replayed and widened", make(kinds.DECODE, REQUEST_ID, RUN_ID, 0, 602, (44, 45), 4, dtypes.F32,
                                             stage.FrameFlag.REPLAY | stage.FrameFlag.WIDENED, rows.tobytes())),
        *[(f"decode in {dtype.label}", activation_frame(kinds.DECODE, wide[:1], dtype)) for dtype in _NEW],
        *[(f"prefill in {dtype.label}", activation_frame(kinds.PREFILL, wide, dtype)) for dtype in _NEW],
        ("decode at the last position", make(kinds.DECODE, REQUEST_ID, RUN_ID, 0, 2**31 - 2, (2**31 - 1,))),
        ("token", make(kinds.TOKEN, REQUEST_ID, RUN_ID, 0, 602, (44,))),
        ("token with log probabilities", make(kinds.TOKEN, REQUEST_ID, RUN_ID, 0, 602, (44,), body=told)),
        ("credit", make(kinds.CREDIT, REQUEST_ID, RUN_ID, 0, 256)),
        ("error", stage.error_frame(make(kinds.DECODE, REQUEST_ID, RUN_ID, 3), stage.ErrorCode.ENGINE_CRASHED,
                                    "the engine of stage 1 died of SIGILL")),
        ("held by stage 0: nothing", make(kinds.HELD, REQUEST_ID, RUN_ID)),
        ("held by stage 63", make(kinds.HELD, REQUEST_ID, RUN_ID, 1, 700, stages=63)),
        ("held as one state", make(kinds.HELD, REQUEST_ID, RUN_ID, 0, 700, flags=stage.FrameFlag.FIXED, stages=2)),
        ("begin of a sequence that goes on", make(kinds.BEGIN, REQUEST_ID, RUN_ID, body=going_on)),
        ("begin of a prompt that begins like another", make(kinds.BEGIN, REQUEST_ID, RUN_ID, body=shares)),
        ("begin that goes on, or shares", make(kinds.BEGIN, REQUEST_ID, RUN_ID, body=goes_on_or_shares)),
        ("cancel", make(kinds.CANCEL, REQUEST_ID, RUN_ID)),
        ("end", make(kinds.END, REQUEST_ID, RUN_ID)),
    ]  # fmt: skip


def activation_frame(kind: stage.FrameKind, rows: Any, dtype: stage.WireDtype) -> stage.StageFrame:
    body, sent, flags = stage.encode_activation(rows, dtype)
    tokens = tuple(range(50, 50 + len(rows)))
    return stage.StageFrame(kind, REQUEST_ID, RUN_ID, 0, 700, tokens, rows.shape[1], sent, flags, body)


def set_bytes(offset: int, new: bytes) -> Callable[[bytes], bytes]:
    """Replaces bytes of a frame; the offset counts from the length prefix, as in the table of the document."""
    return lambda data: data[:offset] + new + data[offset + len(new) :]


def relength(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A change of what follows the prefix, with a prefix that tells the new length."""
    return lambda data: struct.pack("<I", len(change(data[4:]))) + change(data[4:])


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


BROKEN_FRAMES: list[tuple[str, str, Callable[[bytes], bytes], str]] = [
    ("length 0", "end", set_bytes(0, u32(0)), "frame_length_invalid"),
    ("length one less than a header", "end", set_bytes(0, u32(59)), "frame_length_invalid"),
    ("length beyond the longest frame", "end", set_bytes(0, u32(stage.MAX_FRAME_BYTES + 1)), "frame_length_invalid"),
    ("length 2^32 - 1", "end", set_bytes(0, u32(2**32 - 1)), "frame_length_invalid"),
    ("version 1", "end", set_bytes(4, b"\1"), "frame_version_unsupported"),
    ("version 3", "decode in f16", set_bytes(4, b"\3"), "frame_version_unsupported"),
    ("kind 0", "end", set_bytes(5, b"\0"), "frame_kind_unknown"),
    ("kind 12", "end", set_bytes(5, b"\x0c"), "frame_kind_unknown"),
    ("kind 255", "decode in f16", set_bytes(5, b"\xff"), "frame_kind_unknown"),
    ("dtype 255", "decode in f16", set_bytes(6, b"\xff"), "frame_dtype_invalid"),
    ("token with a dtype", "token", set_bytes(6, b"\1"), "frame_dtype_invalid"),
    ("begin with a dtype", "begin", set_bytes(6, b"\2"), "frame_dtype_invalid"),
    ("error with a dtype", "error", set_bytes(6, b"\1"), "frame_dtype_invalid"),
    ("decode to be sampled by flag", "decode in f16", set_bytes(7, b"\1"), "frame_flags_invalid"),
    ("unknown flag", "last prefill in f16", set_bytes(7, b"\5"), "frame_flags_invalid"),
    ("prefill replayed", "prefill in f32", set_bytes(7, b"\4"), "frame_flags_invalid"),
    ("decode with flag 8", "decode in f16", set_bytes(7, b"\x08"), "frame_flags_invalid"),
    ("decode replayed and to be sampled", "decode replayed", set_bytes(7, b"\5"), "frame_flags_invalid"),
    ("token replayed", "token", set_bytes(7, b"\4"), "frame_flags_invalid"),
    ("all flags", "prefill in f32", set_bytes(7, b"\xff"), "frame_flags_invalid"),
    ("flag on token", "token", set_bytes(7, b"\2"), "frame_flags_invalid"),
    ("flag on open", "open by stage 1", set_bytes(7, b"\1"), "frame_flags_invalid"),
    ("widened, yet f16", "decode in f16", set_bytes(7, b"\2"), "frame_flags_invalid"),
    ("widened, yet no activation", "prefill to the first stage", set_bytes(7, b"\2"), "frame_flags_invalid"),
    ("reserved not zero", "end", set_bytes(56, b"\1"), "frame_flags_invalid"),
    ("last reserved byte not zero", "decode in f16", set_bytes(63, b"\x80"), "frame_flags_invalid"),
    ("stages on decode to be sampled", "decode in f16", set_bytes(56, b"\1"), "frame_flags_invalid"),
    ("stages on the last prefill", "last prefill in f16", set_bytes(56, b"\2"), "frame_flags_invalid"),
    ("stages on credit", "credit", set_bytes(56, b"\1"), "frame_flags_invalid"),
    ("stages on begin", "begin", set_bytes(56, b"\1"), "frame_flags_invalid"),
    ("64 stages", "decode replayed", set_bytes(56, b"\x40"), "frame_value_invalid"),
    ("held by stage 64", "held by stage 63", set_bytes(56, b"\x40"), "frame_value_invalid"),
    ("held by stage 255", "held by stage 63", set_bytes(56, b"\xff"), "frame_value_invalid"),
    ("held with a reserved byte", "held by stage 63", set_bytes(57, b"\1"), "frame_flags_invalid"),
    ("held and replayed", "held by stage 63", set_bytes(7, b"\4"), "frame_flags_invalid"),
    ("held with a token", "held by stage 63", set_bytes(48, u32(1)), "frame_count_invalid"),
    ("held with a dtype", "held by stage 63", set_bytes(6, b"\1"), "frame_dtype_invalid"),
    ("held from position 2^31 on", "held by stage 63", set_bytes(44, u32(2**31)), "frame_position_invalid"),
    ("held with a body", "held by stage 63", relength(lambda data: data + b"\0"), "frame_length_invalid"),
    ("decode as one state", "decode replayed", set_bytes(7, b"\x0c"), "frame_flags_invalid"),
    ("sequence 128", "token", set_bytes(40, u32(128)), "frame_value_invalid"),
    ("sequence 2^32 - 1", "begin", set_bytes(40, u32(2**32 - 1)), "frame_value_invalid"),
    ("position 2^31", "credit", set_bytes(44, u32(2**31)), "frame_position_invalid"),
    ("position 2^32 - 1", "decode in f16", set_bytes(44, u32(2**32 - 1)), "frame_position_invalid"),
    ("rows beyond the last position", "prefill in f32", set_bytes(44, u32(2**31 - 2)), "frame_position_invalid"),
    ("open by stage 64", "open by stage 63", set_bytes(44, u32(64)), "frame_position_invalid"),
    ("decode of no rows", "decode in f16", set_bytes(48, u32(0)), "frame_count_invalid"),
    ("token of no tokens", "token", set_bytes(48, u32(0)), "frame_count_invalid"),
    ("1025 rows", "prefill in f32", set_bytes(48, u32(1025)), "frame_count_invalid"),
    ("2^32 - 1 rows", "prefill in f32", set_bytes(48, u32(2**32 - 1)), "frame_count_invalid"),
    ("tokens in cancel", "cancel", set_bytes(48, u32(1)), "frame_count_invalid"),
    ("tokens in begin", "begin", set_bytes(48, u32(1)), "frame_count_invalid"),
    ("tokens in open", "open by stage 1", set_bytes(48, u32(1)), "frame_count_invalid"),
    ("hidden size 0 with an activation", "decode in f16", set_bytes(52, u32(0)), "frame_count_invalid"),
    ("hidden size 65537", "decode in f16", set_bytes(52, u32(65537)), "frame_count_invalid"),
    ("hidden size 2^32 - 1", "decode in f16", set_bytes(52, u32(2**32 - 1)), "frame_count_invalid"),
    ("hidden size without an activation", "prefill to the first stage", set_bytes(52, u32(4)), "frame_count_invalid"),
    ("hidden size on token", "token", set_bytes(52, u32(4)), "frame_count_invalid"),
    ("hidden size of another model", "decode in f16", set_bytes(52, u32(5)), "frame_length_invalid"),
    ("1024 rows of 65536 elements", "prefill in f32",
     lambda data: set_bytes(52, u32(65536))(set_bytes(48, u32(1024))(data)), "frame_length_invalid"),
    ("f32 declared, f16 sent", "decode in f16", set_bytes(6, b"\1"), "frame_length_invalid"),
    ("f16 declared, f32 sent", "prefill in f32", set_bytes(6, b"\2"), "frame_length_invalid"),
    ("no dtype declared, f16 sent", "decode in f16", lambda data: set_bytes(52, u32(0))(set_bytes(6, b"\0")(data)),
     "frame_length_invalid"),
    ("activation one byte short", "decode in f16", relength(lambda data: data[:-1]), "frame_length_invalid"),
    ("activation one byte long", "decode in f16", relength(lambda data: data + b"\0"), "frame_length_invalid"),
    ("bf16 one byte short", "decode in bf16", relength(lambda data: data[:-1]), "frame_length_invalid"),
    ("q8-row without its scale", "decode in q8-row", relength(lambda data: data[:-4]), "frame_length_invalid"),
    ("q8-row declared, q8-block sent", "decode in q8-block", set_bytes(6, b"\4"), "frame_length_invalid"),
    ("q8-block with a code more", "decode in q8-block", relength(lambda data: data + b"\0"), "frame_length_invalid"),
    ("q8-block declared, q8-outlier sent", "decode in q8-outlier", set_bytes(6, b"\5"), "frame_length_invalid"),
    ("q8-outlier declared, q8-block sent", "decode in q8-block", set_bytes(6, b"\6"), "frame_length_invalid"),
    ("q8-outlier without its exact element", "prefill in q8-outlier", relength(lambda data: data[:-4]),
     "frame_length_invalid"),
    ("wire dtype 7", "decode in q8-row", set_bytes(6, b"\7"), "frame_dtype_invalid"),
    ("WIDENED on q8-outlier", "decode in q8-outlier", set_bytes(7, b"\2"), "frame_flags_invalid"),
    ("q8-row on token", "token", set_bytes(6, b"\4"), "frame_dtype_invalid"),
    ("body after end", "end", relength(lambda data: data + b"\0"), "frame_length_invalid"),
    ("body after credit", "credit", relength(lambda data: data + b"\0\0\0\0"), "frame_length_invalid"),
    ("token ids cut", "token", relength(lambda data: data[:-1]), "frame_length_invalid"),
    ("error text of 513 bytes", "error", relength(lambda data: data[:60] + b"e" * 513), "frame_length_invalid"),
    ("negative token id", "token", set_bytes(64, b"\xff\xff\xff\xff"), "frame_value_invalid"),
    ("negative token id among rows", "prefill in f32", set_bytes(68, b"\0\0\0\x80"), "frame_value_invalid"),
]  # fmt: skip


def prefix_bytes(sequence: int = 0, rows: int = 480) -> bytes:
    return struct.pack("<16sII16s", bytes(range(16)), sequence, rows, bytes(16))


def broken_prefixes() -> list[tuple[str, object, str]]:
    return [
        ("of 39 bytes", prefix_bytes()[1:], "message_malformed"),
        ("of 41 bytes", prefix_bytes() + bytes(1), "message_malformed"),
        ("of nil", None, "message_malformed"),
        ("as text", "0" * 40, "message_malformed"),
        ("of choice 128", prefix_bytes(sequence=128), "request_invalid"),
        ("of no rows", prefix_bytes(rows=0), "request_invalid"),
        ("within a call", prefix_bytes(rows=240 + 47), "request_invalid"),
        ("beyond all positions", prefix_bytes(rows=2**31 + 16), "request_invalid"),
        ("of the whole prompt", prefix_bytes(rows=624), "request_invalid"),
    ]


def broken_begins() -> list[tuple[str, Case | bytes, str]]:
    return [
        ("begin without a prompt length", {"prompt_tokens": ...}, "message_malformed"),
        ("begin without a seed", {"seed": ...}, "message_malformed"),
        ("begin with a seed as float", {"seed": 1.0}, "message_malformed"),
        ("begin with a temperature as text", {"temperature": "1"}, "message_malformed"),
        ("begin with a NaN temperature", {"temperature": float("nan")}, "request_invalid"),
        ("begin with an infinite repeat penalty", {"repeat_penalty": float("inf")}, "request_invalid"),
        ("begin with a temperature of 2.1", {"temperature": 2.1}, "request_invalid"),
        ("begin with top_p 0", {"top_p": 0.0}, "request_invalid"),
        ("begin with a negative top_k", {"top_k": -1}, "request_invalid"),
        ("begin with a negative seed", {"seed": -1}, "request_invalid"),
        (
            "begin that wants an embedding and log probabilities",
            {"wants_embedding": True, "top_logprobs": 0},
            "request_invalid",
        ),
        ("begin without a word on embeddings", {"wants_embedding": ...}, "message_malformed"),
        ("begin that wants 1 embedding", {"wants_embedding": 1}, "message_malformed"),
        ("begin without a bias", {"logit_bias": ...}, "message_malformed"),
        ("begin without a count of log probabilities", {"top_logprobs": ...}, "message_malformed"),
        ("begin with 21 log probabilities", {"top_logprobs": 21}, "request_invalid"),
        ("begin with a bias of 11 bytes", {"logit_bias": bytes(11)}, "message_malformed"),
        ("begin with a bias of 101", {"logit_bias": struct.pack("<id", 3, 101.0)}, "request_invalid"),
        ("begin with a NaN bias", {"logit_bias": struct.pack("<id", 3, float("nan"))}, "request_invalid"),
        ("begin with two biases of a token", {"logit_bias": 2 * struct.pack("<id", 3, 1.0)}, "request_invalid"),
        ("begin with a bias of a negative token", {"logit_bias": struct.pack("<id", -3, 1.0)}, "request_invalid"),
        ("begin with 1025 biases", {"logit_bias": bytes(12 * 1025)}, "message_malformed"),
        ("begin with a prompt of no tokens", {"prompt_tokens": 0}, "request_invalid"),
        ("begin of an answer of no tokens", {"max_tokens": 0}, "request_invalid"),
        ("begin without a limit", {"max_tokens": ...}, "message_malformed"),
        ("begin without a grammar", {"grammar": ...}, "message_malformed"),
        ("begin with a grammar of nil", {"grammar": None}, "message_malformed"),
        ("begin with a grammar of 131073 bytes", {"grammar": "#" * 131073}, "message_malformed"),
        ("begin with triggers of no grammar", {"grammar_triggers": ["x"]}, "request_invalid"),
        ("begin with an empty trigger", {"grammar": 'root ::= "a"', "grammar_triggers": [""]}, "request_invalid"),
        ("begin with a trigger of 65 bytes", {"grammar": "x", "grammar_triggers": ["a" * 65]}, "request_invalid"),
        ("begin with 5 triggers", {"grammar": "x", "grammar_triggers": ["a"] * 5}, "message_malformed"),
        ("begin with a trigger as a number", {"grammar": "x", "grammar_triggers": [1]}, "message_malformed"),
        ("begin with triggers at the start by a number", {"grammar_at_start": 0}, "message_malformed"),
        ("begin that continues an id of 15 bytes", {"continues": bytes(15)}, "message_malformed"),
        ("begin that continues an id of 17 bytes", {"continues": bytes(17)}, "message_malformed"),
        ("begin that continues an empty id", {"continues": b""}, "message_malformed"),
        ("begin that continues text", {"continues": "0" * 16}, "message_malformed"),
        ("begin that continues nil", {"continues": None}, "message_malformed"),
        *[(f"begin with a prefix {what}", {"prefix": value}, code) for what, value, code in broken_prefixes()],
        (
            "begin with a prefix of a prompt that is only read",
            {"prefix": prefix_bytes(), "wants_embedding": True},
            "request_invalid",
        ),
        ("begin with an empty body", b"", "message_malformed"),
        ("begin with a list", b"\x93\x01\x02\x03", "message_malformed"),
        ("begin with text that is not UTF-8", b"\x81\xa1\xff\x01", "message_malformed"),
        ("begin with a map of 2^32 - 1 pairs declared", b"\xdf\xff\xff\xff\xff", "message_malformed"),
    ]


def broken_reports() -> list[tuple[str, bytes]]:
    """Bodies of a TOKEN of one token, where two candidates were asked for."""
    head, pair = struct.Struct("<fB"), struct.Struct("<if")
    return [
        ("token whose report ends early", head.pack(-1.0, 0)[:4]),
        ("token whose candidates end early", head.pack(-1.0, 2) + pair.pack(7, -1.0)),
        ("token whose report goes on after its end", head.pack(-1.0, 0) + b"\0"),
        ("token with more candidates than asked for", head.pack(-1.0, 3) + 3 * pair.pack(7, -1.0)),
        ("token with a log probability above 0", head.pack(0.5, 0)),
        ("token with a NaN log probability", head.pack(float("nan"), 0)),
        ("token with a log probability of minus infinity", head.pack(float("-inf"), 0)),
        ("token with a candidate of a negative id", head.pack(-1.0, 1) + pair.pack(-7, -1.0)),
    ]


def begin_bytes(change: Case | bytes) -> bytes:
    frame = dict(frames())["begin"]
    if isinstance(change, bytes):
        return stage.encode_frame(replace(frame, body=change))
    plain = {**msgpack.unpackb(frame.body), **change}
    body = pack({key: value for key, value in plain.items() if value is not ...})
    return stage.encode_frame(replace(frame, body=body))


def stage_document() -> Case:
    valid = []
    for name, frame in frames():
        case = {"name": name, "bytes": stage.encode_frame(frame).hex(), "value": vectors.frame_to_json(frame)}
        if frame.kind is stage.FrameKind.BEGIN:
            case["begin"] = vectors.to_json(begin.decode_begin(frame.body))
        if frame.kind is stage.FrameKind.TOKEN and frame.body:
            case["reports"] = vectors.to_json(token_report.decode_reports(frame.body, len(frame.tokens), 20))
        if frame.kind is stage.FrameKind.ERROR:
            code, text = stage.decode_error(frame)
            case["failure"] = {"code": code.value, "text": text}
        valid.append(case)
    encoded = {name: stage.encode_frame(frame) for name, frame in frames()}
    invalid: list[Case] = [
        {"name": name, "bytes": change(encoded[base]).hex(), "error": error}
        for name, base, change, error in BROKEN_FRAMES
    ]
    invalid += [
        {"name": name, "bytes": begin_bytes(change).hex(), "error": error} for name, change, error in broken_begins()
    ]
    for name, body in broken_reports():
        frame = replace(dict(frames())["token"], body=body)
        invalid.append(
            {"name": name, "bytes": stage.encode_frame(frame).hex(), "top_logprobs": 2, "error": "frame_value_invalid"}
        )
    head = encoded["begin"][4:64]
    long_token = [[(u32(64 + 524_289) + encoded["token"][4:]).hex(), 1], ["00", 524_289]]
    invalid.append({"name": "token body of 524289 bytes", "parts": long_token, "error": "frame_length_invalid"})
    long_begin = [[(u32(60 + 196609) + head).hex(), 1], ["c0", 196609]]
    invalid.append({"name": "begin body of 196609 bytes", "parts": long_begin, "error": "frame_length_invalid"})
    return {"protocol": "/skippy-stage/2", "valid": valid, "invalid": invalid}


# --- activations --------------------------------------------------------------
ROWS: list[tuple[str, list[list[float]]]] = [
    ("zeros of both signs", [[0.0, -0.0]]),
    ("two rows", [[1.0, -2.5, 0.1], [3.0, 4.0, 5.0]]),
    ("largest f16", [[65504.0, -65504.0]]),
    ("rounds down to the largest f16", [[65519.99]]),
    ("tie that would round to infinity", [[65520.0, 1.0]]),
    ("negative tie that would round to infinity", [[-65520.0, 1.0]]),
    ("far beyond f16", [[1e38, -3.0]]),
    ("smallest subnormal f16", [[5.9604645e-08]]),
    ("below the smallest subnormal f16", [[1e-10, -1e-10]]),
    ("tie to even", [[2049.0, 2051.0]]),
]

# In these, elements of a block, the largest of a row and rows themselves differ in magnitude; no two are equal.
QUANTISED = {
    "zeros, a row": [[0.0] * 33],
    "one element": [[-3.25]],
    "a block and an element": [[(-1) ** i * (i + 1) / 8 for i in range(33)]],
    "an outlier": [[50_000.0 if i == 40 else (-1) ** i * (i + 1) / 64 for i in range(72)]],
    "two rows, two outliers each": [
        [(-1) ** i * (i + 1) * 0.01 * (90_000 if i in (3, 100) else 1) for i in range(144)],
        [(-1) ** i * (145 - i) * 0.5 * (1_000 if i in (0, 143) else 1) for i in range(144)],
    ],
    "too small for a scale": [[1e-38, -1e-40]],
    "largest that fits": [[127 * 2.0**112, 1.0]],
    "beyond what fits": [[3.39e38, 1.0]],
    "largest bf16": [[3.3895313892515355e38, 3.396177e38]],
    "tie that would round to infinity in bf16": [[3.3961775292304957e38]],
    "ties to even in bf16": [[1.00390625, 1.01171875, 257.0]],
}
_NEW = (stage.WireDtype.BF16, stage.WireDtype.Q8_ROW, stage.WireDtype.Q8_BLOCK, stage.WireDtype.Q8_OUTLIER)


def rows_of_width(width: int, count: int) -> Any:
    """Rows whose elements all differ, one of each larger than the others."""
    rows = [
        [(-1) ** i * (i + 1 + row) / 16 * (4096 if i == 7 + row else 1) for i in range(width)] for row in range(count)
    ]
    return np.asarray(rows, dtype="<f4")


def written(rows: Any, wanted: stage.WireDtype) -> tuple[bytes, stage.StageFrame]:
    body, dtype, flags = stage.encode_activation(rows, wanted)
    tokens, width = (0,) * len(rows), rows.shape[1]
    return body, stage.StageFrame(stage.FrameKind.DECODE, bytes(16), bytes(16), 0, 0, tokens, width, dtype, flags, body)


def quantised_valid() -> list[Case]:
    cases: list[Case] = []
    for name, values in QUANTISED.items():
        rows = np.asarray(values, dtype="<f4")
        for wanted in _NEW:
            body, frame = written(rows, wanted)
            cases.append({
                "name": f"{name}, {wanted.name} asked for", "rows": len(values), "hidden_size": rows.shape[1],
                "asked": wanted.name, "input_f32": rows.tobytes().hex(), "dtype": frame.dtype.name,
                "flags": int(frame.flags), "body": body.hex(),
                "output_f32": stage.decode_activation(frame).astype("<f4").tobytes().hex(),
            })  # fmt: skip
    return cases


def quantised_invalid() -> list[Case]:
    """One part of a good body broken at a time. Widths: 73 has 3 blocks and 1 exact element, 144 has 5 and 2."""
    cases: list[Case] = []

    def broken(name: str, dtype: str, width: int, count: int, offset: int, new: bytes) -> None:
        body = bytearray(written(rows_of_width(width, count), stage.WireDtype[dtype])[0])
        body[offset : offset + len(new)] = new
        case = {"name": f"{name} in {dtype}", "rows": count, "hidden_size": width, "dtype": dtype, "body": body.hex()}
        cases.append({**case, "error": "frame_value_invalid"})

    for row in (0, 1):
        for name, value in (("NaN", "0000c07f"), ("infinite", "0000807f"), ("negative", "000080bf"),
                            ("minus zero as", "00000080"), ("too large a", "01008077"),
                            ("negative infinite", "000080ff")):  # fmt: skip
            broken(f"{name} scale of row {row}", "Q8_ROW", 73, 2, 4 * row, bytes.fromhex(value))
    broken("a mark", "Q8_ROW", 73, 2, 8 + 100, b"\x80")
    for dtype, first in (("Q8_BLOCK", 0), ("Q8_OUTLIER", 8)):
        for block in (0, 5):
            for name, value in (("NaN", "c07f"), ("infinite", "807f"), ("negative", "80bf"), ("minus zero as", "0080"),
                                ("too large a", "8177"), ("negative infinite", "80ff")):  # fmt: skip
                broken(f"{name} scale of block {block}", dtype, 73, 2, first + 2 * block, bytes.fromhex(value))
    broken("a mark", "Q8_BLOCK", 73, 2, 12 + 100, b"\x80")
    codes = 8 + 12
    broken("a mark too many in row 0", "Q8_OUTLIER", 73, 2, codes + 9, b"\x80")
    broken("a mark too many in row 1", "Q8_OUTLIER", 73, 2, codes + 73 + 9, b"\x80")
    broken("a mark too few in row 0", "Q8_OUTLIER", 73, 2, codes + 7, b"\x7f")
    broken("a mark too few in row 1", "Q8_OUTLIER", 73, 2, codes + 73 + 8, b"\x7f")
    broken("no mark and two", "Q8_OUTLIER", 73, 2, codes + 7, b"\0" * 73 + b"\x80\x80")
    broken("two marks and none", "Q8_OUTLIER", 73, 2, codes + 7, b"\x80\x80" + b"\0" * 73)
    broken("all marks", "Q8_OUTLIER", 73, 2, codes, b"\x80" * 146)
    for element in (0, 1):
        for name, value in (("NaN", "0000c07f"), ("infinity", "0000807f"), ("negative infinity", "000080ff"),
                            ("signalling NaN", "010080ff")):  # fmt: skip
            broken(f"{name} as exact element {element}", "Q8_OUTLIER", 73, 2, 4 * element, bytes.fromhex(value))
    for name, value in (("NaN", "c07f"), ("infinity", "807f"), ("negative infinity", "80ff"), ("NaN again", "81ff")):
        broken(f"{name}", "BF16", 73, 2, 20, bytes.fromhex(value))
    return cases


def activations() -> Case:
    valid = []
    for name, values in ROWS:
        rows = np.asarray(values, dtype="<f4")
        for wanted in (stage.WireDtype.F32, stage.WireDtype.F16):
            body, dtype, flags = stage.encode_activation(rows, wanted)
            wire = np.frombuffer(body, "<f2" if dtype is stage.WireDtype.F16 else "<f4").astype("<f4")
            valid.append({
                "name": f"{name}, {wanted.name} asked for", "rows": len(values), "hidden_size": len(values[0]),
                "asked": wanted.name, "input_f32": rows.tobytes().hex(), "dtype": dtype.name, "flags": int(flags),
                "body": body.hex(), "output_f32": wire.tobytes().hex(),
            })  # fmt: skip
    valid += quantised_valid()
    specials = [("NaN", "nan"), ("infinity", "inf"), ("negative infinity", "-inf")]
    invalid: list[Case] = []
    for name, text in specials:
        for code, dtype in (("<f4", "F32"), ("<f2", "F16")):
            for index in range(3):
                row = [1.0, 2.0, 3.0]
                row[index] = float(text)
                invalid.append({
                    "name": f"{name} at {index} in {dtype}", "rows": 1, "hidden_size": 3, "dtype": dtype,
                    "body": np.asarray(row, dtype=code).tobytes().hex(), "error": "frame_value_invalid",
                })  # fmt: skip
    for name, body, dtype in (
        ("signalling NaN in F32", "0000807f00000000010080ff", "F32"),
        ("quiet NaN with payload in F16", "0000017e0000", "F16"),
        ("largest F16 plus one unit", "007c00000000", "F16"),
    ):
        case = {"name": name, "rows": 1, "hidden_size": 3, "dtype": dtype, "body": body}
        invalid.append({**case, "error": "frame_value_invalid"})
    invalid += quantised_invalid()
    none = {"name": "no activation", "rows": 1, "hidden_size": 0, "dtype": "NONE", "body": ""}
    invalid.append({**none, "error": "frame_dtype_invalid"})
    return {"protocol": "/skippy-stage/2", "valid": valid, "invalid": invalid}


def write(name: str, document: Case) -> None:
    """One case a line, so that a difference can be read."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list):
            lines = ",\n".join("    " + json.dumps(case, ensure_ascii=True) for case in value)
            parts.append(f"  {json.dumps(key)}: [\n{lines}\n  ]")
        else:
            parts.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    (vectors.DIRECTORY / f"{name}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main() -> None:
    write("control", control_document())
    write("stage_frames", stage_document())
    write("invites", invites())
    write("passes", passes())
    write("revocations", revocations())
    write("announcements", announcements())
    write("activations", activations())
    write("ownership_claims", ownership_claims())
    write("layer_packages", layer_packages())
    write("life_proofs", liveness_vectors.proofs())
    write("liveness_notes", liveness_vectors.notes())
    write("grammars", grammars())
    write("listings", listings())
    write("lan_records", lan_records())


if __name__ == "__main__":
    main()
