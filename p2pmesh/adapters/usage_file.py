"""``HOME/usage.json``: what this node gave and got. A damaged file begins at nothing: it is worth no failure."""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.private_files import read_private, write_private
from p2pmesh.base.errors import ConfigError
from p2pmesh.base.limits import MAX_NAME_BYTES
from p2pmesh.base.quantities import KIB
from p2pmesh.core.usage import MAX_USERS, MOST, Totals, Use

USAGE_FILE = "usage.json"
MAX_USAGE_FILE_BYTES = 256 * KIB
_VERSION = 1
_TEXTS = ("peer", "name", "model")


class HomeUsage:
    """Implements ``ports.usage.UsageStore`` in a home."""

    def __init__(self, home: Path) -> None:
        self._path = home / USAGE_FILE

    def restored(self) -> Totals | None:
        """See ``ports.usage``."""
        with suppress(ConfigError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            data = read_private(self._path, MAX_USAGE_FILE_BYTES)
            return None if data is None else _totals_of(json.loads(data))
        return None

    async def save(self, totals: Totals) -> None:
        """See ``ports.usage``."""
        data = json.dumps({"version": _VERSION, **asdict(totals)}, indent=1).encode() + b"\n"
        with suppress(ConfigError):
            await trio.to_thread.run_sync(write_private, self._path, data)


def _totals_of(document: Any) -> Totals:
    if document.pop("version") != _VERSION:
        raise ValueError("another version")
    uses = tuple(_use_of(record) for record in document.pop("uses")[:MAX_USERS])
    return Totals(**{name: _count(value) for name, value in document.items()}, uses=uses)


def _use_of(record: Any) -> Use:
    for name, value in record.items():
        if name not in _TEXTS:
            _count(value)
        elif type(value) is not str or len(value.encode()) > MAX_NAME_BYTES:
            raise ValueError("a name that none is")
    return Use(**record)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError("a count that none is")
    return value
