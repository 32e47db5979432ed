"""What a node serves beside what it was told to: when a model is loaded, fetched for that, and when a run is unloaded.

A pure machine over what the node sees at a moment (``Look``). Owns the reasons, the order in which peers that could all
load a model do so, and the pauses. How much models are asked for is ``core.demand``'s, where layers go
``core.planning``'s, how a run is drained ``node.on_demand``'s.

A hundred peers hear of one request at once, and one of them should load the model. They rank each other by a hash of
model and peer, those first whose own clients wait, and those last that run on battery or are in use; each rank begins a
step later than the one before it, and gives up as soon as it hears that somebody began. Ranks beyond the last step, and
peers that see each other in part, are spread by jitter. Behind all that have the file come those that would fetch it:
only a model that somebody serves, whose servers have too much to do, is worth that.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_KNOWN_MODELS
from p2pmesh.base.quantities import MIB, MICROS_PER_SECOND, Micros
from p2pmesh.core.demand import Demand
from p2pmesh.core.draws import Draws

_MINUTE_US = 60 * MICROS_PER_SECOND


class LoadReason(StrEnum):
    """Why a model is loaded that nobody named to this node."""

    NO_SERVER = "no_server"
    IMBALANCE = "imbalance"
    BUSY = "busy"


class UnloadReason(StrEnum):
    """Why a run is drained and ended."""

    IDLE = "idle"
    MEMORY_LOW = "memory_low"
    ROOM_WANTED = "room_wanted"


class RunState(StrEnum):
    """Where a model that was loaded here stands, or comes from others' disks."""

    FETCHING = "fetching"
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class ServingPolicy:
    """Bounds and times. ``idle_unload_us`` None: a run that serves is not unloaded for being idle.

    Ten requests a minute for each server and the three-fold imbalance are Mesh LLM's figures.
    """

    idle_unload_us: int | None = None
    busy_per_minute: int = 10
    imbalance: int = 3
    imbalance_per_minute: int = 3
    """Below this many requests a minute no imbalance is worth a load."""
    step_us: int = 2 * MICROS_PER_SECOND
    """Between two ranks; longer than an announcement takes to all of a shard."""
    steps: int = 8
    late_us: int = 14 * MICROS_PER_SECOND
    """Ranks beyond the last step are spread over so long."""
    coming_us: int = 60 * MICROS_PER_SECOND
    """So long another peer's word is believed that it is about to serve a model."""
    fetched_bytes_per_s: int = 2 * MIB
    """Whoever would have to fetch the file believes it as much longer as a fetch takes at this rate, since the other
    may be at that; ``longest_fetch_us`` at most."""
    longest_fetch_us: int = 1800 * MICROS_PER_SECOND
    lost_us: int = 5 * MICROS_PER_SECOND
    """A run that ended is mostly placed anew by who had it: so long after its last server nobody else begins."""
    settled_us: int = 600 * MICROS_PER_SECOND
    """So long after an unload only a request that waits brings the model back, not one that was."""
    first_pause_us: int = 30 * MICROS_PER_SECOND
    longest_pause_us: int = 900 * MICROS_PER_SECOND
    """After a load that failed."""
    low_memory_bytes: int = 256 * MIB
    low_memory_us: int = 5 * MICROS_PER_SECOND
    """Memory is low when so little is left for so long."""
    low_memory_pause_us: int = 30 * MICROS_PER_SECOND
    """An unload shows in what is left only after a while."""
    low_memory_bar_us: int = 60 * MICROS_PER_SECOND
    """So long after an unload for memory nothing is loaded on demand."""
    drain_again_us: int = 60 * MICROS_PER_SECOND
    room_idle_us: int = 60 * MICROS_PER_SECOND
    """A run that nobody used for so long makes room for a model that is waited for."""

    @property
    def all_ranks_us(self) -> int:
        """By then each peer that would load a model has had its turn."""
        return self.steps * self.step_us + self.late_us


DEFAULT_POLICY = ServingPolicy()


@dataclass(frozen=True, slots=True)
class Rival:
    """Another peer that would load a model and has room for all of it: whether clients of its own wait for that,
    whether it runs on battery or is in use, and whether it has the file."""

    peer: PeerId
    is_waiting: bool = False
    is_spared: bool = False
    has_file: bool = True


