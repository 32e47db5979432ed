"""Models for commands and for a node: what a home has, and what the hub has for it.

Joins the store of a home with the hub; each does its own part. What a reference means: ``adapters.model_names``.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.hub import Hub, TransferProgress, hub_settings
from p2pmesh.adapters.hub_cache import FetchedModel, HubCache, shared_cache_root
from p2pmesh.adapters.model_files import FileSource, digest_of
from p2pmesh.adapters.model_names import NamedModel
from p2pmesh.adapters.model_store import DEFAULT_QUOTA_BYTES, DiskModelStore
from p2pmesh.adapters.quarantine import put_aside
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused
from p2pmesh.model.reference import HUB_SCHEME, HubReference
from p2pmesh.ports.models import ModelFile

Progress = Callable[[TransferProgress], None]


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """The models of one home."""

    store: DiskModelStore
    hub: Hub

    def check(self, references: Iterable[str]) -> None:
        """Blocking, without the network: raises ``ConfigError`` for a reference that can never be served from here.

        ``Refused(HUB_UNREACHABLE)`` where it would have to be fetched and this is forbidden.
        """
        by = self.hub.settings.offline_by
        for reference in references:
            found = self.store.find(reference)
            if not isinstance(found, HubReference):
                if self.hub.cache.at(found.path) is None:  # what the hub has is fetched again where it is damaged
                    self.store.check(found)
            elif self.hub.settings.is_offline:
                raise Refused(
                    ErrorCode.HUB_UNREACHABLE, f"{found} is not on this machine, and {by} forbids to fetch it"
                )

    async def obtain(self, reference: str, watch: Progress) -> ModelFile:
        """The model, read; fetched first where it is only on the hub. Errors as of the store and of ``Hub.fetch``.

        A file of the hub that is no longer what was fetched is put aside and fetched again.
        """
        found = await trio.to_thread.run_sync(self.store.find, reference)
        if isinstance(found, HubReference):
            return await self.fetch(found, watch)
        fetched = self.hub.cache.at(found.path)
        if fetched is None or await self._is_sound(fetched):
            return await self.store.load(found)
        if self.hub.settings.is_offline:
            text = f"{found.path} is damaged, and {self.hub.settings.offline_by} forbids to fetch it again"
            raise ConfigError(ErrorCode.ARTIFACT_CORRUPT, text)
        await trio.to_thread.run_sync(self._put_aside, fetched)
        repository, _, commit = fetched.source.removeprefix(HUB_SCHEME).partition("@")
        folder = self.hub.cache.folder_of(repository, commit)
        file = fetched.paths[0].relative_to(folder).as_posix()
        return await self.fetch(HubReference(repository, None, commit, file), watch)

    async def fetch(self, wanted: HubReference, watch: Progress) -> ModelFile:
        """The model, fetched and read; its files' digests were checked on the way and need no second reading."""
        fetched = await self.hub.fetch(wanted, watch)
        for path, digest in zip(fetched.paths, fetched.digests, strict=False):
            if digest is not None:
                await trio.to_thread.run_sync(self.store.note_digest, path, digest)
        return await self.store.load(named_fetched(fetched))

    async def _is_sound(self, fetched: FetchedModel) -> bool:
        for path, digest in zip(fetched.paths, fetched.digests, strict=False):
            if digest is not None and not await self.store.has_digest(path, digest):
                return False
        return True

    def _put_aside(self, fetched: FetchedModel) -> None:
        for path, digest in zip(fetched.paths, fetched.digests, strict=False):
            with FileSource(path) as source:
                is_damaged = digest is not None and digest_of(source, lambda: None) != digest
            if is_damaged:
                put_aside(path, self.hub.cache.root.parent)


def named_fetched(model: FetchedModel) -> NamedModel:
    """A fetched model as the store reads it."""
    return NamedModel(model.name, model.paths[0], source=model.source)


def open_access(
    home: Path,
    hub_endpoint: str | None = None,
    is_offline: bool = False,
    quota_bytes: int = DEFAULT_QUOTA_BYTES,
    *,
    is_reading: bool = False,
) -> ModelAccess:
    """The models of ``home``, with the hub that was typed, or that the environment names; ``is_reading`` only looks."""
    settings = hub_settings(hub_endpoint, is_offline, os.environ)
    cache = HubCache(home / "cache" / "hub", shared_cache_root(os.environ), is_reading)
    store = DiskModelStore(
        home / "models", home / "cache", quota_bytes=quota_bytes, hub_cache=cache, hub_hosts=settings.hosts()
    )
    return ModelAccess(store, Hub(cache, settings))


def describe_progress(progress: TransferProgress) -> dict[str, Any]:
    """As event fields; ``left_s`` is null while the rate is not known."""
    return {
        "model": progress.model,
        "done_bytes": progress.done_bytes,
        "total_bytes": progress.total_bytes,
        "rate_bytes_per_s": progress.rate_bytes_per_s,
        "left_s": progress.left_s,
    }
