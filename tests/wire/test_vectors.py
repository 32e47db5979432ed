"""The normative vectors against the codecs, in both directions."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.wire import announcement, begin, control, invite, membership_pass, revocation, stage, token_report
from p2pmesh.wire.varint import decode_varint
from tests.wire import vectors
from tests.wire.keys import FOUNDER, JOINER, STRANGER, peer_id_of, verify

CONTROL = vectors.load("control")
FRAMES = vectors.load("stage_frames")
INVITES = vectors.load("invites")
PASSES = vectors.load("passes")
REVOCATIONS = vectors.load("revocations")
ANNOUNCEMENTS = vectors.load("announcements")
ACTIVATIONS = vectors.load("activations")
KEYS = {key.name: key for key in (FOUNDER, JOINER, STRANGER)}


def cases(document: dict[str, Any], group: str) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in document[group]])


def decode_announcement(data: bytes) -> announcement.Announcement:
    return announcement.decode_announcement(data, verify, peer_id_of)


def decode_stage(data: bytes, top_logprobs: int | None = None) -> stage.StageFrame:
    """A frame with whatever its body holds, as a stage reads it, or a driver that asked for log probabilities."""
    frame = vectors.read_frame(data)
    if frame.kind is stage.FrameKind.BEGIN:
        begin.decode_begin(frame.body)
    if top_logprobs is not None:
        token_report.decode_reports(frame.body, len(frame.tokens), top_logprobs)
    return frame


def use_frame(data: bytes) -> None:
    """All that a stage does with bytes before it looks at its own state."""
    frame = decode_stage(data)
    if frame.dtype is not stage.WireDtype.NONE:
        stage.decode_activation(frame)
    if frame.kind is stage.FrameKind.ERROR:
        stage.decode_error(frame)


def refusal_of(read: Callable[..., Any], data: bytes, *arguments: Any) -> str | None:
    """The code that bytes are refused with, "end" for too few, None if they are taken; anything else escapes."""
    try:
        read(data, *arguments)
    except EOFError:
        return "end"
    except RemoteProtocolError as error:
        return error.code.value
    return None


def code_of(error: pytest.ExceptionInfo[RemoteProtocolError]) -> str:
    assert "\n" not in str(error.value)
    return error.value.code.value


@pytest.mark.parametrize(
    "document",
    [CONTROL, FRAMES, INVITES, PASSES, REVOCATIONS, ANNOUNCEMENTS, ACTIVATIONS],
    ids=lambda d: d.get("protocol", "-"),
)
def test_more_invalid_than_valid_cases_with_unique_names(document: dict[str, Any]) -> None:
    assert len(document["invalid"]) > len(document["valid"])
    names = [case["name"] for group in ("valid", "invalid") for case in document[group]]
    assert len(set(names)) == len(names)


@cases(CONTROL, "valid")
def test_a_valid_message_reads_and_writes_the_same(case: dict[str, Any]) -> None:
    data = vectors.case_bytes(case)
    message = vectors.read_control(data)
    assert type(message) is control.KINDS[case["kind"]]
    assert vectors.to_json(message) == case["value"]
    assert control.encode_control(vectors.from_json(type(message), case["value"])) == data


@cases(CONTROL, "readable")
def test_a_readable_message_reads(case: dict[str, Any]) -> None:
    message = vectors.read_control(vectors.case_bytes(case))
    assert type(message) is control.KINDS[case["kind"]]
    assert vectors.to_json(message) == case["value"]


@cases(CONTROL, "invalid")
def test_an_invalid_message_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        vectors.read_control(vectors.case_bytes(case), admitted=case.get("admitted", True))
    assert code_of(error) == case["error"]


def test_every_kind_of_message_has_a_vector() -> None:
    assert {case["kind"] for case in CONTROL["valid"]} == set(control.KINDS)


@cases(FRAMES, "valid")
def test_a_valid_frame_reads_and_writes_the_same(case: dict[str, Any]) -> None:
    data = vectors.case_bytes(case)
    frame = vectors.read_frame(data)
    assert vectors.frame_to_json(frame) == case["value"]
    assert stage.encode_frame(vectors.frame_from_json(case["value"])) == data
    if "begin" in case:
        started = begin.decode_begin(frame.body)
        assert vectors.to_json(started) == case["begin"]
        assert begin.encode_begin(started) == bytes(frame.body)
    if "reports" in case:
        reports = token_report.decode_reports(frame.body, len(frame.tokens), 20)
        assert vectors.to_json(reports) == case["reports"]
        assert token_report.encode_reports(reports) == bytes(frame.body)
    if "failure" in case:
        code, text = stage.decode_error(frame)
        assert {"code": code.value, "text": text} == case["failure"]


@cases(FRAMES, "invalid")
def test_an_invalid_frame_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        decode_stage(vectors.case_bytes(case), case.get("top_logprobs"))
    assert code_of(error) == case["error"]


def test_every_kind_of_frame_has_a_vector() -> None:
    assert {case["value"]["kind"] for case in FRAMES["valid"]} == {kind.name for kind in stage.FrameKind}


@cases(INVITES, "valid")
def test_a_valid_invite_reads_and_writes_the_same(case: dict[str, Any]) -> None:
    decoded = invite.decode_invite(case["invite"], verify)
    invite.check_invite_time(decoded, UnixMillis(case["now_unix_ms"]))
    assert vectors.to_json(decoded) == case["value"]
    assert decoded.mesh_id == case["mesh_id"]
    record = vectors.from_json(invite.Invite, case["value"])
    signer = JOINER if record.issuer_key else FOUNDER
    assert invite.encode_invite(record, signer.public_key, signer.sign) == case["invite"]


@cases(INVITES, "invalid")
def test_an_invalid_invite_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        invite.check_invite_time(invite.decode_invite(case["invite"], verify), UnixMillis(case.get("now_unix_ms", 0)))
    assert code_of(error) == case["error"]


def decode_pass(data: bytes, holder: str) -> membership_pass.SignedPass:
    mesh_id = MeshId(PASSES["mesh_id"])
    return membership_pass.decode_pass(data, PeerId(holder), mesh_id, FOUNDER.public_key, verify, peer_id_of)


@cases(PASSES, "valid")
def test_a_valid_pass_reads_and_writes_the_same(case: dict[str, Any]) -> None:
    signed = decode_pass(vectors.case_bytes(case), KEYS[case["holder"]].peer_id)
    signer = KEYS[case["signer"]]
    assert vectors.to_json(signed.granted) == case["value"]
    assert (signed.signer, signed.signer_key) == (signer.peer_id, signer.public_key)
    key = b"" if signer == FOUNDER else signer.public_key
    assert membership_pass.encode_pass(signed.granted, key, signer.sign) == vectors.case_bytes(case)


@cases(PASSES, "invalid")
def test_an_invalid_pass_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        decode_pass(vectors.case_bytes(case), KEYS[PASSES["holder"]].peer_id)
    assert code_of(error) == case["error"]


def decode_revocation(data: bytes) -> revocation.Revocation:
    return revocation.decode_revocation(data, FOUNDER.public_key, FOUNDER.mesh_id, verify)


@cases(REVOCATIONS, "valid")
def test_a_valid_revocation_reads_and_writes_the_same(case: dict[str, Any]) -> None:
    record = decode_revocation(vectors.case_bytes(case))
    assert vectors.to_json(record) == case["value"]
    assert revocation.encode_revocation(record, FOUNDER.public_key, FOUNDER.sign) == vectors.case_bytes(case)


@cases(REVOCATIONS, "invalid")
def test_an_invalid_revocation_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        decode_revocation(vectors.case_bytes(case))
    assert code_of(error) == case["error"]


@cases(ANNOUNCEMENTS, "valid")
def test_a_valid_announcement_reads_and_writes_the_same(case: dict[str, Any]) -> None:
    data = vectors.case_bytes(case)
    decoded = decode_announcement(data)
    assert vectors.to_json(decoded) == case["value"]
    key = next(key for key in KEYS.values() if key.peer_id == decoded.peer_id)
    record = vectors.from_json(announcement.Announcement, case["value"])
    assert announcement.encode_announcement(record, key.public_key, key.sign) == data


@cases(ANNOUNCEMENTS, "readable")
def test_an_announcement_of_another_length_reads_the_same(case: dict[str, Any]) -> None:
    assert vectors.to_json(decode_announcement(vectors.case_bytes(case))) == case["value"]


@cases(ANNOUNCEMENTS, "invalid")
def test_an_invalid_announcement_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        decode_announcement(vectors.case_bytes(case))
    assert code_of(error) == case["error"]


@pytest.mark.parametrize("document", [CONTROL, INVITES, ANNOUNCEMENTS])
def test_keys_in_the_vectors_are_the_test_keys(document: dict[str, Any]) -> None:
    for name, key in document["keys"].items():
        mine = KEYS[name]
        assert key == {"seed": mine.seed.hex(), "public_key": mine.public_key.hex(), "peer_id": mine.peer_id}


@pytest.mark.parametrize("kind", ["hello", "welcome"])
def test_proofs_inside_hello_and_welcome_hold(kind: str) -> None:
    for case in (case for case in CONTROL["valid"] if case["kind"] == kind):
        message = vectors.read_control(vectors.case_bytes(case))
        speaker = decode_announcement(message.announcement)
        assert speaker.mesh_id == message.mesh_id
        shown = getattr(message, "invite", "")
        signers = [decode_pass(sealed, speaker.peer_id) for sealed in message.passes]
        if shown:
            assert invite.decode_invite(shown, verify).mesh_id == message.mesh_id
        elif signers:
            assert [signed.granted.peer_id for signed in signers] == [speaker.peer_id]
            assert signers[-1].signer == FOUNDER.peer_id
        else:
            assert speaker.peer_id == FOUNDER.peer_id


def activation_frame(case: dict[str, Any]) -> stage.StageFrame:
    return stage.StageFrame(
        stage.FrameKind.DECODE, bytes(16), bytes(16), tokens=(0,) * case["rows"], hidden_size=case["hidden_size"],
        dtype=stage.WireDtype[case["dtype"]], body=bytes.fromhex(case["body"]),
    )  # fmt: skip


@cases(ACTIVATIONS, "valid")
def test_a_valid_activation_writes_and_reads(case: dict[str, Any]) -> None:
    shape = (case["rows"], case["hidden_size"])
    rows = np.frombuffer(bytes.fromhex(case["input_f32"]), "<f4").reshape(shape)
    body, dtype, flags = stage.encode_activation(rows, stage.WireDtype[case["asked"]])
    assert (body.hex(), dtype.name, int(flags)) == (case["body"], case["dtype"], case["flags"])
    read = stage.decode_activation(activation_frame(case))
    assert read.shape == shape
    assert read.astype("<f4").tobytes().hex() == case["output_f32"]


@cases(ACTIVATIONS, "invalid")
def test_an_invalid_activation_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        stage.decode_activation(activation_frame(case))
    assert code_of(error) == case["error"]


@cases(CONTROL, "valid")
def test_a_message_cut_anywhere_is_an_end_or_malformed(case: dict[str, Any]) -> None:
    data = vectors.case_bytes(case)
    for end in range(len(data)):
        with pytest.raises(EOFError):
            vectors.read_control(data[:end])
    size = decode_varint(data, len(data))
    assert size is not None
    body = data[-size:]
    for end in range(len(body)):
        with pytest.raises(RemoteProtocolError) as error:
            control.decode_control(body[:end])
        assert code_of(error) == "message_malformed"


@cases(FRAMES, "valid")
def test_a_frame_cut_anywhere_is_an_end_or_refused(case: dict[str, Any]) -> None:
    data = vectors.case_bytes(case)
    for end in range(len(data)):
        with pytest.raises(EOFError):
            vectors.read_frame(data[:end])
        cut = struct.pack("<I", max(end - 4, 0)) + data[4:end]
        refused = refusal_of(decode_stage, cut, 20 if "reports" in case else None)
        # A shorter text of an ERROR is a text; everything else follows from the header.
        assert refused or (case["value"]["kind"] == "ERROR" and end >= 64)


@cases(INVITES, "valid")
def test_an_invite_cut_anywhere_is_malformed(case: dict[str, Any]) -> None:
    for end in range(len(case["invite"])):
        with pytest.raises(RemoteProtocolError) as error:
            invite.decode_invite(case["invite"][:end], verify)
        assert code_of(error) == "invite_malformed"


@cases(ANNOUNCEMENTS, "valid")
def test_an_announcement_cut_anywhere_is_malformed(case: dict[str, Any]) -> None:
    data = vectors.case_bytes(case)
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError) as error:
            decode_announcement(data[:end])
        assert code_of(error) == "message_malformed"


@cases(ANNOUNCEMENTS, "valid")
def test_no_flipped_bit_of_an_announcement_passes(case: dict[str, Any]) -> None:
    data = vectors.case_bytes(case)
    good = decode_announcement(data)
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1 << index % 8
        refused = refusal_of(decode_announcement, bytes(changed))
        if refused is None:  # the same value in another form of msgpack
            assert decode_announcement(bytes(changed)) == good
        else:
            assert refused in {"message_malformed", "signature_invalid"}


@cases(CONTROL, "valid")
def test_flipped_bits_of_a_message_raise_nothing_else(case: dict[str, Any]) -> None:
    data = vectors.case_bytes(case)
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1 << (index * 5) % 8
        refusal_of(vectors.read_control, bytes(changed))


@cases(FRAMES, "valid")
def test_flipped_bits_of_a_frame_raise_nothing_else(case: dict[str, Any]) -> None:
    data = vectors.case_bytes(case)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        refusal_of(use_frame, bytes(changed))