@dataclass(frozen=True, slots=True)
class Loadable:
    """A model that is not loaded here: on disk, or to be had from other peers.

    ``needed_bytes`` holds it whole. ``servers`` are other peers that serve it; ``is_coming`` says that one is about
    to. ``may_be_split`` says whether the peers in view could hold it together. Unless it ``is_offered``, others do not
    know that it is here, nor do we know all ``rivals``: each peer offers a few models only. ``fetch_bytes`` are to be
    fetched first; 0 for one on disk.
    """

    model: bytes
    needed_bytes: int
    demand: Demand
    is_awaited_here: bool = False
    servers: int = 0
    is_coming: bool = False
    rivals: tuple[Rival, ...] = ()
    may_be_split: bool = False
    is_offered: bool = True
    fetch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that this node loaded: where it stands, and since when no request has run through it.

    ``is_driven_here`` is whether this node knows all its requests: it drives them, or the driver has just told that
    there are none. ``needed_bytes`` are what its end sets free here. ``idle_since`` is None while a request runs.
    """

    model: bytes
    state: RunState
    needed_bytes: int
    demand: Demand
    idle_since: Micros | None
    is_driven_here: bool


@dataclass(frozen=True, slots=True)
class Lent:
    """A stage here of a run that another peer coordinates; ``is_leaving`` while it is being handed over."""

    model: bytes
    demand: Demand
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests a minute for a model, and the peers that serve it."""

    model: bytes
    per_minute: int
    servers: int


