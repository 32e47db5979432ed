"""``protocols/registry.toml`` against the code, in both directions, and the documents against the registry."""

import re
import tomllib
from dataclasses import MISSING, asdict, fields
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

import pytest

from p2pmesh.adapters.p2p import autonat, delimited, punch, relay
from p2pmesh.base import limits
from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import MeshId
from p2pmesh.core.claims import ClaimPolicy
from p2pmesh.core.coordination import StageState
from p2pmesh.core.credentials import CODES, RefusalReason
from p2pmesh.core.membership import MembershipPolicy
from p2pmesh.core.ownership import OwnershipStatus, TrustPolicy
from p2pmesh.core.reachability import ReachabilityPolicy
from p2pmesh.core.relaying import RelayLimits
from p2pmesh.core.tool_calls.formats import FORMATS
from p2pmesh.model import package as layer_package
from p2pmesh.wire import (
    announcement,
    begin,
    control,
    invite,
    lan_record,
    listing,
    liveness,
    membership_pass,
    ownership,
    package,
    profile,
    records,
    requirements,
    revocation,
    signed,
    stage,
)
from p2pmesh.wire.generation import FinishReason
from p2pmesh.wire.messages.admission import RouteEntry
from p2pmesh.wire.messages.generation import (
    BiasEntry,
    CallEntry,
    CandidateEntry,
    LogprobEntry,
    MessageEntry,
    RoutedStageEntry,
    SamplingEntry,
    ToolUseEntry,
)
from p2pmesh.wire.messages.runs import FileEntry, StageEntry
from tests.wire import vectors

PROTOCOLS = Path(__file__).parents[2] / "protocols"
REGISTRY = tomllib.loads((PROTOCOLS / "registry.toml").read_text())
CONTROL_TEXT = (PROTOCOLS / "mesh-llm-1.md").read_text()
STAGE_TEXT = (PROTOCOLS / "skippy-stage-2.md").read_text()
RECORDS = {
    "envelope": signed.Envelope,
    "requirements": requirements.MeshRequirements,
    "invite": invite.Invite,
    "membership_pass": membership_pass.MembershipPass,
    "written_pass": membership_pass.WrittenPass,
    "revocation": revocation.Revocation,
    "route_entry": RouteEntry,
    "announcement": announcement.Announcement,
    "served_model": announcement.ServedModel,
    "held_model": announcement.HeldModel,
    "link": announcement.Link,
    "model_demand": announcement.ModelDemand,
    "device_entry": profile.DeviceEntry,
    "speed_entry": profile.SpeedEntry,
    "ownership_claim": ownership.OwnershipClaim,
    "life_proof": liveness.LifeProof,
    "down_report": liveness.DownReport,
    "leaving": liveness.Leaving,
    "package_statement": package.PackageStatement,
    "listing_content": listing.ListingContent,
    "file_entry": FileEntry,
    "stage_entry": StageEntry,
    "message_entry": MessageEntry,
    "call_entry": CallEntry,
    "tool_use_entry": ToolUseEntry,
    "sampling_entry": SamplingEntry,
    "bias_entry": BiasEntry,
    "logprob_entry": LogprobEntry,
    "candidate_entry": CandidateEntry,
    "routed_stage_entry": RoutedStageEntry,
}
# Limits that concern no byte between peers; everything else in base.limits is in the registry.
LOCAL = re.compile(r"MAX_HTTP2?_|MAX_API_|MAX_GGUF_|DEFAULT_|MAX_ENGINE_|ENGINE_|PROTOCOL_GENERATION$")


def fields_of(cls: type) -> list[str]:
    return [f.name + ("" if f.default is MISSING else "?") for f in fields(cls)]


@pytest.mark.parametrize(
    ("table", "enum"),
    [("frame_kinds", stage.FrameKind), ("wire_dtypes", stage.WireDtype), ("frame_flags", stage.FrameFlag)],
)
def test_numbers_are_those_of_the_code(table: str, enum: type[IntEnum] | type[IntFlag]) -> None:
    assert REGISTRY[table] == {member.name: int(member) for member in enum}


def test_messages_and_records_are_those_of_the_code() -> None:
    assert REGISTRY["messages"] == {kind: fields_of(cls) for kind, cls in control.KINDS.items()}
    assert REGISTRY["records"] == {name: fields_of(cls) for name, cls in RECORDS.items()}


