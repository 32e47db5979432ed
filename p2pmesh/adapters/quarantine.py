"""Damaged files, moved to where nothing looks for them: to be examined, or removed by ``models prune``."""

import os
import secrets
from pathlib import Path

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.file_claims import claimed_alone

QUARANTINE = "quarantine"


def put_aside(path: Path, cache: Path) -> Path | None:
    """Where the file is now; ``None`` while somebody holds it, then it stays. ``ConfigError(HOME_UNUSABLE)``."""
    folder = cache / QUARANTINE
    with claimed_alone(path) as is_free:
        if not is_free:
            return None
        target = folder / f"{path.name}.{secrets.token_hex(4)}"
        with files.translated(f"cannot move {path}"):
            folder.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
    return target
