"""What a coordinator serves: a model whose file is here, or one that is known only by the orders of a run.

Of a model by its orders nothing can be planned but the stages that there were: their files are named, and come from
whoever has them. Which peer gets which is the coordinator's all the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from p2pmesh.base.ids import Digest, LayerRange, PeerId
from p2pmesh.core.planning.outcome import Placement, PlannedStage
from p2pmesh.core.planning.request import PlanningModel, ShapeBytes
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.serving_options import ServingOptions, planning_model_of
from p2pmesh.node.stage_orders import Orders, StageOrders, entries_of
from p2pmesh.ports.models import ModelFile, ModelStore
from p2pmesh.wire.messages.runs import LoadStage
from p2pmesh.wire.stage import WireDtype


class Servable(Protocol):
    """What a coordinator knows of its model."""

    @property
    def name(self) -> str:
        """What clients call it."""

    @property
    def digest(self) -> Digest:
        """Of the whole file."""

    @property
    def architecture(self) -> str:
        """Of its family; empty where that is not known."""

    @property
    def planning(self) -> PlanningModel:
        """As a planner sees it."""

    @property
    def is_by_orders(self) -> bool:
        """Whether its file is not here, so that only files of an earlier run can be ordered."""

    def make_orders(self) -> Orders:
        """For one run, or one spare engine."""


@dataclass(frozen=True, slots=True)
class ServableFile:
    """A model whose file is here."""

    overlay: Overlay
    store: ModelStore
    model: ModelFile
    options: ServingOptions
    planning: PlanningModel

    @classmethod
    def of(cls, overlay: Overlay, store: ModelStore, model: ModelFile, options: ServingOptions) -> "ServableFile":
        """A file, to be served as its operator wants it."""
        return cls(overlay, store, model, options, planning_model_of(model, options))

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.model.name

    @property
    def digest(self) -> Digest:
        """Of the whole file."""
        return self.model.digest

    @property
    def architecture(self) -> str:
        """Of its family."""
        return self.model.index.architecture

    @property
    def is_by_orders(self) -> bool:
        """It can be cut anew."""
        return False

    def make_orders(self) -> Orders:
        """They cut the file."""
        return StageOrders(self.overlay, self.store, self.model, self.options)


class ServableRun:
    """A model of which a run's orders are all that is known; whole once each stage's order is."""

    def __init__(self, overlay: Overlay, own: LoadStage) -> None:
        self._overlay = overlay
        self._own = own
        self._orders: dict[LayerRange, LoadStage] = {}
        self.note(own)

    def note(self, load: LoadStage) -> None:
        """The order of another stage of the run."""
        self._orders[load.layers] = load

    @property
    def is_whole(self) -> bool:
        """Whether every stage can be ordered again."""
        return len(self._orders) == len(self._own.stages)

    @property
    def name(self) -> str:
        """What clients call it."""
        return self._own.model

    @property
    def digest(self) -> Digest:
        """Of the whole file."""
        return Digest(self._own.model_digest)

    @property
    def architecture(self) -> str:
        """An order does not tell."""
        return ""

    @property
    def is_by_orders(self) -> bool:
        """Its stages can only be ordered again."""
        return True

    @property
    def size_bytes(self) -> int:
        """Of the whole file."""
        return self._own.model_bytes

    @property
    def options(self) -> ServingOptions:
        """As it was served."""
        own = self._own
        return ServingOptions(len(own.stages), own.context_tokens, own.lanes, WireDtype(own.wire_dtype))

    @property
    def planning(self) -> PlanningModel:
        """Only the run's own cuts; what a stage needs stands with its first layer, which no other cut parts from it."""
        sizes, reads = [0] * self._own.layer_count, [0] * self._own.layer_count
        for layers, load in self._orders.items():
            sizes[layers.start] = self._needed_bytes(layers)
            reads[layers.start] = load.artifact_bytes
        shape = ShapeBytes(tuple(sizes), context_tokens=self._own.context_tokens, lanes=self._own.lanes)
        cuts = tuple(sorted(layers.start for layers in self._orders if layers.start))
        return PlanningModel((shape,), cuts, layer_reads=tuple(reads))

    @property
    def stages(self) -> tuple[PlannedStage, ...]:
        """The run's stages where they are."""
        needed = ((stage, self._needed_bytes(stage.layers)) for stage in self._own.stages)
        return tuple(
            PlannedStage(PeerId(stage.peer_id), stage.layers, needed_bytes, needed_bytes)
            for stage, needed_bytes in needed
        )

    def _needed_bytes(self, layers: LayerRange) -> int:
        load = self._orders.get(layers)
        return 0 if load is None else load.reserved_bytes

    def make_orders(self) -> Orders:
        """They name the same files again."""
        return _OrdersAgain(self._overlay, self.options, self._orders.values())


class _OrdersAgain:
    """Orders of a run for the stages of another; implements ``Orders``. Whoever has the files gives them."""

    def __init__(self, overlay: Overlay, options: ServingOptions, loads: Iterable[LoadStage]) -> None:
        self._overlay = overlay
        self._loads = {load.layers: load for load in loads}
        self.options = options

    @property
    def name(self) -> str:
        """What clients call the model."""
        return next(iter(self._loads.values())).model

    def gives(self, digest: Digest) -> bool:
        """Whether an order names this file."""
        return any(
            digest == load.artifact_digest or any(digest == entry.digest for entry in load.fragments)
            for load in self._loads.values()
        )

    def release(self) -> None:
        """Nothing was cut for them."""

    async def make(self, placement: Placement, index: int, ids: tuple[bytes, int]) -> LoadStage:
        """The order for one stage, ``ids`` its run and term."""
        load = self._loads[placement.stages[index].layers]
        run_id, term = ids
        stages = entries_of(self._overlay, placement)
        return replace(load, run_id=run_id, term=term, index=index, stages=stages, is_standby=False)
