"""Ranges of numbers as expressions over their digits."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from p2pmesh.core.json_schema.rules import either

MAX_DIGITS = 15
"""Of a number without a bound: what a double holds exactly."""
MAX_BOUND_DIGITS = 18
_FRACTION_DIGITS = 2
"""Of a number with bounds, at least."""

Bound = Decimal | None


def integers_between(least: Bound, most: Bound) -> str | None:
    """Every whole number in ``[least, most]``; None if there is none."""
    return _numbers(_scaled(least, 0, ROUND_CEILING), _scaled(most, 0, ROUND_FLOOR), 0)


def decimals_between(least: Bound, most: Bound, *, is_least_open: bool, is_most_open: bool) -> str | None:
    """Whole numbers and ones with some decimal places in a range, an open end left out; None if there are none."""
    whole = integers_between(
        least if least is None or not is_least_open else least.to_integral_value(ROUND_FLOOR) + 1,
        most if most is None or not is_most_open else most.to_integral_value(ROUND_CEILING) - 1,
    )
    places = max(_FRACTION_DIGITS, *(_places(bound) for bound in (least, most)))
    low, high = _scaled(least, places, ROUND_CEILING), _scaled(most, places, ROUND_FLOOR)
    fraction = _numbers(
        None if low is None else low + is_least_open, None if high is None else high - is_most_open, places
    )
    ways = [way for way in (whole, fraction) if way is not None]
    return either(ways) if ways else None


def multiples_of(divisor: int, prefix: str) -> dict[str, str]:
    """Rules by name, ``prefix`` and a remainder: what digits may follow for the number to be a multiple in the end."""
    rules: dict[str, str] = {}
    for remainder in range(divisor):
        ways = ['""'] if remainder == 0 else []
        digits: dict[int, str] = {}
        for digit in range(10):
            after = (10 * remainder + digit) % divisor
            digits[after] = digits.get(after, "") + str(digit)
        ways += [f"[{known}] {prefix}{after}" for after, known in digits.items()]
        rules[f"{prefix}{remainder}"] = " | ".join(ways)
    starts: dict[int, str] = {}
    for digit in range(1, 10):
        starts[digit % divisor] = starts.get(digit % divisor, "") + str(digit)
    first = " | ".join(f"[{known}] {prefix}{after}" for after, known in starts.items())
    rules[prefix] = f'"0" | "-"? ({first})'
    return rules


def _places(bound: Bound) -> int:
    exponent = 0 if bound is None else bound.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _scaled(bound: Bound, places: int, rounding: str) -> int | None:
    return None if bound is None else int((bound.scaleb(places)).to_integral_value(rounding))


def _numbers(low: int | None, high: int | None, places: int) -> str | None:
    """Numbers ``k / 10^places`` for k in ``[low, high]``."""
    if low is not None and high is not None and low > high:
        return None
    ways: list[str] = []
    if low is None or low < 0:
        least = 1 if high is None else max(1, -high)
        ways += [f'"-" {way}' for way in _magnitudes(least, None if low is None else -low, places)]
    if high is None or high >= 0:
        ways += _magnitudes(0 if low is None else max(0, low), high, places)
    return either(ways) if ways else None


def _magnitudes(least: int, most: int | None, places: int) -> list[str]:
    """By how many digits they have; those before the point are one at least."""
    shortest = max(places + 1, len(str(least)))
    longest = max(places + 1, len(str(most))) if most is not None else max(MAX_DIGITS, shortest)
    ways: list[str] = []
    for length in range(shortest, longest + 1):
        first = 0 if length == places + 1 else 10 ** (length - 1)
        start, end = max(least, first), 10**length - 1 if most is None else min(most, 10**length - 1)
        if most is None and length > shortest:  # all the longer ones at once
            ways.append(f"[1-9] [0-9]{{{length - 1 - places},{longest - 1 - places}}}{_point(places)}")
            break
        if start <= end:
            ways.append(_digits(str(start).zfill(length), str(end).zfill(length), places))
    return ways


def _point(places: int) -> str:
    return f' "." [0-9]{{{places}}}' if places else ""


def _digits(low: str, high: str, places: int) -> str:
    """Strings of digits from ``low`` to ``high``, as long as both, with a point before the last ``places``."""
    if places and len(low) == places:
        return f'"." {_digits(low, high, 0)}'
    if not low:
        return '""'
    rest = len(low) - 1
    zeros, nines = "0" * rest, "9" * rest
    first, last = low[0], high[0]
    if (low[1:], high[1:]) == (zeros, nines):
        return f"{_span(first, last)} {_any(rest, places)}".rstrip()
    if first == last:
        return f'"{first}" {_digits(low[1:], high[1:], places)}'
    ways: list[str] = []
    if low[1:] != zeros:
        ways.append(f'"{first}" {_digits(low[1:], nines, places)}')
        first = chr(ord(first) + 1)
    upper = None
    if high[1:] != nines:
        upper = f'"{last}" {_digits(zeros, high[1:], places)}'
        last = chr(ord(last) - 1)
    if first <= last:
        ways.append(f"{_span(first, last)} {_any(rest, places)}".rstrip())
    return either([*ways, upper] if upper is not None else ways)


def _span(first: str, last: str) -> str:
    return f"[{first}]" if first == last else f"[{first}-{last}]"


def _any(count: int, places: int) -> str:
    """``count`` digits, with the point among them where it still is to come."""
    if places and count >= places:
        before = f"[0-9]{{{count - places}}}" if count > places else ""
        return f"{before}{_point(places)}".strip()
    return f"[0-9]{{{count}}}" if count else ""
