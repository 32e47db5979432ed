"""Bytes made slightly wrong: blindly, and by someone who knows msgpack, signed envelopes and stage headers."""

import random
from collections.abc import Callable
from typing import Any

import msgpack

MAX_BYTES = 2 * 1024 * 1024 + 64
_INTEGERS = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63,
             2**64 - 1, -1, -128, -(2**31), -(2**63))  # fmt: skip
_SCALARS: tuple[Any, ...] = (
    None, True, False, 0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), "", "\0", "é" * 9, "\u202e",
    "/" * 600, b"", b"\0", b"\xff" * 64, [], {}, [[]], [{}], {"": None}, {1: 2}, {"kind": "hello"},
    msgpack.ExtType(5, b"x"),
)  # fmt: skip


def mutate_bytes(data: bytes, others: Callable[[], bytes], chance: random.Random) -> bytes:
    """One to four blind changes: flips, cuts, repeats, insertions, splices, integers at their edges."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(8):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(changed):
                changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xC1, 0xC9, 0xD9, 0xDD, 0xDF, 0xFF))
            case 2:
                del changed[at : at + chance.randrange(1, 9)]
            case 3:
                changed[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 4:
                block = bytes(changed[at : at + chance.randrange(1, 33)])
                changed[at:at] = block * chance.choice((1, 2, 16))
            case 5:
                del changed[at:]
            case 6:
                other = others()
                changed[at:] = other[chance.randrange(len(other) + 1) :]
            case _:
                width = chance.choice((1, 2, 4, 8))
                number = chance.choice(_INTEGERS) % (1 << 8 * width)
                changed[at : at + width] = number.to_bytes(width, chance.choice(("little", "big")))
    if chance.randrange(20_000) == 0 and changed:
        changed *= min(MAX_BYTES // len(changed), chance.choice((100, 10_000)))
    return bytes(changed[:MAX_BYTES])


def mutate_msgpack(data: bytes, chance: random.Random) -> bytes:
    """A change of the decoded value; the data as it is where it is no msgpack."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return data
    for _ in range(chance.choice((1, 1, 2, 3))):
        value = _mutate_value(value, chance, 0)
    try:
        packed: bytes = msgpack.packb(value)
    except (ValueError, OverflowError, TypeError, RecursionError):
        return data
    return packed if len(packed) <= MAX_BYTES else data


def _mutate_value(value: Any, chance: random.Random, depth: int) -> Any:
    if depth < 10 and value and chance.random() < 0.75:
        if isinstance(value, dict):
            return _mutate_map(value, chance, depth)
        if isinstance(value, list):
            changed = list(value)
            at = chance.randrange(len(changed))
            changed[at] = _mutate_value(changed[at], chance, depth + 1)
            return changed
        if isinstance(value, bytes) and chance.random() < 0.7:  # a record inside a record, as in an envelope
            return mutate_msgpack(value, chance) if chance.random() < 0.8 else mutate_bytes(value, lambda: b"", chance)
    return _other_value(value, chance)


def _mutate_map(value: dict[Any, Any], chance: random.Random, depth: int) -> dict[Any, Any]:
    changed = dict(value)
    key = chance.choice(list(changed))
    match chance.randrange(8):
        case 0:
            del changed[key]
        case 1:
            changed[chance.choice(("", "later", 7, b"kind", f"{key}x", "\0"))] = changed[key]
        case 2:
            other = chance.choice(list(changed))
            changed[key], changed[other] = changed[other], changed[key]
        case _:
            changed[key] = _mutate_value(changed[key], chance, depth + 1)
    return changed


def _other_value(value: Any, chance: random.Random) -> Any:
    kind = chance.randrange(6)
    if kind == 0:
        return chance.choice(_INTEGERS)
    if kind == 1:
        return chance.choice(_SCALARS)
    if kind == 2:
        nested: Any = value
        for _ in range(chance.choice((1, 3, 9, 40))):
            nested = [nested] if chance.random() < 0.5 else {"a": nested}
        return nested
    if kind == 3 and isinstance(value, str | bytes | list):
        most = 8192 if isinstance(value, str | bytes) else 64
        return value * chance.choice((2, 16, 256)) if len(value) <= most else value[:1]
    if kind == 4 and isinstance(value, int):
        return value + chance.choice((-1, 1, 2**16, -(2**16)))
    if chance.randrange(50) == 0:
        return [value if isinstance(value, int | float | None) else {}] * chance.choice((0, 1, 65, 9000))
    return not value
