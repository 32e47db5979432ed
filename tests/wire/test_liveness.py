"""Proofs of life and notes: vectors, round trips, and bytes that are none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.wire import announcement, liveness
from tests.wire import vectors
from tests.wire.keys import FOUNDER, JOINER, peer_id_of, verify
from tests.wire.liveness_vectors import LEAVING, NONCE, PROOF, REPORT
from tests.wire.records import records_of

PROOFS = vectors.load("life_proofs")
NOTES = vectors.load("liveness_notes")


def read_proof(data: bytes) -> liveness.LifeProof:
    nonce = bytes.fromhex(PROOFS["nonce"])
    return liveness.decode_proof(data, PeerId(PROOFS["peer_id"]), nonce, verify, peer_id_of)


def read_note(data: bytes) -> liveness.Note:
    return liveness.decode_note(data, MeshId(NOTES["mesh_id"]), verify, peer_id_of)


def name_of(case: dict[str, Any]) -> str:
    return str(case["name"])


@pytest.mark.parametrize("case", PROOFS["valid"], ids=name_of)
def test_a_valid_proof_reads_and_writes_as_its_vector(case: dict[str, Any]) -> None:
    proof = vectors.from_json(liveness.LifeProof, case["value"])
    assert read_proof(vectors.case_bytes(case)) == proof
    assert liveness.encode_proof(proof, JOINER.public_key, JOINER.sign).hex() == case["bytes"]


@pytest.mark.parametrize("case", NOTES["valid"], ids=name_of)
def test_a_valid_note_reads_and_writes_as_its_vector(case: dict[str, Any]) -> None:
    note = vectors.from_json(liveness.NOTES[case["kind"]], case["value"])
    key = FOUNDER if note.speaker == FOUNDER.peer_id else JOINER
    assert read_note(vectors.case_bytes(case)) == note
    assert liveness.encode_note(note, key.public_key, key.sign).hex() == case["bytes"]


@pytest.mark.parametrize("case", PROOFS["invalid"], ids=name_of)
def test_what_is_no_proof_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        read_proof(vectors.case_bytes(case))
    assert raised.value.code == case["error"]


@pytest.mark.parametrize("case", NOTES["invalid"], ids=name_of)
def test_what_is_no_note_is_refused_with_its_code(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        read_note(vectors.case_bytes(case))
    assert raised.value.code == case["error"]


def test_there_are_more_invalid_cases_than_valid_ones() -> None:
    for document in (PROOFS, NOTES):
        assert len(document["invalid"]) > len(document["valid"])


def test_the_vectors_are_about_the_records_that_their_script_names() -> None:
    assert read_proof(vectors.case_bytes(PROOFS["valid"][0])) == PROOF
    assert [read_note(vectors.case_bytes(case)) for case in NOTES["valid"]] == [REPORT, LEAVING]


def test_each_topic_of_announcements_has_one_of_notes_beside_it() -> None:
    mesh, digest = FOUNDER.mesh_id, "d" * 64
    for bits in ("", "0", "0110"):
        assert liveness.topic_beside(announcement.topic_of(mesh, bits)) == liveness.topic_of(mesh, bits)
    beside = liveness.topic_beside(announcement.model_topic_of(mesh, digest))
    assert beside == liveness.model_topic_of(mesh, digest)


def always(key: bytes, message: bytes, signature: bytes) -> bool:
    return True


@given(records_of(liveness.LifeProof))
def test_every_proof_comes_back(proof: liveness.LifeProof) -> None:
    data = liveness.encode_proof(proof, bytes(32), lambda _: bytes(64))
    peer = PeerId(proof.peer_id)
    assert liveness.decode_proof(data, peer, proof.nonce, always, lambda _: peer) == proof


@given(st.one_of(records_of(liveness.DownReport), records_of(liveness.Leaving)))
def test_every_note_comes_back(note: liveness.Note) -> None:
    data = liveness.encode_note(note, bytes(32), lambda _: bytes(64))
    assert liveness.decode_note(data, MeshId(note.mesh_id), always, lambda _: note.speaker) == note


@given(st.binary(max_size=2000), st.booleans())
def test_any_bytes_are_refused_as_a_peer_would_be(data: bytes, is_signed: bool) -> None:
    def check(*_: bytes) -> bool:
        return is_signed

    with pytest.raises(RemoteProtocolError):
        liveness.decode_note(data, FOUNDER.mesh_id, check, peer_id_of)
    with pytest.raises(RemoteProtocolError):
        liveness.decode_proof(data, JOINER.peer_id, NONCE, check, peer_id_of)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_never_changes_what_is_read(index: int, byte: int) -> None:
    data = bytearray(vectors.case_bytes(NOTES["valid"][0]))
    data[index % len(data)] = byte
    try:
        assert read_note(bytes(data)) == REPORT
    except RemoteProtocolError:
        assert bytes(data) != vectors.case_bytes(NOTES["valid"][0])
