"""``p2pmesh models remove|prune|verify``: what leaves the disk, and what is found to be damaged.

Nothing is asked; what was done is told, with the bytes that it freed. A file that a running node holds
(``adapters.file_claims``) is never touched. Only files below the home are removed: those of pip, of the hub's own
cache and of the operator elsewhere are theirs.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.file_claims import claimed_alone
from p2pmesh.adapters.model_names import NamedModel
from p2pmesh.adapters.model_source import open_model, paths_of_model
from p2pmesh.adapters.quarantine import QUARANTINE, put_aside
from p2pmesh.app.model_access import ModelAccess
from p2pmesh.app.model_commands import ModelsOptions
from p2pmesh.base.errors import ConfigError, ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import Digest, is_digest
from p2pmesh.base.quantities import format_size
from p2pmesh.model.gguf import read_index
from p2pmesh.model.reference import HubReference


@dataclass(frozen=True, slots=True)
class _Removal:
    """What became of some files."""

    removed: tuple[Path, ...]
    in_use: tuple[Path, ...]
    freed_bytes: int

    def facts(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "removed": [str(path) for path in self.removed],
            "in_use": [str(path) for path in self.in_use],
            "freed_bytes": self.freed_bytes,
            "freed": format_size(self.freed_bytes),
        }


def remove_model(options: ModelsOptions, reference: str) -> dict[str, Any]:
    """Removes all files of one model; ``ConfigError(HOME_IN_USE)`` while a node uses one of them."""
    access = options.open(is_reading=True)
    found = access.store.find(reference)
    if isinstance(found, HubReference):
        raise ConfigError(ErrorCode.MODEL_NOT_FOUND, f"{found} is not on this machine, so there is nothing to remove")
    paths = _own_paths(options.home, found)
    with contextlib.ExitStack() as stack:
        used = [path for path in paths if not stack.enter_context(claimed_alone(path))]
        if used:
            raise ConfigError(ErrorCode.HOME_IN_USE, f"a running node uses {used[0]}: stop it first")
        removal = _Removal(paths, (), sum(_unlink(path) for path in paths))
    _drop_empty_folders(paths, options.home)
    return {"model": found.name, **removal.facts()}


def prune(options: ModelsOptions) -> dict[str, Any]:
    """Removes half downloads, files of commits that a newer one replaced, stage files, half received ones and joined
    packages that no node holds, and quarantined files."""
    access = options.open()
    cache = options.home / "cache"
    stages = sorted((cache / "stages").glob("*.gguf"))
    joined = sorted((cache / "models").glob("*.gguf"))
    quarantined = sorted((cache / QUARANTINE).glob("*"))
    hub = access.hub.cache
    partial = sorted((cache / "partial").glob("*"))
    removal = _remove((*hub.leftovers(), *hub.superseded(), *stages, *partial, *joined, *quarantined))
    return removal.facts()


def verify(options: ModelsOptions, reference: str | None) -> dict[str, Any]:
    """Reads files whole: their sha256 where it is known, their structure otherwise. Damaged ones are put aside.

    Files of pip and of the operator's own folders stay where they are; they are told of.
    """
    access = options.open()
    expected = dict(_expected(options.home, access))
    paths = tuple(expected) if reference is None else _paths_of(access, reference)
    checked = [_verify_file(path, expected.get(path), options.home) for path in paths]
    damaged = [entry for entry in checked if entry["state"] == "damaged"]
    return {"checked": len(checked), "damaged": len(damaged), "files": checked}


# --- removing


def _own_paths(home: Path, found: NamedModel) -> tuple[Path, ...]:
    """The model's files, all of which must be the home's to remove."""
    if found.source == "pip":
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"{found.name} was installed by pip: remove it with pip uninstall")
    paths = paths_of_model(found.path)
    if not all(path.is_relative_to(home) for path in paths):
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"{found.path} is not below {home}: remove it yourself")
    if found.path.is_dir():
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"{found.path} is a layer package: remove the directory yourself")
    return paths


def _remove(paths: Iterable[Path]) -> _Removal:
    removed: list[Path] = []
    used: list[Path] = []
    freed = 0
    for path in paths:
        with claimed_alone(path) as is_free:
            if is_free:
                freed += _unlink(path)
            (removed if is_free else used).append(path)
    return _Removal(tuple(removed), tuple(used), freed)


def _unlink(path: Path) -> int:
    """Removes a file that nobody claims; the bytes that it took on the disk."""
    size_bytes = _disk_bytes(path)
    with files.translated(f"cannot remove {path}"):
        path.unlink(missing_ok=True)
    return size_bytes


def _disk_bytes(path: Path) -> int:
    """What a file takes on the disk; a half download has holes."""
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _drop_empty_folders(paths: Sequence[Path], home: Path) -> None:
    for path in paths:
        folder = path.parent
        while folder.is_relative_to(home / "cache" / "hub") and folder != home / "cache" / "hub":
            with contextlib.suppress(OSError):
                folder.rmdir()
            folder = folder.parent


# --- verifying


def _expected(home: Path, access: ModelAccess) -> Iterator[tuple[Path, Digest]]:
    """Files whose digest is known, from the hub or by their name."""
    for record in access.hub.cache.records():
        for file in record.files:
            path = access.hub.cache.path_of(record, file.path)
            if file.digest is not None and path.exists():
                yield path, file.digest
    for path in sorted((home / "cache" / "stages").glob("*.gguf")):
        if is_digest(path.stem):
            yield path, Digest(path.stem)


def _paths_of(access: ModelAccess, reference: str) -> tuple[Path, ...]:
    found = access.store.find(reference)
    if isinstance(found, HubReference):
        raise ConfigError(ErrorCode.MODEL_NOT_FOUND, f"{found} is not on this machine, so there is nothing to verify")
    return paths_of_model(found.path)


def _verify_file(path: Path, expected: Digest | None, home: Path) -> dict[str, Any]:
    try:
        reason = _damage(path, expected)
    except (ConfigError, RemoteProtocolError) as error:
        reason = error.message
    entry = {"path": str(path), "state": "sound" if expected is not None else "readable", "sha256": expected or ""}
    if not reason:
        return entry
    target = put_aside(path, home / "cache") if path.is_relative_to(home / "cache") else None
    return {**entry, "state": "damaged", "reason": reason, "put_aside": str(target) if target else ""}


def _damage(path: Path, expected: Digest | None) -> str:
    """Why the file is not what it should be; empty if it is."""
    if expected is None:
        with open_model(path) as source:
            read_index(source)
        return ""
    with files.FileSource(path) as file:
        digest = files.digest_of(file, lambda: None)
    return "" if digest == expected else f"its sha256 is {digest}"
