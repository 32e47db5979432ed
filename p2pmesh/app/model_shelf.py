"""The models of a home that may be served without being named: what its owner put into ``HOME/models`` or pulled.

Implements ``ports.models.ModelShelf``. Models that pip installed are for demonstrations and tests: they are served
where they are named.
"""

from p2pmesh.adapters.model_names import NamedModel
from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.app.events import Emit, Event, EventName
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.core.owner_wishes import excludes
from p2pmesh.ports.models import KnownModel, ModelFile

MAX_MODELS = 64
MAX_TOLD = 16
"""Files that are no models: one line each, at the start of a node."""


class OwnersModels:
    """What lies in one home, but for models that its owner ``excluded`` by name or digest."""

    def __init__(self, store: DiskModelStore, excluded: tuple[str, ...] = ()) -> None:
        self._store = store
        self.excluded = excluded
        self._named: dict[str, NamedModel] = {}

    async def survey(self) -> tuple[KnownModel, ...]:
        """By name; of equal names the first by path."""
        found: dict[str, KnownModel] = {}
        for named, index in await self._store.survey(with_packages=False):
            is_excluded = excludes(self.excluded, named.name, "")
            if named.name not in found and not is_excluded and len(found) < MAX_MODELS:
                found[named.name] = KnownModel(named.name, str(named.path), index)
                self._named[str(named.path)] = named
        self._named = {known.reference: self._named[known.reference] for known in found.values()}
        return tuple(found.values())

    async def load(self, known: KnownModel) -> ModelFile:
        """See ``ports.models``."""
        named = self._named.get(known.reference)
        if named is None:
            raise ConfigError(ErrorCode.MODEL_NOT_FOUND, f"{known.reference} is not there any more")
        model = await self._store.load(named)
        if excludes(self.excluded, model.name, model.digest):
            raise ConfigError(ErrorCode.CONFIG_INVALID, f"the owner of this node excludes {model.name} by its digest")
        await self._store.keep(model)
        return model

    def release(self, model: ModelFile) -> None:
        """See ``ports.models``."""
        self._store.release(model.digest)


async def tell_unusable(store: DiskModelStore, emit: Emit) -> None:
    """Names what its owner put among the models and cannot be served, which a survey passes over."""
    for path, why in (await store.unusable())[:MAX_TOLD]:
        emit(Event(EventName.MODEL_UNUSABLE, {"path": str(path), "message": why}))
