"""What a peer promises to coordinators: one run of a model at a time, for a lease by its own clock.

The other side is ``core.claims``. The machine also fences (``why_fenced``): who acts on a run without the newest
promise for its model is refused. It says when a run has lost its coordinator and this peer is next in the list, and
when a run has outlived its claim. What must survive a restart is told as ``KeepGrant`` and given back as ``restored``.
"""

from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import (
    MAX_CLAIM_PEERS,
    MAX_CLAIMED_BY_A_PEER,
    MAX_CLAIMED_MODELS,
    MAX_LEASE_MS,
    MAX_TERM,
    MAX_TERM_STEP,
)
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.claims import Claim, ClaimPolicy

MAX_RUN_MEMBERS = 4 * MAX_CLAIM_PEERS
"""Beyond that only the lists of the newest two claims count: one peer could name others without end."""


@dataclass(frozen=True, slots=True)
class KeptGrant:
    """What a restart must not forget of a promise; its run's stage here ended with the process.

    ``lease_us`` is 0 where the claim was given back: the term stays, and nobody waits for the lease.
    """

    model: str
    term: int
    run_id: bytes
    coordinator: PeerId
    lease_us: int


# --- events -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ClaimAsked:
    """``source``, as its connection proves it, asks for a claim.

    Its stage here would need ``needed_bytes``; ``room_bytes`` is what a stage of this model may take, before what other
    promises reserve.
    """

    source: PeerId
    claim: Claim
    needed_bytes: int = 0
    room_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ClaimReleased:
    """``source`` needs its claim no more; unless the run ``is_over``, another may go on with it."""

    source: PeerId
    model: str
    run_id: bytes
    term: int
    is_over: bool


@dataclass(frozen=True, slots=True)
class StageBegun:
    """The stage of a run takes its memory itself from now on."""

    model: str
    run_id: bytes


@dataclass(frozen=True, slots=True)
class StageEnded:
    """The stage of a run that was here is gone: the run serves no more, and needs no successor."""

    model: str
    run_id: bytes


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = ClaimAsked | ClaimReleased | StageBegun | StageEnded | DeadlinePassed


