"""The virtual model ``mesh``: one request becomes several at the backend, and their events one answer.

Runs ``core.mixture`` round a backend. Nothing of an answer is given out before it is known whose it is; from then on it
streams. Leaving the scope of a generation cancels everybody who is out. What models are asked, and which answer counts,
is the core's. Guardrails stand between, round each model that is asked; what they hold back is heard below them.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from urllib.parse import quote

import trio

from p2pmesh.api.backend import Backend, ModelListing
from p2pmesh.api.errors import error_of, invalid_parameter, unsupported_parameter
from p2pmesh.api.exchange import internal_error
from p2pmesh.api.metrics import Metrics
from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable, Refused
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros, micros
from p2pmesh.core.affinity import NOBODY, Asker
from p2pmesh.core.auto_model import AUTO, Kind, classify
from p2pmesh.core.mixture.asking import answers_calls, is_own_limit, reducer_request, worker_request
from p2pmesh.core.mixture.drafts import Draft, read_draft
from p2pmesh.core.mixture.machine import (
    Answered,
    Ask,
    Begin,
    Begun,
    DeadlinePassed,
    Decision,
    Drop,
    Effect,
    Event,
    Failed,
    Follow,
    Give,
    GiveUp,
    MixtureMachine,
)
from p2pmesh.core.mixture.roles import LEAST_MODELS, MESH, MixturePolicy, Worker, assign_roles, mixable
from p2pmesh.wire.generation import (
    Fact,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Prompt,
    Spent,
    ToolUse,
)

MODELS_HEADER = "x-p2pmesh-mesh-models"
WINNER_HEADER = "x-p2pmesh-mesh-winner"
DECISION_HEADER = "x-p2pmesh-mesh-decision"
_HELD_EVENTS = 64
"""Of an answer that is not given out yet, or whose client is slow: then its driver waits too."""
_REDUCER = "reducer"

Guard = Callable[[Backend], Backend]
Note = Callable[[GenerationEvent], None]
Charge = Callable[[str, int], None]
"""Told of an account for how many requests more than it sent others are asked."""


class MixingBackend:
    """A backend that also answers for ``mesh``; everything else is the backend's own."""

    def __init__(
        self,
        backend: Backend,
        metrics: Metrics,
        policy: MixturePolicy | None = None,
        guard: Guard = lambda inner: inner,
        charge: Charge = lambda account, uses: None,
    ) -> None:
        self._backend = guard(backend)
        self._unguarded = backend
        self._guard = guard
        self._metrics = metrics
        self._policy = policy or MixturePolicy()
        self._charge = charge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def models(self) -> tuple[ModelListing, ...]:
        """With ``mesh`` behind the others where there are enough of them; no peer's model bears the name."""
        listings = tuple(listing for listing in self._backend.models() if listing.id != MESH)
        if len(mixable(listing.id for listing in listings)) < LEAST_MODELS:
            return listings
        return (*listings, ModelListing(MESH, max(listing.created_unix_s for listing in listings)))

    def is_awaited(self, model: str) -> bool:
        """``mesh`` is there as soon as two models are."""
        return model != MESH and self._backend.is_awaited(model)

    def not_ready_reason(self, model: str) -> str:
        """See ``Backend``."""
        return _too_few(()) if model == MESH else self._backend.not_ready_reason(model)

    async def tokenize(
        self, model: str, prompt: Prompt, tools: ToolUse | None = None, *, add_special: bool
    ) -> tuple[int, ...]:
        """For ``mesh`` and ``auto`` as the strong model has them."""
        return await self._backend.tokenize(self._real(model), prompt, tools, add_special=add_special)

    async def detokenize(self, model: str, tokens: tuple[int, ...]) -> str:
        """For ``mesh`` and ``auto`` as the strong model has them."""
        return await self._backend.detokenize(self._real(model), tokens)

    def generate(
        self, request: GenerationRequest, asker: Asker = NOBODY
    ) -> AbstractAsyncContextManager[AsyncIterator[GenerationEvent]]:
        """See ``Backend``."""
        if request.model != MESH:
            return self._backend.generate(request, asker)
        check_mixable(request)
        return self._mixed(request, asker)

    @asynccontextmanager
    async def _mixed(self, request: GenerationRequest, asker: Asker) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
        workers = self._workers(classify(request).kind)
        asked = count()

        def asking(note: Note) -> Backend:
            if next(asked):
                self._charge(asker.account, 1)
            return self._asking(note)

        mixing = _Mixing(self._backend, asking, self._policy, request, asker, workers)
        try:
            async with trio.open_nursery() as nursery, aclosing(mixing.events(nursery)) as events:
                yield events
                nursery.cancel_scope.cancel()
        finally:
            self._count(mixing)

    def _asking(self, note: Note) -> Backend:
        """For one of the models; ``note`` hears all that is generated."""
        listening: Any = _Listening(self._unguarded, note)
        return self._guard(listening)

    def _count(self, mixing: "_Mixing") -> None:
        decision = "failed" if mixing.decision is None else mixing.decision.value
        self._metrics.add("p2pmesh_mesh_answers_total", (("decision", decision),))
        for work in mixing.works:
            labels = (("role", work.role), ("outcome", work.outcome))
            self._metrics.add("p2pmesh_mesh_models_total", labels)

    def _workers(self, kind: Kind) -> tuple[Worker, ...]:
        names = mixable(listing.id for listing in self._backend.models())
        if len(names) < LEAST_MODELS:
            raise Refused(ErrorCode.MODEL_NOT_READY, _too_few(names))
        return assign_roles(names, kind, self._policy.models)

    def _real(self, model: str) -> str:
        """Whose tokens a virtual model has: the strong one's, since who will answer is not known before."""
        if model == MESH:
            return self._workers(Kind.CHAT)[0].model
        if model != AUTO:
            return model
        served = assign_roles((listing.id for listing in self._backend.models()), Kind.CHAT, self._policy.models)
        return served[0].model if served else model


