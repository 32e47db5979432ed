"""Invites beyond the vectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.limits import MAX_INVITE_BYTES
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.wire.invite import (
    CLOCK_SKEW_MS,
    Invite,
    check_invite_time,
    decode_invite,
    encode_invite,
    mesh_of,
)
from tests.wire.keys import FOUNDER, verify
from tests.wire.records import records_of

INVITE = Invite(FOUNDER.mesh_id, (), 0, 1_000_000, bytes(16))
LINE = encode_invite(INVITE, FOUNDER.public_key, FOUNDER.sign)


@given(records_of(Invite))
def test_an_invite_comes_back_if_its_founder_made_it(invite: Invite) -> None:
    line = encode_invite(invite, FOUNDER.public_key, FOUNDER.sign)
    if invite.mesh_id == FOUNDER.mesh_id:
        assert decode_invite(line, verify) == invite
    else:
        with pytest.raises(RemoteProtocolError, match="not signed by the founder"):
            decode_invite(line, verify)


@given(st.text())
def test_random_text_is_malformed(text: str) -> None:
    for line in (text, "p2pmesh1-" + text):
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
    long = Invite(FOUNDER.mesh_id, ("/" + "a" * 500,) * 32, 0, 1, bytes(16))
    with pytest.raises(LocalProtocolError, match=str(MAX_INVITE_BYTES)):
        encode_invite(long, FOUNDER.public_key, FOUNDER.sign)


def test_the_longest_invite_that_is_written_is_read() -> None:
    sizes = (n for n in range(500, 0, -1))
    for size in sizes:
        longest = Invite(FOUNDER.mesh_id, ("/" + "a" * size,) * 12, 0, 1, bytes(16))
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


def test_the_mesh_of_an_invite() -> None:
    assert mesh_of(INVITE) == FOUNDER.mesh_id
