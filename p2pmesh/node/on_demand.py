"""Models that this node loads and unloads by itself: because requests ask for them, because nobody does, or because
memory is low (``node.unloading``). What others serve, and are asked for too much, is fetched first (``node.replicas``).

Runs ``core.serving.ServingMachine``: looks at what is asked for (``node.demand``), starts coordinators and ends them,
and has requests wait for a model that some peer would load. What it was told to serve (``serve``) is loaded from the
start; everything on its shelf only for a request. Where layers go is ``node.coordinator``'s.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import trio

from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.base.limits import DEFAULT_REPLAN_AFTER_S, MAX_ANNOUNCED_LOADABLE
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros, format_size
from p2pmesh.core.owner_wishes import excludes
from p2pmesh.core.planning.bytes import planning_model
from p2pmesh.core.planning.request import DEFAULT_POLICY as PLANNING
from p2pmesh.core.serving import (
    DrainFailed,
    DropSpares,
    Effect,
    Fetch,
    FetchDone,
    HandOver,
    Lent,
    Load,
    Loadable,
    LoadDone,
    Loaded,
    LoadFailed,
    Look,
    Outcome,
    Rival,
    RunState,
    ServingMachine,
    ServingPolicy,
    Unload,
)
from p2pmesh.model.families import permitted_cuts
from p2pmesh.model.gguf import GgufIndex
from p2pmesh.node.candidates import is_spared
from p2pmesh.node.changes import Changes
from p2pmesh.node.coordinator import Coordinator
from p2pmesh.node.demand import ModelDemand
from p2pmesh.node.driver import Drivers
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.replicas import Replica, Replicas, served_files
from p2pmesh.node.reporting import Report
from p2pmesh.node.router import Router
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.node.stages import Stages
from p2pmesh.node.unloading import HeldModel, Unloading, UnloadingParts
from p2pmesh.ports.clock import Clock, Entropy
from p2pmesh.ports.models import KnownModel, ModelFile, ModelShelf
from p2pmesh.wire.announcement import Announcement, model_hash_of

LOOK_EVERY_S = 5.0
LOOK_GAP_S = 0.2
"""However much others say, looks are so far apart."""
SURVEY_EVERY_S = 300.0
BEGIN_S = 60.0
"""So long a request waits for some peer to begin to load its model."""
LOAD_S = 300.0
"""So long it waits in all."""
OFFERED_S = 2.0
"""A model that is told of for so long is heard of by others."""
NO_RUN_S = 30.0
"""A load that finds no placement for so long has failed."""


@dataclass(frozen=True, slots=True)
class OnDemandOptions:
    """How models of the shelf are served, and when any model is unloaded for being idle (None: never).

    A run that was taken over moves to a clearly better placement as ``ServingOptions`` says, after ``replan_after_s``.
    """

    serving: ServingOptions | None = None
    idle_unload_s: float | None = None
    replan_after_s: float = DEFAULT_REPLAN_AFTER_S


@dataclass(frozen=True, slots=True)
class LoadableModels:
    """What a node may load without being told, how, and within which memory."""

    shelf: ModelShelf | None = None
    """Models that may be served without being named; None for none."""
    memory_left: Callable[[], int | None] = lambda: None
    """Bytes that the machine, or the container of this process, has left; None if that is not known."""
    options: OnDemandOptions = field(default_factory=OnDemandOptions)


@dataclass(frozen=True, slots=True)
class OnDemandParts:
    """What serving on demand stands on."""

    overlay: Overlay
    router: Router
    drivers: Drivers
    stages: Stages
    clock: Clock
    entropy: Entropy
    make: Callable[[ModelFile, ServingOptions], Coordinator]
    note_name: Callable[[ModelFile], None]
    """Others hear of a file and its name here."""
    replicas: Replicas


@dataclass(frozen=True, slots=True)
class _Shelved:
    """A model on disk that is not loaded, by whom it is lent, and what it needs to be held whole."""

    known: KnownModel
    shelf: ModelShelf
    needed_bytes: int


class OnDemand:
    """The models of one node, loaded and unloaded."""

    def __init__(self, parts: OnDemandParts, loadable: LoadableModels, report: Report) -> None:
        self._parts = parts
        self._allowed = loadable
        self._report = report
        idle_s = loadable.options.idle_unload_s
        idle_us = None if idle_s is None else int(idle_s * MICROS_PER_SECOND)
        seed = int.from_bytes(parts.entropy.random_bytes(8), "big")
        self.demand = ModelDemand(parts.overlay, parts.router, parts.clock)
        self._policy = ServingPolicy(idle_unload_us=idle_us)
        self._machine = ServingMachine(seed, self._policy)
        parts.stages.takes_spares = lambda: self._machine.takes_spares(parts.clock.now())
        parts.stages.takes_stage = lambda name: self._machine.takes_stage(model_hash_of(name), parts.clock.now())
        self._shelf: dict[bytes, _Shelved] = {}
        self._held: dict[bytes, HeldModel] = {}
        self._starting: set[bytes] = set()
        """Models of the shelf whose files are being read."""
        self._fetching: dict[bytes, Replica] = {}
        self._failures: dict[bytes, str] = {}
        self._offered_since: dict[bytes, Micros] = {}
        self._changes = Changes()
        unloading = UnloadingParts(
            parts.overlay, parts.drivers, parts.stages, self.demand, parts.clock, loadable.memory_left, self._changes,
            lambda model: self._tell(DrainFailed(model)),
        )  # fmt: skip
        self._unloading = Unloading(unloading, idle_s, report)
        self._nursery: trio.Nursery | None = None

    # --- running ---------------------------------------------------------------
    async def run(self) -> None:
        """Looks, loads and unloads until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._follow, self._parts.overlay.board.changes)
            nursery.start_soon(self._follow, self.demand.changes)
            nursery.start_soon(self._follow, self._parts.replicas.described)
            nursery.start_soon(self._keep_surveying)
            while True:
                seen = self._changes.count
                self.demand.note_stalls()
                for effect in self._look():
                    self._perform(effect)
                self._offer_loads()
                self.demand.tell(self._loadable())
                with trio.move_on_after(self._until_next_look_s()):
                    await self._changes.wait_beyond(seen)
                await trio.sleep(LOOK_GAP_S)

    async def _follow(self, changes: Changes) -> None:
        while True:
            await changes.wait_beyond(changes.count)
            self._changes.mark()

    async def _keep_surveying(self) -> None:
        """What lies on the shelf, from headers: no file is read whole before it is asked for."""
        options = self._allowed.options.serving
        own = () if self._allowed.shelf is None else (self._allowed.shelf,)
        shelves: tuple[ModelShelf, ...] = (*own, self._parts.replicas)  # what is fetched meanwhile is told last
        while options is not None:
            found: dict[bytes, _Shelved] = {}
            try:
                for shelf in shelves:
                    for one in await shelf.survey():
                        if not excludes(self._parts.stages.wishes.excluded_models, one.name):
                            found.setdefault(model_hash_of(one.name), _shelved(one, shelf, options))
            except P2PMeshError as error:  # a disk that cannot be read now may be read later
                self._report("error", {"code": error.code.value, "message": error.message})
            else:
                self._shelf = found
                self._changes.mark()
            await trio.sleep(SURVEY_EVERY_S)

    def _until_next_look_s(self) -> float:
        deadline = self._machine.deadline()
        if deadline is None:
            return LOOK_EVERY_S
        return min(LOOK_EVERY_S, max(0.0, (deadline - self._parts.clock.now()) / MICROS_PER_SECOND))

    # --- requests ----------------------------------------------------------------
    async def await_served(self, name: str) -> None:
        """Counts a request of a client; returns once its model can be routed, or where waiting would not help.

        Raises ``Refused(MODEL_NOT_READY)`` when a model that some peer would load was not loaded in time.
        """
        router = self._parts.router
        served = router.served_name(name)
        model = model_hash_of(served or name)
        self.demand.count(model)
        if served is not None or not self._is_loadable(model):
            return
        if self._parts.overlay.board.is_large and await router.search(name):
            return
        with self.demand.waiting(model):
            await self._wait(name, model)

    async def _wait(self, name: str, model: bytes) -> None:
        board = self._parts.overlay.board
        began = trio.current_time()
        self._failures.pop(model, None)
        while not self._parts.router.is_served(name):
            seen = board.changes.count
            limit_s = LOAD_S if self._is_coming(name, model) else BEGIN_S
            left_s = began + limit_s - trio.current_time()
            failure = self._failures.get(model)
            if left_s <= 0 or (failure is not None and not self._others_with(model)):
                raise _not_loaded(name, failure, int(limit_s))
            with trio.move_on_after(min(left_s, LOOK_EVERY_S)):
                await board.changes.wait_beyond(seen)

    def is_ready(self) -> bool:
        """Whether some model would be loaded for a request, here or elsewhere."""
        unloaded = (held for held in self._held.values() if held.coordinator is None or held.is_loading)
        return bool(self._shelf) or any(unloaded) or any(peer.loadable for peer in self.demand.peers())

    def _is_loadable(self, model: bytes) -> bool:
        """Whether this node or a peer in view would load it for a request."""
        return model in self._loadable() or bool(self._others_with(model))

    def _others_with(self, model: bytes) -> tuple[Announcement, ...]:
        return tuple(peer for peer in self.demand.peers() if model in peer.loadable)

    def _is_coming(self, name: str, model: bytes) -> bool:
        held = self._held.get(model)
        is_loading_here = model in self._starting or (held is not None and held.coordinator is not None)
        return is_loading_here or any(name in peer.wanted for peer in self.demand.peers())

    # --- what others hear ----------------------------------------------------------
    def _loadable(self) -> tuple[bytes, ...]:
        """What a request brings back here: the shelf, and what was given and is unloaded when it is idle, or was."""
        is_idle_unloaded = self._allowed.options.idle_unload_s is not None
        held = (model for model, one in self._held.items() if is_idle_unloaded or one.coordinator is None)
        return tuple(sorted({*self._shelf, *held}))

    def _offer_loads(self) -> None:
        """As many as may be told: what is asked for and not loaded first, in an order that changes little."""

        def rank(model: bytes) -> tuple[bool, bool, bytes]:
            held = self._held.get(model)
            return (held is not None and held.coordinator is not None, self.demand.of(model).is_none, model)

        offered, now = sorted(self._loadable(), key=rank)[:MAX_ANNOUNCED_LOADABLE], self._parts.clock.now()
        self._offered_since = {model: self._offered_since.get(model, now) for model in offered}
        self._parts.overlay.board.offer_loads(tuple(sorted(offered)))

    def _is_offered(self, model: bytes) -> bool:
        """For so long that others know, and we know of theirs."""
        since = self._offered_since.get(model)
        return since is not None and self._parts.clock.now() - since >= OFFERED_S * MICROS_PER_SECOND

    # --- looking -----------------------------------------------------------------
    def _look(self) -> tuple[Effect, ...]:
        now = self._parts.clock.now()
        others = self.demand.peers()
        self.demand.read(others)
        self._want_replicas(others)
        stages = self._parts.stages
        is_idle = not (self._shelf or self._held or stages.spare_bytes or self._parts.replicas.known or stages.lent())
        if is_idle and self._machine.deadline() is None and not self._machine.is_memory_low:
            return ()
        self._note_loads(now)
        served = self.demand.served()
        look = Look(
            self._parts.overlay.own_peer,
            _usable(stages.free_bytes),
            (*self._loadables(others, served), *self._replicas(others, served)),
            tuple(self._loadeds()),
            self._allowed.memory_left(),
            self.demand.rates(served),
            is_spared(self._parts.overlay.board.own()),
            stages.spare_bytes,
            tuple(self._lent()),
        )
        return self._machine.handle(look, now)

    def _note_loads(self, now: Micros) -> None:
        """What came of the loads that the machine asked for."""
        for model, held in self._held.items():
            if held.coordinator is not None and (held.coordinator.run is not None or not held.seen_run_at):
                held.seen_run_at = now
            if held.is_loading and held.is_serving:
                held.is_loading = False
                self._tell(LoadDone(model))
                self._parts.overlay.board.changes.mark()  # it comes no more
            elif held.is_loading and now - held.seen_run_at > NO_RUN_S * MICROS_PER_SECOND:
                self._note_failed(model, "no peers have room for it")
                held.scope.cancel()

    def _tell(self, outcome: Outcome) -> None:
        """What came of an effect is followed by none."""
        self._machine.handle(outcome, self._parts.clock.now())

    def _note_failed(self, model: bytes, text: str) -> None:
        held = self._held.get(model)
        if held is not None:
            held.is_loading = False
        while len(self._failures) >= len(self._shelf) + len(self._held) + 1:
            del self._failures[next(iter(self._failures))]
        self._failures[model] = text
        self._tell(LoadFailed(model))
        self._parts.overlay.board.changes.mark()  # whoever waits for it

    def _loadables(self, others: tuple[Announcement, ...], served: dict[bytes, int]) -> Iterator[Loadable]:
        unloaded = {model: held for model, held in self._held.items() if held.coordinator is None}
        for model in sorted({*self._shelf, *unloaded}):
            demand = self.demand.of(model)
            if demand.is_none or (model in self._held and model not in unloaded) or model in self._starting:
                continue
            name, needed_bytes, can_be_cut = self._facts(model)
            if self._parts.stages.has_stage_of(name):
                continue  # of another's run: no peer serves two coordinators of one model
            if self._is_served_otherwise(name):
                continue  # requests count for that name
            yield Loadable(
                model,
                needed_bytes,
                demand,
                is_awaited_here=self.demand.is_awaited_here(model),
                servers=served.get(model, 0) or int(self._parts.router.is_served(name)),
                is_coming=any(name in peer.wanted for peer in others),
                rivals=_rivals(model, needed_bytes, others),
                may_be_split=self._may_be_held(needed_bytes, can_be_cut=can_be_cut),
                is_offered=self._is_offered(model),
            )

    def _want_replicas(self, others: tuple[Announcement, ...]) -> None:
        """Models that others serve, whose files are not here, and that are asked for enough to be worth a look."""
        if self._allowed.options.serving is None:
            return
        excluded, here = self._parts.stages.wishes.excluded_models, {*self._shelf, *self._held}
        served = served_files(others)
        asked = {model: self.demand.of(model).per_minute for model in served}
        wanted = [
            (model, file)
            for model, file in served.items()
            if asked[model] >= self._policy.imbalance_per_minute
            and model not in here
            and not excludes(excluded, file.name, file.digest)
        ]
        self._parts.replicas.want(dict(sorted(wanted, key=lambda entry: (-asked[entry[0]], entry[0]))))

    def _replicas(self, others: tuple[Announcement, ...], served: dict[bytes, int]) -> Iterator[Loadable]:
        """What would have to be fetched first; who has the file comes before any that has not."""
        for model, replica in self._parts.replicas.known.items():
            is_here = any(model in place for place in (self._shelf, self._held, self._starting, self._fetching))
            is_held = self._parts.stages.has_stage_of(replica.name)
            if is_here or is_held or self._is_served_otherwise(replica.name):
                continue
            needed_bytes = replica.needed_bytes
            yield Loadable(
                model,
                needed_bytes,
                self.demand.of(model),
                servers=served.get(model, 0),
                is_coming=any(replica.name in peer.wanted for peer in others),
                rivals=(*_rivals(model, needed_bytes, others), *_fetching_rivals(model, needed_bytes, others)),
                fetch_bytes=replica.file.size_bytes,
            )

    def _facts(self, model: bytes) -> tuple[str, int, bool]:
        held = self._held.get(model)
        if held is not None:
            return held.model.name, held.needed_bytes, bool(permitted_cuts(held.model.index))
        one = self._shelf[model]
        return one.known.name, one.needed_bytes, bool(permitted_cuts(one.known.index))

    def _may_be_held(self, needed_bytes: int, *, can_be_cut: bool) -> bool:
        """Whether the peers at hand could hold a model: one of them whole, or several in parts."""
        overlay = self._parts.overlay
        offers = [_usable(peer.free_bytes) for peer in overlay.trust.admitted(overlay.admitted_announcements())]
        total = sum(offers) + _usable(self._parts.stages.free_bytes)
        return max(offers, default=0) >= needed_bytes or (can_be_cut and total >= needed_bytes)

    def _loadeds(self) -> Iterator[Loaded]:
        for model in self._fetching:
            yield Loaded(model, RunState.FETCHING, 0, self.demand.of(model), None, False)
        for model in self._starting:
            needed_bytes = self._shelf[model].needed_bytes if model in self._shelf else 0
            yield Loaded(model, RunState.LOADING, needed_bytes, self.demand.of(model), None, False)
        for model, held in self._held.items():
            if not (held.is_serving or held.is_draining or held.is_loading):
                continue  # the operator's own model, that waits for peers: nothing to decide
            state = RunState.SERVING if held.is_serving else RunState.LOADING
            idle_since, is_known = self._unloading.idle_since(held)
            yield Loaded(
                model,
                RunState.DRAINING if held.is_draining else state,
                self._unloading.own_bytes(held),
                self.demand.of(model),
                idle_since,
                is_driven_here=is_known,
            )

    def _lent(self) -> Iterator[Lent]:
        for held in self._parts.stages.lent():
            model = model_hash_of(held.load.model)
            yield Lent(model, self.demand.of(model), held.is_leaving)

    # --- loading -------------------------------------------------------------------
    def _perform(self, effect: Effect) -> None:
        assert self._nursery is not None
        match effect:
            case Fetch(model, reason):
                replica = self._parts.replicas.known[model]
                self._fetching[model] = replica
                self._nursery.start_soon(self._fetch, model, replica, reason.value)
                self._expect(replica.name)
            case Load(model, reason):
                name, needed_bytes, _ = self._facts(model)
                facts = {"model": name, "reason": reason.value, "needed_bytes": needed_bytes}
                self._report("load_on_demand", facts)
                held = self._held.get(model)
                if held is not None:
                    held.wake()
                else:
                    self._starting.add(model)
                    self._nursery.start_soon(self._load, model, self._shelf[model])
                self._expect(name)
            case Unload(model, unload_reason):
                self._held[model].is_draining = True
                self._nursery.start_soon(self._unloading.unload, model, self._held[model], unload_reason)
            case HandOver(model):
                lent = next(one for one in self._parts.stages.lent() if model_hash_of(one.load.model) == model)
                self._nursery.start_soon(self._unloading.hand_over, model, lent)
            case DropSpares():
                self._nursery.start_soon(self._parts.stages.drop_waiting_engines)

    def _expect(self, name: str) -> None:
        """Others hear that it comes, so that they do not load it too."""
        self._parts.router.expect(name)
        self._parts.overlay.board.changes.mark()

    def coming(self) -> tuple[str, ...]:
        """Names of models that this node fetches or loads, whoever serves them meanwhile."""
        fetching = [replica.name for replica in self._fetching.values()]
        starting = [self._shelf[model].known.name for model in sorted(self._starting) if model in self._shelf]
        return (*fetching, *starting, *(held.model.name for held in self._held.values() if held.is_loading))

    async def _fetch(self, model: bytes, replica: Replica, reason: str) -> None:
        """A model of others onto our disk; it is loaded in the same moment if it is as much asked for as before."""
        assert self._allowed.options.serving is not None
        replicas = self._parts.replicas
        try:
            known = await replicas.fetch(model, replica, reason, partial(self._tell_fetched, replica.name))
            self._shelf.setdefault(model, _shelved(known, replicas, self._allowed.options.serving))
            self._tell(FetchDone(model))
        except P2PMeshError as error:
            self._report("error", {"code": error.code.value, "message": f"{replica.name}: {error.message}"})
            self._note_failed(model, error.message)
        finally:
            del self._fetching[model]
        for effect in self._look():
            self._perform(effect)
        if model not in self._starting:
            self._parts.router.forget(replica.name)
        self._changes.mark()
        self._parts.overlay.board.changes.mark()

    def _tell_fetched(self, name: str, done_bytes: int, size_bytes: int) -> None:
        self._parts.router.expect(name, f"{format_size(done_bytes)} of {format_size(size_bytes)} are fetched")

    async def _load(self, model: bytes, shelved: _Shelved) -> None:
        """A model of the shelf, until it is unloaded."""
        assert self._allowed.options.serving is not None
        known, shelf = shelved.known, shelved.shelf
        try:
            file = await shelf.load(known)
            try:
                if self._is_another_name(file):
                    await self._await_other_name(model, file)
                else:
                    await self.serve(file, self._allowed.options.serving, is_given=False)
            finally:
                shelf.release(file)
        except P2PMeshError as error:
            self._report("error", {"code": error.code.value, "message": f"{known.name}: {error.message}"})
            self._note_failed(model, error.message)
            if shelf is self._parts.replicas and self._shelf.get(model) is shelved:
                del self._shelf[model]  # it may have made way for other files
        finally:
            self._starting.discard(model)
            self._parts.router.forget(known.name)
            self._changes.mark()

    def _is_another_name(self, file: ModelFile) -> bool:
        """Whether the very file is served under another name already, which is found out only by reading it."""
        self._parts.note_name(file)
        return self.find(file.digest) is not None or self._is_served_otherwise(file.name)

    def _is_served_otherwise(self, name: str) -> bool:
        return self._parts.router.served_name(name) not in (None, name)

    async def _await_other_name(self, model: bytes, file: ModelFile) -> None:
        """What is loaded here under another name, or was, serves under this one too: read again it would be no more."""
        held = next((one for one in self._held.values() if one.model.digest == file.digest), None)
        if held is None:
            return
        if held.coordinator is None:
            held.wake()
        with trio.move_on_after(LOAD_S):
            while (held.is_loading or held.coordinator is not None) and not self._parts.router.is_served(file.name):
                await self._changes.wait_beyond(self._changes.count)
        if not self._parts.router.is_served(file.name):
            self._note_failed(model, f"{held.model.name}, the same file, was not loaded")

    async def serve(self, file: ModelFile, options: ServingOptions, *, is_given: bool = True) -> None:
        """Serves a model: one that was given until cancelled, in turns where it is unloaded; others until then.

        Raises what its coordinator raises.
        """
        model = model_hash_of(file.name)
        if model in self._held:
            text = f"this node serves another file as {file.name} already: give one of the two another name"
            raise ConfigError(ErrorCode.CONFIG_INVALID, text)
        held = HeldModel(
            file, options, _needed_bytes(file.index, options), is_given, is_loading=model in self._starting
        )
        self._held[model] = held
        self._starting.discard(model)
        try:
            while True:
                await self._serve_once(held)
                if not is_given:
                    return
                await held.is_wanted.wait()
                held.is_wanted = trio.Event()
        finally:
            if self._held.get(model) is held:
                del self._held[model]

    async def _serve_once(self, held: HeldModel) -> None:
        """One coordinator, until its run is unloaded or it raises."""
        held.seen_run_at = self._parts.clock.now()
        held.coordinator = self._parts.make(held.model, held.options)
        self._expect(held.model.name)
        held.scope = trio.CancelScope()
        try:
            with held.scope, unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._unloading.watch_driver, held)
                    await held.coordinator.serve()
                    nursery.cancel_scope.cancel()
        finally:
            held.coordinator = None
            held.is_draining = held.is_loading = False
            if held.scope.cancelled_caught:
                self._parts.router.forget(held.model.name)
            self._changes.mark()

    def describe(self) -> list[dict[str, object]]:
        """What may be loaded for a request, or is loaded, and how much it is asked for, in plain values."""
        described: list[dict[str, object]] = []
        for model in sorted({*self._shelf, *self._held}):
            demand = self.demand.of(model)
            held = self._held.get(model)
            is_loaded = model in self._starting or (held is not None and held.coordinator is not None)
            facts = {"waiting": demand.waiting, "per_minute": demand.per_minute, "per_day": demand.per_day}
            name, needed_bytes, _ = self._facts(model)
            described.append({"model": name, "is_loaded": is_loaded, "needed_bytes": needed_bytes, "demand": facts})
        return described

    @property
    def coordinators(self) -> tuple[Coordinator, ...]:
        """Of the models that are loaded here or about to be."""
        return tuple(held.coordinator for held in self._held.values() if held.coordinator is not None)

    def coordinator_of(self, digest: str) -> Coordinator | None:
        """Who coordinates the model with this digest here, now."""
        return next((one for one in self.coordinators if one.digest == digest), None)

    def find(self, digest: str) -> ModelFile | None:
        """The model with this digest that is loaded here, or was."""
        return next((held.model for held in self._held.values() if held.model.digest == digest), None)


