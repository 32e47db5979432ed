"""Files that lie here and that others may fetch or ask for by name: models that this node has read, and its stages.

Who may have which is ``node.artifacts``', how holders are found ``node.records``'.
"""

from p2pmesh.base.ids import Digest
from p2pmesh.core.artifact_policy import ArtifactTransfer
from p2pmesh.node.announcements import AnnouncementBoard
from p2pmesh.node.artifacts import Artifacts
from p2pmesh.node.run_table import RunTable
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.announcement import HeldModel


class OwnFiles:
    """Of one node."""

    def __init__(self, board: AnnouncementBoard, table: RunTable, artifacts: Artifacts) -> None:
        self._board = board
        self._table = table
        self._artifacts = artifacts
        self._models: dict[Digest, ModelFile] = {}
        self._names: dict[str, Digest] = {}
        """Of those files; one may have several."""

    def note(self, model: ModelFile) -> None:
        """Others hear which file is here, and under which names it may be asked for."""
        self._models.setdefault(model.digest, model)
        self._names[model.name] = model.digest
        self._board.change_own(on_disk=tuple(HeldModel(name, digest) for name, digest in self._names.items()))

    def find(self, digest: Digest) -> ModelFile | None:
        """The whole model with this digest, if it is here."""
        return self._models.get(digest)

    def given(self) -> tuple[Digest, ...]:
        """What others can fetch here: whole models, the stages that we run, what came lately."""
        if self._artifacts.mode is ArtifactTransfer.OFF:
            return ()
        stages = (Digest(run.load.artifact_digest) for run in self._table.runs())
        return tuple(dict.fromkeys((*self._models, *stages, *self._artifacts.held())))