def check_mixable(request: GenerationRequest) -> None:
    """``RequestError`` for what only one model can be asked."""
    if request.prompt.messages is None:
        raise invalid_parameter("model", f"{MESH} answers conversations; name one of the served models here")
    if request.sampling.logit_bias:
        text = f"logit_bias names tokens of one model, {MESH} asks several; name a model"
        raise unsupported_parameter("logit_bias", text)


def _too_few(names: tuple[str, ...]) -> str:
    served = f"only {names[0]} is" if names else "none is"
    return f"{MESH} answers once {LEAST_MODELS} or more models are served; {served}"


class _Listening:
    """A backend whose generations are heard."""

    def __init__(self, backend: Backend, note: Note) -> None:
        self._backend = backend
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @asynccontextmanager
    async def generate(
        self, request: GenerationRequest, asker: Asker = NOBODY
    ) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
        """See ``Backend``."""
        async with self._backend.generate(request, asker) as events, aclosing(self._heard(events)) as heard:
            yield heard

    async def _heard(self, events: AsyncIterator[GenerationEvent]) -> AsyncGenerator[GenerationEvent, None]:
        async for event in events:
            self._note(event)
            yield event


@dataclass(slots=True, eq=False)
class _Work:
    """One model that was asked."""

    index: int
    model: str
    role: str
    request: GenerationRequest
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    outcome: str = "dropped"
    drawn: list[GenerationEvent] = field(default_factory=list)
    """Of a draft: bounded by the tokens that its request allows."""
    heard: list[GenerationEvent] = field(default_factory=list)
    """Of its last attempt, as it comes; bounded likewise."""
    given: trio.MemorySendChannel[GenerationEvent] | None = None
    """Of one that reduces drafts: where its answer goes as it comes."""
    spent: Spent = Spent()
    failure: P2PMeshError | None = None

    def hear(self, event: GenerationEvent) -> None:
        """What is generated, and what that costs."""
        if isinstance(event, GenerationStarted):
            self.heard.clear()
            self.spent += Spent(len(event.prompt_tokens), 0, event.cached_tokens)
        elif isinstance(event, GenerationDelta):
            self.spent += Spent(0, len(event.tokens), 0)
        self.heard.append(event)


