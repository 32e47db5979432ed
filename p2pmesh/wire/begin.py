"""The body of a BEGIN frame: sampling parameters, lengths, the grammar and what it goes on with, bytes <-> ``Begin``.

A msgpack map. Every field but ``continues`` and ``prefix`` is required, unknown ones are left out, ranges are those of
``SamplingParameters``. ``logit_bias`` is a string of pairs, id as i32 and bias as f64; ``top_logprobs`` is nil where
nothing is asked for.
Normative text: ``protocols/skippy-stage-2.md``.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import ID_BYTES
from p2pmesh.base.limits import (
    MAX_BEGIN_BODY_BYTES,
    MAX_GRAMMAR_BYTES,
    MAX_LOGIT_BIAS,
    MAX_SEQUENCE,
    MAX_TRIGGERS,
    PREFILL_SLICE_TOKENS,
)
from p2pmesh.wire.generation import Grammar, SamplingParameters, check_told
from p2pmesh.wire.stage import MAX_POSITION

_MAX_FIELDS = 64
_REALS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty")
_INTEGERS = ("top_k", "seed")
_TOP_LOGPROBS = "top_logprobs"
_WANTS_EMBEDDING = "wants_embedding"
_LOGIT_BIAS = "logit_bias"
_BIAS = struct.Struct("<id")
_COUNTS = ("prompt_tokens", "max_tokens")
_GRAMMAR, _TRIGGERS, _AT_START = "grammar", "grammar_triggers", "grammar_at_start"
_CONTINUES = "continues"
_PREFIX = "prefix"
_PREFIX_FIELDS = struct.Struct("<16sII16s")
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first ``rows`` rows of another sequence of the run, which are this one's too.

    ``digest`` is of their token ids (``digest_tokens``): a stage that holds others under that name holds none.
    """

    request_id: bytes
    sequence: int
    rows: int
    digest: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.sequence <= MAX_SEQUENCE:
            raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, f"a prefix of choice {self.sequence}")
        if not 1 <= self.rows <= MAX_POSITION or self.rows % PREFILL_SLICE_TOKENS:
            text = f"a prefix of {self.rows} rows: it ends at multiples of {PREFILL_SLICE_TOKENS}"
            raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, text)

    @property
    def key(self) -> tuple[bytes, int]:
        """The sequence whose rows they are."""
        return self.request_id, self.sequence


def digest_tokens(tokens: Sequence[int]) -> bytes:
    """16 bytes that name token ids: BLAKE2b over them as i32."""
    return hashlib.blake2b(struct.pack(f"<{len(tokens)}i", *tokens), digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Begin:
    """What every stage learns of a sequence before its first row.

    ``prompt_tokens`` counts the prompt's ids, ``max_tokens`` is what the answer may hold. ``grammar`` None: any text.
    ``top_logprobs``: the last stage tells each token's log probability and so many likeliest ones; None: it does not.
    ``continues``: the request id that the sequence had in a run that is over, of which stages may hold rows; or empty.
    ``wants_embedding``: it tells what it makes of the prompt, and samples nothing.
    ``prefix``: rows that it need not be given, if they are still here; the last token of a prompt is none of them.
    Where both are there, a stage that has nothing of the one goes by the other.
    """

    parameters: SamplingParameters
    prompt_tokens: int
    top_logprobs: int | None = None
    max_tokens: int = MAX_POSITION
    grammar: Grammar | None = None
    continues: bytes = b""
    wants_embedding: bool = False
    prefix: Prefix | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            count = getattr(self, name)
            if not 1 <= count <= MAX_POSITION:
                raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, f"{name} must be 1 to {MAX_POSITION}, not {count}")
        check_told(self.top_logprobs, wants_embedding=self.wants_embedding)
        if self.prefix is not None and self.wants_embedding:
            raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, "a prefix of a prompt that is only read")
        if self.prefix is not None and self.prefix.rows >= self.prompt_tokens:
            text = f"a prefix of {self.prefix.rows} rows of a prompt of {self.prompt_tokens}"
            raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, text)


