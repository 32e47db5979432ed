"""API keys of a node: what is kept of one, and what its requests may use at a time and a minute.

The secret itself is nowhere: its hash is, and comparing that stays with ``api.access``. Where keys are kept is
``adapters.api_key_file``'s.
"""

from dataclasses import dataclass

from p2pmesh.base.limits import MAX_API_KEYS
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.allowance import spend

MINUTE_US = 60 * MICROS_PER_SECOND


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. ``digest`` is SHA-256 of its text in hex; a limit of 0 is none."""

    id: str
    name: str
    digest: str
    max_in_flight: int
    max_per_minute: int
    created_unix_ms: int


@dataclass(frozen=True, slots=True)
class Began:
    """A request came with this key."""

    key: ApiKey


@dataclass(frozen=True, slots=True)
class Charged:
    """An admitted request of this key is put to so many models more."""

    key: ApiKey
    uses: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that was admitted under this id is over."""

    key_id: str


@dataclass(frozen=True, slots=True)
class Admit:
    """It may go on; its end must be told."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """It may not; ``retry_us`` later it might."""

    text: str
    retry_us: int


class KeyUse:
    """The machine: requests in flight and of the last minute, by key."""

    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}
        self._full_at: dict[str, Micros] = {}

    def in_flight(self, key_id: str) -> int:
        """Requests of a key that are not over."""
        return self._in_flight.get(key_id, 0)

    def handle(self, event: Began | Charged | Ended, now: Micros) -> Admit | Refuse | None:
        """Whether a request is admitted; None for whatever else happens to one."""
        if isinstance(event, Began):
            return self._begin(event.key, now)
        if isinstance(event, Charged):
            self._charge(event.key, event.uses, now)
            return None
        left = self._in_flight.get(event.key_id, 0) - 1
        if left > 0:
            self._in_flight[event.key_id] = left
        else:
            self._in_flight.pop(event.key_id, None)
        return None

    def _begin(self, key: ApiKey, now: Micros) -> Admit | Refuse:
        busy = self._in_flight.get(key.id, 0)
        if key.max_in_flight and busy >= key.max_in_flight:
            return Refuse(f"this API key has {busy} requests in flight, which is its limit", MICROS_PER_SECOND)
        if key.max_per_minute and not self._spend(key, now):
            text = f"this API key may send {key.max_per_minute} requests a minute"
            return Refuse(text, self._whole_at(key, now) - (key.max_per_minute - 1) * _each_us(key) - now)
        self._in_flight[key.id] = busy + 1
        return Admit()

    def _spend(self, key: ApiKey, now: Micros) -> bool:
        full_at = spend(self._whole_at(key, now), now, _each_us(key), key.max_per_minute)
        if full_at is not None:
            self._remember(key, full_at)
        return full_at is not None

    def _charge(self, key: ApiKey, uses: int, now: Micros) -> None:
        """Also beyond what is left: what is owed has to be made up for before the next request."""
        if key.max_per_minute:
            self._remember(key, Micros(self._whole_at(key, now) + uses * _each_us(key)))

    def _whole_at(self, key: ApiKey, now: Micros) -> Micros:
        """When nothing of the allowance is spent any more."""
        return max(now, self._full_at.get(key.id, now))

    def _remember(self, key: ApiKey, full_at: Micros) -> None:
        if key.id not in self._full_at and len(self._full_at) >= MAX_API_KEYS:
            self._forget_oldest()
        self._full_at[key.id] = full_at

    def _forget_oldest(self) -> None:
        """Of keys that came and went; whoever is whole again first has least to be remembered for."""
        del self._full_at[min(self._full_at, key=lambda key_id: (self._full_at[key_id], key_id))]


def _each_us(key: ApiKey) -> int:
    return MINUTE_US // key.max_per_minute
