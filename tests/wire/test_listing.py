"""Public listings: the vectors, what is written, and that nothing from a relay raises."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.base.errors import LocalProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.wire.listing import (
    KIND,
    LIFE_S,
    Listing,
    ListingEvent,
    ReadingRules,
    Rejection,
    RejectionReason,
    decode_event,
    decode_listing,
    deletion_tags,
    encode_content,
    event_id_of,
    fitted,
    is_public_address,
    listing_tags,
)
from tests.wire import vectors
from tests.wire.keys import FOUNDER, JOINER, verify
from tests.wire.listing_vectors import ADDRESS, CONTENT, NOW_S, PUBLISHER, invite_line, listing_to_json, named
from tests.wire.schnorr import NostrKey, verify_event

VECTORS = vectors.load("listings")
NOW = UnixMillis(VECTORS["now_unix_ms"])


def cases(group: str) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in VECTORS[group]])


def text_of(case: dict[str, Any]) -> str:
    parts = case.get("text_parts", ())
    return "".join(part * times for part, times in parts) or case["event"]


def read(text: str, *, takes_private: bool = False, now: UnixMillis = NOW) -> Listing | Rejection:
    event = decode_event(text, verify_event)
    return event if isinstance(event, Rejection) else decode_listing(event, ReadingRules(now, verify, takes_private))


def event_with(content: str, created_unix_s: int = NOW_S) -> ListingEvent:
    """An event as it is after its signature was checked."""
    tags = listing_tags(created_unix_s + LIFE_S)
    event_id = event_id_of(PUBLISHER.public, created_unix_s, KIND, tags, content)
    return ListingEvent(event_id, PUBLISHER.public, created_unix_s, KIND, tags, content)


@cases("valid")
def test_a_valid_listing_reads(case: dict[str, Any]) -> None:
    listing = read(text_of(case), takes_private=case.get("takes_private", False))
    assert isinstance(listing, Listing), listing
    assert listing_to_json(listing) == case["value"]


@cases("invalid")
def test_an_invalid_listing_is_left_out_for_its_reason(case: dict[str, Any]) -> None:
    rejection = read(text_of(case), takes_private=case.get("takes_private", False))
    assert isinstance(rejection, Rejection)
    assert rejection.reason == case["rejected"]
    assert "\n" not in rejection.detail
    assert 0 < len(rejection.detail.encode()) <= 200


def test_every_reason_has_a_vector_but_those_of_a_view_over_several() -> None:
    met = {case["rejected"] for case in VECTORS["invalid"]}
    assert set(RejectionReason) - met == {RejectionReason.SUPERSEDED, RejectionReason.TOO_MANY}
    assert len(VECTORS["invalid"]) > 3 * len(VECTORS["valid"])
    names = [case["name"] for group in ("valid", "invalid") for case in VECTORS[group]]
    assert len(set(names)) == len(names)


def test_signatures_of_the_tests_are_those_of_the_standard() -> None:
    # BIP-340, test vector 0: secret key 3, message of zeros, auxiliary randomness of zeros.
    public = "f9308a019258c31049344f85f89d5229b531c845836f99b08601f113bce036f9"
    signature = (
        "e907831f80848d1069a5371b402410364bdf1c5f8307b0084c55f1ce2dca8215"
        "25f66a4a85ea8b71e482a74f382d2ce5ebeee8fdb2172f477df4900d310536c0"
    )
    assert verify_event(public, "0" * 64, signature)
    assert not verify_event(public, "0" * 63 + "1", signature)
    key = NostrKey("any")
    assert verify_event(key.public, "ab" * 32, key.sign("ab" * 32))


def test_what_is_written_is_read_and_left_out_where_it_is_the_default() -> None:
    text = encode_content(CONTENT)
    listing = decode_listing(event_with(text), ReadingRules(NOW, verify))
    assert isinstance(listing, Listing)
    assert listing.content == CONTENT
    bare = named(None, wanted=(), on_disk=(), client_count=0, max_clients=0, region=None, addresses=())
    assert list(json.loads(encode_content(bare))) == [
        "invite_token", "serving", "total_vram_bytes", "node_count", "mesh_id", "protocol_generation",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"node_count": 0},
        {"serving": ("a\nb",)},
        {"addresses": (ADDRESS,)},
        {"mesh_id": "x"},
        {"invite_token": "i" * 8193},
    ],
)
def test_nothing_is_written_that_no_reader_takes(change: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_content(replace(CONTENT, **change))


def test_a_listing_of_too_many_long_names_is_not_written_but_fitted() -> None:
    long = replace(CONTENT, serving=tuple(f"{n:0256d}" for n in range(64)), on_disk=("d" * 256,) * 64)
    with pytest.raises(LocalProtocolError):
        encode_content(long)
    smaller = fitted(long, 4096)
    assert smaller is not None
    assert len(encode_content(smaller).encode()) <= 4096
    assert smaller.serving == long.serving[:8]
    assert (smaller.on_disk, smaller.wanted, smaller.invite_token) == ((), (), CONTENT.invite_token)


def test_fitting_leaves_what_fits_and_gives_up_where_the_invite_alone_is_too_long() -> None:
    assert fitted(CONTENT, 16_384) == CONTENT
    assert fitted(replace(CONTENT, on_disk=("d" * 256,) * 64), 4096) == replace(CONTENT, on_disk=())
    assert fitted(CONTENT, 100) is None


def test_a_deletion_names_the_coordinate_and_the_events() -> None:
    assert deletion_tags("ab" * 32, ("cd" * 32,)) == (
        ("a", f"31990:{'ab' * 32}:p2pmesh"),
        ("k", "31990"),
        ("e", "cd" * 32),
    )


def test_peers_to_dial_are_those_of_the_invite_and_then_of_the_listing() -> None:
    listing = decode_listing(event_with(encode_content(CONTENT)), ReadingRules(NOW, verify))
    assert isinstance(listing, Listing)
    founder = PeerId(FOUNDER.peer_id)
    assert listing.peers(founder) == (
        (founder, (ADDRESS,)),
        (JOINER.peer_id, (f"{ADDRESS}/p2p/{JOINER.peer_id}",)),
    )
    assert listing.mesh_id == CONTENT.mesh_id


def test_a_listing_is_over_30_s_after_its_expiration() -> None:
    listing = decode_listing(event_with(encode_content(CONTENT)), ReadingRules(NOW, verify))
    assert isinstance(listing, Listing)
    assert listing.expires_unix_s == NOW_S + 120
    assert not listing.is_over(UnixMillis(NOW + 150_000))
    assert listing.is_over(UnixMillis(NOW + 150_001))


def test_on_ones_own_network_names_are_left_out_all_the_same() -> None:
    line = invite_line(addresses=("/dns4/router.example/tcp/80", "/ip4/10.0.0.1/tcp/4001"))
    content = encode_content(replace(CONTENT, invite_token=line))
    listing = decode_listing(event_with(content), ReadingRules(NOW, verify, takes_private=True))
    assert isinstance(listing, Listing)
    assert listing.invite.addresses == ("/ip4/10.0.0.1/tcp/4001",)


@given(st.text(max_size=300))
def test_no_text_of_a_relay_raises(text: str) -> None:
    assert isinstance(read(text), Rejection)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from([*json.loads(encode_content(CONTENT)), "other"]), JSON, max_size=4))
def test_no_content_raises_and_none_is_taken_with_a_field_out_of_its_limits(changes: dict[str, Any]) -> None:
    text = json.dumps({**json.loads(encode_content(CONTENT)), **changes})
    taken = decode_listing(event_with(text), ReadingRules(NOW, verify))
    if isinstance(taken, Listing):
        assert decode_listing(event_with(encode_content(taken.content)), ReadingRules(NOW, verify)) == replace(
            taken, content=taken.content
        )


@given(st.ip_addresses(), st.integers(0, 70_000))
def test_no_private_address_is_public(address: Any, port: int) -> None:
    if is_public_address(f"/ip{address.version}/{address}/tcp/{port}"):
        assert 0 < port < 65_536
        assert address.is_global
        assert not address.is_multicast


@pytest.mark.parametrize("end", ["", "/p2p/x", f"/p2p/{JOINER.peer_id}/p2p-circuit", "/ws", "/", "\n"])
def test_an_address_with_an_unknown_end_is_not_dialled(end: str) -> None:
    assert is_public_address(ADDRESS + end) is (end == "")
