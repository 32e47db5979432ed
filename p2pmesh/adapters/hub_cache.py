"""Files fetched from the hub, on disk: where they lie, which commit they are of, what is complete.

Owns the layout, and reading the cache that the hub's own tools keep (never written to). Fetching is ``hub``'s.

::

    ROOT/<org>--<repo>/<commit>/<file>       a fetched file, under its own name: parts of a model lie side by side
    ROOT/<org>--<repo>/<commit>.json         what the hub said of that commit, and under which names it was asked for
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.model_folder import models_in
from p2pmesh.base.errors import ConfigError
from p2pmesh.base.ids import Digest, is_digest
from p2pmesh.base.quantities import MIB
from p2pmesh.model.reference import HubReference
from p2pmesh.model.repository import choose_model
from p2pmesh.model.shards import ModelFiles

MAIN_REVISION = "main"
MAX_RECORD_BYTES = 4 * MIB
MAX_REPOSITORY_FILES = 20_000
_MAX_REPOSITORIES = 4096
_MAX_REVISIONS = 32
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_PARTIAL_SUFFIXES = (".incomplete", ".progress")


def is_commit(text: str) -> bool:
    """Whether ``text`` is a whole commit id, 40 lower-case hex digits."""
    return _COMMIT.match(text) is not None


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository; ``size_bytes`` and ``digest`` (sha256) where the hub tells them."""

    path: str
    size_bytes: int | None = None
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class HubRecord:
    """One commit of a repository: the GGUF files that it holds, and the revisions that meant it when asked."""

    repository: str
    commit: str
    revisions: tuple[str, ...]
    files: tuple[HubFile, ...]

    @property
    def source(self) -> str:
        """The reference that can never mean anything else."""
        return f"hf://{self.repository}@{self.commit}"


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A complete model of the cache; ``source`` is its repository at its commit.

    ``digests`` are those that the hub told, one per file; none is known of a model in the hub's own tools' cache.
    """

    name: str
    paths: tuple[Path, ...]
    source: str
    digests: tuple[Digest | None, ...] = ()
    is_shared: bool = False
    """Of another program's cache: read, never removed."""


