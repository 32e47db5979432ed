"""Requests of clients -> the peer that drives their model, this one or another."""

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

import trio

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_KNOWN_MODELS
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.affinity import AffinityKeys, Asker
from p2pmesh.core.auto_model import AUTO
from p2pmesh.core.ownership import OwnershipStatus
from p2pmesh.core.retry_after import pending_retry_after_s
from p2pmesh.core.routing import RouteReason, served_models
from p2pmesh.node.driver import Driver, Drivers
from p2pmesh.node.driver_choices import Candidate, DriverChoices, Note
from p2pmesh.node.exchanges import generate_remotely
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.tokenizing import TextOrTokens, tokenize_here, tokenize_remotely
from p2pmesh.node.vigil import Vigils
from p2pmesh.wire.announcement import Announcement, ServedModel
from p2pmesh.wire.generation import GenerationEvent, GenerationRequest, Prompt, RoutedStage, ToolUse

MAX_TOLD_MODELS = 16
"""Names in one event or error; a count says how many there are."""
MAX_AVOIDED = 16
MISSED_S = 120.0
"""So long after its last run a model is still known here; to place it anew takes less, or fails."""
FIRST_OPEN_S = 30.0
NEXT_OPEN_S = 3.0
"""Until a driver has taken a request after a loss: while it is waited for no other is asked."""
_SUSPECT_RANK = 1000
"""Behind everybody else."""


Search = Callable[[str], Awaitable[bool]]
"""Looks for a model outside the view; whether a driver of it is in the view now."""


@dataclass(frozen=True, slots=True)
class Route:
    """The driver of a run, and the model file that it serves."""

    peer: PeerId
    run_id: bytes
    digest: str
    model: str
    """Its name there."""
    reason: RouteReason


@dataclass(slots=True)
class Avoided:
    """Runs that a request was lost with, and the model file that all its drivers must have."""

    run_ids: tuple[bytes, ...] = ()
    digest: str | None = None

    def fits(self, digest: str) -> bool:
        """Whether a file is that of the drivers before."""
        return self.digest is None or digest == self.digest

    def add(self, route: Route) -> None:
        """A driver was asked; if the request comes back from it, it was lost there."""
        self.digest = route.digest
        runs = (*(run_id for run_id in self.run_ids if run_id != route.run_id), route.run_id)
        self.run_ids = runs[-MAX_AVOIDED:]


