"""What a peer tells of its machine and its owner when it is asked: too much to gossip, and of use only to who plans."""

from dataclasses import dataclass

from p2pmesh.base.limits import (
    MAX_DECODE_BYTES_PER_S,
    MAX_EXCLUDED_MODELS,
    MAX_PROFILE_DEVICES,
    MAX_PROFILE_SPEEDS,
)
from p2pmesh.wire.schema import Boolean, Integer, ListOf, Optional, Row, Text, declared, is_line
from p2pmesh.wire.shapes import NAME

_BYTES = Integer(0, 2**53)
_RATE = Integer(0, MAX_DECODE_BYTES_PER_S)
_SHORT = Text(64, is_line)


@dataclass(frozen=True, slots=True)
class ProfileQuery:
    """What is your machine like, and what does your owner not want?"""


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A device as llama.cpp names it; ``is_used`` where stages run on it."""

    name: str = declared(_SHORT)
    backend: str = declared(_SHORT)
    type: str = declared(_SHORT)
    free_bytes: int = declared(_BYTES)
    total_bytes: int = declared(_BYTES)
    is_used: bool = declared(Boolean())


@dataclass(frozen=True, slots=True)
class SpeedEntry:
    """Weights that are read in a second with models of one kind; prefill counts them for each token of a prompt."""

    architecture: str = declared(_SHORT)
    size_class: int = declared(Integer(0, 64))
    decode_bytes_per_s: int = declared(_RATE)
    prefill_bytes_per_s: int = declared(_RATE)


@dataclass(frozen=True, slots=True)
class Profile:
    """Claims of the peer, all of them; a figure of 0 is not known."""

    threads: int = declared(Integer(0, 2**16), 0)
    processor_quota_milli: int = declared(Integer(0, 2**26), 0)
    load_milli: int = declared(Integer(0, 2**24), 0)
    others_milli: int = declared(Integer(0, 1000), 0)
    battery_percent: int | None = declared(Optional(Integer(0, 100)), None)
    reserved_bytes: int = declared(_BYTES, 0)
    memory_bytes_per_s: int = declared(_RATE, 0)
    devices: tuple[DeviceEntry, ...] = declared(ListOf(Row(DeviceEntry), MAX_PROFILE_DEVICES), ())
    speeds: tuple[SpeedEntry, ...] = declared(ListOf(Row(SpeedEntry), MAX_PROFILE_SPEEDS), ())
    excluded_models: tuple[str, ...] = declared(ListOf(NAME, MAX_EXCLUDED_MODELS), ())
    up_bytes_per_s: int = declared(_RATE, 0)
    down_bytes_per_s: int = declared(_RATE, 0)
