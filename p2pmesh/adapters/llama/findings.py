"""What was measured about this machine, kept in small JSON files of the engine cache, at most ``MAX_FILES`` of them.

Owns how they are read and written. What is measured, and under which key, is ``width``'s and ``probe``'s.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_FILES = 1024
_MAX_FILE_BYTES = 4096


def load_findings(folder: Path, name: str) -> dict[str, Any] | None:
    """The fields stored under ``name``; None when there are none that can be read."""
    try:
        with (folder / f"{name}.json").open("rb") as file:
            fields = json.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, ValueError):
        return None
    return fields if isinstance(fields, dict) else None


def store_findings(folder: Path, name: str, fields: dict[str, Any]) -> None:
    """Keeps ``fields``, and gives up the oldest files beyond the bound.

    A disk that refuses costs only the next measurement.
    """
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{name}.{os.getpid()}"
        partial.write_text(json.dumps(fields))
        partial.replace(folder / f"{name}.json")
        _drop_oldest(folder)


def _drop_oldest(folder: Path) -> None:
    found = sorted((path.stat().st_mtime_ns, path.name) for path in folder.iterdir() if path.is_file())
    for _, name in found[: max(0, len(found) - MAX_FILES)]:
        (folder / name).unlink(missing_ok=True)
