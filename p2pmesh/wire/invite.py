"""Invites: a signed, expiring credential to join, as one line of text.

Text form: ``p2pmesh2-`` and the envelope in base64url without padding. The mesh id is the hash of the requirements, and
those name the founder's key, so an invite proves by itself that the founder made it. It is kept short, because it is
shown as a QR code: what the envelope or the key says already is left out, and so is what has its default.

A member of a public pool signs invites of its own, which live for minutes and carry its passes: what those prove, and
whether the mesh allows it, is ``core.credentials``'.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId, is_peer_id
from p2pmesh.base.limits import (
    CLOCK_SKEW_MS,
    MAX_ADDRESS_BYTES,
    MAX_ADDRESSES,
    MAX_INVITE_BYTES,
    MAX_INVITE_USES,
    MAX_PASS_BYTES,
    MAX_PASSES,
)
from p2pmesh.base.quantities import UnixMillis, format_age
from p2pmesh.wire.requirements import MeshRequirements, mesh_id_of
from p2pmesh.wire.schema import (
    Bytes,
    Integer,
    ListOf,
    Record,
    Text,
    checked_map,
    declared,
    from_map,
    is_line,
    malformed,
    pack,
    unpack,
    without_defaults,
)
from p2pmesh.wire.shapes import ID
from p2pmesh.wire.signed import PUBLIC_KEY_BYTES, Sign, Verify, seal, unseal

PREFIX = "p2pmesh2-"
DOMAIN = b"p2pmesh-invite-v2"
LIFE_MS = 24 * 3600 * 1000
LISTED_LIFE_MS = 10 * 60 * 1000
"""Of an invite in a public listing, which is made anew with each: it outlives the listing by the time to join."""

_BODY = re.compile(r"[A-Za-z0-9_-]+\Z")
_TIME = Integer(0, 2**53)
_ADDRESSES = ListOf(Text(MAX_ADDRESS_BYTES, is_line), MAX_ADDRESSES)
_PEER_PART = "/p2p/"


@dataclass(frozen=True, slots=True)
class Invite:
    """What an invite says: which overlay on which terms, where to dial, until when and how often.

    An address that names no peer is the founder's. ``max_uses`` 0 is no limit; one with a limit is redeemed at the
    founder alone, which counts. ``issuer_key`` is that of the member who made it, with its ``passes``, and empty for
    the founder.
    """

    invite_id: bytes = declared(ID)
    requirements: MeshRequirements = declared(Record(MeshRequirements))
    issued_unix_ms: int = declared(_TIME)
    expires_unix_ms: int = declared(_TIME)
    addresses: tuple[str, ...] = declared(_ADDRESSES, ())
    relay_addresses: tuple[str, ...] = declared(_ADDRESSES, ())
    max_uses: int = declared(Integer(0, MAX_INVITE_USES), 0)
    issuer_key: bytes = declared(Bytes(0, PUBLIC_KEY_BYTES), b"")
    passes: tuple[bytes, ...] = declared(ListOf(Bytes(1, MAX_PASS_BYTES), MAX_PASSES), ())

    @property
    def mesh_id(self) -> MeshId:
        """The overlay."""
        return mesh_id_of(self.requirements)

    def peers(self, founder: PeerId) -> tuple[tuple[PeerId, tuple[str, ...]], ...]:
        """Who can be dialled, in order, each with its addresses, relayed ones last."""
        found: dict[PeerId, list[str]] = {}
        for address in (*self.addresses, *self.relay_addresses):
            peer = address.rpartition(_PEER_PART)[2] if names_peer(address) else founder
            found.setdefault(PeerId(peer), []).append(address)
        return tuple((peer, tuple(addresses)) for peer, addresses in found.items())


def names_peer(address: str) -> bool:
    """Whether a multiaddr ends with the peer that it leads to."""
    head, part, peer = address.rpartition(_PEER_PART)
    return bool(head and part) and is_peer_id(peer)


def without_peer(address: str, peer: PeerId) -> str:
    """The form in which an invite of founder ``peer`` holds its own address."""
    return address.removesuffix(f"{_PEER_PART}{peer}")


def encode_invite(invite: Invite, public_key: bytes, sign: Sign) -> str:
    """The line that a person copies. ``LocalProtocolError`` where no reader would take it: give fewer addresses."""
    line = PREFIX + _armour(seal(DOMAIN, pack(_short_map(invite)), public_key, sign))
    if len(line) > MAX_INVITE_BYTES:
        raise LocalProtocolError(
            ErrorCode.MESSAGE_TOO_LARGE, f"an invite of {len(line)} bytes; allowed are {MAX_INVITE_BYTES}"
        )
    return line


def decode_invite(text: str, verify: Verify) -> Invite:
    """The invite of a line, checked but for its time.

    Raises ``INVITE_MALFORMED`` with what to do. The founder's key is the one that the envelope is signed with, so that
    the requirements, and with them the mesh id, are those of the signer; a member's invite names it, and the member.
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
        envelope = unseal(DOMAIN, sealed, verify, MAX_INVITE_BYTES, "an invite")
        invite = from_map(Invite, _whole_map(unpack(envelope.payload, "invite"), envelope.key), "invite")
        _check_issuer(invite, envelope.key)
    except (binascii.Error, RemoteProtocolError):
        raise _malformed("a part of it is missing or changed") from None
    if _armour(sealed) != body:
        raise _malformed("its last character is wrong")
    return invite


def check_invite_time(invite: Invite, now: UnixMillis) -> None:
    """Raises ``INVITE_EXPIRED``; 30 s of clock skew are forgiven."""
    if is_expired(invite, now):
        age = format_age(now - invite.expires_unix_ms)
        raise RemoteProtocolError(ErrorCode.INVITE_EXPIRED, f"the invite expired {age} ago; ask for a new one")


def is_expired(invite: Invite, now: UnixMillis) -> bool:
    """Whether an invite is over, 30 s of clock skew forgiven."""
    return now > invite.expires_unix_ms + CLOCK_SKEW_MS


def _short_map(invite: Invite) -> dict[str, Any]:
    plain = without_defaults(invite, checked_map(invite))
    terms = without_defaults(invite.requirements, plain["requirements"])
    if not invite.issuer_key:
        del terms["founder_key"]
    return {**plain, "requirements": terms}


def _whole_map(plain: Any, founder_key: bytes) -> Any:
    """With the founder's key where a reader looks for it; whatever is not a map is refused by ``from_map``."""
    if not isinstance(plain, dict) or not isinstance(plain.get("requirements"), dict) or plain.get("issuer_key"):
        return plain
    return {**plain, "requirements": {**plain["requirements"], "founder_key": founder_key}}


def _check_issuer(invite: Invite, signer_key: bytes) -> None:
    """A member's invite is signed by it, shows its passes, and is for its own addresses; a founder's shows none."""
    if not invite.issuer_key and not invite.passes:
        return
    is_members = invite.issuer_key == signer_key and bool(invite.passes) and not invite.max_uses
    if not is_members or not all(names_peer(text) for text in invite.addresses):
        raise malformed("invite.issuer_key", "no invite of a member")


def _armour(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


def _malformed(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.INVITE_MALFORMED, f"the invite cannot be read: {reason}; copy it again, whole")
