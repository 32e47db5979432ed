"""Exchanges that a driver serves to other peers: probe, publish, generate; and the ingress side of the last."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable, Refused, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.core.lane_queue import Claimant
from p2pmesh.node.channels import MessageStream, error_of
from p2pmesh.node.claims import Claims
from p2pmesh.node.driver import HELD_S, Drivers
from p2pmesh.node.failures import unwrapped
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.sequences import code_for_client
from p2pmesh.node.vigil import Vigils, Watch
from p2pmesh.wire.generation import (
    ChatMessage,
    FinishReason,
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Prompt,
    RoutedStage,
    SamplingParameters,
    TokenLogprob,
    ToolCall,
    ToolChoice,
    ToolUse,
)
from p2pmesh.wire.messages.answers import Done, Refusal
from p2pmesh.wire.messages.generation import (
    BiasEntry,
    CallEntry,
    Cancel,
    CandidateEntry,
    Delta,
    Finished,
    Generate,
    LogprobEntry,
    MessageEntry,
    RoutedStageEntry,
    SamplingEntry,
    Started,
    ToolUseEntry,
)
from p2pmesh.wire.messages.runs import HoldRun, ProbeRun, PublishRun

EVENT_TIMEOUT_S = 600.0
"""A backstop only: the driver's own deadlines, derived from its pace, end a silent generation first."""
READ_TIMEOUT_S = 600.0
"""Of an ingress whose client is slow, for its next window; its sequence gives up its lane long before
(``node.sequences``)."""
CANCEL_TIMEOUT_S = 2.0


class DriverExchanges:
    """Serves the runs that are driven here to admitted peers."""

    def __init__(self, overlay: Overlay, drivers: Drivers, claims: Claims) -> None:
        self._drivers = drivers
        self._claims = claims
        overlay.serve_exchange(ProbeRun, self._probe)
        overlay.serve_exchange(PublishRun, self._publish)
        overlay.serve_exchange(HoldRun, self._hold)
        overlay.serve_exchange(Generate, self._generate)

    async def _probe(self, stream: MessageStream, asked: ProbeRun) -> None:
        self._check_coordinator(stream.remote_peer, asked.run_id)
        await stream.send(await self._drivers.probe(asked.run_id, asked.steps))
        await stream.finish()

    async def _publish(self, stream: MessageStream, asked: PublishRun) -> None:
        self._check_coordinator(stream.remote_peer, asked.run_id)
        self._drivers.publish(asked)
        await stream.send(Done())
        await stream.finish()

    async def _hold(self, stream: MessageStream, asked: HoldRun) -> None:
        """As long as its coordinator keeps the stream, within bounds."""
        self._check_coordinator(stream.remote_peer, asked.run_id)
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_at_end, stream, nursery.cancel_scope)
                async with self._drivers.held(asked.run_id, asked.quiet_ms / 1000):
                    await stream.send(Done())
                    await trio.sleep(HELD_S)
                nursery.cancel_scope.cancel()

    def _check_coordinator(self, peer: PeerId, run_id: bytes) -> None:
        self._claims.check_coordinator(peer, self._drivers.load_of(run_id).model_digest, run_id)

    async def _generate(self, stream: MessageStream, asked: Generate) -> None:
        request = request_of(asked)
        driver = self._drivers.find_published(request.model)
        if driver is None:
            raise Refused(ErrorCode.MODEL_NOT_READY, f"{request.model} is not driven here; try again")
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_at_end, stream, nursery.cancel_scope)
                with self._drivers.served(Claimant(stream.remote_peer, request.client)):
                    async with driver.generate(request, stream.remote_peer) as events:
                        async for event in events:
                            await stream.send(_message_of(event), READ_TIMEOUT_S)
                nursery.cancel_scope.cancel()
        await stream.finish()


async def _cancel_at_end(stream: MessageStream, scope: trio.CancelScope) -> None:
    """The ingress cancels by saying so, or by ending its side in any other way."""
    with suppress(PeerUnavailable, RemoteProtocolError):
        await stream.expect(Cancel, EVENT_TIMEOUT_S * 1000)
    scope.cancel()


