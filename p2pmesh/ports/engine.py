"""An engine process that holds one loaded stage."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from p2pmesh.base.ids import LayerRange
from p2pmesh.wire.generation import ChatMessage, ToolUse
from p2pmesh.wire.stage import StageFrame, WireDtype


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to load. ``artifact_path`` is a GGUF that holds exactly ``layers`` of a model of ``layer_count``.

    ``model_digest`` names the whole model, whichever part is loaded: what was found out about this machine with one
    part of it holds for the others.
    """

    artifact_path: str
    artifact_digest: str
    layers: LayerRange
    layer_count: int
    context_tokens: int
    lanes: int
    wire_dtype: WireDtype
    model_digest: str = ""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine found at load.

    ``exact_width`` is R: decode calls of 2 to R rows give the very bits of rows one at a time. ``fingerprint`` names
    all that the bits depend on (build, backend, CPU features, threads, KV type); equal fingerprints, equal bits.
    ``kv_bytes`` is what keys, values and states take, of all sequences together. ``decode_us`` is the measured time of
    one row of one sequence after a short context, ``prefill_us`` that of a token in a prompt; 0: not measured.
    ``call_format`` names how the model writes calls of tools (``core.tool_calls.formats``). ``shares_prefixes``: rows
    of one sequence may be another's too, which begins alike.
    """

    hidden_size: int
    exact_width: int
    fingerprint: str
    kv_bytes: int
    vocabulary_size: int
    beginning_token: int | None
    end_tokens: frozenset[int]
    notes: tuple[str, ...] = ()
    decode_us: int = 0
    call_format: str = "plain"
    prefill_us: int = 0
    shares_prefixes: bool = False


TakeFrames = Callable[[Sequence[StageFrame]], Awaitable[None]]


class Engine(Protocol):
    """A live child. Every call raises ``EngineError`` with the cause once the child is gone."""

    @property
    def facts(self) -> EngineFacts:
        """Facts measured at load."""

    async def send(self, frame: StageFrame) -> None:
        """Hands BEGIN, PREFILL, DECODE, CANCEL or END to the child; waits while its queue is full."""

    async def send_all(self, frames: Sequence[StageFrame]) -> None:
        """As ``send``, several at once: the child sees them together, and may compute them in one call."""

    async def park(self) -> None:
        """Its run is over: drops what is queued, and keeps the rows of every sequence for a while, in case that a BEGIN
        continues it; lanes that others need come first.
        """

    async def receive(self) -> StageFrame:
        """The next frame it produced: rows with an activation (not the last stage), TOKEN, CREDIT, HELD or ERROR."""

    async def follow(self, take: TakeFrames) -> None:
        """Hands all frames that it produces to ``take``, in order, until cancelled; raises how it ended.

        Those that came together, mostly of one call, are handed over together. Instead of ``receive``, for whoever
        wants each frame with the fewest steps in between. ``take`` must not raise,
        and may still be running when this is cancelled.
        """

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """Token ids; first stage only."""

    async def render_chat(
        self, messages: tuple[ChatMessage, ...], reasoning_effort: str = "", tools: ToolUse | None = None
    ) -> str:
        """The model's own chat template over the messages, with the generation prompt; ``Refused(REQUEST_INVALID)``.

        ``reasoning_effort`` "" leaves it to the template's default; one that knows none of it is not changed by it. A
        template that knows no ``tools`` gets them in words.
        """

    async def pieces(self) -> tuple[bytes, ...]:
        """The bytes of every token of the vocabulary, by id; control tokens are empty, but for
        marks of calls. First stage only."""


class EngineLauncher(Protocol):
    """Starts engine processes."""

    def launch(self, spec: EngineSpec) -> AbstractAsyncContextManager[Engine]:
        """A child that has loaded ``spec``; leaving the scope ends it, whatever it does, within a deadline.

        Raises ``EngineError`` (``ENGINE_LOAD_FAILED``, ``ENGINE_CRASHED`` with the signal's name and what to do).
        """
