"""Moments by key, no more than so many: who was muted until when, what was told last."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from p2pmesh.base.quantities import Micros

K = TypeVar("K", bound=Hashable)
_NEVER = Micros(-(2**62))


class BoundedTimes(Generic[K]):
    """What was put first makes room. ``capacity`` is at least 1."""

    __slots__ = ("_capacity", "_times")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._times: dict[K, Micros] = {}

    def __len__(self) -> int:
        return len(self._times)

    def get(self, key: K) -> Micros:
        """Its moment; long before all time if there is none."""
        return self._times.get(key, _NEVER)

    def put(self, key: K, moment: Micros) -> None:
        """Sets its moment; it is now the last that makes room."""
        self._times.pop(key, None)
        while len(self._times) >= self._capacity:
            del self._times[next(iter(self._times))]
        self._times[key] = moment
