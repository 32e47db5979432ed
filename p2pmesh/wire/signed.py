"""Signed records: an envelope of payload, key and signature, each kind under a domain of its own.

Owns the bytes. Whether the key may say what it says is decided by the reader (``wire.invite``, ``wire.announcement``).
"""

from collections.abc import Callable
from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.wire.schema import Bytes, checked_map, declared, from_map, pack, unpack

Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes, bytes], bool]
"""``(public key, message, signature) -> bool``."""

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
MAX_PAYLOAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Envelope:
    """Ed25519 over ``domain || 0x00 || payload``."""

    payload: bytes = declared(Bytes(1, MAX_PAYLOAD_BYTES))
    key: bytes = declared(Bytes(PUBLIC_KEY_BYTES, PUBLIC_KEY_BYTES))
    signature: bytes = declared(Bytes(SIGNATURE_BYTES, SIGNATURE_BYTES))


def seal(domain: bytes, payload: bytes, public_key: bytes, sign: Sign) -> bytes:
    """The envelope's bytes."""
    return pack(checked_map(Envelope(payload, public_key, sign(_message(domain, payload)))))


def unseal(domain: bytes, data: bytes, verify: Verify, limit: int, what: str) -> Envelope:
    """The envelope of ``what``, its signature checked.

    Raises ``MESSAGE_TOO_LARGE`` beyond ``limit`` bytes, ``MESSAGE_MALFORMED`` or ``SIGNATURE_INVALID``.
    """
    if len(data) > limit:
        text = f"{what} of {len(data)} bytes; allowed are {limit}"
        raise RemoteProtocolError(ErrorCode.MESSAGE_TOO_LARGE, text)
    envelope = from_map(Envelope, unpack(data, "envelope"), "envelope")
    if not verify(envelope.key, _message(domain, envelope.payload), envelope.signature):
        raise RemoteProtocolError(ErrorCode.SIGNATURE_INVALID, "the signature does not fit the record")
    return envelope


def _message(domain: bytes, payload: bytes) -> bytes:
    return domain + b"\0" + payload
