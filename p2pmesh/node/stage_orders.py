"""Orders to load the stages of one model: cuts the files that they name, and knows who may fetch those.

Which peer gets which stage is the planner's; what becomes of an order is ``node.run``'s and ``node.standby``'s.
"""

from dataclasses import replace
from typing import Any, Protocol

from p2pmesh.base.ids import Digest, PeerId
from p2pmesh.core.planning.outcome import Placement, PlannedStage
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.ports.models import ModelFile, ModelStore, StageArtifact
from p2pmesh.wire.messages.runs import FileEntry, LoadStage, StageEntry


class Orders(Protocol):
    """Orders for the stages of one run, or of one spare engine."""

    @property
    def name(self) -> str:
        """What clients call the model."""

    @property
    def options(self) -> ServingOptions:
        """How it is served."""

    def gives(self, digest: Digest) -> bool:
        """Whether an order names this file."""

    def release(self) -> None:
        """Nobody needs the files of these orders any more."""

    async def make(self, placement: Placement, index: int, ids: tuple[bytes, int]) -> LoadStage:
        """The order for one stage, ``ids`` its run and term."""


class StageOrders:
    """``Orders`` of a model whose file is here, as it is to be served; their files stay here until ``release``."""

    def __init__(self, overlay: Overlay, store: ModelStore, model: ModelFile, options: ServingOptions) -> None:
        self.model = model
        self._options = options
        self._overlay = overlay
        self._store = store
        self._cut: list[Digest] = []
        self._given: set[Digest] = set()
        """Fragments that peers may fetch, besides the stages that are cut from them."""

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.model.name

    @property
    def options(self) -> ServingOptions:
        """How it is served."""
        return self._options

    def gives(self, digest: Digest) -> bool:
        """Whether an order names this file."""
        return digest in self._cut or digest in self._given

    def release(self) -> None:
        """Nobody needs the files of these orders any more."""
        for digest in self._cut:
            self._store.release(digest)
        self._cut.clear()

    async def make(self, placement: Placement, index: int, ids: tuple[bytes, int]) -> LoadStage:
        """The order for one stage, ``ids`` its run and term.

        The file is cut here first, so that a peer without the model can fetch it.
        """
        planned = placement.stages[index]
        artifact = await self._store.cut(self.model, planned.layers)
        self._cut.append(artifact.digest)
        transport = await self._transport(planned, artifact)
        self._given.update(Digest(fragment.digest) for fragment in transport.get("fragments", ()))
        return replace(self._order(placement, index, ids, artifact), **transport)

    def _order(self, placement: Placement, index: int, ids: tuple[bytes, int], artifact: StageArtifact) -> LoadStage:
        model, options = self.model, self.options
        return LoadStage(
            run_id=ids[0],
            term=ids[1],
            model=model.name,
            model_digest=model.digest,
            model_bytes=model.size_bytes,
            layer_count=model.index.layer_count,
            index=index,
            stages=entries_of(self._overlay, placement),
            artifact_digest=artifact.digest,
            artifact_bytes=artifact.size_bytes,
            needed_bytes=placement.stages[index].needed_bytes,
            context_tokens=options.context_tokens,
            lanes=options.lanes,
            wire_dtype=options.wire_dtype,
        )

    async def _transport(self, planned: PlannedStage, artifact: StageArtifact) -> dict[str, Any]:
        """How the stage's file can be fetched; our own is not, and may be a whole model that would be read for it."""
        if planned.peer_id == self._overlay.own_peer:
            return {}
        store = self._store
        fragments = tuple(dict.fromkeys(await store.fragments_of(self.model, planned.layers)))
        entries = [FileEntry(f.digest, f.size_bytes, (await store.piece_list(f)).digest) for f in fragments]
        return {"pieces_digest": (await store.piece_list(artifact)).digest, "fragments": tuple(entries)}


def entries_of(overlay: Overlay, placement: Placement) -> tuple[StageEntry, ...]:
    """The stages of a placement with the addresses that are known of their peers."""
    return tuple(_entry(overlay, stage) for stage in placement.stages)


def stage_addresses(overlay: Overlay, placement: Placement) -> tuple[tuple[PeerId, tuple[str, ...]], ...]:
    """The peers of a placement and where they are."""
    return tuple((PeerId(entry.peer_id), entry.addresses) for entry in entries_of(overlay, placement))


def _entry(overlay: Overlay, stage: PlannedStage) -> StageEntry:
    known = overlay.board.own() if stage.peer_id == overlay.own_peer else overlay.board.find(stage.peer_id)
    return StageEntry(stage.peer_id, stage.layers.start, stage.layers.end, known.addresses if known else ())