@asynccontextmanager
async def generate_remotely(
    overlay: Overlay, vigils: Vigils, driver: PeerId, request: GenerationRequest, open_s: float
) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
    """Events of a request that another peer drives; leaving the scope early cancels it there.

    Raises ``PeerUnavailable`` if the driver does not take it within ``open_s``.
    """
    try:
        with trio.fail_after(open_s):
            stream = await overlay.open_exchange(driver, _generate_of(request))
    except trio.TooSlowError:
        text = f"peer {driver} did not take the request within {open_s:.0f} s"
        raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, text) from None
    except RemoteProtocolError as error:
        if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
            raise
        raise Refused(ErrorCode.REQUEST_TOO_LARGE, "the prompt is larger than peers take; shorten it") from None
    driven = _Driven(stream)
    watch = driven.watch = vigils.watch([(driver, ())], driven.lose)
    try:
        async with aclosing(driven.events()) as events:
            yield events
    finally:
        if watch is not None:
            watch.end()
        with trio.CancelScope(deadline=trio.current_time() + CANCEL_TIMEOUT_S, shield=True):
            with suppress(P2PMeshError):
                await stream.send(Cancel())
            await stream.reset()


class _Driven:
    """A generation that another peer drives, as its messages come; whoever watches that peer may end the wait."""

    def __init__(self, stream: MessageStream) -> None:
        self._stream = stream
        self._waiting = trio.CancelScope()
        self._loss: P2PMeshError | None = None
        self.watch: Watch | None = None

    def lose(self, _: PeerId, error: P2PMeshError) -> None:
        """The driver does not answer any more."""
        self._loss = error
        self._waiting.cancel()

    async def events(self) -> AsyncGenerator[GenerationEvent, None]:
        """Up to the end."""
        while True:
            event = _event_of(await self._next_message())
            if self.watch is not None:
                self.watch.hear()
            yield event
            if isinstance(event, GenerationFinished):
                return

    async def _next_message(self) -> object:
        message: object = None
        if self._loss is None:
            with trio.CancelScope() as self._waiting:
                message = await self._stream.receive(EVENT_TIMEOUT_S)
        if self._loss is not None:
            raise self._loss
        return message


def _event_of(message: object) -> GenerationEvent:
    match message:
        case Started():
            return _started_of(message)
        case Delta(tokens, text, logprobs, embedding):
            return GenerationDelta(tokens, text, tuple(_logprob_of(entry) for entry in logprobs), embedding)
        case Finished(reason, text, completion_tokens, stop):
            return GenerationFinished(_reason_of(reason), text, completion_tokens, stop=stop)
        case Refusal():
            error = error_of(message)
            raise RemoteProtocolError(code_for_client(error.code), error.message, retry_after_s=error.retry_after_s)
        case _:
            text = f"{type(message).__name__} in a generation"
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, text)


def _started_of(message: Started) -> GenerationStarted:
    if message.cached_tokens and message.cached_tokens >= len(message.prompt_tokens):
        text = f"{message.cached_tokens} tokens cached of {len(message.prompt_tokens)}"
        raise RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, text)
    return GenerationStarted(
        message.prompt_tokens, message.run_id, message.fingerprint, message.max_tokens, message.is_reasoning,
        message.call_format, message.model_digest or "",
        tuple(RoutedStage(entry.peer_id, entry.layer_start, entry.layer_end) for entry in message.stages),
        cached_tokens=message.cached_tokens,
    )  # fmt: skip


def _started_message(event: GenerationStarted) -> Started:
    stages = tuple(RoutedStageEntry(stage.peer_id, stage.start, stage.end) for stage in event.stages)
    return Started(
        event.prompt_tokens, event.run_id, event.fingerprint, event.max_tokens, event.is_reasoning, event.call_format,
        event.model_digest or None, stages, event.cached_tokens,
    )  # fmt: skip


