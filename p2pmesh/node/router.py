"""Requests of clients -> the peer that drives their model, this one or another."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.core.routing import choose_driver, served_models
from p2pmesh.node.driver import Driver, Drivers
from p2pmesh.node.exchanges import generate_remotely
from p2pmesh.node.overlay import Overlay
from p2pmesh.wire.announcement import Announcement, ServedModel
from p2pmesh.wire.generation import GenerationEvent, GenerationRequest

_SUSPECT_RANK = 1000
"""Behind everybody else."""


class Router:
    """Routes by model name."""

    def __init__(self, overlay: Overlay, drivers: Drivers) -> None:
        self._overlay = overlay
        self._drivers = drivers
        self._expected: dict[str, str] = {}

    def expect(self, model: str, reason: str = "it is being loaded") -> None:
        """A model that is to come: until it can be routed, requests for it are told to try again, and why."""
        self._expected[model] = reason

    def models(self) -> dict[str, ServedModel]:
        """Models that can be routed from here, by name."""
        return served_models((self._overlay.board.own(), *self._trusted()))

    def generate(self, request: GenerationRequest) -> AbstractAsyncContextManager[AsyncIterator[GenerationEvent]]:
        """Events of a request; ``Refused`` with ``MODEL_NOT_READY`` or ``MODEL_UNKNOWN`` if nobody drives its model."""
        own = {driver.load.model for driver in self._drivers.all() if driver.is_published}
        peer = choose_driver(
            request.model,
            request.request_id,
            self._overlay.own_peer,
            frozenset(own),
            self._trusted(),
            self._rank,
        )
        if peer is None:
            raise self._missing(request.model)
        if peer == self._overlay.own_peer:
            return self._own_driver(request.model).generate(request)
        return generate_remotely(self._overlay, PeerId(peer), request)

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
        known = ", ".join(self.models()) or "none yet"
        if not self.models():
            return Refused(ErrorCode.MODEL_NOT_READY, "no model is ready yet; try again in a moment")
        return Refused(ErrorCode.MODEL_UNKNOWN, f"no peer serves {model!r}; served are: {known}")
