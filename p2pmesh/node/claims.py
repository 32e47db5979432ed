"""Run claims of this node: what it promises to coordinators, and what its own coordinators hold.

Runs ``core.grants.Grantor`` for all models, and a ``core.claims.Claimant`` for each run that is coordinated here. Who
claims, and what for, is ``node.coordinator``'s and ``node.succession``'s; what is loaded under a claim is
``node.stages``'.
"""

from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_LEASE_MS
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core import claims, grants
from p2pmesh.core.claims import Claim, Claimant, ClaimHeld, ClaimLost, ClaimPolicy
from p2pmesh.node.changes import Changes
from p2pmesh.node.channels import MessageStream, error_of
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.runner import MachineRunner
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.grants import GrantStore
from p2pmesh.wire.messages.answers import Done, Refusal
from p2pmesh.wire.messages.claims import ClaimDenied, ClaimGranted, ClaimRun, ReleaseClaim

RELEASE_S = 2.0
"""A peer that is gone keeps its promise to the end of the lease; nobody waits longer to tell it."""
MICROS_PER_MS = 1000


class Claims:
    """The promises of this node, and the way to those of others."""

    def __init__(self, overlay: Overlay, clock: Clock, store: GrantStore, policy: ClaimPolicy | None = None) -> None:
        self.policy = policy or ClaimPolicy()
        self._overlay = overlay
        self._clock = clock
        self._store = store
        self._grantor = grants.Grantor(overlay.own_peer, self.policy, store.restored(), clock.now())
        self._turn = trio.Lock()
        self._unsaved: tuple[grants.KeptGrant, ...] | None = None
        """What the store has not taken yet."""
        self._owes_promise = False
        """Whether a promise is among it: nothing is granted before the store has that."""
        self.changes = Changes()
        """Marked when a promise was given, or a run is nobody's any more."""
        self.room_for: Callable[[str], int] = lambda model: 0
        """What a stage of a model may take here, before what promises keep for others."""
        self.on_succession_due: Callable[[Claim], None] = lambda claim: None
        overlay.serve_exchange(ClaimRun, self._serve_claim)
        overlay.serve_exchange(ReleaseClaim, self._serve_release)

    async def run(self) -> None:
        """Minds leases until cancelled."""
        while True:
            seen = self.changes.count
            deadline = self._grantor.deadline()
            wait_us = float("inf") if deadline is None else deadline - self._clock.now()
            with trio.move_on_after(max(0, wait_us) / MICROS_PER_SECOND):
                await self.changes.wait_beyond(seen)
            self._note(self._grantor.handle(grants.DeadlinePassed(), self._clock.now()))

    def _note(self, effects: Iterable[grants.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, grants.SuccessionDue):
                self.on_succession_due(effect.claim)
            elif isinstance(effect, grants.RunReleased):
                self.changes.mark()
            elif isinstance(effect, grants.KeepGrant):
                self._unsaved = effect.grants

    async def _save(self) -> None:
        """The newest of what is to be kept; whoever calls it has the turn."""
        unsaved = self._unsaved
        if unsaved is None:
            return
        await self._store.save(unsaved)
        self._owes_promise = False
        if self._unsaved is unsaved:  # a claim may have been given back meanwhile
            self._unsaved = None

    # --- what is promised here -----------------------------------------------------
    def check(self, source: PeerId, model: str, run_id: bytes, term: int) -> None:
        """Raises why ``source`` may not act on a run here."""
        fenced = self._grantor.why_fenced(source, model, run_id, term, self._clock.now())
        if fenced is not None:
            raise Refused(*fenced)

    def check_coordinator(self, source: PeerId, model: str, run_id: bytes) -> None:
        """Raises why ``source`` does not coordinate a run, in whatever term, now."""
        promised = self._grantor.promised(model)
        self.check(source, model, run_id, promised.term if promised is not None else 1)

    def leased(self, model: str) -> Claim | None:
        """The claim that the model is promised to, its lease alive or its run still serving."""
        promised = self._grantor.promised(model)
        if promised is None or self._grantor.is_kept(model, promised.run_id):
            return promised
        return self._grantor.leased_to(model, self._clock.now())

    def is_kept(self, model: str, run_id: bytes) -> bool:
        """Whether a run serves on, also without its coordinator."""
        return self._grantor.is_kept(model, run_id)

    def coordinator_of(self, model: str, run_id: bytes) -> PeerId | None:
        """Who has the newest promise for a run; None if the model is another run's."""
        promised = self._grantor.promised(model)
        return promised.coordinator if promised is not None and promised.run_id == run_id else None

    def next_term(self, model: str) -> int:
        """Above what was promised here."""
        promised = self._grantor.promised(model)
        return promised.term + 1 if promised is not None else 1

    @property
    def reserved_bytes(self) -> int:
        """Memory that is promised to stages which have not begun."""
        return self._grantor.reserved_bytes(self._clock.now())

    def note_stage_begun(self, model: str, run_id: bytes) -> None:
        """A stage takes its memory itself from now on."""
        self._grantor.handle(grants.StageBegun(model, run_id), self._clock.now())

    def note_stage_ended(self, model: str, run_id: bytes) -> None:
        """A stage here is gone."""
        self._grantor.handle(grants.StageEnded(model, run_id), self._clock.now())
        self.changes.mark()

    async def decide(self, source: PeerId, claim: Claim, needed_bytes: int = 0) -> grants.Grant | grants.Deny:
        """This node's answer to a claim; a new promise is on disk first."""
        async with self._turn:
            asked = grants.ClaimAsked(source, claim, needed_bytes, self.room_for(claim.model) if needed_bytes else 0)
            *effects, answer = self._grantor.handle(asked, self._clock.now())
            self._note(effects)
            self._owes_promise |= any(isinstance(effect, grants.KeepGrant) for effect in effects)
            if self._owes_promise and isinstance(answer, grants.Grant):
                await self._save()
            self.changes.mark()
        assert isinstance(answer, grants.Grant | grants.Deny)
        return answer

    async def release(self, source: PeerId, model: str, run_id: bytes, term: int, is_over: bool) -> None:
        """``source`` gives its claim back: at once here, and on disk when this returns: no restart waits for it.

        A store that does not take it harms nobody: the promise is then waited for as after a crash.
        """
        released = grants.ClaimReleased(source, model, run_id, term, is_over)
        self._note(self._grantor.handle(released, self._clock.now()))
        self.changes.mark()
        async with self._turn:
            with suppress(P2PMeshError):
                await self._save()

    async def _serve_claim(self, stream: MessageStream, asked: ClaimRun) -> None:
        match await self.decide(stream.remote_peer, _claim_of(asked), asked.needed_bytes):
            case grants.Grant(term):
                await stream.send(ClaimGranted(term))
            case grants.Deny(code, text, term, wait_us):
                wait_ms = min(-(-wait_us // MICROS_PER_MS), MAX_LEASE_MS)
                await stream.send(ClaimDenied(code.value, text, term, wait_ms))
        await stream.finish()

    async def _serve_release(self, stream: MessageStream, asked: ReleaseClaim) -> None:
        await self.release(stream.remote_peer, asked.model_digest, asked.run_id, asked.term, asked.is_over)
        await stream.send(Done())
        await stream.finish()

    # --- what is claimed from here ---------------------------------------------------
    @asynccontextmanager
    async def claiming(
        self, claim: Claim, needed_bytes: Mapping[PeerId, int] | None = None, *, is_takeover: bool = False
    ) -> AsyncIterator["HeldClaim"]:
        """Asks for a claim and renews it as long as the scope lasts; leaving the scope gives it back.

        ``needed_bytes`` is what the stages of the run will take of each peer.
        """
        policy = replace(self.policy, claiming_us=self.policy.takeover_us) if is_takeover else self.policy
        with unwrapped():
            async with trio.open_nursery() as nursery:
                held = HeldClaim(self, Claimant(claim, policy, is_takeover=is_takeover), policy, nursery)
                held.needed_bytes = needed_bytes or {}
                nursery.start_soon(held.run)
                try:
                    yield held
                finally:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_S):
                        await held.withdraw()
                    nursery.cancel_scope.cancel()

    async def ask(self, peer: PeerId, claim: Claim, needed_bytes: int = 0) -> grants.Grant | grants.Deny:
        """A peer's answer to a claim of ours, this node's own among them."""
        if peer == self._overlay.own_peer:
            return await self.decide(peer, claim, needed_bytes)
        lease_ms = claim.lease_us // MICROS_PER_MS
        message = ClaimRun(claim.model, claim.run_id, claim.term, lease_ms, claim.peers, claim.is_serving, needed_bytes)
        stream = await self._overlay.open_exchange(peer, message)
        try:
            return _answer_of(await stream.receive(self.policy.answer_us / MICROS_PER_SECOND))
        finally:
            await stream.reset()

    async def tell_release(self, peer: PeerId, claim: Claim, is_over: bool) -> None:
        """Gives a claim back to a peer; one that cannot be told keeps its promise to the end of the lease."""
        if peer == self._overlay.own_peer:
            await self.release(peer, claim.model, claim.run_id, claim.term, is_over)
            return
        with trio.move_on_after(RELEASE_S), suppress(P2PMeshError):
            message = ReleaseClaim(claim.model, claim.run_id, claim.term, is_over)
            stream = await self._overlay.open_exchange(peer, message)
            try:
                await stream.expect(Done, RELEASE_S)
            finally:
                await stream.reset()


class HeldClaim:
    """One claim of ours, from the first question to its release; made by ``Claims.claiming``."""

    def __init__(self, ways: Claims, machine: Claimant, policy: ClaimPolicy, nursery: trio.Nursery) -> None:
        self._ways = ways
        self._policy = policy
        self._nursery = nursery
        self._machine = machine
        self._clock = ways._clock
        self._runner: MachineRunner[claims.Event, claims.Effect] = MachineRunner(
            self._machine, self._clock, self._perform, claims.DeadlinePassed()
        )
        self._outcome: ClaimHeld | ClaimLost | None = None
        self._settled = trio.Event()
        self._lost = trio.Event()
        self._told_serving: set[PeerId] = set()
        self._answers = Changes()
        self.needed_bytes: Mapping[PeerId, int] = {}
        self.is_run_over = True
        """Whether the run ends with the claim; otherwise it is left to a successor."""

    @property
    def claim(self) -> Claim:
        """What is asked for, or held."""
        return self._machine.claim

    async def run(self) -> None:
        """Asks, renews, steps down."""
        self._runner.post(claims.ClaimWanted())
        await self._runner.run(lambda: self._machine.phase is claims.ClaimPhase.OVER)

    async def settled(self) -> ClaimHeld | ClaimLost:
        """Whether the claim is held, once that is known."""
        await self._settled.wait()
        assert self._outcome is not None
        return self._outcome

    @property
    def is_lost(self) -> bool:
        """Whether nothing may be done under it any more."""
        return self._lost.is_set()

    async def lost(self) -> ClaimLost:
        """Returns when the claim is held no longer."""
        await self._lost.wait()
        assert isinstance(self._outcome, ClaimLost)
        return self._outcome

    async def note_serving(self) -> None:
        """The run is about to be published; returns when its peers were told, since the coordinator may die then."""
        await self._runner.put(claims.RunServes())
        seen = self._answers.count
        while not self._told_serving.issuperset(self._machine.claim.peers) and not self._lost.is_set():
            seen = await self._answers.wait_beyond(seen)

    async def withdraw(self, silent: Container[PeerId] = ()) -> None:
        """Gives the claim back to all at once but those that would not hear it."""
        effects = self._machine.handle(claims.ClaimWithdrawn(self.is_run_over), self._clock.now())
        async with trio.open_nursery() as nursery:
            for effect in effects:
                if isinstance(effect, claims.ReleaseClaim) and effect.peer not in silent:
                    nursery.start_soon(self._ways.tell_release, effect.peer, effect.claim, effect.is_over)

    async def _perform(self, effect: claims.Effect) -> None:
        match effect:
            case claims.AskClaim(peer, claim, number):
                self._nursery.start_soon(self._ask, peer, claim, number)
            case claims.ReleaseClaim(peer, claim, is_over):
                self._nursery.start_soon(self._ways.tell_release, peer, claim, is_over)
            case ClaimHeld():
                self._outcome = effect
                self._settled.set()
            case ClaimLost():
                self._outcome = effect
                self._settled.set()
                self._lost.set()
                self._answers.mark()

    async def _ask(self, peer: PeerId, claim: Claim, number: int) -> None:
        event: claims.Event = claims.PeerSilent(peer, number)
        with trio.move_on_after(self._policy.answer_us / MICROS_PER_SECOND), suppress(P2PMeshError):
            match await self._ways.ask(peer, claim, self.needed_bytes.get(peer, 0)):
                case grants.Grant(term) if term == claim.term:
                    event = claims.PeerGranted(peer, number)
                case grants.Deny(code, _, term, wait_us):
                    event = claims.PeerDenied(peer, number, code, term, wait_us)
        if claim.is_serving:
            self._told_serving.add(peer)
        self._answers.mark()
        await self._runner.put(event)


def _claim_of(asked: ClaimRun) -> Claim:
    peers = tuple(PeerId(peer) for peer in asked.peers)
    return Claim(asked.model_digest, asked.run_id, asked.term, peers, asked.lease_ms * MICROS_PER_MS, asked.is_serving)


def _answer_of(message: Any) -> grants.Grant | grants.Deny:
    """A refusal of another kind is raised, as is what is no answer at all."""
    match message:
        case ClaimGranted(term):
            return grants.Grant(term)
        case ClaimDenied():
            return grants.Deny(_code_of(message.code), message.message, message.term, message.wait_ms * MICROS_PER_MS)
        case Refusal():
            raise error_of(message)
        case _:
            raise Refused(ErrorCode.MESSAGE_UNEXPECTED, f"{type(message).__name__} answers no claim")


def _code_of(text: str) -> ErrorCode:
    with suppress(ValueError):
        return ErrorCode(text)
    return ErrorCode.INTERNAL
