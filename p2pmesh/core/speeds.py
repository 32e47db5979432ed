"""How fast a peer is, by kind of model: what its engines measured at loads, and for how long that counts.

A model's kind is its architecture and its size class: kernels differ, and what fits a cache is read faster. Speeds are
weights by time, so that one of a stage holds for any range of layers. Owns the records and the rules; where they are
kept is the adapters' affair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p2pmesh.base.limits import MAX_PROFILE_SPEEDS
from p2pmesh.base.quantities import UnixMillis

MAX_SPEEDS = MAX_PROFILE_SPEEDS
"""Of one peer; the oldest goes."""
REFRESH_MS = 7 * 24 * 3600 * 1000
"""A measurement is taken over whatever it says once the old one is of this age."""
CLEAR_PERCENT = 15
"""And before that if it differs by more: less is what a busy moment makes."""
DECODE_OF_BANDWIDTH_PERCENT = 50
"""Weights that an engine reads in decoding, of what the memory copies in the same time, where nothing was decoded yet.
A rough guess: a quarter to three quarters were measured with small quantized models on two busy cores."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one kind of model. ``prefill_bytes_per_s`` counts the layers' weights once for each token; 0: not measured."""

    architecture: str
    size_class: int
    decode_bytes_per_s: int
    prefill_bytes_per_s: int
    measured_unix_ms: UnixMillis


def size_class_of(read_bytes: int) -> int:
    """Of a stage by the weights that a token reads in it: each class is twice the one before, 0 below a MiB."""
    return (read_bytes >> 20).bit_length()


def note_speed(known: Sequence[Speed], found: Speed) -> tuple[Speed, ...]:
    """The speeds with a new one among them, if it says something new."""
    same = next((one for one in known if _kind(one) == _kind(found)), None)
    if same is not None and not _is_news(same, found):
        return tuple(known)
    others = [one for one in known if one is not same]
    newest = sorted(others, key=lambda one: (-one.measured_unix_ms, *_kind(one)))[: MAX_SPEEDS - 1]
    return tuple(sorted([*newest, found], key=_kind))


def _kind(speed: Speed) -> tuple[str, int]:
    return speed.architecture, speed.size_class


def _is_news(old: Speed, new: Speed) -> bool:
    age_ms = new.measured_unix_ms - old.measured_unix_ms
    if age_ms >= REFRESH_MS or age_ms < 0 or (new.prefill_bytes_per_s and not old.prefill_bytes_per_s):
        return True
    difference = abs(new.decode_bytes_per_s - old.decode_bytes_per_s)
    return 100 * difference > CLEAR_PERCENT * old.decode_bytes_per_s


def decode_speed_for(known: Sequence[Speed], architecture: str, read_bytes: int) -> int:
    """The decode speed of the nearest kind: of the same architecture if there is one, then of the nearest size.

    0 where nothing was measured.
    """
    nearest = _nearest(known, architecture, read_bytes)
    return 0 if nearest is None else nearest.decode_bytes_per_s


def prefill_speed_for(known: Sequence[Speed], architecture: str, read_bytes: int) -> int:
    """Likewise the prefill speed, of those kinds of which one was measured."""
    nearest = _nearest([one for one in known if one.prefill_bytes_per_s], architecture, read_bytes)
    return 0 if nearest is None else nearest.prefill_bytes_per_s


def _nearest(known: Sequence[Speed], architecture: str, read_bytes: int) -> Speed | None:
    wanted = size_class_of(read_bytes)
    return min(
        known,
        key=lambda one: (one.architecture != architecture, abs(one.size_class - wanted), -one.size_class, _kind(one)),
        default=None,
    )


def headline_speed(known: Sequence[Speed]) -> int:
    """The one that a peer is announced with: of the largest kind, which says most; 0 where there is none."""
    return max(known, key=lambda one: (one.size_class, one.measured_unix_ms)).decode_bytes_per_s if known else 0


def decode_speed_of_memory(memory_bytes_per_s: int) -> int:
    """About what engines will reach with such a memory bandwidth (bytes copied in a second)."""
    return memory_bytes_per_s * DECODE_OF_BANDWIDTH_PERCENT // 100
