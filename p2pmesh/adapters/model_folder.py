"""The models that lie in a folder: GGUF files found among whatever else is there.

Owns what is passed over: projectors, half downloads, hidden files and folders, layer packages, unreadable ones.
Parts that belong together are one model (``model.shards``); what is in a file is not looked at.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from p2pmesh.adapters.model_files import stamp_of
from p2pmesh.model.package import MANIFEST_FILE
from p2pmesh.model.repository import models_among
from p2pmesh.model.shards import ModelFiles

MAX_FILES = 4096
MAX_DEPTH = 4


def models_in(folder: Path) -> tuple[ModelFiles, ...]:
    """Complete models below ``folder``, sorted by name; names and files are relative to it, with ``/``.

    Symbolic links to files count as files, as in the hub's own cache; linked folders are not entered, so that no loop
    can be walked. A folder that cannot be read is as an empty one.
    """
    return tuple(model for model in models_among(_files(folder)) if not model.missing)


def incomplete_in(folder: Path) -> tuple[ModelFiles, ...]:
    """Those below ``folder`` of which parts are missing, sorted by name."""
    return tuple(model for model in models_among(_files(folder)) if model.missing)


def _files(folder: Path) -> Iterator[str]:
    seen = 0
    for root, folders, names in os.walk(folder, followlinks=False):
        place = Path(root).relative_to(folder)
        is_deepest = len(place.parts) >= MAX_DEPTH
        if MANIFEST_FILE in names:  # fragments are no models
            folders.clear()
            continue
        folders[:] = [] if is_deepest else sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            seen += 1
            if seen > MAX_FILES:
                return
            if name.lower().endswith(".gguf") and stamp_of(Path(root) / name) is not None:
                yield (place / name).as_posix()
