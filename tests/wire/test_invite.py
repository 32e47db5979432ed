"""Invites beyond the vectors."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.limits import CLOCK_SKEW_MS, MAX_INVITE_BYTES
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.wire.invite import (
    DOMAIN,
    Invite,
    check_invite_time,
    decode_invite,
    encode_invite,
    without_peer,
)
from p2pmesh.wire.schema import pack, to_map
from p2pmesh.wire.signed import seal
from tests.wire.keys import FOUNDER, JOINER, STRANGER, armour, verify
from tests.wire.records import records_of

INVITE = Invite(bytes(16), FOUNDER.requirements, 0, 1_000_000)
LINE = encode_invite(INVITE, FOUNDER.public_key, FOUNDER.sign)
ADDRESS = "/ip4/192.168.178.110/tcp/41234"


@given(records_of(Invite))
def test_an_invite_comes_back_as_one_of_its_signers_mesh(invite: Invite) -> None:
    invite = replace(invite, issuer_key=b"", passes=())
    line = encode_invite(invite, FOUNDER.public_key, FOUNDER.sign)
    terms = replace(invite.requirements, founder_key=FOUNDER.public_key)
    assert decode_invite(line, verify) == replace(invite, requirements=terms)


def test_whoever_signs_names_the_mesh() -> None:
    forged = decode_invite(encode_invite(INVITE, STRANGER.public_key, STRANGER.sign), verify)
    assert (forged.mesh_id, INVITE.mesh_id) == (STRANGER.mesh_id, FOUNDER.mesh_id)


def test_a_founders_key_inside_the_payload_counts_for_nothing() -> None:
    plain = to_map(INVITE)
    assert plain["requirements"]["founder_key"] == FOUNDER.public_key
    line = armour(seal(DOMAIN, pack(plain), STRANGER.public_key, STRANGER.sign))
    assert decode_invite(line, verify).mesh_id == STRANGER.mesh_id


def test_an_address_without_a_peer_is_the_founders() -> None:
    other, relay = f"{ADDRESS}/p2p/{JOINER.peer_id}", f"/ip4/192.0.2.9/tcp/1/p2p/{STRANGER.peer_id}/p2p-circuit"
    invite = replace(INVITE, addresses=(ADDRESS, other), relay_addresses=(relay,))
    assert invite.peers(FOUNDER.peer_id) == ((FOUNDER.peer_id, (ADDRESS, relay)), (JOINER.peer_id, (other,)))
    assert without_peer(f"{ADDRESS}/p2p/{FOUNDER.peer_id}", FOUNDER.peer_id) == ADDRESS
    assert without_peer(other, FOUNDER.peer_id) == other


def test_an_invite_of_four_addresses_fits_a_qr_code_that_a_phone_reads() -> None:
    line = encode_invite(replace(INVITE, addresses=(ADDRESS,) * 4), FOUNDER.public_key, FOUNDER.sign)
    assert len(line) <= 520  # version 15 at the lowest level of correction: 77 modules wide


@given(st.text())
def test_random_text_is_malformed(text: str) -> None:
    for line in (text, "p2pmesh2-" + text):
        with pytest.raises(RemoteProtocolError) as error:
            decode_invite(line, verify)
        assert error.value.code is ErrorCode.INVITE_MALFORMED
        assert "\n" not in str(error.value)


@given(st.integers(0, len(LINE) - 1), st.sampled_from("ABCxyz019-_"))
def test_no_changed_character_passes(index: int, character: str) -> None:
    changed = LINE[:index] + character + LINE[index + 1 :]
    if changed == LINE:
        assert decode_invite(changed, verify) == INVITE
    else:
        with pytest.raises(RemoteProtocolError):
            decode_invite(changed, verify)


def test_white_space_around_an_invite_is_forgiven() -> None:
    assert decode_invite(f"  {LINE}\r\n", verify) == INVITE


def test_an_invite_of_too_many_addresses_is_not_written() -> None:
    long = replace(INVITE, addresses=("/" + "a" * 500,) * 32)
    with pytest.raises(LocalProtocolError, match=str(MAX_INVITE_BYTES)):
        encode_invite(long, FOUNDER.public_key, FOUNDER.sign)


def test_the_longest_invite_that_is_written_is_read() -> None:
    sizes = (n for n in range(500, 0, -1))
    for size in sizes:
        longest = replace(INVITE, addresses=("/" + "a" * size,) * 12)
        try:
            line = encode_invite(longest, FOUNDER.public_key, FOUNDER.sign)
        except LocalProtocolError:
            continue
        assert MAX_INVITE_BYTES - 32 < len(line) <= MAX_INVITE_BYTES
        assert decode_invite(line, verify) == longest
        return
    pytest.fail("no size fits")


@pytest.mark.parametrize("late_ms", [0, CLOCK_SKEW_MS])
def test_an_invite_holds_until_its_end_and_the_skew(late_ms: int) -> None:
    check_invite_time(INVITE, UnixMillis(INVITE.expires_unix_ms + late_ms))


def test_an_expired_invite_says_since_when() -> None:
    with pytest.raises(RemoteProtocolError, match="5 minutes ago") as error:
        check_invite_time(INVITE, UnixMillis(INVITE.expires_unix_ms + 5 * 60_000))
    assert error.value.code is ErrorCode.INVITE_EXPIRED


PUBLIC = replace(FOUNDER.requirements, is_public=True)
MEMBERS = Invite(
    bytes(16), PUBLIC, 0, 1000, (f"{ADDRESS}/p2p/{JOINER.peer_id}",), issuer_key=JOINER.public_key, passes=(b"pass",)
)


def test_a_members_invite_is_one_to_its_founders_mesh() -> None:
    line = encode_invite(MEMBERS, JOINER.public_key, JOINER.sign)
    assert decode_invite(line, verify) == MEMBERS
    assert decode_invite(line, verify).mesh_id != JOINER.mesh_id


@pytest.mark.parametrize(
    "changed",
    [
        replace(MEMBERS, issuer_key=STRANGER.public_key),
        replace(MEMBERS, passes=()),
        replace(MEMBERS, issuer_key=b""),
        replace(MEMBERS, max_uses=1),
        replace(MEMBERS, addresses=(ADDRESS,)),
        replace(MEMBERS, issuer_key=bytes(31)),
    ],
    ids=["of another", "without passes", "of nobody", "counted", "at the founder's address", "a short key"],
)
def test_what_is_half_a_members_invite_is_none(changed: Invite) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        decode_invite(encode_invite(changed, JOINER.public_key, JOINER.sign), verify)
    assert raised.value.code is ErrorCode.INVITE_MALFORMED
