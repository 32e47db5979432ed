"""A backend whose generations follow a script and say how they ended."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from p2pmesh.api.backend import ModelListing
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.core.affinity import NOBODY, Asker
from p2pmesh.wire.generation import (
    FinishReason,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Prompt,
    RoutedStage,
    ToolUse,
)

RUN_ID = bytes(range(16))
FINGERPRINT = "fp_fake"
DIGEST = "ab" * 32
STAGES = (RoutedStage("peer-a", 0, 10), RoutedStage("peer-b", 10, 22))
MODEL = "org/fake-1b"

Step = GenerationEvent | Exception | Callable[[], Awaitable[None]]
"""An event to yield, an error to raise, or something to wait for."""


def started(prompt_tokens: int = 3) -> GenerationStarted:
    return GenerationStarted(tuple(range(prompt_tokens)), RUN_ID, FINGERPRINT, 4096, model_digest=DIGEST, stages=STAGES)


def say(*pieces: str, reason: FinishReason = FinishReason.STOP, held_back: str = "") -> tuple[Step, ...]:
    """The script of a generation that goes well, one token a piece."""
    deltas = (GenerationDelta((index,), piece) for index, piece in enumerate(pieces))
    return (started(), *deltas, GenerationFinished(reason, held_back, len(pieces)))


@dataclass
class FakeBackend:
    """Implements ``p2pmesh.api.backend.Backend``; ``outcomes`` records how each generation's scope was left."""

    script: tuple[Step, ...] = say("Hel", "lo")
    scripts: dict[int, tuple[Step, ...]] = field(default_factory=dict)
    """Of single choices, by their sequence."""
    of_models: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    """Of single models."""
    entry_error: P2PMeshError | None = None
    listings: tuple[ModelListing, ...] = (ModelListing(MODEL, 1_700_000_000),)
    awaited: tuple[str, ...] = ()
    requests: list[GenerationRequest] = field(default_factory=list)
    askers: list[Asker] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    """The same, with the model of each."""
    ended: trio.Event = field(default_factory=trio.Event)
    _last_id: int = 0

    def models(self) -> tuple[ModelListing, ...]:
        return self.listings

    def is_ready(self) -> bool:
        return bool(self.listings)

    def is_awaited(self, model: str) -> bool:
        return model in self.awaited

    def not_ready_reason(self, model: str) -> str:
        return f"{model[:64]} is not ready: no model is"

    @asynccontextmanager
    async def generate(
        self, request: GenerationRequest, asker: Asker = NOBODY
    ) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
        self.requests.append(request)
        self.askers.append(asker)
        if self.entry_error is not None:
            raise self.entry_error
        if request.model not in {listing.id for listing in self.listings}:
            raise Refused(ErrorCode.MODEL_UNKNOWN, f"no peer serves {request.model}")
        outcome = "left"
        try:
            # a nursery, because the node has one here as well: errors inside come out in groups
            async with (
                trio.open_nursery(),
                aclosing(self._play(self._script_of(request))) as events,
            ):
                yield events
        except trio.Cancelled:
            outcome = "cancelled"
            raise
        except BaseExceptionGroup as group:
            outcome = "cancelled" if group.subgroup(trio.Cancelled) else "failed"
            raise
        finally:
            self.outcomes.append(outcome)
            self.left.append((request.model, outcome))
            self.ended.set()

    def _script_of(self, request: GenerationRequest) -> tuple[Step, ...]:
        of_model = self.of_models.get(request.model, self.script)
        return self.scripts.get(request.sequence, of_model)

    async def _play(self, script: tuple[Step, ...]) -> AsyncGenerator[GenerationEvent]:
        for step in script:
            if isinstance(step, Exception):
                raise step
            if callable(step):
                await step()
            else:
                yield step

    async def tokenize(
        self, model: str, prompt: Prompt, tools: ToolUse | None = None, *, add_special: bool
    ) -> tuple[int, ...]:
        if self.entry_error is not None:
            raise self.entry_error
        text = prompt.text if prompt.messages is None else "".join(one.content for one in prompt.messages)
        shown = "" if tools is None else tools.tools
        return (0,) * add_special + tuple(((text or "") + shown).encode())

    async def detokenize(self, model: str, tokens: tuple[int, ...]) -> str:
        return bytes(tokens).decode()

    def status(self) -> dict[str, Any]:
        return {"peer_id": "fake", "models": [listing.id for listing in self.listings]}

    async def peers(self) -> dict[str, Any]:
        if not self.listings:
            raise Refused(ErrorCode.MODEL_NOT_READY, "the node is starting; try again in a moment")
        return {"coordinator": "fake", "peers": [{"name": "fake", "memory": 0}], "links": []}

    def new_request_id(self) -> bytes:
        self._last_id += 1
        return self._last_id.to_bytes(16, "big")

    def random_seed(self) -> int:
        return 4242

    def now_unix_s(self) -> int:
        return 1_700_000_123

    def status_retry_after_s(self) -> int:
        return 7
