"""Records of one generation: what is asked of a driver and what comes back.

They travel in ``/mesh-llm/1`` messages and, as sampling parameters, in the *begin* frame of ``/skippy-stage/2``. Here
are only the shapes and their checks; the machines that use them live in ``core``.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_GRAMMAR_BYTES, MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS, MAX_TRIGGER_BYTES, MAX_TRIGGERS

MAX_SEED = 2**64 - 1
MAX_BIAS = 100.0


class FinishReason(StrEnum):
    """Why a generation ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How the last stage picks a token; ranges as in OpenAI's API where it has the field.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch the filter off. The presence and
    frequency penalties count generated tokens only; ``repeat_penalty`` 1 is off and counts generated tokens too.
    ``logit_bias`` holds (token id, what is added to its logit), by ascending id.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        checks = (
            ("temperature", 0.0 <= self.temperature <= 2.0, "0 to 2"),
            ("top_k", 0 <= self.top_k <= 1_000_000, "0 to 1000000"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0, to 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "0 to 1"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "-2 to 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "-2 to 2"),
            ("repeat_penalty", 0.01 <= self.repeat_penalty <= 10.0, "0.01 to 10"),
            ("seed", 0 <= self.seed <= MAX_SEED, "0 to 2^64 - 1"),
        )
        for name, holds, allowed in checks:
            if not holds:  # NaN fails each comparison, so it is refused here as well
                raise RemoteProtocolError(
                    ErrorCode.REQUEST_INVALID, f"{name} must be {allowed}, not {getattr(self, name)!r}"
                )
        if self.logit_bias:
            self._check_bias()

    def _check_bias(self) -> None:
        ids = [token for token, _ in self.logit_bias]
        problem = None
        if len(ids) > MAX_LOGIT_BIAS:
            problem = f"may hold {MAX_LOGIT_BIAS} tokens, not {len(ids)}"
        elif ids[0] < 0 or any(first >= second for first, second in pairwise(ids)):
            problem = "must hold each token id once, ascending"
        elif not all(-MAX_BIAS <= bias <= MAX_BIAS for _, bias in self.logit_bias):
            problem = f"must hold values of -{MAX_BIAS:.0f} to {MAX_BIAS:.0f}"
        if problem is not None:
            raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, f"logit_bias {problem}")


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the text of an answer must be, in llama.cpp's notation (GBNF), which ``core.grammar`` reads.

    Without ``triggers`` it holds from the first byte on. With them the text is free until one has come, and the grammar
    holds from that trigger's first byte on; ``is_at_start``: only white space may come before a trigger that counts.
    """

    text: str
    triggers: tuple[str, ...] = ()
    is_at_start: bool = False

    def __post_init__(self) -> None:
        if len(self.text.encode()) > MAX_GRAMMAR_BYTES:
            raise RemoteProtocolError(ErrorCode.GRAMMAR_INVALID, f"the grammar: longer than {MAX_GRAMMAR_BYTES} bytes")
        sizes = [len(trigger.encode()) for trigger in self.triggers]
        if len(sizes) > MAX_TRIGGERS or any(not 1 <= size <= MAX_TRIGGER_BYTES for size in sizes):
            text = f"a grammar has at most {MAX_TRIGGERS} triggers of 1 to {MAX_TRIGGER_BYTES} bytes"
            raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, text)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant made: its ``arguments`` as the text that it wrote, which need not be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation, its content as plain text.

    ``calls`` are an assistant's; ``answers`` is the id of the call that a tool's message answers. ``name`` tells
    participants of one role apart, where the chat template shows it; empty where it was not given.
    """

    role: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    answers: str = ""
    name: str = ""