class Router:
    """Routes by model name."""

    def __init__(
        self, overlay: Overlay, drivers: Drivers, vigils: Vigils, search: Search, choices: DriverChoices
    ) -> None:
        self._overlay = overlay
        self._choices = choices
        self._drivers = drivers
        self._vigils = vigils
        self._search = search
        self._expected: dict[str, str] = {}
        self._expected_since: dict[str, float] = {}
        self._waiting: dict[str, str] = {}
        """What models wait for, in the words of whoever places them here."""
        self._missed: dict[str, float] = {}
        """Models that could be routed until then."""
        self._nothing_since = trio.current_time()
        """Since when no model can be routed, if none can."""

    def expect(self, model: str, reason: str = "it is being loaded") -> None:
        """A model that is to come: until it can be routed, requests for it are told to try again, and why."""
        self._waiting.pop(model, None)
        self._expected[model] = reason
        self._expected_since.setdefault(model, trio.current_time())

    def forget(self, model: str) -> None:
        """A model that will not come under this name."""
        self._waiting.pop(model, None)
        self._expected.pop(model, None)
        self._expected_since.pop(model, None)

    def expected_reason(self, model: str) -> str | None:
        """Why a model that is to come cannot be routed yet; ``None`` for models that nobody here expects."""
        return self.waiting_reason(model) or self._expected.get(model)

    def note_waiting(self, model: str, message: str | None) -> None:
        """A model that is placed here waits for peers, for this or, with None, no more."""
        if message is None:
            self._waiting.pop(model, None)
        elif model in self._waiting or len(self._waiting) < MAX_KNOWN_MODELS:
            self._waiting[model] = message

    def waiting_reason(self, model: str) -> str | None:
        """What its placement waits for; None where it waits for nothing, or is another's."""
        message = self._waiting.get(model)
        return None if message is None else f"it waits for peers: {message}"

    def note_routable(self, before: frozenset[str], now: frozenset[str]) -> None:
        """Which models could be routed, and which can."""
        if not now and before:
            self._nothing_since = trio.current_time()
        for name in now:
            self._waiting.pop(name, None)
        self._missed = {name: at for name, at in self._missed.items() if not self._is_over(at) and name not in now}
        for name in sorted(before - now)[: MAX_KNOWN_MODELS - len(self._missed)]:
            self._missed[name] = trio.current_time()

    def retry_after_s(self, model: str | None = None) -> int:
        """When a request that finds its model, or any, not ready is worth sending again: by how long it is so."""
        since_s = self._missed.get(model or "", self._expected_since.get(model or "", self._nothing_since))
        return pending_retry_after_s(round((trio.current_time() - since_s) * MICROS_PER_SECOND))

    def is_awaited(self, model: str) -> bool:
        """Whether somebody served it until lately; what was never served here may take long to come, and is refused."""
        missed_at = self._missed.get(model)
        return missed_at is not None and not self._is_over(missed_at)

    @staticmethod
    def _is_over(missed_at: float) -> bool:
        return trio.current_time() - missed_at > MISSED_S

    def models(self) -> dict[str, ServedModel]:
        """Models that can be routed from here, by name."""
        return served_models((self._overlay.board.own(), *self._trusted()))

    def awaited(self, known: Container[str], coming: Container[str] = ()) -> list[str]:
        """Models that are to come and are not among the ``known`` ones, which can be routed, or are ``coming`` here."""
        return [name for name in self._expected if name not in known or name in coming]

    def served_name(self, model: str) -> str | None:
        """The name under which a model can be routed: its own, or another of the same file, by what peers announce of
        their disks. None if it cannot be routed."""
        own = self._overlay.board.own()
        peers = (own, *self._trusted())
        if any(served.name == model for peer in peers for served in peer.models):
            return model
        files = dict.fromkeys(held.digest for peer in peers for held in peer.on_disk if held.name == model)
        if not files:
            return None
        names = {served.digest: served.name for peer in reversed(peers) for served in reversed(peer.models)}
        return next((names[digest] for digest in files if digest in names), None)

    def is_served(self, model: str) -> bool:
        """Whether somebody in view drives it, under whatever name."""
        return self.served_name(model) is not None

    async def search(self, model: str) -> bool:
        """Looks for a model outside the view; whether it can be routed then."""
        return await self._search(model)

    async def find(self, model: str, keys: AffinityKeys, avoided: Avoided, *, may_repeat: bool) -> Route:
        """Who drives a model; of the runs that were lost only where there is no other and ``may_repeat``.

        Raises ``Refused`` with ``MODEL_NOT_READY`` or ``MODEL_UNKNOWN`` if nobody does.
        """
        model = self.served_name(model) or model
        route = self._choose(model, keys, avoided)
        if route is None and may_repeat:
            route = self._choose(model, keys, replace(avoided, run_ids=()))
            if route is None and await self._search(model):
                route = self._choose(model, keys, avoided)
        if route is None:
            raise self._missing(model)
        return route

    def are_verified(self, stages: Iterable[RoutedStage]) -> bool:
        """Whether each peer on a way shows an owner's claim that this node finds true; false of a way without peers."""
        peers = {stage.peer_id for stage in stages}
        board, trust = self._overlay.board, self._overlay.trust
        shown = [board.own() if peer == self._overlay.own_peer else board.find(PeerId(peer)) for peer in sorted(peers)]
        statuses = [said and trust.assess(PeerId(said.peer_id), said.ownership).status for said in shown]
        return bool(statuses) and all(status is OwnershipStatus.VERIFIED for status in statuses)

    def settle_model(self, request: GenerationRequest, asker: Asker) -> GenerationRequest:
        """The request, with the model chosen where it leaves that to us; as it is where nothing is served."""
        models = self.models()
        if request.model != AUTO or AUTO in models:
            return request
        runs: dict[str, list[tuple[PeerId, bytes]]] = {name: [] for name in models}
        for peer in (self._overlay.board.own(), *self._trusted()):
            for served in peer.models:
                if served.name in runs:
                    runs[served.name].append((PeerId(peer.peer_id), served.run_id))
        chosen = self._choices.choose_model(runs, request, asker)
        return request if chosen is None else replace(request, model=chosen)

    @asynccontextmanager
    async def generate(
        self, route: Route, request: GenerationRequest, keys: AffinityKeys, *, is_first: bool = True
    ) -> AsyncIterator[tuple[AsyncIterator[GenerationEvent], Note]]:
        """Events of a request at one driver, and what is to be told each of them; after a loss nobody is waited for
        long who may be gone too."""
        is_own = route.peer == self._overlay.own_peer
        request = replace(request, model=route.model)
        driven = self._own_driver(request.model).generate(request) if is_own else self._remote(route, request, is_first)
        with self._choices.observing((route.peer, route.run_id), keys) as note:
            async with driven as events:
                yield events, note

    async def tokenize(
        self, model: str, key: bytes, prompt: Prompt, tools: ToolUse | None, *, add_special: bool
    ) -> TextOrTokens:
        """Ids of a prompt, or the text of one that is ids, by whoever drives the model."""
        route = await self.find(model, AffinityKeys(None, key, None), Avoided(), may_repeat=True)
        if route.peer == self._overlay.own_peer:
            return await tokenize_here(self._own_driver(route.model), prompt, tools, add_special=add_special)
        return await tokenize_remotely(self._overlay, route.peer, route.model, prompt, tools, add_special=add_special)

    def _remote(
        self, route: Route, request: GenerationRequest, is_first: bool
    ) -> AbstractAsyncContextManager[AsyncIterator[GenerationEvent]]:
        self._overlay.board.topics.hear_model(route.digest)
        open_s = FIRST_OPEN_S if is_first else NEXT_OPEN_S
        return generate_remotely(self._overlay, self._vigils, route.peer, request, open_s)

    def _choose(self, model: str, keys: AffinityKeys, avoided: Avoided) -> Route | None:
        """This node's own driver, or another's by what is announced, in both cases of no run to avoid."""

        def serves(served: ServedModel) -> bool:
            return served.name == model and served.run_id not in avoided.run_ids and avoided.fits(served.digest)

        own = self._overlay.own_peer
        drivers = {PeerId(a.peer_id): (a, one) for a in self._trusted() for one in a.models if serves(one)}
        ranks = {peer: self._rank(announced) for peer, (announced, _) in drivers.items()}
        served = {peer: one for peer, (_, one) in drivers.items()}
        if self._drivers.find_published(model) is not None:
            mine = [one for one in self._overlay.board.own_models if serves(one)]
            served |= {own: mine[0]} if mine else {}
        candidates = (Candidate(peer, one.run_id, ranks.get(peer, 0)) for peer, one in served.items())
        chosen = self._choices.choose(candidates, keys)
        if chosen is None:
            return None
        peer, reason = chosen
        return Route(peer, served[peer].run_id, served[peer].digest, served[peer].name, reason)

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
        reason = self.expected_reason(model)
        if reason is not None:
            return self._not_ready(f"{model} is not ready: {reason}", model)
        known = list(self.models())
        if not known:
            return self._not_ready("no model is ready yet; try again in a moment")
        if self.is_awaited(model) or any(model in peer.wanted for peer in self._trusted()):
            return self._not_ready(
                f"{model} is not ready: its peers are being placed anew; try again in a moment", model
            )
        return Refused(ErrorCode.MODEL_UNKNOWN, f"no peer serves {model!r}; served are: {_listed(known)}")

    def _not_ready(self, text: str, model: str | None = None) -> Refused:
        return Refused(ErrorCode.MODEL_NOT_READY, text, self.retry_after_s(model))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_TOLD_MODELS} more" if len(names) > MAX_TOLD_MODELS else ""
    return ", ".join(names[:MAX_TOLD_MODELS]) + more
