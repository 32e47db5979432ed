"""Fixed test keys: Ed25519 from a seed, and libp2p peer ids, without the network library."""

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.wire.requirements import MeshRequirements, mesh_id_of
from p2pmesh.wire.schema import pack
from p2pmesh.wire.signed import seal

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# multihash "identity" of 36 bytes: the protobuf {key type Ed25519, 32 bytes of key}
_PEER_ID_HEAD = bytes.fromhex("002408011220")


@dataclass(frozen=True, slots=True)
class TestKey:
    """A key pair that anyone can derive: the private key is sha256 of its name."""

    __test__ = False
    name: str

    @property
    def seed(self) -> bytes:
        return hashlib.sha256(f"p2pmesh test key: {self.name}".encode()).digest()

    @property
    def public_key(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    @property
    def peer_id(self) -> PeerId:
        return peer_id_of(self.public_key)

    @property
    def requirements(self) -> MeshRequirements:
        """Of a mesh that it founded without further terms."""
        return MeshRequirements(self.public_key)

    @property
    def mesh_id(self) -> MeshId:
        return mesh_id_of(self.requirements)

    @property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


FOUNDER = TestKey("founder")
JOINER = TestKey("joiner")
STRANGER = TestKey("stranger")
OWNER = TestKey("owner")


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the signature is right; false for a malformed key."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def peer_id_of(public_key: bytes) -> PeerId:
    """base58btc of the identity multihash."""
    number = int.from_bytes(_PEER_ID_HEAD + public_key, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
    return PeerId("1" + digits)  # the first byte is 0, which base58 writes as one "1"


def armour(sealed: bytes) -> str:
    """The line of an invite's envelope."""
    return "p2pmesh2-" + base64.urlsafe_b64encode(sealed).decode().rstrip("=")


def sealing(domain: bytes, key: TestKey) -> Callable[..., bytes]:
    """Makes envelopes of a kind of record over any value, also one that our writer refuses.

    What it returns takes the value, and another key and domain for a record that is signed wrongly.
    """

    def sealed(value: object, key: TestKey = key, domain: bytes = domain) -> bytes:
        return seal(domain, pack(value), key.public_key, key.sign)

    return sealed
