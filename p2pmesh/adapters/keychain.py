"""The operating system's keychain, through the optional library ``keyring``.

Holds passphrases only, never a key. Its backends differ by system, raise whatever they like, and may wait for a person
to unlock them; every failure here is one line, and callers that must not wait use a thread with a deadline.
"""

import importlib
from typing import Any

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import OwnerId

SERVICE = "p2pmesh owner key"


def store_passphrase(owner_id: OwnerId, passphrase: str) -> None:
    """Puts the passphrase of an owner's keystore into the keychain; ``ConfigError(CONFIG_INVALID)`` if it cannot be."""
    keyring = _keyring()
    try:
        keyring.set_password(SERVICE, owner_id, passphrase)
    except Exception as error:  # noqa: BLE001 - the edge to backends that raise errors of any kind
        raise _failed("cannot keep the passphrase", error) from None


def fetch_passphrase(owner_id: OwnerId) -> str | None:
    """The passphrase of an owner's keystore; None if the keychain has none. ``ConfigError(CONFIG_INVALID)``."""
    keyring = _keyring()
    try:
        found = keyring.get_password(SERVICE, owner_id)
    except Exception as error:  # noqa: BLE001 - as above
        raise _failed("does not give the passphrase", error) from None
    return found if isinstance(found, str) else None


def forget_passphrase(owner_id: OwnerId) -> None:
    """Removes an entry; one that is not there, or cannot be removed, opens nothing once its keystore is replaced."""
    keyring = _keyring()
    try:
        keyring.delete_password(SERVICE, owner_id)
    except Exception:  # noqa: BLE001 - as above
        return


def _keyring() -> Any:
    try:
        return importlib.import_module("keyring")
    except ImportError:
        message = "the keychain needs the library keyring; run: pip install 'p2pmesh[keychain]', or leave it away"
        raise ConfigError(ErrorCode.CONFIG_INVALID, message) from None


def _failed(what: str, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    message = f"the keychain {what}: {reason}; give it by --passphrase-file or in P2PMESH_OWNER_PASSPHRASE"
    return ConfigError(ErrorCode.CONFIG_INVALID, message)
