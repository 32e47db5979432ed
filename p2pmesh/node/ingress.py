"""Requests of this node's clients from their first byte to their last, whoever drives them and whatever dies meanwhile.

Runs ``core.recovery.RecoveryMachine`` over the attempts of one request and keeps its ``Journal``. Who is asked is
``node.router``'s; a driver goes on from the history that it is handed (``node.driver``).
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import trio

from p2pmesh.base.errors import P2PMeshError, Refused
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core import recovery
from p2pmesh.core.affinity import NOBODY, AffinityKeys, Asker, affinity_keys
from p2pmesh.core.journal import Journal
from p2pmesh.core.recovery import AttemptFailed, Reached
from p2pmesh.node.announcements import AnnouncementBoard
from p2pmesh.node.failures import first_error
from p2pmesh.node.reporting import Report
from p2pmesh.node.router import Avoided, Router
from p2pmesh.ports.clock import Clock, Entropy
from p2pmesh.wire.generation import (
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
)


class Ingress:
    """Generates for clients through whatever serves their model."""

    def __init__(
        self, router: Router, board: AnnouncementBoard, clock: Clock, entropy: Entropy, report: Report
    ) -> None:
        self._router = router
        self._board = board
        self._clock = clock
        self._entropy = entropy
        self._naming_key = entropy.random_bytes(32)
        self._report = report

    @asynccontextmanager
    async def generate(
        self, request: GenerationRequest, asker: Asker = NOBODY
    ) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
        """Events of a request to its end; leaving the scope cancels it wherever it runs by then."""
        named = replace(request, client=self._name_of(asker.account))
        attempts = _Attempts(self, named, affinity_keys(request, asker))
        async with aclosing(attempts.events()) as events:
            yield events

    def _name_of(self, account: str) -> bytes:
        """What drivers call a client: equal for as long as this node runs, and nothing to learn from."""
        if not account:
            return b""
        return hashlib.blake2b(account.encode("utf-8", "replace"), digest_size=16, key=self._naming_key).digest()

    # What one request's attempts need of the node.
    @property
    def router(self) -> Router:
        """Who is asked."""
        return self._router

    @property
    def board(self) -> AnnouncementBoard:
        """Where new drivers show."""
        return self._board

    @property
    def clock(self) -> Clock:
        """Monotonic time."""
        return self._clock

    def new_request_id(self) -> bytes:
        """128 fresh random bits for another attempt."""
        return self._entropy.random_bytes(16)

    def tell_recovered(self, request: GenerationRequest, journal: Journal, cause: AttemptFailed, stall_us: int) -> None:
        """A stream goes on."""
        self._report(
            "request_recovered",
            {
                "request_id": request.request_id.hex(),
                "model": request.model,
                "code": cause.code.value,
                "message": cause.text,
                "tokens": journal.token_count,
                "stall_ms": stall_us // 1000,
                "is_exact": journal.is_exact,
            },
        )


class _Attempts:
    """The attempts of one request, one after another."""

    def __init__(self, ingress: Ingress, request: GenerationRequest, keys: AffinityKeys) -> None:
        self._ingress = ingress
        self._request = request
        self._keys = keys
        self._journal = Journal(request)
        self._avoided = Avoided()
        self._machine = recovery.RecoveryMachine(
            ingress.clock.now(), is_awaited=ingress.router.is_awaited(request.model)
        )
        self._reached = Reached.NOBODY
        self._seen = 0

    async def events(self) -> AsyncGenerator[GenerationEvent, None]:
        """Of all attempts, as those of one; raises what the last one failed with."""
        attempt = recovery.Attempt(may_repeat=True)
        request_id = self._request.request_id
        while True:
            failure: P2PMeshError
            try:
                async with aclosing(self._attempt(attempt, request_id)) as given:
                    async for event in given:
                        yield event
                        if isinstance(event, GenerationFinished):
                            return
            except P2PMeshError as error:
                failure = error
            except BaseExceptionGroup as group:
                ours, others = group.split(P2PMeshError)
                if ours is None or others is not None:
                    raise
                failure = first_error(ours)
            attempt = await self._wait_for_next(failure)
            request_id = self._ingress.new_request_id()

    async def _attempt(self, attempt: recovery.Attempt, request_id: bytes) -> AsyncGenerator[GenerationEvent, None]:
        """What one driver adds to the answer."""
        self._reached = Reached.NOBODY
        self._seen = self._ingress.board.changes.count
        router = self._ingress.router
        route = await router.find(self._request.model, self._keys, self._avoided, may_repeat=attempt.may_repeat)
        self._reached = Reached.DRIVER
        self._avoided.add(route)
        is_first = not self._machine.is_stalled
        request = self._journal.next_request(request_id)
        now, held_us = self._ingress.clock.now, 0
        async with router.generate(route, request, self._keys, is_first=is_first) as (events, note):
            async for event in events:
                note(event, held_us)
                for given in self._take(event):
                    given_at = now()
                    yield given
                    held_us += now() - given_at

    def _take(self, event: GenerationEvent) -> tuple[GenerationEvent, ...]:
        given = self._journal.take(event)
        if isinstance(given, GenerationStarted):
            is_verified = self._ingress.router.are_verified(given.stages)
            given = replace(given, model=self._request.model, is_verified=is_verified)
        if isinstance(event, GenerationStarted):
            self._reached = Reached.ADMISSION
        is_progress = isinstance(event, GenerationFinished) or (isinstance(event, GenerationDelta) and event.tokens)
        if is_progress and self._machine.is_stalled:
            self._note_recovered()
        return () if given is None else (given,)

    def _note_recovered(self) -> None:
        now = self._ingress.clock.now()
        cause = self._machine.cause
        assert cause is not None
        if self._journal.recoveries:  # nothing had begun before: it only waited
            self._ingress.tell_recovered(self._request, self._journal, cause, now - self._machine.stalled_at)
        self._machine.handle(recovery.TokenGiven(), now)

    def _with_reason(self, text: str) -> str:
        """What nobody took over for, where it is known here and was not the beginning of the wait already."""
        reason = self._ingress.router.waiting_reason(self._request.model)
        return text if reason is None or reason in text else f"{text}: {reason}"

    async def _wait_for_next(self, error: P2PMeshError) -> recovery.Attempt:
        """The next attempt once it is due; raises when there is none."""
        event: recovery.Event = AttemptFailed(error.code, error.message, self._reached)
        while True:
            for effect in self._machine.handle(event, self._ingress.clock.now()):
                if isinstance(effect, recovery.Attempt):
                    return effect
                if effect.text == error.message:
                    raise error
                raise Refused(effect.code, self._with_reason(effect.text), error.retry_after_s)
            deadline = self._machine.deadline()
            assert deadline is not None
            event = recovery.DeadlinePassed()
            wait_s = max(0, deadline - self._ingress.clock.now()) / MICROS_PER_SECOND
            with trio.move_on_after(wait_s):
                self._seen = await self._ingress.board.changes.wait_beyond(self._seen)
                event = recovery.RoutesChanged()
