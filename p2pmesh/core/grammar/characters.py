"""Sets of characters as automata over the bytes of UTF-8, so that tokens may end inside a character."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from p2pmesh.core.grammar.notation import Ranges

DONE = -1
"""The character is complete."""

# Code points whose UTF-8 has 1, 2, 3, 3 and 4 bytes; between the two of three lie the surrogates, which have none.
_SECTIONS = ((0x0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))

_Spans = tuple[tuple[int, int], ...]
"""The bytes of some characters: for each place the first and the last one."""


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """``moves[place][byte]`` is the next place, or ``DONE``; a missing byte is refused. Place 0 is the beginning.

    ``least_bytes[place]`` is how many bytes complete the shortest character from there; without characters place 0
    has no moves.
    """

    moves: tuple[Mapping[int, int], ...]
    least_bytes: tuple[int, ...]


def compile_characters(ranges: Ranges) -> CharacterSet:
    """The automaton of a set of code points."""
    spans = tuple(span for first, last in ranges for span in _utf8_spans(first, last))
    moves: list[dict[int, int]] = []
    least: list[int] = []
    places: dict[tuple[_Spans, ...], int] = {}

    def place_of(rest: tuple[_Spans, ...]) -> int:
        if rest in places:
            return places[rest]
        place = places[rest] = len(moves)
        moves.append({})
        least.append(min((len(span) for span in rest), default=0))
        following: dict[int, list[_Spans]] = {}
        for span in rest:
            for byte in range(span[0][0], span[0][1] + 1):
                following.setdefault(byte, []).append(span[1:])
        for byte, tails in following.items():
            moves[place][byte] = place_of(tuple(tails)) if tails[0] else DONE
        return place

    place_of(spans)
    return CharacterSet(tuple(moves), tuple(least))


def _utf8_spans(first: int, last: int) -> Iterator[_Spans]:
    for low, high in _SECTIONS:
        start, end = max(first, low), min(last, high)
        if start <= end:
            yield from _split(start, end)


def _split(first: int, last: int) -> Iterator[_Spans]:
    """Cuts a range of equally long characters until in each part the bytes vary independently."""
    for bits in (6, 12, 18):
        mask = (1 << bits) - 1
        if first | mask >= last:
            continue
        if first & mask:
            yield from _split(first, first | mask)
            yield from _split((first | mask) + 1, last)
            return
        if last & mask != mask:
            yield from _split(first, (last & ~mask) - 1)
            yield from _split(last & ~mask, last)
            return
    yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))
