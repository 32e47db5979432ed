"""The owner's Ed25519 key in a file that only a passphrase opens.

Owns the file's format: JSON with the public facts in the clear, and the 32 secret bytes under ChaCha20-Poly1305 with a
key that Argon2id makes of the passphrase. The clear part is bound to the cipher text as associated data. A checksum
over the whole tells damage from a wrong passphrase; it protects nothing, the cipher does. Where a passphrase comes from
is ``app.passphrase``'s.
"""

import hashlib
import json
import secrets
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from p2pmesh.adapters.private_files import read_private, remove_old_drafts, write_private
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import OwnerId, owner_id_of_key

FILE_NAME = "owner.key"
KIND = "p2pmesh-owner-key"
VERSION = 1
MAX_FILE_BYTES = 4096
MAX_PASSPHRASE_BYTES = 1024

_SALT_BYTES = 16
_NONCE_BYTES = 12
_SEED_BYTES = 32
_TAG_BYTES = 16


@dataclass(frozen=True, slots=True)
class KdfCost:
    """What Argon2id is to spend."""

    memory_kib: int = 19_456
    iterations: int = 2
    lanes: int = 1

    def is_bearable(self) -> bool:
        """Whether opening such a file takes no more than 256 MiB and some seconds: a file may come from anywhere."""
        return (
            8 * self.lanes <= self.memory_kib <= 262_144 and 1 <= self.iterations <= 16 and 1 <= self.lanes <= 16
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeystoreFacts:
    """What the file says without a passphrase."""

    owner_id: OwnerId
    public_key: bytes
    has_keychain_passphrase: bool


class OwnerKey:
    """An owner's key in memory."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self.public_key = private_key.public_key().public_bytes_raw()
        self.owner_id = owner_id_of_key(self.public_key)

    @classmethod
    def generate(cls) -> "OwnerKey":
        """A fresh key, kept nowhere yet."""
        return cls(Ed25519PrivateKey.generate())

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        return self._private_key.sign(message)

    @property
    def private_seed(self) -> bytes:
        """The 32 secret bytes; only for the keystore."""
        return self._private_key.private_bytes_raw()


def save_owner_key(
    path: Path, key: OwnerKey, passphrase: str, *, has_keychain_passphrase: bool = False, cost: KdfCost | None = None
) -> None:
    """Encrypts the key into ``path``, whose old bytes stay until the new ones are safe."""
    cost = cost or KdfCost()
    salt, nonce = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_NONCE_BYTES)
    head = {
        "kind": KIND,
        "version": VERSION,
        "owner_id": key.owner_id,
        "public_key": key.public_key.hex(),
        "keychain": has_keychain_passphrase,
        "kdf": {"name": "argon2id", "memory_kib": cost.memory_kib, "iterations": cost.iterations, "lanes": cost.lanes,
                "salt": salt.hex()},
        "cipher": {"name": "chacha20-poly1305", "nonce": nonce.hex()},
    }  # fmt: skip
    cipher = ChaCha20Poly1305(_derive(passphrase, salt, cost))
    secret = cipher.encrypt(nonce, key.private_seed, _canonical(head))
    body = {**head, "ciphertext": secret.hex()}
    document = {**body, "checksum": _checksum(body)}
    remove_old_drafts(path.parent)
    write_private(path, json.dumps(document, indent=2).encode() + b"\n")


def read_keystore_facts(path: Path) -> KeystoreFacts | None:
    """What the file tells without the passphrase; None if there is none. ``ConfigError(HOME_UNUSABLE)`` if damaged."""
    document = _read(path)
    return None if document is None else document.facts


def load_owner_key(path: Path, passphrase: str) -> OwnerKey:
    """The key. ``ConfigError`` with ``OWNER_KEY_MISSING``, ``PASSPHRASE_WRONG``, or ``HOME_UNUSABLE`` if damaged."""
    document = _read(path)
    if document is None:
        raise owner_key_missing(path)
    cipher = ChaCha20Poly1305(_derive(passphrase, document.salt, document.cost))
    try:
        seed = cipher.decrypt(document.nonce, document.ciphertext, document.head)
    except InvalidTag:
        raise ConfigError(ErrorCode.PASSPHRASE_WRONG, f"the passphrase does not open {path}; try again") from None
    key = OwnerKey(Ed25519PrivateKey.from_private_bytes(seed))
    if key.public_key != document.facts.public_key:
        raise _damaged(path, "it holds another key than it names")
    return key


def check_passphrase(passphrase: str) -> None:
    """Refuses what cannot be a passphrase with ``ConfigError(CONFIG_INVALID)``; says nothing of its strength."""
    if not passphrase:
        raise ConfigError(ErrorCode.CONFIG_INVALID, "the passphrase is empty; give one")
    if len(_passphrase_bytes(passphrase)) > MAX_PASSPHRASE_BYTES:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"the passphrase is longer than {MAX_PASSPHRASE_BYTES} bytes")


def owner_key_missing(path: Path) -> ConfigError:
    """There is no keystore."""
    return ConfigError(ErrorCode.OWNER_KEY_MISSING, f"there is no owner key at {path}; make one with p2pmesh auth init")


@dataclass(frozen=True, slots=True)
class _Document:
    """A keystore, read and checked."""

    facts: KeystoreFacts
    cost: KdfCost
    salt: bytes
    nonce: bytes
    ciphertext: bytes
    head: bytes


def _read(path: Path) -> _Document | None:
    data = read_private(path, MAX_FILE_BYTES)
    if data is None:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise _damaged(path, "it is no JSON") from None
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise _damaged(path, "it is no owner key")
    if value.get("version") != VERSION:
        raise _damaged(path, "its version is unknown to this software, which may be older than the file")
    body = {name: item for name, item in value.items() if name != "checksum"}
    if value.get("checksum") != _checksum(body):
        raise _damaged(path, "a part of it is missing or changed")
    try:
        return _document_of(body)
    except (KeyError, TypeError, ValueError) as error:
        reason = str(error) if type(error) is ValueError else "a field is missing or of another form"
        raise _damaged(path, reason) from None


def _document_of(body: dict[str, Any]) -> _Document:
    """Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
    kdf, cipher = body["kdf"], body["cipher"]
    if (kdf["name"], cipher["name"]) != ("argon2id", "chacha20-poly1305"):
        raise ValueError("its cipher is unknown to this software")
    cost = KdfCost(*(_number(kdf[name]) for name in ("memory_kib", "iterations", "lanes")))
    if not cost.is_bearable():
        raise ValueError("opening it would take more memory or time than any key of ours")
    public_key = _hex(body["public_key"], 32)
    facts = KeystoreFacts(owner_id_of_key(public_key), public_key, body["keychain"] is True)
    if facts.owner_id != body["owner_id"]:
        raise ValueError("its owner id is not that of its key")
    head = {name: item for name, item in body.items() if name != "ciphertext"}
    return _Document(
        facts,
        cost,
        _hex(kdf["salt"], _SALT_BYTES),
        _hex(cipher["nonce"], _NONCE_BYTES),
        _hex(body["ciphertext"], _SEED_BYTES + _TAG_BYTES),
        _canonical(head),
    )


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("no whole number")
    return value


def _hex(text: Any, size: int) -> bytes:
    data = bytes.fromhex(text)
    if len(data) != size:
        raise TypeError(f"{len(data)} bytes instead of {size}")
    return data


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _derive(passphrase: str, salt: bytes, cost: KdfCost) -> bytes:
    kdf = Argon2id(salt=salt, length=32, iterations=cost.iterations, lanes=cost.lanes, memory_cost=cost.memory_kib)
    return kdf.derive(_passphrase_bytes(passphrase))


def _passphrase_bytes(passphrase: str) -> bytes:
    """One form for what keyboards compose in several; a byte that was no UTF-8 stands for itself."""
    return unicodedata.normalize("NFC", passphrase).encode("utf-8", "surrogateescape")


def _damaged(path: Path, reason: str) -> ConfigError:
    remedy = "restore it from a backup, or make a new one with p2pmesh auth init --force"
    message = f"the owner key {path} is damaged: {reason}; {remedy}"
    return ConfigError(ErrorCode.HOME_UNUSABLE, message)
