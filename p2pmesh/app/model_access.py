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
from p2pmesh.adapters.model_names import NamedModel
from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.model.reference import HubReference
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
        for reference in references:
            found = self.store.find(reference)
            if isinstance(found, HubReference) and self.hub.settings.is_offline:
                raise Refused(
                    ErrorCode.HUB_UNREACHABLE, f"{found} is not on this machine, and --offline forbids to fetch it"
                )

    async def obtain(self, reference: str, watch: Progress) -> ModelFile:
        """The model, read; fetched first where it is only on the hub. Errors as of the store and of ``Hub.fetch``."""
        found = await trio.to_thread.run_sync(self.store.find, reference)
        if isinstance(found, HubReference):
            found = named_fetched(await self.hub.fetch(found, watch))
        return await self.store.load(found)


def named_fetched(model: FetchedModel) -> NamedModel:
    """A fetched model as the store reads it."""
    return NamedModel(model.name, model.paths[0], source=model.source)


def open_access(home: Path, hub_endpoint: str | None = None, is_offline: bool = False) -> ModelAccess:
    """The models of ``home``, with the hub that was typed, or that the environment names."""
    settings = hub_settings(hub_endpoint, is_offline, os.environ)
    cache = HubCache(home / "cache" / "hub", shared_cache_root(os.environ))
    store = DiskModelStore(home / "models", home / "cache", hub_cache=cache, hub_hosts=settings.hosts())
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
