"""An owner's signature on a layer package. Owns the bytes; the manifest that it speaks of is ``model.package``'s.

The statement names the package's id and the digest of the whole manifest but the signature, so that neither contents
nor names, places and times can be changed under it. It has no end: contents do not age.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import OwnerId, is_digest, owner_id_of_key
from p2pmesh.base.limits import MAX_PACKAGE_SIGNATURE_BYTES
from p2pmesh.wire.schema import Integer, Text, checked_map, declared, from_map, malformed, pack, unpack
from p2pmesh.wire.shapes import DIGEST
from p2pmesh.wire.signed import Sign, Verify, seal, unseal

DOMAIN = b"p2pmesh-layer-package-v1"
VERSION = 1
_ID_PREFIX = "sha256:"


def _is_package_id(text: str) -> bool:
    return text.startswith(_ID_PREFIX) and is_digest(text.removeprefix(_ID_PREFIX))


@dataclass(frozen=True, slots=True)
class PackageStatement:
    """The signer vouches for the package ``package_id`` with the manifest of the digest ``manifest``."""

    version: int = declared(Integer(1, 2**31))
    package_id: str = declared(Text(71, _is_package_id))
    manifest: str = declared(DIGEST)


@dataclass(frozen=True, slots=True)
class SignedPackage:
    """A statement whose signature was right, and the owner that the key stands for."""

    owner_id: OwnerId
    statement: PackageStatement


def encode_statement(package_id: str, manifest: str, public_key: bytes, sign: Sign) -> bytes:
    """The statement, sealed with the owner's key."""
    return seal(DOMAIN, pack(checked_map(PackageStatement(VERSION, package_id, manifest))), public_key, sign)


def decode_statement(data: bytes, verify: Verify) -> SignedPackage:
    """A statement whose signature is right; what it speaks of is for the caller to compare.

    Raises ``RemoteProtocolError`` with ``MESSAGE_TOO_LARGE``, ``MESSAGE_MALFORMED`` or ``SIGNATURE_INVALID``.
    """
    envelope = unseal(DOMAIN, data, verify, MAX_PACKAGE_SIGNATURE_BYTES, "a signature")
    statement = from_map(PackageStatement, unpack(envelope.payload, "package"), "package")
    if statement.version != VERSION:
        raise malformed("package", f"version {statement.version} is unknown to this software")
    return SignedPackage(owner_id_of_key(envelope.key), statement)
