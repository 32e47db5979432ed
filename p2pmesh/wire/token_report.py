"""The body of a TOKEN frame: what the last stage tells beside the tokens, bytes <-> ``TokenReport``.

It is empty where nothing was asked for. With log probabilities it holds for each token: its own as f32, a count as u8,
so many candidates as i32 id and f32, the likeliest first. With an embedding it is the vector in f32. Normative text:
``protocols/skippy-stage-2.md``.
"""

import struct
from dataclasses import dataclass

import numpy as np

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError

LEAST_LOGPROB = -9999.0
"""Stands for everything below, minus infinity included, which JSON cannot hold; OpenAI's API does the same."""

_HEAD = struct.Struct("<fB")
_CANDIDATE = struct.Struct("<if")


@dataclass(frozen=True, slots=True)
class TokenReport:
    """Of one token: its log probability, and (id, log probability) of the likeliest at its position."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def encode_reports(reports: tuple[TokenReport, ...]) -> bytes:
    """Body of a TOKEN frame with as many tokens."""
    parts = []
    for report in reports:
        parts.append(_HEAD.pack(report.logprob, len(report.top)))
        parts += [_CANDIDATE.pack(token, logprob) for token, logprob in report.top]
    return b"".join(parts)


def decode_reports(body: bytes | memoryview, tokens: int, top_logprobs: int) -> tuple[TokenReport, ...]:
    """Reports of so many tokens with ``top_logprobs`` candidates at most; ``RemoteProtocolError`` for anything else."""
    reports: list[TokenReport] = []
    at = 0
    for _ in range(tokens):
        if len(body) - at < _HEAD.size:
            raise _broken("it ends early")
        logprob, count = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        if count > top_logprobs or len(body) - at < count * _CANDIDATE.size:
            raise _broken(f"{count} candidates")
        top = tuple(_CANDIDATE.unpack_from(body, at + index * _CANDIDATE.size) for index in range(count))
        at += count * _CANDIDATE.size
        if not all(LEAST_LOGPROB <= value <= 0.0 for value in (logprob, *(value for _, value in top))):
            raise _broken("a value that is no log probability")  # NaN fails both comparisons
        if any(token < 0 for token, _ in top):
            raise _broken("a negative token id")
        reports.append(TokenReport(logprob, top))
    if at != len(body):
        raise _broken("it goes on after its end")
    return tuple(reports)


def check_embedding(body: bytes | memoryview, size: int) -> bytes:
    """The bytes of a vector of ``size`` finite numbers."""
    if len(body) != 4 * size or not np.isfinite(np.frombuffer(body, dtype="<f4")).all():
        raise RemoteProtocolError(ErrorCode.FRAME_VALUE_INVALID, f"{len(body)} bytes of a TOKEN are no embedding")
    return bytes(body)


def _broken(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.FRAME_VALUE_INVALID, f"log probabilities of a TOKEN: {what}")
