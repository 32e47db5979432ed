"""Requests of clients -> the peer that drives their model, this one or another."""

from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.core.routing import choose_driver, served_models
from p2pmesh.node.driver import Driver, Drivers
from p2pmesh.node.exchanges import generate_remotely
from p2pmesh.node.overlay import Overlay
from p2pmesh.wire.announcement import Announcement, ServedModel
from p2pmesh.wire.generation import GenerationEvent, GenerationRequest

MAX_TOLD_MODELS = 16
"""Names in one event or error; a count says how many there are."""
_SUSPECT_RANK = 1000
"""Behind everybody else."""


Search = Callable[[str], Awaitable[bool]]
"""Looks for a model outside the view; whether a driver of it is in the view now."""


class Router:
    """Routes by model name."""

    def __init__(self, overlay: Overlay, drivers: Drivers, search: Search) -> None:
        self._overlay = overlay
        self._drivers = drivers
        self._search = search
        self._expected: dict[str, str] = {}

    def expect(self, model: str, reason: str = "it is being loaded") -> None:
        """A model that is to come: until it can be routed, requests for it are told to try again, and why."""
        self._expected[model] = reason

    def expected_reason(self, model: str) -> str | None:
        """Why a model that is to come cannot be routed yet; ``None`` for models that nobody here expects."""
        return self._expected.get(model)

    def models(self) -> dict[str, ServedModel]:
        """Models that can be routed from here, by name."""
        return served_models((self._overlay.board.own(), *self._trusted()))

    def awaited(self, known: Container[str]) -> list[str]:
        """Models that are to come and are not among the ``known`` ones, which can be routed."""
        return [name for name in self._expected if name not in known]

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
        """Events of a request; ``Refused`` with ``MODEL_NOT_READY`` or ``MODEL_UNKNOWN`` if nobody drives its model."""
        peer = self._choose(request)
        if peer is None and await self._search(request.model):
            peer = self._choose(request)
        if peer is None:
            raise self._missing(request.model)
        is_own = peer == self._overlay.own_peer
        driven = self._own_driver(request.model).generate(request) if is_own else self._remote(peer, request)
        async with driven as events:
            yield events

    def _remote(
        self, peer: PeerId, request: GenerationRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[GenerationEvent]]:
        announced = (model for other in self._trusted() for model in other.models)
        served = next((model for model in announced if model.name == request.model), None)
        if served is not None:  # asked of the announcements: the list of models has a bound
            self._overlay.board.topics.hear_model(served.digest)
        return generate_remotely(self._overlay, peer, request)

    def _choose(self, request: GenerationRequest) -> PeerId | None:
        own = {driver.load.model for driver in self._drivers.all() if driver.is_published}
        return choose_driver(
            request.model,
            request.request_id,
            self._overlay.own_peer,
            frozenset(own),
            self._trusted(),
            self._rank,
        )

    def _rank(self, peer: Announcement) -> int:
        """A suspect is asked only where nobody else drives the model; beyond that the trust policy's preference."""
        rank = self._overlay.trust.rank(peer)
        return rank + _SUSPECT_RANK if self._overlay.board.is_suspect(PeerId(peer.peer_id)) else rank

    def _trusted(self) -> tuple[Announcement, ...]:
        """What those peers announce whom the trust policy lets us ask."""
        return self._overlay.trust.admitted(self._overlay.board.others())

    def _own_driver(self, model: str) -> Driver:
        driver = self._drivers.find_published(model)
        if driver is None:
            raise self._missing(model)
        return driver

    def _missing(self, model: str) -> Refused:
        reason = self._expected.get(model)
        if reason is not None:
            return Refused(ErrorCode.MODEL_NOT_READY, f"{model} is not ready: {reason}")
        known = list(self.models())
        if not known:
            return Refused(ErrorCode.MODEL_NOT_READY, "no model is ready yet; try again in a moment")
        return Refused(ErrorCode.MODEL_UNKNOWN, f"no peer serves {model!r}; served are: {_listed(known)}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_TOLD_MODELS} more" if len(names) > MAX_TOLD_MODELS else ""
    return ", ".join(names[:MAX_TOLD_MODELS]) + more