def _reason_of(text: str) -> FinishReason:
    try:
        return FinishReason(text)
    except ValueError:
        raise RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, f"finish reason {text!r}") from None


def _message_of(event: GenerationEvent) -> Started | Delta | Finished:
    match event:
        case GenerationStarted():
            return _started_message(event)
        case GenerationDelta(tokens, text, logprobs, embedding):
            return Delta(tokens, text, tuple(_logprob_entry(one) for one in logprobs), embedding)
        case GenerationFinished(reason, text, completion_tokens):
            return Finished(reason.value, text, completion_tokens, event.stop)


def _logprob_of(entry: LogprobEntry) -> TokenLogprob:
    top = tuple(TokenLogprob(one.token, one.piece, one.logprob) for one in entry.top)
    return TokenLogprob(entry.token, entry.piece, entry.logprob, top)


def _logprob_entry(one: TokenLogprob) -> LogprobEntry:
    top = tuple(CandidateEntry(likely.token, likely.piece, likely.logprob) for likely in one.top)
    return LogprobEntry(one.token, one.piece, one.logprob, top)


def request_of(asked: Generate) -> GenerationRequest:
    """The request that a message carries; raises ``REQUEST_INVALID`` for ranges that no message limit covers."""
    messages = None if asked.messages is None else tuple(map(chat_message_of, asked.messages))
    sampling = asked.sampling
    return GenerationRequest(
        asked.request_id,
        asked.model,
        Prompt(messages, asked.text, asked.tokens, asked.reasoning_effort),
        SamplingParameters(
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.presence_penalty,
            sampling.frequency_penalty, sampling.repeat_penalty, sampling.seed,
            tuple((entry.token, entry.bias) for entry in sampling.logit_bias),
        ),
        asked.stop,
        asked.max_tokens,
        asked.sequence,
        asked.history,
        asked.top_logprobs,
        asked.grammar,
        None if asked.tools is None else tool_use_of(asked.tools),
        asked.continues or b"",
        asked.wants_embedding,
        asked.client or b"",
    )  # fmt: skip


def chat_message_of(entry: MessageEntry) -> ChatMessage:
    """A message as it came."""
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in entry.calls)
    return ChatMessage(entry.role, entry.content, calls, entry.answers, entry.name)


def tool_use_entry_of(tools: ToolUse) -> ToolUseEntry:
    """Tools as they travel."""
    return ToolUseEntry(tools.tools, tools.choice.value, tools.only, tools.may_repeat)


def tool_use_of(entry: ToolUseEntry) -> ToolUse:
    """Tools as they came; ``RemoteProtocolError`` for a choice that is none."""
    if entry.choice not in tuple(ToolChoice):
        raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, f"tools are called by choice, not {entry.choice[:32]!r}")
    return ToolUse(entry.tools, ToolChoice(entry.choice), entry.only, entry.may_repeat)


def message_entry_of(message: ChatMessage) -> MessageEntry:
    """A message as it travels."""
    calls = tuple(CallEntry(call.id, call.name, call.arguments) for call in message.calls)
    return MessageEntry(message.role, message.content, calls, message.answers, message.name)


def _generate_of(request: GenerationRequest) -> Generate:
    messages, sampling, tools = request.prompt.messages, request.sampling, request.tools
    return Generate(
        request.request_id,
        request.model,
        SamplingEntry(
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.presence_penalty,
            sampling.frequency_penalty, sampling.repeat_penalty, sampling.seed,
            tuple(BiasEntry(token, bias) for token, bias in sampling.logit_bias),
        ),
        None if messages is None else tuple(map(message_entry_of, messages)),
        request.prompt.text,
        request.prompt.tokens,
        request.stop,
        request.max_tokens,
        request.sequence,
        request.history,
        request.top_logprobs,
        request.prompt.reasoning_effort,
        request.grammar,
        None if tools is None else tool_use_entry_of(tools),
        request.continues or None,
        request.wants_embedding,
        request.client or None,
    )  # fmt: skip