@dataclass(frozen=True, slots=True)
class HubCache:
    """The files under ``root``; ``shared_root`` is the cache of the hub's own tools, if it is to be looked into.

    With ``is_reading`` what the hub says is not remembered.
    """

    root: Path
    shared_root: Path | None = None
    is_reading: bool = False

    def folder_of(self, repository: str, commit: str) -> Path:
        """Where the files of a commit lie."""
        return self.root / repository.replace("/", "--") / commit

    def path_of(self, record: HubRecord, name: str) -> Path:
        """Where a file of the repository lies, or will."""
        return self.folder_of(record.repository, record.commit).joinpath(*name.split("/"))

    # --- records

    def remember(self, record: HubRecord) -> None:
        """Writes what the hub said; names that it was asked under before are kept, and mean this commit from now on."""
        if self.is_reading:
            return
        path = self._record_path(record.repository, record.commit)
        known = _read_record(path)
        revisions = tuple(dict.fromkeys((*record.revisions, *(known.revisions if known else ()))))[:_MAX_REVISIONS]
        for other in self._records_of(record.repository):
            if other.commit != record.commit and set(other.revisions) & set(record.revisions):
                left = tuple(revision for revision in other.revisions if revision not in record.revisions)
                self._write(HubRecord(other.repository, other.commit, left, other.files))
        self._write(HubRecord(record.repository, record.commit, revisions, record.files))

    def _write(self, record: HubRecord) -> None:
        path = self._record_path(record.repository, record.commit)
        content = {
            "repository": record.repository,
            "commit": record.commit,
            "revisions": list(record.revisions),
            "files": [[file.path, file.size_bytes, file.digest] for file in record.files],
        }
        with files.translated(f"cannot write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, json.dumps(content).encode())

    def _record_path(self, repository: str, commit: str) -> Path:
        return self.folder_of(repository, commit).with_name(f"{commit}.json")

    def records(self) -> Iterator[HubRecord]:
        """Every commit that is known, sorted by repository; damaged records are passed over."""
        with contextlib.suppress(OSError):
            for folder in sorted(self.root.iterdir())[:_MAX_REPOSITORIES]:
                yield from _read_records(folder)

    def _records_of(self, repository: str) -> list[HubRecord]:
        return list(_read_records(self.root / repository.replace("/", "--")))

    def find_record(self, wanted: HubReference) -> HubRecord | None:
        """The commit that was last fetched under this revision, or that the revision names."""
        revision = wanted.revision or MAIN_REVISION
        records = self._records_of(wanted.repository)
        return next((record for record in records if revision in (record.commit, *record.revisions)), None)

    def superseded(self) -> tuple[Path, ...]:
        """Files of commits that no revision means any more: a branch has moved on, and a newer one was fetched."""
        folders = [
            self.folder_of(record.repository, record.commit) for record in self.records() if not record.revisions
        ]
        return tuple(path for folder in folders for path in sorted(folder.glob("**/*")) if path.is_file())

    # --- models

    def find(self, wanted: HubReference) -> FetchedModel | None:
        """The model that ``wanted`` means, if it is whole on this disk; what is missing is nobody's error here."""
        record = self.find_record(wanted)
        if record is not None:
            with contextlib.suppress(ConfigError):
                chosen = choose_model((file.path for file in record.files), wanted)
                paths = tuple(self.path_of(record, name) for name in chosen.files)
                if all(files.stamp_of(path) for path in paths):
                    return _fetched(record, self.folder_of(record.repository, record.commit), chosen)
        return self._find_shared(wanted)

    def models(self) -> tuple[FetchedModel, ...]:
        """Every complete model under ``root``, by repository, the commit that was asked for last first, and name."""
        found: list[FetchedModel] = []
        for record in self.records():
            folder = self.folder_of(record.repository, record.commit)
            found += [_fetched(record, folder, model) for model in models_in(folder)]
        return tuple(found)

    def at(self, path: Path) -> FetchedModel | None:
        """The fetched model that a file belongs to; ``None`` for a file elsewhere."""
        if not path.is_relative_to(self.root):
            return None
        return next((model for model in self.models() if path in model.paths), None)

    def leftovers(self) -> tuple[Path, ...]:
        """Half downloads, which a further pull would go on with."""
        found = self.root.glob("*/*/**/*")
        return tuple(sorted(path for path in found if path.name.endswith(_PARTIAL_SUFFIXES)))

    def _find_shared(self, wanted: HubReference) -> FetchedModel | None:
        """Looks where the hub's own tools keep ``snapshots/<commit>`` with links to blobs."""
        if self.shared_root is None:
            return None
        place = self.shared_root / f"models--{wanted.repository.replace('/', '--')}"
        commit = wanted.revision or MAIN_REVISION
        if not is_commit(commit):
            with contextlib.suppress(OSError):
                commit = (place / "refs" / commit).read_text(encoding="utf-8")[:64].strip()
        folder = place / "snapshots" / commit
        if not is_commit(commit) or not folder.is_dir():
            return None
        with contextlib.suppress(ConfigError):
            chosen = choose_model((name for model in models_in(folder) for name in model.files), wanted)
            paths = tuple(folder.joinpath(*name.split("/")) for name in chosen.files)
            return FetchedModel(_last(chosen.name), paths, f"hf://{wanted.repository}@{commit}", is_shared=True)
        return None


def _fetched(record: HubRecord, folder: Path, model: ModelFiles) -> FetchedModel:
    paths = tuple(folder.joinpath(*name.split("/")) for name in model.files)
    digests = {file.path: file.digest for file in record.files}
    return FetchedModel(_last(model.name), paths, record.source, tuple(digests.get(name) for name in model.files))


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _read_records(folder: Path) -> Iterator[HubRecord]:
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob("*.json"), key=_age, reverse=True):
            record = _read_record(path)
            if record is not None:
                yield record


def _age(path: Path) -> tuple[int, str]:
    stamp = files.stamp_of(path)
    return (stamp.mtime_ns if stamp else 0, path.name)


def _read_record(path: Path) -> HubRecord | None:
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(MAX_RECORD_BYTES))
        return _parse_record(content, path.stem)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _parse_record(content: Mapping[str, Any], commit: str) -> HubRecord | None:
    repository, revisions = content["repository"], content["revisions"]
    if not is_commit(commit) or not isinstance(repository, str):
        return None
    listed = tuple(parse_file(*entry) for entry in content["files"][:MAX_REPOSITORY_FILES])
    names = tuple(text for text in revisions if isinstance(text, str))
    return HubRecord(repository, commit, names, tuple(file for file in listed if file is not None))


def parse_file(path: object, size_bytes: object, digest: object) -> HubFile | None:
    """A file as the hub, or a record, lists it; ``None`` for a path that would leave the repository's folder."""
    if not isinstance(path, str) or not is_safe_path(path):
        return None
    has_size = isinstance(size_bytes, int) and not isinstance(size_bytes, bool) and size_bytes >= 0
    is_known = isinstance(digest, str) and is_digest(digest)
    return HubFile(path, size_bytes if has_size else None, Digest(digest) if is_known else None)  # type: ignore[arg-type]


def is_safe_path(path: str) -> bool:
    """Whether a name from the hub stays below the folder that it is joined to, and may be shown."""
    parts = path.split("/")
    return path.isprintable() and "\\" not in path and all(part not in ("", ".", "..") for part in parts)


def shared_cache_root(environment: Mapping[str, str]) -> Path | None:
    """Where the hub's own tools keep their files; ``None`` for a user without a home."""
    given = environment.get("HF_HUB_CACHE")
    home = environment.get("HF_HOME") or "~/.cache/huggingface"
    with contextlib.suppress(RuntimeError):
        return Path(given).expanduser() if given else Path(home).expanduser() / "hub"
    return None