def test_reach_is_that_of_the_code() -> None:
    assert REGISTRY["reach"] == {
        "hop": relay.HOP_PROTOCOL,
        "stop": relay.STOP_PROTOCOL,
        "dial_back": autonat.AUTONAT_PROTOCOL,
        "hole_punching": punch.DCUTR_PROTOCOL,
        "message_bytes": delimited.MAX_DELIMITED_BYTES,
        "agreeing_networks": ReachabilityPolicy().agreeing_networks,
        "dialled_addresses": autonat.MAX_DIALLED,
        "met_addresses": punch.MAX_MET,
    }
    assert REGISTRY["relay_limits"] == asdict(RelayLimits())


def test_error_codes_are_those_of_the_code() -> None:
    assert sorted(REGISTRY["errors"]["codes"]) == sorted(ErrorCode)


def test_limits_are_those_of_the_code_and_none_of_a_wire_is_left_out() -> None:
    known: dict[str, Any] = {}
    for module in (signed, stage, limits):
        known |= {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int)}
    assert {name: known.get(name) for name in REGISTRY["limits"]} == REGISTRY["limits"]
    ours = {name for name in vars(limits) if name.isupper() and "_" in name and not name.endswith("_PROTOCOL")}
    wire = {name for name in ours if not LOCAL.match(name)}
    assert wire - set(REGISTRY["limits"]) == set()


def test_protocols_domains_and_times_are_those_of_the_code() -> None:
    mesh = MeshId("0" * 32)
    assert REGISTRY["protocols"] == {
        "control": limits.CONTROL_PROTOCOL,
        "stage": limits.STAGE_PROTOCOL,
        "records": limits.RECORDS_PROTOCOL,
        "announce_topic": announcement.topic_of(mesh).replace(mesh, "<mesh id>"),
        "shard_topic": announcement.topic_of(mesh, "<bits>").replace(mesh, "<mesh id>"),
        "model_topic": announcement.model_topic_of(mesh, "d" * 64)
        .replace(mesh, "<mesh id>")
        .replace("d" * 16, "<first 16 digits of the digest>"),
        "liveness_topic": liveness.topic_of(mesh).replace(mesh, "<mesh id>"),
        "liveness_shard_topic": liveness.topic_of(mesh, "<bits>").replace(mesh, "<mesh id>"),
        "liveness_model_topic": liveness.model_topic_of(mesh, "d" * 64)
        .replace(mesh, "<mesh id>")
        .replace("d" * 16, "<first 16 digits of the digest>"),
        "revocation_topic": revocation.topic_of(mesh).replace(mesh, "<mesh id>"),
        "generation": limits.PROTOCOL_GENERATION,
        "frame_version": stage.VERSION,
    }
    assert REGISTRY["domains"]["invite"] == invite.DOMAIN.decode()
    assert REGISTRY["domains"]["membership_pass"] == membership_pass.DOMAIN.decode()
    assert REGISTRY["domains"]["revocation"] == revocation.DOMAIN.decode()
    assert REGISTRY["pass"] == {"life_ms": membership_pass.LIFE_MS, "clock_skew_ms": limits.CLOCK_SKEW_MS}
    assert REGISTRY["domains"]["announcement"] == announcement.DOMAIN.decode()
    assert REGISTRY["domains"]["provider"] == records.DOMAIN.decode()
    assert REGISTRY["invite"] == {
        "prefix": invite.PREFIX,
        "life_ms": invite.LIFE_MS,
        "listed_life_ms": invite.LISTED_LIFE_MS,
        "clock_skew_ms": limits.CLOCK_SKEW_MS,
    }
    assert REGISTRY["announcement"] == {
        "shortest_interval_ms": announcement.SHORTEST_INTERVAL_MS,
        "longest_interval_ms": announcement.LONGEST_INTERVAL_MS,
        "life_intervals": announcement.LIFE_INTERVALS,
        "life_margin_ms": announcement.LIFE_MARGIN_MS,
        "longest_life_ms": announcement.LONGEST_LIFE_MS,
    }


def test_layer_packages_are_as_the_registry_says() -> None:
    assert REGISTRY["domains"]["layer_package"] == package.DOMAIN.decode()
    assert REGISTRY["layer_package"] == {
        "schema_version": layer_package.SCHEMA_VERSION,
        "format": layer_package.FORMAT,
        "abi_version": layer_package.ABI_VERSION,
        "violations": [code.value for code in layer_package.ViolationCode],
    }
    text = (PROTOCOLS / "layer-package.md").read_text()
    assert [code.value for code in layer_package.ViolationCode if f"`{code.value}`" not in text] == []