class ToolChoice(StrEnum):
    """Whether an answer calls tools."""

    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Functions that an answer may call.

    ``tools`` is a JSON list of functions in OpenAI's shape. ``only`` names the one that must be called; empty: any.
    ``may_repeat`` false: at most one call.
    """

    tools: str
    choice: ToolChoice = ToolChoice.AUTO
    only: str = ""
    may_repeat: bool = True


@dataclass(frozen=True, slots=True)
class Prompt:
    """Exactly one of the first three is set: a conversation (for the model's template), text, or token ids.

    ``reasoning_effort`` is for the template; "" leaves it to the template's own default.
    """

    messages: tuple[ChatMessage, ...] | None = None
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    reasoning_effort: str = ""

    def __post_init__(self) -> None:
        given = sum(part is not None for part in (self.messages, self.text, self.tokens))
        if given != 1:
            raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, f"a prompt has one form, not {given}")

    @property
    def size_characters(self) -> int:
        """Of what there is to tokenise: nothing of ids."""
        said = sum(len(message.content) for message in self.messages or ())
        called = sum(len(call.arguments) for message in self.messages or () for call in message.calls)
        return len(self.text or "") + said + called


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What an ingress asks of a driver.

    ``max_tokens`` None means: to the end of the context. ``sequence`` is the choice index. ``history`` holds tokens of
    the answer that were given out before a loss; the generation goes on after them. ``top_logprobs`` asks for the log
    probability of every token and of so many likeliest ones beside it, None for none. ``grammar`` binds the whole
    answer; with ``tools`` the driver makes one of its own, in the model's own way of writing calls. ``continues`` is
    the request id under which it ran until a loss, empty for one that begins: stages may still hold its rows. With
    ``wants_embedding`` the prompt is read and no answer made: one token that means nothing carries the vector.
    ``client`` is what the ingress calls who asks, empty for nobody in particular: it gives turns and nothing else.
    """

    request_id: bytes
    model: str
    prompt: Prompt
    sampling: SamplingParameters
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    sequence: int = 0
    history: tuple[int, ...] = ()
    top_logprobs: int | None = None
    grammar: str = ""
    tools: ToolUse | None = None
    continues: bytes = b""
    wants_embedding: bool = False
    client: bytes = b""

    def __post_init__(self) -> None:
        check_told(self.top_logprobs, wants_embedding=self.wants_embedding)


def check_told(count: int | None, *, wants_embedding: bool) -> None:
    """``REQUEST_INVALID`` for more log probabilities than are ever told, or for some beside a vector."""
    if count is not None and wants_embedding:
        raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, "an embedding has no log probabilities")
    if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
        raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, f"top_logprobs must be 0 to {MAX_TOP_LOGPROBS}")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability by the model alone, before bias, penalties, temperature and cuts.

    ``piece`` is the token's bytes, none of a control token. ``top`` are the likeliest tokens at its position, the
    likeliest first, each without a ``top`` of its own.
    """

    token: int
    piece: bytes
    logprob: float
    top: tuple["TokenLogprob", ...] = ()


@dataclass(frozen=True, slots=True)
class RoutedStage:
    """A peer on the way of a request, and the layers ``[start, end)`` that it computes."""

    peer_id: str
    start: int
    end: int


Fact = tuple[str, str]
"""A name and a value, both ASCII: a header of the answer, or a comment in a stream whose headers are gone."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of generations that an answer cost besides the one that it shows."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(
            self.prompt_tokens - other.prompt_tokens,
            self.completion_tokens - other.completion_tokens,
            self.cached_tokens - other.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class GenerationStarted:
    """The driver has tokenised and admitted the request: the journal's head (prompt ids) and the route.

    Runs of equal ``fingerprint`` give equal bits. ``max_tokens`` is what the answer may hold at most, here.
    ``is_reasoning``: the template has opened a block of reasoning already, the answer begins inside it.
    ``call_format`` names how the model writes calls of tools (``core.tool_calls``); empty where none were offered.
    ``stages`` are the peers of the run in order, the driver first; ``model_digest`` is the file's. ``model`` is the
    name that the ingress asked for, which it may have chosen itself, and ``facts`` what it tells the client of how the
    answer came to be; ``is_verified``: the ingress has verified who owns each of ``stages``. No driver says these
    three. ``cached_tokens`` of the prompt were computed for another request already.
    """

    prompt_tokens: tuple[int, ...]
    run_id: bytes
    fingerprint: str
    max_tokens: int
    is_reasoning: bool = False
    call_format: str = ""
    model_digest: str = ""
    stages: tuple[RoutedStage, ...] = ()
    model: str = ""
    cached_tokens: int = 0
    facts: tuple[Fact, ...] = ()
    is_verified: bool = False


@dataclass(frozen=True, slots=True)
class GenerationDelta:
    """Tokens as they arise. ``text`` is complete UTF-8 and may lag behind or be empty; ``tokens`` never lag.

    ``logprobs`` is as long as ``tokens`` where it was asked for; ``embedding`` is little-endian float32, of any length.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    embedding: bytes = b""


@dataclass(frozen=True, slots=True)
class GenerationFinished:
    """The end of a generation that was not an error; ``text`` is what was still held back.

    ``recoveries`` counts the drivers or stages that were lost on the way, as the ingress knows; ``is_exact`` says
    whether engines of equal fingerprint took over each time. ``besides`` is what else the ingress had generated for
    it, and ``facts`` are what it learnt since the start. ``stop`` is the stop sequence that ended the text, or empty.
    """

    reason: FinishReason
    text: str
    completion_tokens: int
    recoveries: int = 0
    is_exact: bool = True
    besides: Spent = Spent()
    facts: tuple[Fact, ...] = ()
    stop: str = ""


GenerationEvent = GenerationStarted | GenerationDelta | GenerationFinished
