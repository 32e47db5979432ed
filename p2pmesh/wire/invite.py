"""Invites: a signed, expiring credential to join, as one line of text.

Text form: ``p2pmesh1-`` and the envelope in base64url without padding. The mesh id is the hash of the signing key, so
an invite proves by itself that the founder made it.
"""

import base64
import binascii
import re
from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.ids import MeshId, is_mesh_id, mesh_id_of_founder
from p2pmesh.base.limits import MAX_ADDRESS_BYTES, MAX_ADDRESSES, MAX_INVITE_BYTES
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.wire.schema import Bytes, Integer, ListOf, Text, checked_map, declared, from_map, is_line, pack, unpack
from p2pmesh.wire.signed import Sign, Verify, seal, unseal

PREFIX = "p2pmesh1-"
DOMAIN = b"p2pmesh-invite-v1"
LIFE_MS = 24 * 3600 * 1000
CLOCK_SKEW_MS = 30_000

_BODY = re.compile(r"[A-Za-z0-9_-]+\Z")
_TIME = Integer(0, 2**53)


@dataclass(frozen=True, slots=True)
class Invite:
    """What an invite says: which overlay, where to dial, and until when."""

    mesh_id: str = declared(Text(32, is_mesh_id))
    addresses: tuple[str, ...] = declared(ListOf(Text(MAX_ADDRESS_BYTES, is_line), MAX_ADDRESSES))
    issued_unix_ms: int = declared(_TIME)
    expires_unix_ms: int = declared(_TIME)
    nonce: bytes = declared(Bytes(16, 16))


def encode_invite(invite: Invite, public_key: bytes, sign: Sign) -> str:
    """The line that a person copies. ``LocalProtocolError`` where no reader would take it: give fewer addresses."""
    line = PREFIX + _armour(seal(DOMAIN, pack(checked_map(invite)), public_key, sign))
    if len(line) > MAX_INVITE_BYTES:
        raise LocalProtocolError(
            ErrorCode.MESSAGE_TOO_LARGE, f"an invite of {len(line)} bytes; allowed are {MAX_INVITE_BYTES}"
        )
    return line


def decode_invite(text: str, verify: Verify) -> Invite:
    """The invite of a line, checked but for its time.

    Raises ``INVITE_MALFORMED`` with what to do; an invite whose signer is not the founder of its mesh is malformed too.
    """
    body = text.strip()
    if not body.startswith(PREFIX):
        raise _malformed(f"it does not start with {PREFIX}")
    too_long = len(body) > MAX_INVITE_BYTES
    body = body[len(PREFIX) :]
    if too_long or not _BODY.match(body):
        raise _malformed("it is cut, too long, or holds characters that no invite has")
    try:
        sealed = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        envelope = unseal(DOMAIN, sealed, verify)
        invite = from_map(Invite, unpack(envelope.payload, "invite"), "invite")
    except (binascii.Error, RemoteProtocolError):
        raise _malformed("a part of it is missing or changed") from None
    if _armour(sealed) != body:
        raise _malformed("its last character is wrong")
    if mesh_id_of_founder(envelope.key) != invite.mesh_id:
        raise _malformed("it is not signed by the founder of its mesh")
    return invite


def check_invite_time(invite: Invite, now: UnixMillis) -> None:
    """Raises ``INVITE_EXPIRED``; 30 s of clock skew are forgiven."""
    if now > invite.expires_unix_ms + CLOCK_SKEW_MS:
        minutes = (now - invite.expires_unix_ms) // 60_000
        raise RemoteProtocolError(
            ErrorCode.INVITE_EXPIRED, f"the invite expired {minutes} minutes ago; ask for a new one"
        )


def mesh_of(invite: Invite) -> MeshId:
    """The mesh id with its type."""
    return MeshId(invite.mesh_id)


def _armour(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


def _malformed(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.INVITE_MALFORMED, f"the invite cannot be read: {reason}; copy it again, whole")
