"""Passes: what a member shows instead of an invite, signed by the founder or by a member that has one itself.

Owns the bytes of one pass and who signed it. What a chain of them proves is ``core.credentials``'.

A pass does not say what its reader knows: whose it is follows from its place in the chain, the overlay from the
connection. Both are signed, so it is worth nothing elsewhere. Chains are in every announcement, so their bytes count.
"""

from collections.abc import Callable
from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import MAX_PASS_BYTES
from p2pmesh.wire.schema import (
    Bytes,
    Integer,
    Row,
    checked_map,
    declared,
    malformed,
    pack,
    unpack,
)
from p2pmesh.wire.shapes import ID, MESH_ID, PEER_ID
from p2pmesh.wire.signed import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, Sign, Verify

DOMAIN = b"p2pmesh-pass-v2"
LIFE_MS = 30 * 24 * 3600 * 1000

_TIME = Integer(0, 2**53)


@dataclass(frozen=True, slots=True)
class MembershipPass:
    """The signer lets ``peer_id`` in until ``expires_unix_ms``; it first came by the invite ``invite_id``."""

    mesh_id: str = declared(MESH_ID)
    peer_id: str = declared(PEER_ID)
    invite_id: bytes = declared(ID)
    issued_unix_ms: int = declared(_TIME)
    expires_unix_ms: int = declared(_TIME)


@dataclass(frozen=True, slots=True)
class WrittenPass:
    """What of a pass is written; ``signer_key`` is empty for the founder's, which everybody knows."""

    invite_id: bytes = declared(ID)
    issued_unix_ms: int = declared(_TIME)
    expires_unix_ms: int = declared(_TIME)
    signer_key: bytes = declared(Bytes(0, PUBLIC_KEY_BYTES))
    signature: bytes = declared(Bytes(SIGNATURE_BYTES, SIGNATURE_BYTES))


@dataclass(frozen=True, slots=True)
class SignedPass:
    """A pass whose signature was right, and who made it."""

    granted: MembershipPass
    signer_key: bytes
    signer: PeerId


def encode_pass(granted: MembershipPass, signer_key: bytes, sign: Sign) -> bytes:
    """The written pass; ``signer_key`` empty at the founder."""
    checked_map(granted)
    written = WrittenPass(
        granted.invite_id, granted.issued_unix_ms, granted.expires_unix_ms, signer_key, sign(_message(granted))
    )
    return pack(list(checked_map(written).values()))


def decode_pass(
    data: bytes,
    holder: PeerId,
    mesh_id: MeshId,
    founder_key: bytes,
    verify: Verify,
    peer_id_of: Callable[[bytes], PeerId],
) -> SignedPass:
    """The pass of ``holder``: whoever shows the chain, or signed the pass before this one.

    Raises ``MESSAGE_TOO_LARGE``, ``MESSAGE_MALFORMED``, or ``SIGNATURE_INVALID``: also where it is another peer's or of
    another overlay.
    """
    if len(data) > MAX_PASS_BYTES:
        text = f"a pass of {len(data)} bytes; allowed are {MAX_PASS_BYTES}"
        raise RemoteProtocolError(ErrorCode.MESSAGE_TOO_LARGE, text)
    written: WrittenPass = Row(WrittenPass).decode(unpack(data, "pass"), "pass")
    if len(written.signer_key) not in (0, PUBLIC_KEY_BYTES):
        raise malformed("pass.signer_key", f"{len(written.signer_key)} bytes; allowed 0 or {PUBLIC_KEY_BYTES}")
    granted = MembershipPass(mesh_id, holder, written.invite_id, written.issued_unix_ms, written.expires_unix_ms)
    key = written.signer_key or founder_key
    if not verify(key, _message(granted), written.signature):
        raise RemoteProtocolError(ErrorCode.SIGNATURE_INVALID, "the pass was not granted to this peer")
    return SignedPass(granted, key, peer_id_of(key))


def _message(granted: MembershipPass) -> bytes:
    return DOMAIN + b"\0" + pack(Row(MembershipPass).encode(granted))