class _Mixing:
    """One request for ``mesh`` and all that is asked for it."""

    def __init__(
        self,
        backend: Backend,
        asking: Callable[[Note], Backend],
        policy: MixturePolicy,
        request: GenerationRequest,
        asker: Asker,
        workers: tuple[Worker, ...],
    ) -> None:
        self._new_request_id = backend.new_request_id
        self._asking = asking
        self._policy = policy
        self._request = request
        self._asker = asker
        self._machine = MixtureMachine(
            workers, policy, has_tools=request.tools is not None, is_continuing=answers_calls(request)
        )
        self.decision: Decision | None = None
        self.works: list[_Work] = []
        """By index."""
        self._told, self._news = trio.open_memory_channel[Event](4 * policy.models)
        """Nobody who was asked says more than two things."""
        self._begun = Spent()
        """What the head of the answer that is given has told."""
        self._answers: dict[int, trio.MemoryReceiveChannel[GenerationEvent]] = {}
        """Of those who reduce drafts."""

    async def events(self, nursery: trio.Nursery) -> AsyncGenerator[GenerationEvent, None]:
        """Of the answer; who is asked for it runs in the nursery."""
        event: Event = Begin()
        while True:
            for effect in self._machine.handle(event, _now()):
                if isinstance(effect, Give | Follow):
                    self.decision = effect.decision
                    async with aclosing(self._answer(effect)) as given:
                        async for one in given:
                            yield one
                    return
                self._carry_out(effect, nursery)
            deadline = self._machine.deadline()
            assert deadline is not None
            event = DeadlinePassed()
            with trio.move_on_at(deadline / MICROS_PER_SECOND):
                event = await self._news.receive()

    def _carry_out(self, effect: Effect, nursery: trio.Nursery) -> None:
        match effect:
            case Ask():
                nursery.start_soon(self._run, self._work(effect))
            case Drop():
                self.works[effect.index].scope.cancel()
            case GiveUp():
                cause = next((work.failure for work in self.works if work.failure is not None), None)
                raise cause if cause is not None else PeerUnavailable(effect.code, effect.text)

    # --- those who are asked -----------------------------------------------------
    def _work(self, effect: Ask) -> _Work:
        request_id = self._new_request_id()
        if effect.role is None:
            drafts = [self._draft(work) for work in self.works if work.role != _REDUCER]
            asked = reducer_request(self._request, effect.model, drafts, self._policy, request_id)
            work = _Work(effect.index, effect.model, _REDUCER, asked)
            work.given, self._answers[effect.index] = trio.open_memory_channel[GenerationEvent](_HELD_EVENTS)
        else:
            asked = worker_request(self._request, Worker(effect.model, effect.role), self._policy, request_id)
            work = _Work(effect.index, effect.model, effect.role.value, asked)
        self.works.append(work)
        return work

    async def _run(self, work: _Work) -> None:
        """A failure is that of one model, never of the request."""
        with work.scope:
            try:
                if work.given is None:
                    await self._draw_up(work)
                else:
                    await self._reduce(work, work.given)
            except Exception as raised:  # noqa: BLE001 - the edge: whatever fails is one of several
                work.failure = error_of(raised) or internal_error(raised)
                work.outcome = "failed"
                self._told.send_nowait(Failed(work.index, work.failure.code, work.failure.message))

    async def _draw_up(self, work: _Work) -> None:
        backend = self._asking(work.hear)
        async with backend.generate(work.request, replace(self._asker, is_streaming=False)) as events:
            async for event in events:
                work.drawn.append(event)
        work.outcome = "answered"
        self._told.send_nowait(Answered(work.index, self._draft(work)))

    async def _reduce(self, work: _Work, given: trio.MemorySendChannel[GenerationEvent]) -> None:
        def hear(event: GenerationEvent) -> None:
            work.hear(event)
            if work.outcome != "answered" and not isinstance(event, GenerationStarted):
                work.outcome = "answered"
                self._told.send_nowait(Begun(work.index))

        with given:
            async with self._asking(hear).generate(work.request, self._asker) as events:
                async for event in events:
                    await given.send(event)

    def _draft(self, work: _Work) -> Draft:
        own = is_own_limit(self._request, work.request)
        events = work.drawn if work.outcome == "answered" else work.heard
        return read_draft(events, self._request.tools, is_own_limit=own)

    # --- the answer ----------------------------------------------------------------
    async def _answer(self, effect: Give | Follow) -> AsyncGenerator[GenerationEvent, None]:
        winner = self.works[effect.index]
        if isinstance(effect, Give):
            for event in winner.drawn:
                yield self._shown(event, winner, effect.decision)
            return
        async for event in self._answers[effect.index]:
            yield self._shown(event, winner, effect.decision)
        if winner.failure is not None:
            raise winner.failure

    def _shown(self, event: GenerationEvent, winner: _Work, decision: Decision) -> GenerationEvent:
        match event:
            case GenerationStarted():
                self._begun = Spent(len(event.prompt_tokens), 0, event.cached_tokens)
                return replace(event, model=MESH, facts=(*event.facts, *self._facts(winner, decision)))
            case GenerationDelta() if self._request.top_logprobs is None:
                return replace(event, logprobs=())
            case GenerationFinished():
                shown = self._begun + Spent(0, event.completion_tokens)
                return replace(event, besides=sum((work.spent for work in self.works), Spent()) - shown)
            case _:
                return event

    def _facts(self, winner: _Work, decision: Decision) -> tuple[Fact, ...]:
        asked = ", ".join(f"{_named(work.model)} {work.role} {work.outcome}" for work in self.works)
        return (
            (MODELS_HEADER, asked),
            (WINNER_HEADER, f"{_named(winner.model)} {winner.role}"),
            (DECISION_HEADER, decision.value),
        )


def _named(model: str) -> str:
    """A model's name in a header, where space and comma divide."""
    return quote(model, safe="/:@._-+~")


def _now() -> Micros:
    return micros(trio.current_time())
