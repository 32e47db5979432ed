"""Messages between an ingress and a driver. The records that they stand for, with the rules of their values, are
``wire.generation``'s; ``node.exchanges`` turns one into the other.
"""

from dataclasses import dataclass

from p2pmesh.base.limits import (
    MAX_CHAT_MESSAGES,
    MAX_GRAMMAR_BYTES,
    MAX_HIDDEN_SIZE,
    MAX_LAYERS,
    MAX_LOGIT_BIAS,
    MAX_PIECE_TEXT_BYTES,
    MAX_PROMPT_TOKENS,
    MAX_REASONING_EFFORT_BYTES,
    MAX_SEQUENCE,
    MAX_STAGES,
    MAX_STOP_BYTES,
    MAX_STOP_SEQUENCES,
    MAX_TEXT_BYTES,
    MAX_TOOL_NAME_BYTES,
    MAX_TOOLS,
    MAX_TOOLS_BYTES,
    MAX_TOP_LOGPROBS,
)
from p2pmesh.wire.generation import MAX_SEED
from p2pmesh.wire.schema import (
    Boolean,
    Bytes,
    Integer,
    ListOf,
    Optional,
    Real,
    Record,
    Row,
    Text,
    declared,
    is_line,
)
from p2pmesh.wire.shapes import DIGEST, ID, NAME, PEER_ID, TOKEN, check_layers


@dataclass(frozen=True, slots=True)
class CallEntry:
    """A call of a tool that an assistant made."""

    id: str = declared(Text(MAX_TOOL_NAME_BYTES))
    name: str = declared(Text(MAX_TOOL_NAME_BYTES, is_line))
    arguments: str = declared(Text(MAX_TEXT_BYTES))


@dataclass(frozen=True, slots=True)
class MessageEntry:
    """One message of a conversation."""

    role: str = declared(Text(32))
    content: str = declared(Text(MAX_TEXT_BYTES))
    calls: tuple[CallEntry, ...] = declared(ListOf(Record(CallEntry), MAX_TOOLS), ())
    answers: str = declared(Text(MAX_TOOL_NAME_BYTES), "")
    name: str = declared(Text(MAX_TOOL_NAME_BYTES, is_line), "")


@dataclass(frozen=True, slots=True)
class ToolUseEntry:
    """Fields of ``ToolUse``."""

    tools: str = declared(Text(MAX_TOOLS_BYTES))
    choice: str = declared(Text(32))
    only: str = declared(Text(MAX_TOOL_NAME_BYTES, is_line))
    may_repeat: bool = declared(Boolean())


@dataclass(frozen=True, slots=True)
class BiasEntry:
    """What is added to the logit of a token."""

    token: int = declared(TOKEN)
    bias: float = declared(Real())


@dataclass(frozen=True, slots=True)
class SamplingEntry:
    """Fields of ``SamplingParameters``, whose own ranges apply on top."""

    temperature: float = declared(Real())
    top_k: int = declared(Integer(0, 2**31))
    top_p: float = declared(Real())
    min_p: float = declared(Real())
    presence_penalty: float = declared(Real())
    frequency_penalty: float = declared(Real())
    repeat_penalty: float = declared(Real())
    seed: int = declared(Integer(0, MAX_SEED))
    logit_bias: tuple[BiasEntry, ...] = declared(ListOf(Row(BiasEntry), MAX_LOGIT_BIAS), ())


# The three forms of a prompt: one of them is not nil.
_MESSAGES = Optional(ListOf(Record(MessageEntry), MAX_CHAT_MESSAGES))
_TEXT = Optional(Text(MAX_TEXT_BYTES))
_TOKENS = Optional(ListOf(TOKEN, MAX_PROMPT_TOKENS))


