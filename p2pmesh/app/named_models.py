"""The models that the operator named: each is obtained, fetched where it is only on the hub, and served until the end.

What a reference means and how a model is fetched is ``app.model_access``', where its layers go the node's.
"""

import trio

from p2pmesh.adapters.hub import TransferProgress
from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app import events
from p2pmesh.app.config import UpOptions
from p2pmesh.app.events import Emit, Event, EventName
from p2pmesh.app.model_access import ModelAccess, describe_progress
from p2pmesh.app.wire_clearance import with_clearance
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.limits import MAX_NAME_BYTES
from p2pmesh.base.quantities import format_size
from p2pmesh.node.node import Node
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.ports.models import ModelFile

TOLD_EVERY_S = 1.0
HUB_RETRY_FIRST_S = 30.0
HUB_RETRY_LONGEST_S = 600.0


def references_of(options: UpOptions) -> tuple[str, ...]:
    """The models that were named, each once."""
    demo = (DEMO_MODEL,) if options.is_demo else ()
    return tuple(dict.fromkeys((*demo, *options.models)))


class NamedModels:
    """Those of one ``up``; a node that follows another serves them anew."""

    def __init__(self, options: UpOptions, access: ModelAccess, emit: Emit) -> None:
        self._options = options
        self._access = access
        self._emit = emit
        self.references = references_of(options)

    async def serve(self, node: Node, reference: str) -> None:
        """Until cancelled; raises when the model cannot be had, or can never be placed."""
        options = self._options
        serving = ServingOptions(
            options.split or (len(options.cuts) + 1 if options.cuts else None),
            options.context_tokens,
            options.lanes,
            options.wire_dtype,
            options.cuts,
            replan_after_s=options.replan_after_s,
        )
        model = await self._obtain(node, reference)
        await self._access.store.keep(model)
        try:
            await node.coordinators.serve_model(model, with_clearance(serving, model, reference, options.home))
        finally:
            self._access.store.release(model.digest)

    async def _obtain(self, node: Node, reference: str) -> ModelFile:
        """The model; while the hub is away, the node goes on with what else it does, and asks again."""
        told = _FetchTold(node, self._emit)
        wait_s = HUB_RETRY_FIRST_S
        while True:
            try:
                model = await self._access.obtain(reference, told.tell)
            except Refused as refusal:
                if refusal.code is not ErrorCode.HUB_UNREACHABLE:
                    raise
                text = f"{refusal.message}; asked again in {wait_s:.0f} s"
                self._emit(events.error(Refused(refusal.code, text)))
                await trio.sleep(wait_s)
                wait_s = min(2 * wait_s, HUB_RETRY_LONGEST_S)
            else:
                told.end(model)
                return model


class _FetchTold:
    """Tells the operator, and the clients that ask for the model, how far a fetch is."""

    def __init__(self, node: Node, emit: Emit) -> None:
        self._node = node
        self._emit = emit
        self._told_at = float("-inf")

    def tell(self, progress: TransferProgress) -> None:
        """At most once a second."""
        now = trio.current_time()
        if now - self._told_at < TOLD_EVERY_S:
            return
        self._told_at = now
        done, total = format_size(progress.done_bytes), format_size(progress.total_bytes)
        left = "" if progress.left_s is None else f", about {progress.left_s} s left"
        if len(progress.model.encode()) <= MAX_NAME_BYTES:
            self._node.router.expect(progress.model, f"{done} of {total} are fetched{left}")
        self._emit(Event(EventName.MODEL_FETCHING, describe_progress(progress)))

    def end(self, model: ModelFile) -> None:
        """The model is here, whole and checked; nothing is told where nothing was fetched."""
        if self._told_at > float("-inf"):
            facts = {"model": model.name, "source": model.source, "path": model.path, "bytes": model.size_bytes}
            self._emit(Event(EventName.MODEL_FETCHED, facts))
