"""The node's Ed25519 key: kept in one file, and the signatures made and checked with it.

Owns the key file's format (PKCS 8 in PEM, mode 0600), its atomic creation and the peer id of a key. libp2p's own key
objects stay in ``adapters.p2p``.
"""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from p2pmesh.adapters.private_files import read_private, sync_directory, unwritable, write_private
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import PeerId

KEY_FILE_NAME = "node.key"
PUBLIC_KEY_BYTES = 32
MAX_KEY_FILE_BYTES = 4096

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# Identity multihash (code 0, 36 bytes) of the protobuf {type: Ed25519, data: 32 bytes}: libp2p's peer id of small keys.
_PEER_ID_PREFIX = bytes((0x00, 0x24, 0x08, 0x01, 0x12, 0x20))


class NodeIdentity:
    """Implements ``ports.identity.Identity`` with a private key in memory."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self._public_key = private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._peer_id = peer_id_of_public_key(self._public_key)

    @property
    def peer_id(self) -> PeerId:
        """Our peer id."""
        return self._peer_id

    @property
    def public_key(self) -> bytes:
        """32 bytes."""
        return self._public_key

    @property
    def private_seed(self) -> bytes:
        """The 32 secret bytes; only for handing the key to libp2p."""
        return self._private_key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        return self._private_key.sign(message)


class Ed25519Verifier:
    """Implements ``ports.identity.Verifier``."""

    def is_signature_of(self, public_key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether ``signature`` is that of ``message``; false for a malformed key too."""
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    def peer_id_of(self, public_key: bytes) -> PeerId:
        """The libp2p peer id of an Ed25519 public key of 32 bytes; ``ValueError`` for another length."""
        return peer_id_of_public_key(public_key)


def peer_id_of_public_key(public_key: bytes) -> PeerId:
    """Base58 peer id of an Ed25519 public key of 32 bytes; ``ValueError`` for another length."""
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise ValueError(f"an Ed25519 public key has {PUBLIC_KEY_BYTES} bytes, not {len(public_key)}")
    return PeerId(_encode_base58(_PEER_ID_PREFIX + public_key))


def new_identity() -> NodeIdentity:
    """A fresh key that is kept nowhere."""
    return NodeIdentity(Ed25519PrivateKey.generate())


def identity_of_seed(seed: bytes) -> NodeIdentity:
    """The key of 32 secret bytes."""
    return NodeIdentity(Ed25519PrivateKey.from_private_bytes(seed))


def load_or_create_identity(home: Path) -> NodeIdentity:
    """The key in ``home/node.key``, created there first if there is none.

    ``ConfigError`` with ``HOME_UNUSABLE`` or ``DISK_FULL``.
    """
    path = home / KEY_FILE_NAME
    try:
        if not path.exists():
            _create_key_file(path)
        return NodeIdentity(_read_key_file(path))
    except OSError as error:
        raise unwritable(path, error) from error


def replace_identity(home: Path) -> NodeIdentity:
    """A new key in the place of ``home/node.key``, whose old one is gone; ``ConfigError(HOME_UNUSABLE)``.

    For a home that no node runs in.
    """
    key = Ed25519PrivateKey.generate()
    write_private(home / KEY_FILE_NAME, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return NodeIdentity(key)


def _create_key_file(path: Path) -> None:
    """Writes a new key so that ``path`` is either absent or whole, also when two processes race for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        # A link fails where a rename would silently replace the key of the process that came first.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)


def _read_key_file(path: Path) -> Ed25519PrivateKey:
    pem = read_private(path, MAX_KEY_FILE_BYTES)
    if pem is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _garbled(path) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _garbled(path)
    return key


def _garbled(path: Path) -> ConfigError:
    return ConfigError(
        ErrorCode.HOME_UNUSABLE,
        f"{path} is not an Ed25519 key; restore it from a backup, or move it away to get a new peer id",
    )


def _encode_base58(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    digits: list[str] = []
    while number:
        number, remainder = divmod(number, 58)
        digits.append(_BASE58[remainder])
    leading_zeros = len(data) - len(data.lstrip(b"\0"))
    return _BASE58[0] * leading_zeros + "".join(reversed(digits))
