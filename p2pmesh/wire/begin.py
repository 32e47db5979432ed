"""The body of a BEGIN frame: sampling parameters and prompt length, bytes <-> ``Begin``.

A msgpack map. Every field is required, unknown ones are left out, ranges are those of ``SamplingParameters``.
Normative text: ``protocols/skippy-stage-2.md``.
"""

from dataclasses import dataclass
from typing import Any

import msgpack

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_BEGIN_BODY_BYTES
from p2pmesh.wire.generation import SamplingParameters
from p2pmesh.wire.stage import MAX_POSITION

_MAX_FIELDS = 64
_MAX_NAME_BYTES = 64
_REALS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty")
_INTEGERS = ("top_k", "seed")
_PROMPT_TOKENS = "prompt_tokens"


@dataclass(frozen=True, slots=True)
class Begin:
    """What every stage learns of a sequence before its first row. ``prompt_tokens`` counts the prompt's ids."""

    parameters: SamplingParameters
    prompt_tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_tokens <= MAX_POSITION:
            raise RemoteProtocolError(
                ErrorCode.REQUEST_INVALID, f"prompt_tokens must be 1 to {MAX_POSITION}, not {self.prompt_tokens}"
            )


def encode_begin(begin: Begin) -> bytes:
    """Body bytes of a BEGIN frame."""
    fields: dict[str, Any] = {name: float(getattr(begin.parameters, name)) for name in _REALS}
    fields |= {name: getattr(begin.parameters, name) for name in _INTEGERS}
    fields[_PROMPT_TOKENS] = begin.prompt_tokens
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
    )
    return Begin(parameters, _integer(fields, _PROMPT_TOKENS))


def _unpack(body: bytes | memoryview) -> dict[str, object]:
    try:
        fields = msgpack.unpackb(
            body,
            strict_map_key=True,
            max_map_len=_MAX_FIELDS,
            max_array_len=0,
            max_ext_len=0,
            max_str_len=_MAX_NAME_BYTES,
            max_bin_len=0,
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


def _malformed(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, f"a BEGIN body: {what}")