@dataclass(frozen=True, slots=True)
class Generate:
    """An ingress to a driver; exactly one of ``messages``, ``text`` and ``tokens`` is not nil."""

    request_id: bytes = declared(ID)
    model: str = declared(NAME)
    sampling: SamplingEntry = declared(Record(SamplingEntry))
    messages: tuple[MessageEntry, ...] | None = declared(_MESSAGES, None)
    text: str | None = declared(_TEXT, None)
    tokens: tuple[int, ...] | None = declared(_TOKENS, None)
    stop: tuple[str, ...] = declared(ListOf(Text(MAX_STOP_BYTES), MAX_STOP_SEQUENCES), ())
    max_tokens: int | None = declared(Optional(Integer(1, 2**31 - 1)), None)
    sequence: int = declared(Integer(0, MAX_SEQUENCE), 0)
    history: tuple[int, ...] = declared(ListOf(TOKEN, MAX_PROMPT_TOKENS), ())
    top_logprobs: int | None = declared(Optional(Integer(0, MAX_TOP_LOGPROBS)), None)
    reasoning_effort: str = declared(Text(MAX_REASONING_EFFORT_BYTES), "")
    grammar: str = declared(Text(MAX_GRAMMAR_BYTES), "")
    tools: ToolUseEntry | None = declared(Optional(Record(ToolUseEntry)), None)
    continues: bytes | None = declared(Optional(ID), None)
    wants_embedding: bool = declared(Boolean(), False)
    client: bytes | None = declared(Optional(ID), None)


@dataclass(frozen=True, slots=True)
class Tokenize:
    """An ingress to a driver; one form of prompt, as in ``Generate``. ``tokens`` asks for their text."""

    model: str = declared(NAME)
    messages: tuple[MessageEntry, ...] | None = declared(_MESSAGES, None)
    text: str | None = declared(_TEXT, None)
    tokens: tuple[int, ...] | None = declared(_TOKENS, None)
    add_special: bool = declared(Boolean(), True)
    reasoning_effort: str = declared(Text(MAX_REASONING_EFFORT_BYTES), "")
    tools: ToolUseEntry | None = declared(Optional(Record(ToolUseEntry)), None)


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Ids of what was asked, or the text of the ids."""

    tokens: tuple[int, ...] = declared(ListOf(TOKEN, MAX_PROMPT_TOKENS))
    text: str = declared(Text(MAX_TEXT_BYTES))


@dataclass(frozen=True, slots=True)
class RoutedStageEntry:
    """A stage on a request's way."""

    peer_id: str = declared(PEER_ID)
    layer_start: int = declared(Integer(0, MAX_LAYERS))
    layer_end: int = declared(Integer(1, MAX_LAYERS))

    def __post_init__(self) -> None:
        check_layers("stage", self.layer_start, self.layer_end)


@dataclass(frozen=True, slots=True)
class Started:
    """The head of the journal."""

    prompt_tokens: tuple[int, ...] = declared(ListOf(TOKEN, MAX_PROMPT_TOKENS))
    run_id: bytes = declared(ID)
    fingerprint: str = declared(Text(128))
    max_tokens: int = declared(Integer(0, 2**31 - 1))
    is_reasoning: bool = declared(Boolean(), False)
    call_format: str = declared(Text(32, is_line), "")
    model_digest: str | None = declared(Optional(DIGEST), None)
    stages: tuple[RoutedStageEntry, ...] = declared(ListOf(Row(RoutedStageEntry), MAX_STAGES), ())
    cached_tokens: int = declared(Integer(0, MAX_PROMPT_TOKENS), 0)


@dataclass(frozen=True, slots=True)
class CandidateEntry:
    """A token that was likely where another stands."""

    token: int = declared(TOKEN)
    piece: bytes = declared(Bytes(0, MAX_PIECE_TEXT_BYTES))
    logprob: float = declared(Real())


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """``TokenLogprob``: of the token, and of the likeliest at its position."""

    token: int = declared(TOKEN)
    piece: bytes = declared(Bytes(0, MAX_PIECE_TEXT_BYTES))
    logprob: float = declared(Real())
    top: tuple[CandidateEntry, ...] = declared(ListOf(Row(CandidateEntry), MAX_TOP_LOGPROBS))


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens as they arise, and the text that is complete."""

    tokens: tuple[int, ...] = declared(ListOf(TOKEN, 1024))
    text: str = declared(Text(MAX_TEXT_BYTES))
    logprobs: tuple[LogprobEntry, ...] = declared(ListOf(Row(LogprobEntry), 1024), ())
    embedding: bytes = declared(Bytes(0, 4 * MAX_HIDDEN_SIZE), b"")


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a generation."""

    reason: str = declared(Text(32))
    text: str = declared(Text(MAX_TEXT_BYTES))
    completion_tokens: int = declared(Integer(0, 2**31))
    stop: str = declared(Text(MAX_STOP_BYTES), "")


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ingress to driver, on the stream of ``Generate``."""