def test_run_claims_take_the_times_of_the_registry() -> None:
    policy = ClaimPolicy()
    assert REGISTRY["run_claims"] == {
        name: getattr(policy, name.replace("_ms", "_us")) // 1000 for name in REGISTRY["run_claims"]
    }
    assert limits.MIN_LEASE_MS <= REGISTRY["run_claims"]["lease_ms"] <= limits.MAX_LEASE_MS


def test_claims_live_as_the_registry_says() -> None:
    assert REGISTRY["domains"]["ownership_claim"] == ownership.DOMAIN.decode()
    assert REGISTRY["ownership"] == {
        "version": ownership.VERSION,
        "life_ms": ownership.LIFE_MS,
        "longest_life_ms": ownership.LONGEST_LIFE_MS,
        "renewal_ms": ownership.RENEWAL_MS,
        "clock_skew_ms": limits.CLOCK_SKEW_MS,
        "statuses": list(OwnershipStatus),
        "policies": list(TrustPolicy),
    }
    text = (PROTOCOLS / "ownership.md").read_text()
    names = [*OwnershipStatus, *TrustPolicy, *(f.name for f in fields(ownership.OwnershipClaim))]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_liveness_is_as_the_registry_says() -> None:
    policy = MembershipPolicy()
    assert REGISTRY["domains"]["life_proof"] == liveness.PROOF_DOMAIN.decode()
    assert REGISTRY["domains"]["liveness_note"] == liveness.NOTE_DOMAIN.decode()
    assert REGISTRY["liveness"] == {
        "note_life_ms": liveness.NOTE_LIFE_MS,
        "notes": list(liveness.NOTES),
        "probe_interval_ms": policy.probe_interval_us // 1000,
        "probe_timeout_ms": policy.probe_timeout_us // 1000,
        "helpers": policy.helpers,
        "indirect_timeout_ms": policy.indirect_timeout_us // 1000,
        "suspect_ms": policy.suspect_us // 1000,
        "tombstone_ms": policy.tombstone_us // 1000,
        "mute_ms": policy.mute_us // 1000,
    }


def test_records_of_the_local_network_are_as_the_registry_says() -> None:
    assert REGISTRY["domains"]["lan_fingerprint"] == lan_record.FINGERPRINT_DOMAIN.decode()
    assert REGISTRY["lan"] == {
        "service_type": lan_record.SERVICE_TYPE,
        "service": lan_record.SERVICE,
        "schema": lan_record.SCHEMA,
        "challenge_bytes": lan_record.CHALLENGE_BYTES,
        "fingerprint_bytes": lan_record.FINGERPRINT_BYTES,
        "ttl_s": lan_record.TTL_S,
    }


def test_listings_are_as_the_registry_says() -> None:
    assert REGISTRY["listing"] == {
        "kind": listing.KIND,
        "service": listing.SERVICE,
        "deletion_kind": listing.DELETION_KIND,
        "life_s": listing.LIFE_S,
        "clock_skew_s": limits.CLOCK_SKEW_MS // 1000,
        "rejections": [reason.value for reason in listing.RejectionReason],
    }
    text = (PROTOCOLS / "listing.md").read_text()
    names = [*listing.RejectionReason, *(f.name for f in fields(listing.ListingContent))]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_states_and_reasons_are_those_of_the_code() -> None:
    assert REGISTRY["refusal_reasons"]["reasons"] == list(RefusalReason)
    rows = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \| `([a-z_]+)` \|", CONTROL_TEXT, re.MULTILINE)
    documented = {reason: code for cell, code in rows for reason in re.findall(r"[a-z_]+", cell)}
    assert {reason: documented.get(reason) for reason in RefusalReason} == dict(CODES)
    assert REGISTRY["stage_states"]["states"] == list(StageState)
    assert REGISTRY["finish_reasons"]["reasons"] == list(FinishReason)


def test_the_control_document_names_every_kind_field_and_state() -> None:
    for kind, cls in control.KINDS.items():
        assert f"`{kind}`" in CONTROL_TEXT
        missing = [f.name for f in fields(cls) if f"`{f.name}`" not in CONTROL_TEXT]
        assert missing == [], kind
    assert [state for state in StageState if f"`{state}`" not in CONTROL_TEXT] == []