# --- events -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Look:
    """All that counts now. ``free_bytes`` is what of this node's memory a new stage may take, ``memory_left_bytes``
    what its machine or its container has left (None: not known), ``rates`` those of models that are served anywhere.

    Effects of the look before are under way: a model that was to be loaded is among ``loaded``.
    """

    own_peer: PeerId
    free_bytes: int
    loadables: tuple[Loadable, ...]
    loaded: tuple[Loaded, ...] = ()
    memory_left_bytes: int | None = None
    rates: tuple[Rate, ...] = ()
    is_spared: bool = False
    """Whether this node runs on battery, or its machine is in use."""
    spare_bytes: int = 0
    """What engines take that wait here for stages that may come, of any coordinator."""
    lent: tuple[Lent, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchDone:
    """A model that was fetched is on disk."""

    model: bytes


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A load, or the fetch before it, came to nothing."""

    model: bytes


@dataclass(frozen=True, slots=True)
class LoadDone:
    """A model that was loaded serves."""

    model: bytes


@dataclass(frozen=True, slots=True)
class DrainFailed:
    """Requests went on beyond the deadline of a drain, or nobody took a stage over: the run serves on."""

    model: bytes


Outcome = FetchDone | LoadFailed | LoadDone | DrainFailed
Event = Look | Outcome


# --- effects ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring this model onto our disk: if it is as much asked for once it is there, it is loaded."""

    model: bytes
    reason: LoadReason


@dataclass(frozen=True, slots=True)
class Load:
    """Serve this model from now on."""

    model: bytes
    reason: LoadReason


@dataclass(frozen=True, slots=True)
class Unload:
    """Let no new request come to this run, and end it once none is under way."""

    model: bytes
    reason: UnloadReason


@dataclass(frozen=True, slots=True)
class HandOver:
    """Have the coordinator of a run load elsewhere what its stage here holds: memory is low."""

    model: bytes


@dataclass(frozen=True, slots=True)
class DropSpares:
    """End the engines that wait for stages which may come: memory is low, and nobody uses them."""


Effect = Fetch | Load | Unload | HandOver | DropSpares


class ServingMachine:
    """What one node loads and unloads by itself. At most one model is being loaded so at a time, and one fetched."""

    def __init__(self, seed: int, policy: ServingPolicy = DEFAULT_POLICY) -> None:
        self._policy = policy
        self._draws = Draws(seed)
        self._due: dict[bytes, Micros] = {}
        self._unranked: set[bytes] = set()
        """Models among these that were not offered when their turn was drawn."""
        self._coming_since: dict[bytes, Micros] = {}
        self._served_at: dict[bytes, Micros] = {}
        """Models that were served a moment ago, and when last."""
        self._unloaded_at: dict[bytes, Micros] = {}
        self._failures: dict[bytes, tuple[int, Micros]] = {}
        """How often in a row a load failed, and until when it is not tried again."""
        self._undrained_until: dict[bytes, Micros] = {}
        self._low_since: Micros | None = None
        self._next_relief = Micros(0)
        self._barred_until = Micros(0)
        self._deadline: Micros | None = None

    @property
    def is_memory_low(self) -> bool:
        """Whether little was left at the last look."""
        return self._low_since is not None

    def takes_spares(self, now: Micros) -> bool:
        """Whether another engine may wait here in case."""
        return not self.is_memory_low and now >= self._barred_until

    def takes_stage(self, model: bytes, now: Micros) -> bool:
        """Whether another coordinator may load a stage of a model here; not where one had just to go for memory."""
        return model not in self._unloaded_at or self.takes_spares(now)

    def deadline(self) -> Micros | None:
        """When another look may lead to something without anything new."""
        return self._deadline

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        match event:
            case Look():
                return self._look(event, now)
            case LoadFailed(model):
                count = self._failures.get(model, (0, now))[0] + 1
                pause_us = min(self._policy.first_pause_us << min(count - 1, 10), self._policy.longest_pause_us)
                self._failures[model] = (count, Micros(now + pause_us))
            case FetchDone(model):
                self._due[model] = now  # its turn had come before
            case LoadDone(model):
                self._failures.pop(model, None)
            case DrainFailed(model):
                self._unloaded_at.pop(model, None)
                self._undrained_until[model] = Micros(now + self._policy.drain_again_us)
        return ()

    def _look(self, look: Look, now: Micros) -> tuple[Effect, ...]:
        self._forget(look, now)
        self._note_memory(look, now)
        self._note_served(look, now)
        effects: tuple[Effect, ...] = self._relieve(look, now) or self._unloads(look, now) or self._loads(look, now)
        for effect in effects:
            if isinstance(effect, Unload | HandOver):
                self._unloaded_at[effect.model] = now
            if not isinstance(effect, DropSpares):
                self._due.pop(effect.model, None)
        self._deadline = self._next_look(look, now)
        return effects

    def _forget(self, look: Look, now: Micros) -> None:
        """What is not asked for now, and what was long ago."""
        wanted = {one.model for one in look.loadables}
        offered = {one.model for one in look.loadables if one.is_offered}
        ranked = self._unranked & offered
        self._due = {model: due for model, due in self._due.items() if model in wanted and model not in ranked}
        self._unranked &= wanted - offered
        self._coming_since = {model: since for model, since in self._coming_since.items() if model in wanted}
        policy = self._policy
        self._unloaded_at = {model: at for model, at in self._unloaded_at.items() if now - at < policy.settled_us}
        self._undrained_until = {model: until for model, until in self._undrained_until.items() if until > now}
        self._failures = {
            model: (count, until)
            for model, (count, until) in self._failures.items()
            if until + policy.longest_pause_us > now
        }

    def _note_served(self, look: Look, now: Micros) -> None:
        self._served_at.update((rate.model, now) for rate in look.rates if rate.servers)
        lately = {model: at for model, at in self._served_at.items() if now - at < self._policy.lost_us}
        self._served_at = dict(list(lately.items())[-MAX_KNOWN_MODELS:])

    # --- unloading -------------------------------------------------------------
    def _note_memory(self, look: Look, now: Micros) -> None:
        left = look.memory_left_bytes
        if left is None or left >= self._policy.low_memory_bytes:
            self._low_since = None
        elif self._low_since is None:
            self._low_since = now

    def _relieve(self, look: Look, now: Micros) -> tuple[DropSpares, ...]:
        """What nobody uses goes before any model does."""
        if not look.spare_bytes or not self._is_relief_due(now):
            return ()
        self._note_relief(now)
        return (DropSpares(),)

    def _note_relief(self, now: Micros) -> None:
        self._next_relief = Micros(now + self._policy.low_memory_pause_us)
        self._barred_until = Micros(now + self._policy.low_memory_bar_us)

    def _unloads(self, look: Look, now: Micros) -> tuple[Unload | HandOver, ...]:
        if any(one.state is RunState.DRAINING for one in look.loaded) or any(one.is_leaving for one in look.lent):
            return ()
        candidates = [
            one
            for one in look.loaded
            if one.state is RunState.SERVING
            and one.is_driven_here
            and not one.demand.waiting
            and one.model not in self._undrained_until
        ]
        relief = self._least_asked_for(candidates, look.lent) if self._is_relief_due(now) else None
        if relief is not None:
            self._note_relief(now)
            return (relief,)
        idle_us = self._policy.idle_unload_us
        if idle_us is None:
            return ()
        return tuple(
            Unload(one.model, UnloadReason.IDLE)
            for one in sorted(candidates, key=lambda one: one.model)
            if one.idle_since is not None and now - one.idle_since >= idle_us
        )[:1]

    def _least_asked_for(self, candidates: list[Loaded], lent: tuple[Lent, ...]) -> Unload | HandOver | None:
        """Of our own runs and of others' stages; of equals our own, which ends where another's has to move."""
        ranked: list[tuple[tuple[object, ...], Unload | HandOver]] = [
            ((one.demand.weight, 0, one.idle_since is None, one.model), Unload(one.model, UnloadReason.MEMORY_LOW))
            for one in candidates
            if one.needed_bytes
        ]
        ranked += [
            ((one.demand.weight, 1, False, one.model), HandOver(one.model))
            for one in lent
            if one.model not in self._undrained_until
        ]
        return min(ranked, key=lambda pair: pair[0], default=(None, None))[1]

    def _is_relief_due(self, now: Micros) -> bool:
        since = self._low_since
        return since is not None and now - since >= self._policy.low_memory_us and now >= self._next_relief

    # --- loading ---------------------------------------------------------------
    def _loads(self, look: Look, now: Micros) -> tuple[Effect, ...]:
        """The most wanted model whose turn has come here; room is made for it where that is all that it lacks."""
        wanted = []
        for loadable in look.loadables:
            reason = self._reason(loadable, look.rates, now)
            if reason is None:
                self._due.pop(loadable.model, None)
                continue
            due = self._due.setdefault(loadable.model, Micros(now + self._delay_us(loadable, look)))
            if due <= now:
                wanted.append((loadable, reason))
        states = {one.state for one in look.loaded}
        if self.is_memory_low or states & {RunState.LOADING, RunState.DRAINING}:
            return ()
        wanted.sort(key=lambda pair: pair[0].model)
        wanted.sort(key=lambda pair: (pair[0].is_awaited_here, pair[0].demand.weight), reverse=True)
        for loadable, reason in wanted:
            if loadable.needed_bytes <= look.free_bytes:
                brought = self._bring(loadable, look, reason)
                if brought is not None:
                    return (brought,)
                continue
            room = self._room_for(loadable, look, now) if reason is LoadReason.NO_SERVER else None
            if room is not None:
                return (room,)
            if reason is LoadReason.NO_SERVER and loadable.may_be_split and self._have_rivals_passed(loadable, now):
                return (Load(loadable.model, reason),)
        return ()

    def _bring(self, loadable: Loadable, look: Look, reason: LoadReason) -> Fetch | Load | None:
        """A model that there is room for, unless it would leave too little, or another one is being fetched."""
        if self._would_leave_little(loadable, look):
            return None
        if not loadable.fetch_bytes:
            return Load(loadable.model, reason)
        is_fetching = any(one.state is RunState.FETCHING for one in look.loaded)
        return None if is_fetching else Fetch(loadable.model, reason)

    def _have_rivals_passed(self, loadable: Loadable, now: Micros) -> bool:
        """Whether no peer is left that would hold the model whole: who says so, and does not, bars no split."""
        return not loadable.rivals or now >= self._due[loadable.model] + self._policy.all_ranks_us

    def _would_leave_little(self, loadable: Loadable, look: Look) -> bool:
        left = look.memory_left_bytes
        return left is not None and left < loadable.needed_bytes + self._policy.low_memory_bytes

    def _reason(self, loadable: Loadable, rates: Iterable[Rate], now: Micros) -> LoadReason | None:
        """Why the model should be loaded by one peer more."""
        if now < max(self._barred_until, self._failures.get(loadable.model, (0, now))[1]):
            return None
        if self._is_another_loading(loadable, now):
            return None
        if loadable.servers == 0:
            if loadable.fetch_bytes:
                return None  # whoever has the file serves it, here too if nowhere else
            if loadable.model in self._served_at and loadable.model not in self._unloaded_at:
                return None
            return LoadReason.NO_SERVER if self._is_asked_for(loadable) else None
        if now - self._unloaded_at.get(loadable.model, -_MINUTE_US) < _MINUTE_US:
            return None  # its requests of a minute are those that it was unloaded in spite of
        per_minute = loadable.demand.per_minute
        if per_minute >= self._policy.busy_per_minute * loadable.servers:
            return LoadReason.BUSY
        is_worth_it = per_minute >= self._policy.imbalance_per_minute
        if is_worth_it and is_imbalanced(loadable, rates, self._policy.imbalance):
            return LoadReason.IMBALANCE
        return None

    def _is_another_loading(self, loadable: Loadable, now: Micros) -> bool:
        if not loadable.is_coming:
            self._coming_since.pop(loadable.model, None)
            return False
        return now - self._coming_since.setdefault(loadable.model, now) < self._patience_us(loadable)

    def _patience_us(self, loadable: Loadable) -> int:
        policy = self._policy
        fetch_us = loadable.fetch_bytes * MICROS_PER_SECOND // policy.fetched_bytes_per_s
        return policy.coming_us + min(fetch_us, policy.longest_fetch_us)

    def _is_asked_for(self, loadable: Loadable) -> bool:
        """What was asked of late counts too, but where it was unloaded here a while ago."""
        if loadable.demand.waiting or loadable.is_awaited_here:
            return True
        if loadable.model in self._unloaded_at:
            return False
        is_kept_warm = self._policy.idle_unload_us is None
        return bool(loadable.demand.per_minute or (is_kept_warm and loadable.demand.per_day))

    def _delay_us(self, loadable: Loadable, look: Look) -> int:
        """By our rank among those that could load it."""
        if loadable.is_awaited_here and loadable.servers == 0:
            return 0
        has_file = not loadable.fetch_bytes
        ours = _rank_key(loadable.model, Rival(look.own_peer, loadable.is_awaited_here, look.is_spared, has_file))
        rank = sum(_rank_key(loadable.model, rival) < ours for rival in loadable.rivals)
        policy = self._policy
        if not loadable.is_offered:
            self._unranked.add(loadable.model)
            return policy.all_ranks_us + self._draws.below(policy.late_us)
        if rank == 0:
            return 0
        if rank < policy.steps:
            return rank * policy.step_us + self._draws.below(policy.step_us)
        return policy.steps * policy.step_us + self._draws.below(policy.late_us)

    def _room_for(self, loadable: Loadable, look: Look, now: Micros) -> Unload | None:
        """The least demanded run whose end would make room, of those that nobody has used for a while."""
        unused = [
            one
            for one in look.loaded
            if one.is_driven_here
            and one.idle_since is not None
            and now - one.idle_since >= self._policy.room_idle_us
            and not one.demand.per_minute
            and not one.demand.waiting
            and look.free_bytes + one.needed_bytes >= loadable.needed_bytes
            and one.model not in self._undrained_until
        ]
        least = min(unused, key=lambda one: (one.demand.weight, one.model), default=None)
        return None if least is None else Unload(least.model, UnloadReason.ROOM_WANTED)

    # --- the next look -----------------------------------------------------------
    def _next_look(self, look: Look, now: Micros) -> Micros | None:
        policy = self._policy
        times = [*self._due.values(), self._barred_until, *(until for _, until in self._failures.values())]
        patience_us = {one.model: self._patience_us(one) for one in look.loadables}
        times += [Micros(since + patience_us[model]) for model, since in self._coming_since.items()]
        times += [Micros(at + policy.lost_us) for at in self._served_at.values()]
        times += [Micros(due + policy.all_ranks_us) for due in self._due.values()]
        if self._low_since is not None:
            times += [Micros(self._low_since + policy.low_memory_us), self._next_relief]
        if policy.idle_unload_us is not None:
            times += [
                Micros(one.idle_since + policy.idle_unload_us) for one in look.loaded if one.idle_since is not None
            ]
        return min((time for time in times if time > now), default=None)


def is_imbalanced(loadable: Loadable, rates: Iterable[Rate], factor: int) -> bool:
    """Whether each server of the model has ``factor`` times the requests that one has of all other models."""
    others = [rate for rate in rates if rate.model != loadable.model and rate.servers]
    servers = sum(rate.servers for rate in others)
    per_minute = sum(rate.per_minute for rate in others)
    return bool(servers) and loadable.demand.per_minute * servers >= factor * per_minute * loadable.servers


def _rank_key(model: bytes, rival: Rival) -> tuple[bool, bool, bool, bytes, PeerId]:
    """The same order at every peer, another one for every model."""
    drawn = hashlib.blake2b(rival.peer.encode(), key=model, digest_size=8).digest()
    return (not rival.has_file, not rival.is_waiting, rival.is_spared, drawn, rival.peer)