def _shelved(known: KnownModel, shelf: ModelShelf, options: ServingOptions) -> _Shelved:
    return _Shelved(known, shelf, _needed_bytes(known.index, options))


def _needed_bytes(index: GgufIndex, options: ServingOptions) -> int:
    """To hold a model whole."""
    planned = planning_model(index, [(options.context_tokens, options.lanes)])
    return planned.least.bytes_of(LayerRange(0, planned.layer_count))


def _usable(free_bytes: int) -> int:
    return max(0, free_bytes - free_bytes // PLANNING.head_room_divisor)


def _rivals(model: bytes, needed_bytes: int, others: tuple[Announcement, ...]) -> tuple[Rival, ...]:
    """Other peers that would load a model and have room for it."""
    return tuple(
        Rival(PeerId(peer.peer_id), any(row.model == model and row.waiting for row in peer.demand), is_spared(peer))
        for peer in others
        if model in peer.loadable
        and _usable(peer.free_bytes) >= needed_bytes
        and all(model_hash_of(one.name) != model for one in peer.models)
    )


def _fetching_rivals(model: bytes, needed_bytes: int, others: tuple[Announcement, ...]) -> tuple[Rival, ...]:
    """Peers that have room for a model and would have to fetch it, for all that is known."""
    return tuple(
        Rival(PeerId(peer.peer_id), is_spared=is_spared(peer), has_file=False)
        for peer in others
        if model not in peer.loadable
        and _usable(peer.free_bytes) >= needed_bytes
        and all(model_hash_of(one.name) != model for one in peer.models)
    )


def _not_loaded(name: str, failure: str | None, waited_s: int) -> Refused:
    reason = f"loading it failed: {failure}" if failure else f"no peer loaded it within {waited_s} s"
    return Refused(ErrorCode.MODEL_NOT_READY, f"{name} is not ready: {reason}; try again later")
