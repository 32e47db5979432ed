"""Records of the local network: the vectors, what is written, and that nothing from a link raises anything else."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import MeshId
from p2pmesh.base.limits import MAX_INVITE_BYTES, MAX_LAN_FIELDS, MAX_LAN_VALUE_BYTES
from p2pmesh.wire.lan_record import decode_txt, encode_txt, fingerprint_of
from tests.wire import vectors
from tests.wire.keys import FOUNDER, JOINER, STRANGER
from tests.wire.lan_vectors import CHALLENGE, CLOSED, OPEN, record_to_json

ALLOWED = (ErrorCode.MESSAGE_MALFORMED, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.GENERATION_UNSUPPORTED)
VECTORS = vectors.load("lan_records")


def cases(group: str) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in VECTORS[group]])


@cases("valid")
def test_a_valid_record_reads_and_is_written_the_same(case: dict[str, Any]) -> None:
    record = decode_txt(case["fields"])
    assert record_to_json(record) == case["value"]
    assert dict(encode_txt(record)) == case["fields"]
    assert record.is_of(MeshId(case["mesh_id"]))


@cases("invalid")
def test_an_invalid_record_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        decode_txt(case["fields"])
    assert raised.value.code == case["error"]
    assert "\n" not in raised.value.message


def test_there_are_more_invalid_cases_than_valid_ones() -> None:
    assert len(VECTORS["invalid"]) > 3 * len(VECTORS["valid"])


def test_a_closed_mesh_is_named_to_its_members_alone() -> None:
    fields = dict(encode_txt(CLOSED))
    assert not {"join", "mesh_id", "name", "serving", "nodes"} & set(fields)
    assert FOUNDER.mesh_id not in "".join(fields.values())
    assert CLOSED.is_of(FOUNDER.mesh_id)
    assert not CLOSED.is_of(STRANGER.mesh_id)


def test_a_fingerprint_cannot_be_shown_by_another_peer_and_differs_from_start_to_start() -> None:
    stolen = replace(CLOSED, peer=STRANGER.peer_id)
    assert not stolen.is_of(FOUNDER.mesh_id)
    assert fingerprint_of(FOUNDER.mesh_id, JOINER.peer_id, CHALLENGE[::-1]) != CLOSED.fingerprint


def test_what_does_not_fit_is_cut_by_whole_items_and_bars_are_left_out() -> None:
    assert OPEN.listing is not None
    models = ("with|bar", *(f"model-{n:03d}" for n in range(64)))
    fields = dict(encode_txt(replace(OPEN, listing=replace(OPEN.listing, serving=models[:64]))))
    names = fields["serving"].split("|")
    assert names == [f"model-{n:03d}" for n in range(len(names))]
    assert len(names) == 22
    assert len(fields["serving"]) <= MAX_LAN_VALUE_BYTES


def test_addresses_of_the_readers_own_machine_are_left_out() -> None:
    lan, own = (
        "/ip4/10.0.0.1/tcp/1",
        ("/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1", "/ip6/::ffff:127.0.0.1/tcp/1", "/ip4/0.0.0.0/tcp/1"),
    )
    fields = dict(encode_txt(replace(CLOSED, addresses=(*own, lan))))
    assert decode_txt(fields).addresses == (lan,)
    assert decode_txt(fields, takes_loopback=True).addresses == (*own, lan)


def test_the_longest_invite_is_carried_whole() -> None:
    assert OPEN.listing is not None
    token = "p" * MAX_INVITE_BYTES
    fields = dict(encode_txt(replace(OPEN, listing=replace(OPEN.listing, invite_token=token))))
    assert len(fields) <= MAX_LAN_FIELDS
    read = decode_txt(fields)
    assert read.listing is not None
    assert read.listing.invite_token == token


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from([*dict(encode_txt(OPEN)), "x"]), st.text(max_size=40)))
def test_any_change_reads_or_is_refused_by_a_code(changes: dict[str, str]) -> None:
    code = None
    try:
        decode_txt({**dict(encode_txt(OPEN)), **changes})
    except RemoteProtocolError as error:
        code = error.code
    assert code in (None, *ALLOWED)
