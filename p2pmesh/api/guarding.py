"""Guardrails round a backend's generations: prompts compacted before, answers mended after, as far as that can be.

An answer that is not streamed is held until it is judged. A stream passes through, but for what may turn out to be
calls of tools: that is held, and what nothing was given out of yet can be rescued or asked for anew. What is wrong and
how it is mended is ``core.guardrails``'; one generation that fails on the way never costs the answer before it.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import trio

from p2pmesh.api.backend import Backend
from p2pmesh.api.errors import error_of
from p2pmesh.api.metrics import Metrics
from p2pmesh.base.errors import P2PMeshError
from p2pmesh.core.affinity import NOBODY, Asker
from p2pmesh.core.guardrails.compaction import fits, is_full, may_fill, removable_parts, without_parts
from p2pmesh.core.guardrails.faults import Fault, FaultKind, ask_anew, find_fault, retries_of
from p2pmesh.core.guardrails.policy import GuardrailMode, GuardrailPolicy, Intervention
from p2pmesh.core.guardrails.rescue import Rescued, may_become_calls, rescue_calls
from p2pmesh.core.mixture.drafts import Draft, read_draft
from p2pmesh.core.reasoning import ReasoningSplitter
from p2pmesh.core.tool_calls.formats import CallFormat, find_format
from p2pmesh.core.tool_calls.tools import decode_tools
from p2pmesh.wire.generation import (
    ChatMessage,
    Fact,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Spent,
    ToolCall,
)

GUARDRAILS_HEADER = "x-p2pmesh-guardrails"
_TELLING_CHARACTERS = 256
"""An answer that may be calls after so many is held to its end: the first key of an object comes sooner."""
_REMEMBERED = 256
"""Requests whose choices are compacted alike, without another look at the first one's conversation."""


@dataclass(slots=True)
class _Compaction:
    """How many parts of a conversation went; choices that run together wait for the first one's looks."""

    turn: trio.Lock = field(default_factory=trio.Lock)
    gone: int | None = None