# --- effects ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class KeepGrant:
    """All promises, as they must be found after a restart: on disk before a ``Grant`` goes out, and soon after a
    release, which nobody waits for."""

    grants: tuple[KeptGrant, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer: granted."""

    term: int


@dataclass(frozen=True, slots=True)
class Deny:
    """The answer: not now. ``term`` is the one promised, ``wait_us`` how long the promise lasts."""

    code: ErrorCode
    text: str
    term: int
    wait_us: int


@dataclass(frozen=True, slots=True)
class ClaimMoved:
    """Another run or another coordinator has the model from now on."""

    old: Claim
    new: Claim


@dataclass(frozen=True, slots=True)
class SuccessionDue:
    """The run serves, its coordinator is silent, and this peer is the next of the list: claim it."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class RunReleased:
    """The run is over, as its coordinator says or because nobody took it over: its stage here is nobody's."""

    claim: Claim


Effect = KeepGrant | Grant | Deny | ClaimMoved | SuccessionDue | RunReleased


@dataclass(slots=True)
class _Promise:
    """``ends_at`` is there while the run serves and its stage here lives: nobody else's run may take its place.

    ``members`` are all that have stood in a list of the run: of them each may go on with it. ``reserved_bytes`` are
    kept for its stage until that begins. ``is_released``: the claim was given back, and is kept so.
    """

    claim: Claim
    lease_until: Micros
    reserved_bytes: int = 0
    members: frozenset[PeerId] = frozenset()
    succession_at: Micros | None = None
    ends_at: Micros | None = None
    is_released: bool = False

    def may_be_replaced(self, claim: Claim, now: Micros) -> bool:
        """By the same run under another of its peers, when the lease is over; by another run, when this one serves
        no more; within the lease by its own coordinator alone.

        A coordinator that comes back after a crash does not know of the run that goes on without it. It must not cut
        its requests.
        """
        if self.ends_at is not None and not self.is_of_run(claim):
            return False
        return now >= self.lease_until or claim.coordinator == self.claim.coordinator

    def is_of_run(self, claim: Claim) -> bool:
        """Whether a claim is on the same run, by one of its peers."""
        return claim.run_id == self.claim.run_id and claim.coordinator in self.members

    def wait_us(self, claim: Claim, now: Micros) -> int:
        """How long the promise may be in the way of a claim, so far."""
        until = self.lease_until if self.is_of_run(claim) else max(self.lease_until, self.ends_at or 0)
        return max(0, min(until - now, MAX_LEASE_MS * 1000))

    def let_succeed(self, claim: Claim, until: Micros) -> None:
        """Another peer of the list is ahead with taking the run over: ours would only be in its way for a while."""
        is_rival = self.is_of_run(claim) and claim.coordinator != self.claim.coordinator
        if is_rival and self.succession_at is not None:
            self.succession_at = max(self.succession_at, until)

    def end_run(self) -> None:
        """Nothing of it is left here to be protected."""
        self.ends_at = self.succession_at = None

    def kept(self) -> KeptGrant:
        """What a restart must find of it."""
        claim = self.claim
        lease_us = 0 if self.is_released else claim.lease_us
        return KeptGrant(claim.model, claim.term, claim.run_id, claim.coordinator, lease_us)


class Grantor:
    """The promises of one peer."""

    def __init__(
        self,
        own: PeerId,
        policy: ClaimPolicy | None = None,
        restored: tuple[KeptGrant, ...] = (),
        now: Micros | None = None,
        max_models: int = MAX_CLAIMED_MODELS,
        max_by_a_peer: int = MAX_CLAIMED_BY_A_PEER,
    ) -> None:
        self._own = own
        self._policy = policy or ClaimPolicy()
        self._max_models = max_models
        self._max_by_a_peer = max_by_a_peer
        self._promises: dict[str, _Promise] = {}
        for kept in restored[:max_models]:
            claim = Claim(kept.model, kept.run_id, kept.term, (kept.coordinator,), kept.lease_us)
            # how long ago it was given is not known, so all of it may be to come
            members = frozenset((kept.coordinator,))
            until = Micros((now or 0) + kept.lease_us)
            self._promises[kept.model] = _Promise(claim, until, members=members, is_released=kept.lease_us == 0)

    def promised(self, model: str) -> Claim | None:
        """The newest promise for a model, its lease over or not."""
        promise = self._promises.get(model)
        return promise.claim if promise else None

    def leased_to(self, model: str, now: Micros) -> Claim | None:
        """The claim whose lease on the model lives."""
        promise = self._promises.get(model)
        return promise.claim if promise and now < promise.lease_until else None

    def reserved_bytes(self, now: Micros) -> int:
        """Memory that is promised to stages which have not begun."""
        return sum(promise.reserved_bytes for promise in self._promises.values() if now < promise.lease_until)

    def is_kept(self, model: str, run_id: bytes) -> bool:
        """Whether a run serves, so that its stage here stays although nobody follows it."""
        promise = self._promises.get(model)
        return promise is not None and promise.claim.run_id == run_id and promise.ends_at is not None

    def why_fenced(
        self, source: PeerId, model: str, run_id: bytes, term: int, now: Micros
    ) -> tuple[ErrorCode, str] | None:
        """Why ``source`` may not act on a run now; None if it may."""
        promise = self._promises.get(model)
        if promise is None or term > promise.claim.term:
            return ErrorCode.TERM_STALE, f"term {term} was not claimed here; claim it first"
        known = promise.claim
        if term < known.term:
            return ErrorCode.TERM_STALE, f"term {term} is over, this peer has granted term {known.term}"
        if run_id != known.run_id or source != known.coordinator:
            return ErrorCode.TERM_CONFLICT, f"term {term} is another run's"
        if now >= promise.lease_until:
            return ErrorCode.TERM_STALE, f"the lease of term {term} is over; renew the claim"
        return None

    def deadline(self) -> Micros | None:
        """When ``DeadlinePassed`` is due."""
        due = [at for p in self._promises.values() for at in (p.succession_at, p.ends_at) if at is not None]
        return min(due, default=None)

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event; of ``ClaimAsked`` the last is the answer."""
        match event:
            case ClaimAsked():
                return self._on_asked(event, now)
            case ClaimReleased():
                return self._on_released(event, now)
            case StageBegun(model, run_id):
                promise = self._promises.get(model)
                if promise is not None and promise.claim.run_id == run_id:
                    promise.reserved_bytes = 0
                return ()
            case StageEnded(model, run_id):
                if self.is_kept(model, run_id):
                    self._promises[model].end_run()
                return ()
            case DeadlinePassed():
                return self._on_deadline(now)

    # --- granting ----------------------------------------------------------------
    def _on_asked(self, asked: ClaimAsked, now: Micros) -> tuple[Effect, ...]:
        claim = asked.claim
        if asked.source != claim.coordinator or self._own not in claim.peers:
            return (Deny(ErrorCode.NOT_IN_PLACEMENT, "the list does not begin with its sender, or lacks us", 0, 0),)
        promise = self._promises.get(claim.model)
        if promise is None:
            is_greedy = self._count_of(asked.source, now) >= self._max_by_a_peer
            if claim.term > MAX_TERM - MAX_TERM_STEP or is_greedy or not self._make_room(now):
                return (Deny(ErrorCode.OVERLOADED, "this peer grants no further model; try another", 0, 0),)
            return self._grant(asked, None, now)
        return self._on_asked_again(promise, asked, now)

    def _on_asked_again(self, promise: _Promise, asked: ClaimAsked, now: Micros) -> tuple[Effect, ...]:
        claim = asked.claim
        known, wait_us = promise.claim, promise.wait_us(claim, now)
        promise.let_succeed(claim, Micros(now + self._policy.lease_us))
        if claim.term < known.term:
            text = f"term {claim.term} is over, this peer has granted term {known.term}"
            return (Deny(ErrorCode.TERM_STALE, text, known.term, wait_us),)
        if claim.term == known.term:
            if _is_same(claim, known):
                return self._renew(promise, claim, now)
            text = f"term {claim.term} was granted to another run"
            return (Deny(ErrorCode.TERM_CONFLICT, text, known.term, wait_us),)
        if claim.term - known.term > MAX_TERM_STEP:
            text = f"term {claim.term} follows upon {known.term}; go on from there"
            return (Deny(ErrorCode.TERM_STALE, text, known.term, wait_us),)
        if not promise.may_be_replaced(claim, now):
            text = f"peer {known.coordinator} coordinates this model, for {wait_us / MICROS_PER_SECOND:.0f} s or more"
            return (Deny(ErrorCode.MODEL_LEASED, text, known.term, wait_us),)
        return self._grant(asked, promise, now)

    def _grant(self, asked: ClaimAsked, promise: _Promise | None, now: Micros) -> tuple[Effect, ...]:
        """A new promise, if there is room for the stage: what is promised to two has one of them load in vain."""
        known = promise.claim if promise is not None else None
        own_bytes = promise.reserved_bytes if promise is not None and now < promise.lease_until else 0
        room_bytes = asked.room_bytes - self.reserved_bytes(now) + own_bytes
        if asked.needed_bytes > room_bytes:
            text = f"the stage needs {asked.needed_bytes} bytes, {max(0, room_bytes)} are free on this peer"
            return (Deny(ErrorCode.PLACEMENT_REFUSED, text, known.term if known is not None else 0, 0),)
        return self._promise(asked, known, now)

    def _promise(self, asked: ClaimAsked, known: Claim | None, now: Micros) -> tuple[Effect, ...]:
        claim = asked.claim
        before = self._promises.pop(claim.model, None)  # the newest promise stands last
        members = frozenset(claim.peers)
        if before is not None and before.is_of_run(claim):
            members |= before.members if len(before.members) <= MAX_RUN_MEMBERS else frozenset(before.claim.peers)
        promise = self._promises[claim.model] = _Promise(claim, Micros(0), asked.needed_bytes, members)
        self._extend(promise, now)
        if before is not None and before.ends_at is not None and promise.ends_at is not None:
            promise.ends_at = min(before.ends_at, promise.ends_at)  # a successor has to renew before the run lives on
        moved = (ClaimMoved(known, claim),) if known is not None else ()
        return (*moved, KeepGrant(self._kept()), Grant(claim.term))

    def _renew(self, promise: _Promise, claim: Claim, now: Micros) -> tuple[Effect, ...]:
        """A late question of the past must not take back that the run serves.

        One that comes after the release begins a lease that a restart would not know of: it is kept first.
        """
        if claim.is_serving or not promise.claim.is_serving:
            promise.claim = claim
        was_released, promise.is_released = promise.is_released, False
        self._extend(promise, now)
        kept = (KeepGrant(self._kept()),) if was_released else ()
        return (*kept, Grant(claim.term))

    def _extend(self, promise: _Promise, now: Micros) -> None:
        promise.lease_until = Micros(now + promise.claim.lease_us)
        self._schedule(promise)

    def _schedule(self, promise: _Promise) -> None:
        claim = promise.claim
        promise.succession_at = promise.ends_at = None
        if not claim.is_serving:
            return
        promise.ends_at = Micros(promise.lease_until + self._policy.keep_us)
        # the coordinator itself is the last: it may have lost its claim, or have given up taking the run over
        place = claim.peers.index(self._own) or len(claim.peers)
        promise.succession_at = Micros(promise.lease_until + (place - 1) * self._policy.succession_us)

    def _count_of(self, source: PeerId, now: Micros) -> int:
        """Models whose promises a coordinator holds: one alone must not take all places."""
        return sum(
            promise.claim.coordinator == source and (now < promise.lease_until or promise.ends_at is not None)
            for promise in self._promises.values()
        )

    def _make_room(self, now: Micros) -> bool:
        """The oldest promise that nobody can still hold is forgotten for a new model."""
        if len(self._promises) < self._max_models:
            return True
        over = next((model for model, p in self._promises.items() if now >= p.lease_until and p.ends_at is None), None)
        if over is not None:
            del self._promises[over]
        return over is not None

    def _kept(self) -> tuple[KeptGrant, ...]:
        return tuple(promise.kept() for promise in self._promises.values())

    # --- ending ------------------------------------------------------------------
    def _on_released(self, event: ClaimReleased, now: Micros) -> tuple[Effect, ...]:
        """A run that serves goes on; the next of the list need not wait for the lease, nor anybody after a restart."""
        promise = self._promises.get(event.model)
        if promise is None:
            return ()
        known = promise.claim
        if (event.run_id, event.term, event.source) != (known.run_id, known.term, known.coordinator):
            return ()
        promise.lease_until = min(promise.lease_until, now)
        was_released, promise.is_released = promise.is_released, True
        kept = () if was_released else (KeepGrant(self._kept()),)
        if event.is_over:
            promise.end_run()
            return (*kept, RunReleased(known))
        if promise.ends_at is not None:
            ends_by = promise.ends_at
            self._schedule(promise)
            promise.ends_at = min(ends_by, promise.ends_at)
        return kept

    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        for promise in self._promises.values():
            if promise.ends_at is not None and now >= promise.ends_at:
                promise.end_run()
                effects.append(RunReleased(promise.claim))
            elif promise.succession_at is not None and now >= promise.succession_at:
                promise.succession_at = Micros(now + promise.claim.lease_us)  # once more, should it fail
                effects.append(SuccessionDue(promise.claim))
        return tuple(effects)


def _is_same(claim: Claim, known: Claim) -> bool:
    """A restart keeps of the list only the coordinator."""
    is_listed = claim.peers == known.peers or known.peers == (claim.coordinator,)
    return claim.run_id == known.run_id and claim.coordinator == known.coordinator and is_listed
