"""``HOME/api-keys.json``: the API keys of a node, as hashes; mode 0600, replaced whole.

Without the file any key is accepted. With it only its keys are, also where it holds none; a damaged one is an error and
never the same as none.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p2pmesh.adapters.private_files import read_private, remove_private, write_private
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.limits import MAX_API_KEYS
from p2pmesh.base.quantities import KIB
from p2pmesh.core.api_keys import ApiKey

FILE_NAME = "api-keys.json"
MAX_FILE_BYTES = 512 * KIB
_FIELDS = {"id": str, "name": str, "digest": str, "max_in_flight": int, "max_per_minute": int, "created_unix_ms": int}


def load_api_keys(home: Path) -> tuple[ApiKey, ...] | None:
    """The keys, oldest first; None where any is accepted. ``ConfigError(HOME_UNUSABLE)`` for a damaged file."""
    path = home / FILE_NAME
    data = read_private(path, MAX_FILE_BYTES)
    if data is None:
        return None
    try:
        return tuple(_key_of(entry) for entry in json.loads(data)["keys"][:MAX_API_KEYS])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"{path} is damaged; restore it from a backup, or remove it and make new keys: until then none counts"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message) from None


def _key_of(entry: Any) -> ApiKey:
    given = {name: entry[name] for name in _FIELDS}
    if any(type(given[name]) is not kind for name, kind in _FIELDS.items()):
        raise TypeError("a field of another type")
    if given["max_in_flight"] < 0 or given["max_per_minute"] < 0 or len(bytes.fromhex(given["digest"])) != 32:
        raise ValueError("a field out of its range")
    return ApiKey(**given)


def save_api_keys(home: Path, keys: tuple[ApiKey, ...]) -> None:
    """Replaces them."""
    write_private(home / FILE_NAME, json.dumps({"keys": [asdict(key) for key in keys]}, indent=2).encode())


def remove_api_keys(home: Path) -> None:
    """From now on any key is accepted."""
    remove_private(home / FILE_NAME)


def stamp_of(home: Path) -> tuple[int, int, int] | None:
    """Another one whenever the file was replaced; None without a file."""
    try:
        facts = os.stat(home / FILE_NAME)
    except FileNotFoundError:
        return None
    except OSError as error:
        message = f"{home / FILE_NAME} cannot be read: {error.strerror or error}"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message) from None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