class GuardedBackend:
    """A backend with guardrails; everything but its generations is the backend's own."""

    def __init__(self, backend: Backend, metrics: Metrics, policy: GuardrailPolicy) -> None:
        self._backend = backend
        self._metrics = metrics
        self._policy = policy
        self._compactions: dict[bytes, _Compaction] = {}
        """By request: each look is a tokenizer's work, and choices are many."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def generate(
        self, request: GenerationRequest, asker: Asker = NOBODY
    ) -> AbstractAsyncContextManager[AsyncIterator[GenerationEvent]]:
        """See ``Backend``. What is no conversation is left alone."""
        if self._policy.mode is GuardrailMode.OFF or request.prompt.messages is None or request.wants_embedding:
            return self._backend.generate(request, asker)
        return self._guarded(request, asker)

    @asynccontextmanager
    async def _guarded(self, request: GenerationRequest, asker: Asker) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
        while len(self._compactions) > _REMEMBERED:
            del self._compactions[next(iter(self._compactions))]
        guarding = _Guarding(self._backend, self._policy, self._metrics, asker, self._compactions)
        async with aclosing(guarding.events(request)) as events:
            yield events


class _Hold(StrEnum):
    """What of an answer is kept back until it is judged."""

    ALL = "all"
    CALLS = "calls"  # what may turn out to be calls of tools
    NOTHING = "nothing"


@dataclass(slots=True)
class _Attempt:
    """One generation: what came of it, and what of that is still held."""

    request: GenerationRequest
    hold: _Hold
    heard: list[GenerationEvent] = field(default_factory=list)
    """All of it; bounded by the context."""
    held: list[GenerationEvent] = field(default_factory=list)
    is_given: bool = False
    """Whether the client has seen any text of it."""
    is_said: bool = False
    """Whether it says something that is no call: what follows passes through."""
    _splitter: ReasoningSplitter = field(default_factory=ReasoningSplitter)
    _content: str = ""
    """Its beginning, as far as it tells whether calls come."""
    _content_bytes: int = 0

    def take(self, event: GenerationEvent, most_bytes: int) -> list[GenerationEvent]:
        """What can be given out by now; the end is judged first."""
        self.heard.append(event)
        self.held.append(event)
        if isinstance(event, GenerationFinished) or self.hold is _Hold.ALL:
            return []
        if self.hold is _Hold.NOTHING:
            return self.release()
        if isinstance(event, GenerationStarted):
            self._splitter = ReasoningSplitter(is_inside=event.is_reasoning)
            return []
        return self.release() if self._passes(event.text, most_bytes) else []

    def _passes(self, text: str, most_bytes: int) -> bool:
        """Whether what is held needs no holding any more: it is reasoning, or no call."""
        if self.is_said:
            return True
        split = self._splitter.add(text)
        self._content_bytes += len(split.content.encode("utf-8", "replace"))
        if not self._content_bytes and (split.reasoning or self._splitter.is_inside):
            return True
        if len(self._content) < _TELLING_CHARACTERS:
            self._content += split.content
            self.is_said = self.is_said or not may_become_calls(self._content)
        self.is_said = self.is_said or self._content_bytes > most_bytes
        return self.is_said

    def release(self) -> list[GenerationEvent]:
        """What was held, to be given out."""
        given, self.held = self.held, []
        self.is_given = self.is_given or any(isinstance(event, GenerationDelta) and event.text for event in given)
        return given

    @property
    def started(self) -> GenerationStarted | None:
        """The head of it; None where it never began."""
        return next((event for event in self.heard if isinstance(event, GenerationStarted)), None)

    @property
    def form(self) -> CallFormat:
        """How its model writes calls."""
        return find_format("" if self.started is None else self.started.call_format)

    @property
    def model(self) -> str:
        """Which one answered."""
        return (self.started.model if self.started is not None else "") or self.request.model

    @property
    def spent(self) -> Spent:
        """What it cost."""
        tokens = sum(len(event.tokens) for event in self.heard if isinstance(event, GenerationDelta))
        if self.started is None:
            return Spent(0, tokens)
        return Spent(len(self.started.prompt_tokens), tokens, self.started.cached_tokens)

    @property
    def draft(self) -> Draft:
        """What it says and calls."""
        return read_draft(self.heard, self.request.tools, is_own_limit=False)

    def rewrite(self, rescued: Rescued) -> None:
        """What is held says the calls in the model's own way, behind the same reasoning.

        Ids, log probabilities and counts stay those of the tokens that were generated.
        """
        deltas = [event for event in self.held if isinstance(event, GenerationDelta)]
        end = [event for event in self.held if isinstance(event, GenerationFinished)]
        text = "".join([event.text for event in deltas] + [event.text for event in end])
        content = self.draft.text
        before = text[: len(text) - len(content)] if text.endswith(content) else ""
        said = f"{rescued.said}\n" if rescued.said and not self.form.is_at_start else ""
        written = self.form.write([ToolCall("", call.name, call.arguments) for call in rescued.calls])
        tokens = tuple(token for event in deltas for token in event.tokens)
        logprobs = tuple(one for event in deltas for one in event.logprobs)
        self.held = [
            *(event for event in self.held if isinstance(event, GenerationStarted)),
            GenerationDelta(tokens, before + said + written, logprobs),
            *(replace(event, text="") for event in end),
        ]


class _Guarding:
    """One request under guardrails."""

    def __init__(
        self,
        backend: Backend,
        policy: GuardrailPolicy,
        metrics: Metrics,
        asker: Asker,
        compactions: dict[bytes, "_Compaction"],
    ) -> None:
        self._backend = backend
        self._compactions = compactions
        self._policy = policy
        self._metrics = metrics
        self._asker = asker
        self._is_enforcing = policy.mode is GuardrailMode.ENFORCE
        self._told: list[str] = []
        """Interventions that no event has told of yet."""
        self._besides = Spent()

    async def events(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Of the answer, whichever attempt gives it."""
        request = await self._compacted(request)
        attempt = _Attempt(request, self._hold(request))
        async with self._backend.generate(request, self._asker) as events:
            async for event in events:
                for given in self._taken(attempt, event):
                    yield given
        if attempt.hold is not _Hold.NOTHING or not self._is_enforcing:
            attempt = await self._mended(attempt)
        for event in attempt.release():
            yield self._marked(event)

    def _hold(self, request: GenerationRequest) -> _Hold:
        if not self._is_enforcing:
            return _Hold.NOTHING
        if not self._asker.is_streaming:
            return _Hold.ALL
        return _Hold.NOTHING if request.tools is None else _Hold.CALLS

    def _taken(self, attempt: _Attempt, event: GenerationEvent) -> list[GenerationEvent]:
        if isinstance(event, GenerationStarted) and not self._policy.mends(event.model or attempt.request.model):
            attempt.hold = _Hold.NOTHING
        return [self._marked(given) for given in attempt.take(event, self._policy.rescue_bytes)]

    # --- mending -------------------------------------------------------------------
    async def _mended(self, attempt: _Attempt) -> _Attempt:
        """The attempt whose answer is given: the first that is right, else the last."""
        retries = 0
        while True:
            found = self._judge(attempt)
            if isinstance(found, Rescued):
                self._rescue(attempt, found)
                return attempt
            if found is None or (attempt.is_given and self._is_enforcing):
                return attempt
            if retries >= retries_of(found, self._policy):
                self._note(Intervention.GIVEN_UP, found.kind.value)
                return attempt
            retries += 1
            self._note(Intervention.ASKED_ANEW, found.kind.value)
            following = await self._ask_anew(attempt, found) if self._is_enforcing else None
            if following is None:
                return attempt
            attempt = following

    def _judge(self, attempt: _Attempt) -> Rescued | Fault | None:
        if not self._policy.mends(attempt.model):
            return None
        draft, tools = attempt.draft, attempt.request.tools
        if tools is not None and not draft.calls and draft.is_whole:
            most = self._policy.rescue_bytes
            offered = tuple(tool for tool in decode_tools(tools) if tools.only in ("", tool.name))
            may_repeat = tools.may_repeat and attempt.form.may_repeat
            rescued = rescue_calls(draft.text, offered, most_bytes=most, may_repeat=may_repeat)
            if rescued is not None:
                return rescued
        return find_fault(draft, attempt.request)

    def _rescue(self, attempt: _Attempt, rescued: Rescued) -> None:
        """Unless it was given out already."""
        if self._is_enforcing and attempt.is_said:
            return
        if self._is_enforcing:
            attempt.rewrite(rescued)
        self._note(Intervention.RESCUED, FaultKind.TOOL.value)

    async def _ask_anew(self, attempt: _Attempt, fault: Fault) -> _Attempt | None:
        """None where that fails: the answer that is there is better than an error."""
        asked = ask_anew(attempt.request, attempt.draft, fault, attempt.form, self._backend.new_request_id())
        following = _Attempt(asked, _Hold.ALL)
        try:
            async with self._backend.generate(asked, self._asker) as events:
                async for event in events:
                    following.take(event, self._policy.rescue_bytes)
        except Exception as raised:  # what is no error of ours is raised again
            if error_of(raised) is None:
                raise
            self._besides += following.spent
            return None
        self._besides += attempt.spent
        return following

    # --- compacting ----------------------------------------------------------------
    async def _compacted(self, request: GenerationRequest) -> GenerationRequest:
        """The request, without what has to go; as it is where nothing is known of its model's context."""
        context = self._context_of(request.model)
        if context is None or not may_fill(request.prompt, request.tools, context, self._policy):
            return request
        try:
            messages = await self._left_of(request, context)
        except P2PMeshError:
            return request  # whoever generates says what is wrong
        gone = len(request.prompt.messages or ()) - len(messages)
        if not gone:
            return request
        self._note(Intervention.COMPACTED, f"{gone} messages")
        return replace(request, prompt=replace(request.prompt, messages=messages)) if self._is_enforcing else request

    async def _left_of(self, request: GenerationRequest, context: int) -> tuple[ChatMessage, ...]:
        """Without as many of the oldest parts as went of another choice, else as have to."""
        messages = request.prompt.messages or ()
        parts = removable_parts(messages)
        compaction = self._compactions.setdefault(request.request_id, _Compaction())
        async with compaction.turn:
            if compaction.gone is None:
                compaction.gone = await self._fewest(request, messages, parts, context)
        return without_parts(messages, parts[: compaction.gone])

    async def _fewest(
        self,
        request: GenerationRequest,
        messages: tuple[ChatMessage, ...],
        parts: tuple[tuple[int, ...], ...],
        context: int,
    ) -> int:
        """How many have to go, found by halving: each look is a tokenizer's work."""
        if not parts or not is_full(await self._count(request, messages), context, self._policy):
            return 0
        fewest, most = 1, len(parts)
        while fewest < most:
            middle = (fewest + most) // 2
            if fits(await self._count(request, without_parts(messages, parts[:middle])), context, self._policy):
                most = middle
            else:
                fewest = middle + 1
        return fewest

    async def _count(self, request: GenerationRequest, messages: tuple[ChatMessage, ...]) -> int:
        prompt = replace(request.prompt, messages=messages)
        return len(await self._backend.tokenize(request.model, prompt, request.tools, add_special=True))

    def _context_of(self, model: str) -> int | None:
        return next((one.context_tokens for one in self._backend.models() if one.id == model), None)

    # --- telling -------------------------------------------------------------------
    def _note(self, intervention: Intervention, what: str) -> None:
        labels = (("mode", self._policy.mode.value), ("intervention", intervention.value))
        self._metrics.add("p2pmesh_guardrail_interventions_total", labels)
        if self._is_enforcing:
            self._told.append(f"{intervention.value} {what}")

    def _marked(self, event: GenerationEvent) -> GenerationEvent:
        """The event, with what was done so far where it can say so."""
        if isinstance(event, GenerationDelta):
            return event
        facts: tuple[Fact, ...] = ((GUARDRAILS_HEADER, ", ".join(self._told)),) if self._told else ()
        self._told.clear()
        if isinstance(event, GenerationStarted):
            return replace(event, facts=(*event.facts, *facts))
        return replace(event, facts=(*event.facts, *facts), besides=event.besides + self._besides)
