"""Which name somebody meant who typed another: the nearest one, if it is near at all.

How near is the number of mistakes (``count_typos``), which is bounded by the length of the shorter name: a name that
has as many letters wrong as right is no hint.
"""

from collections.abc import Iterable

MAX_TYPED_CHARACTERS = 64
LETTERS_A_TYPO = 3
"""One mistake in so many letters is one; more of them are another name."""
MOST_TYPOS = 3
LEAST_BEGINNING = 3


def choose_nearest_name(typed: str, known: Iterable[str]) -> str | None:
    """The known name with the fewest mistakes, of several the one that comes first; None where none is near.

    A beginning of at least three letters means its only continuation.
    """
    if len(typed) > MAX_TYPED_CHARACTERS:
        return None
    names = sorted(set(known))
    if len(typed) >= LEAST_BEGINNING:
        begun = [name for name in names if name.startswith(typed)]
        if len(begun) == 1:
            return begun[0]
    near = [
        (typos, name)
        for name in names
        if abs(len(name) - len(typed)) <= MOST_TYPOS
        and (typos := count_typos(typed, name)) <= min(MOST_TYPOS, min(len(typed), len(name)) // LETTERS_A_TYPO)
    ]
    return min(near)[1] if near else None


def count_typos(one: str, other: str) -> int:
    """Letters left out, added, mistaken for another, and neighbours that changed places, the fewest that explain it.

    The restricted edit distance of Damerau and Levenshtein: no letter is changed twice.
    """
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        current = [row]
        for column, wanted in enumerate(other, 1):
            cost = min(last[column] + 1, current[-1] + 1, last[column - 1] + (letter != wanted))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == wanted:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, last = last, current
    return last[-1]
