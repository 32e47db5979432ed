"""The runs that have a stage here, by run id; stage streams of peers find their run through it."""

import trio

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, P2PMeshError, RemoteProtocolError
from p2pmesh.base.limits import STAGE_PROTOCOL
from p2pmesh.node.channels import FrameStream
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.stage_run import StageRun
from p2pmesh.ports.network import ByteStream, Network

FIRST_FRAME_TIMEOUT_S = 10.0
MAX_RUNS = 64


class RunTable:
    """Live stages of this node."""

    def __init__(self, overlay: Overlay, network: Network) -> None:
        self._overlay = overlay
        self._runs: dict[bytes, StageRun] = {}
        network.serve(STAGE_PROTOCOL, self._serve)

    def runs(self) -> tuple[StageRun, ...]:
        """All, oldest first."""
        return tuple(self._runs.values())

    def find(self, run_id: bytes) -> StageRun | None:
        """The stage of a run here."""
        return self._runs.get(run_id)

    async def wait_idle(self) -> None:
        """Until no sequence is open on any stage here; a stage that goes meanwhile has none."""
        for run in self.runs():
            seen = run.ended.count
            while run.open_sequences:
                seen = await run.ended.wait_beyond(seen)

    def add(self, run: StageRun) -> None:
        """A stage is up."""
        if run.load.run_id in self._runs:
            raise LocalProtocolError(ErrorCode.INTERNAL, "a run has two stages here")
        self._runs[run.load.run_id] = run

    def remove(self, run: StageRun) -> None:
        """A stage is gone."""
        self._runs.pop(run.load.run_id, None)

    async def _serve(self, raw: ByteStream) -> None:
        stream = FrameStream(raw)
        peer = raw.remote_peer
        try:
            await self._overlay.conduct.take_turn(peer)
            if not await self._overlay.wait_admitted(peer):
                text = "a stage stream of a peer that is not admitted"
                raise RemoteProtocolError(ErrorCode.NOT_ADMITTED, text, culprit=peer)
            with trio.fail_after(FIRST_FRAME_TIMEOUT_S):
                first = await stream.receive_opening()
            run = self.find(first.run_id)
            if run is None:
                raise RemoteProtocolError(ErrorCode.STAGE_UNKNOWN, "no stage of this run here")
            await run.serve_inbound(stream, first)
        except P2PMeshError as error:
            self._overlay.conduct.note_error(error)
            await stream.reset()
        except trio.TooSlowError:
            await stream.reset()