def test_the_announcement_and_invite_documents_name_every_field() -> None:
    for document, classes in (
        (
            "announcement.md",
            (announcement.Announcement, announcement.ServedModel, announcement.HeldModel, announcement.Link),
        ),
        ("invite.md", (invite.Invite, requirements.MeshRequirements)),
        ("liveness.md", (liveness.LifeProof, liveness.DownReport, liveness.Leaving)),
        ("membership.md", (membership_pass.MembershipPass, membership_pass.WrittenPass, revocation.Revocation)),
    ):
        text = (PROTOCOLS / document).read_text()
        assert [f.name for cls in classes for f in fields(cls) if f"`{f.name}`" not in text] == []


def test_ways_of_writing_calls_are_those_of_the_code() -> None:
    names = {"is_at_start": "at_start"}
    of_code = {
        name: {names.get(f.name, f.name): getattr(form, f.name) for f in fields(form) if f.name != "name"}
        for name, form in FORMATS.items()
    }
    assert REGISTRY["call_formats"] == of_code


def test_the_stage_document_has_every_kind_at_its_number_and_every_field_of_begin() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", STAGE_TEXT, re.MULTILINE))
    assert rows == {str(int(kind)): kind.name for kind in stage.FrameKind}
    sample = next(case for case in vectors.load("stage_frames")["valid"] if "begin" in case)
    grammar = ["grammar", "grammar_triggers", "grammar_at_start"]
    names = [*sample["begin"]["parameters"], "prompt_tokens", "top_logprobs", "max_tokens", *grammar, "continues",
             "wants_embedding", "prefix"]  # fmt: skip
    ours = ["parameters", "prompt_tokens", "top_logprobs", "max_tokens", "grammar", "continues", "wants_embedding",
            "prefix"]  # fmt: skip
    assert begin.Begin.__dataclass_fields__.keys() == {*ours}
    assert [name for name in names if f"`{name}`" not in STAGE_TEXT] == []


def test_the_header_table_is_that_of_the_code() -> None:
    table = re.findall(r"^\| (\d+) \| (\d+) \| ([a-z ]+) \|", STAGE_TEXT, re.MULTILINE)
    offset = 0
    for start, size, _ in table:
        assert int(start) == offset
        offset += int(size)
    assert offset == stage.LENGTH_BYTES + stage.HEADER_BYTES
    assert f"{stage.HEADER_BYTES} to {stage.MAX_FRAME_BYTES}" in STAGE_TEXT
    frame = stage.StageFrame(
        stage.FrameKind.DECODE, b"q" * 16, b"u" * 16, 3, 5, (7, 8), 1, stage.WireDtype.F16,
        stage.FrameFlag.REPLAY, b"body", 9,
    )  # fmt: skip
    data = stage.encode_frame(frame)
    where = {name: data[int(start) : int(start) + int(size)] for start, size, name in table}
    read = {name: part if len(part) == 16 else int.from_bytes(part, "little") for name, part in where.items()}
    assert read == {
        "length": len(data) - 4, "version": 2, "kind": 5, "dtype": 2, "flags": 4, "request id": b"q" * 16,
        "run id": b"u" * 16, "sequence": 3, "position": 5, "count": 2, "hidden size": 1, "stages": 9,
        "reserved": 0,
    }  # fmt: skip


@pytest.mark.parametrize("path", sorted(PROTOCOLS.glob("*.md")), ids=lambda path: path.name)
def test_codes_named_in_a_document_exist(path: Path) -> None:
    text = path.read_text()
    looks_like_code = (
        r"`((?:frame|message|invite|signature|request|artifact)_[a-z_]+|[a-z]+_(?:unknown|invalid|exceeded))`"
    )
    records = (*control.KINDS.values(), *RECORDS.values())
    known = {*ErrorCode, *REGISTRY["messages"], *(f.name for cls in records for f in fields(cls))}
    known |= {*listing.RejectionReason, *layer_package.ViolationCode, *(f.name for f in fields(layer_package.Artifact))}
    assert set(re.findall(looks_like_code, text)) - known == set()


@pytest.mark.parametrize("path", sorted(PROTOCOLS.glob("*.md")), ids=lambda path: path.name)
def test_links_of_a_document_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert (PROTOCOLS / target).exists(), target
