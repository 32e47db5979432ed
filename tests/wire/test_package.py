"""Statements of layer packages."""

import pytest

from p2pmesh.adapters.identity import Ed25519Verifier
from p2pmesh.adapters.owner_keystore import OwnerKey
from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_PACKAGE_SIGNATURE_BYTES
from p2pmesh.wire.ownership import DOMAIN as OTHER_DOMAIN
from p2pmesh.wire.package import DOMAIN, decode_statement, encode_statement
from p2pmesh.wire.schema import pack
from p2pmesh.wire.signed import seal

KEY = OwnerKey.generate()
ID, MANIFEST = "sha256:" + "12" * 32, "34" * 32
verify = Ed25519Verifier().is_signature_of


def sealed(payload: object, domain: bytes = DOMAIN) -> bytes:
    return seal(domain, pack(payload), KEY.public_key, KEY.sign)


def test_a_statement_names_its_owner_and_its_package() -> None:
    signed = decode_statement(encode_statement(ID, MANIFEST, KEY.public_key, KEY.sign), verify)
    assert signed.owner_id == KEY.owner_id
    assert (signed.statement.package_id, signed.statement.manifest) == (ID, MANIFEST)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.MESSAGE_MALFORMED),
        (b"\x80", ErrorCode.MESSAGE_MALFORMED),
        (bytes(MAX_PACKAGE_SIGNATURE_BYTES + 1), ErrorCode.MESSAGE_TOO_LARGE),
        (sealed({"version": 2, "package_id": ID, "manifest": MANIFEST}), ErrorCode.MESSAGE_MALFORMED),
        (sealed({"version": 1, "package_id": ID[7:], "manifest": MANIFEST}), ErrorCode.MESSAGE_MALFORMED),
        (sealed({"version": 1, "package_id": ID, "manifest": MANIFEST[1:]}), ErrorCode.MESSAGE_MALFORMED),
        (sealed({"version": 1, "package_id": ID}), ErrorCode.MESSAGE_MALFORMED),
        (sealed({"version": 1, "package_id": ID, "manifest": MANIFEST}, OTHER_DOMAIN), ErrorCode.SIGNATURE_INVALID),
    ],
)
def test_other_bytes_are_refused(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_statement(data, verify)
    assert caught.value.code is code


def test_every_changed_bit_is_noticed() -> None:
    data = encode_statement(ID, MANIFEST, KEY.public_key, KEY.sign)
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(RemoteProtocolError):
            decode_statement(bytes(changed), verify)