def encode_begin(begin: Begin) -> bytes:
    """Body bytes of a BEGIN frame."""
    fields: dict[str, Any] = {name: float(getattr(begin.parameters, name)) for name in _REALS}
    fields |= {name: getattr(begin.parameters, name) for name in _INTEGERS}
    fields[_TOP_LOGPROBS] = begin.top_logprobs
    fields[_WANTS_EMBEDDING] = begin.wants_embedding
    fields[_LOGIT_BIAS] = b"".join(_BIAS.pack(token, bias) for token, bias in begin.parameters.logit_bias)
    fields |= {name: getattr(begin, name) for name in _COUNTS}
    grammar = begin.grammar or Grammar("")
    fields |= {_GRAMMAR: grammar.text, _TRIGGERS: list(grammar.triggers), _AT_START: grammar.is_at_start}
    if begin.continues:
        fields[_CONTINUES] = begin.continues
    if begin.prefix is not None:
        prefix = begin.prefix
        fields[_PREFIX] = _PREFIX_FIELDS.pack(prefix.request_id, prefix.sequence, prefix.rows, prefix.digest)
    packed: bytes = msgpack.packb(fields)
    return packed


def decode_begin(body: bytes | memoryview) -> Begin:
    """A checked ``Begin``; ``RemoteProtocolError`` names the first rule that is broken."""
    if len(body) > MAX_BEGIN_BODY_BYTES:
        raise RemoteProtocolError(ErrorCode.MESSAGE_TOO_LARGE, f"a BEGIN body of {len(body)} bytes")
    fields = _unpack(body)
    parameters = SamplingParameters(
        **{name: _real(fields, name) for name in _REALS},
        top_k=_integer(fields, "top_k"),
        seed=_integer(fields, "seed"),
        logit_bias=_bias(fields),
    )
    top_logprobs = None if fields.get(_TOP_LOGPROBS, 0) is None else _integer(fields, _TOP_LOGPROBS)
    wants_embedding = fields.get(_WANTS_EMBEDDING)
    if not isinstance(wants_embedding, bool):
        raise _malformed(f"{_WANTS_EMBEDDING} is neither true nor false")
    prompt_tokens, max_tokens = (_integer(fields, name) for name in _COUNTS)
    return Begin(
        parameters,
        prompt_tokens,
        top_logprobs,
        max_tokens,
        _grammar(fields),
        _request_id(fields),
        wants_embedding,
        _prefix(fields),
    )


def _grammar(fields: dict[str, object]) -> Grammar | None:
    text, triggers, is_at_start = fields.get(_GRAMMAR), fields.get(_TRIGGERS), fields.get(_AT_START)
    if not isinstance(text, str):
        raise _malformed(f"{_GRAMMAR} is no text")
    if not isinstance(triggers, list) or not all(isinstance(trigger, str) for trigger in triggers):
        raise _malformed(f"{_TRIGGERS} is no list of texts")
    if not isinstance(is_at_start, bool):
        raise _malformed(f"{_AT_START} is neither true nor false")
    if not text and (triggers or is_at_start):
        raise RemoteProtocolError(ErrorCode.REQUEST_INVALID, "triggers of no grammar")
    return Grammar(text, tuple(triggers), is_at_start) if text else None


def _unpack(body: bytes | memoryview) -> dict[str, object]:
    try:
        fields = msgpack.unpackb(
            body,
            strict_map_key=True,
            max_map_len=_MAX_FIELDS,
            max_array_len=MAX_TRIGGERS,
            max_ext_len=0,
            max_str_len=MAX_GRAMMAR_BYTES,
            max_bin_len=MAX_LOGIT_BIAS * _BIAS.size,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise _malformed(str(error) or type(error).__name__) from None
    if not isinstance(fields, dict):
        raise _malformed("no map")
    return fields


def _real(fields: dict[str, object], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _malformed(f"{name} is no number")
    return float(value)


def _integer(fields: dict[str, object], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _malformed(f"{name} is no integer")
    return value


def _bias(fields: dict[str, object]) -> tuple[tuple[int, float], ...]:
    value = fields.get(_LOGIT_BIAS)
    if not isinstance(value, bytes) or len(value) % _BIAS.size:
        raise _malformed(f"{_LOGIT_BIAS} is no string of pairs")
    return tuple(_BIAS.iter_unpack(value))


def _request_id(fields: dict[str, object]) -> bytes:
    value = fields.get(_CONTINUES, bytes(ID_BYTES))
    if not isinstance(value, bytes) or len(value) != ID_BYTES:
        raise _malformed(f"{_CONTINUES} is no id")
    return value if _CONTINUES in fields else b""


def _prefix(fields: dict[str, object]) -> Prefix | None:
    if _PREFIX not in fields:
        return None
    value = fields[_PREFIX]
    if not isinstance(value, bytes) or len(value) != _PREFIX_FIELDS.size:
        raise _malformed(f"{_PREFIX} is no string of {_PREFIX_FIELDS.size} bytes")
    return Prefix(*_PREFIX_FIELDS.unpack(value))


def _malformed(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, f"a BEGIN body: {what}")
