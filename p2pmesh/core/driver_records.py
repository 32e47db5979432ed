"""What this node has seen of drivers that it asked: are they well, how fast are they, how many requests run there.

Owns the cool-down of drivers that failed and the means of what was measured. A driver is named by its peer and its run:
another placement is another pipeline. Only time-outs and unavailability count as failures (``counts_against``): a
request that is refused for its own sake says nothing of who refuses it. Who is asked is ``core.routing``'s.

Constants are Mesh LLM's: 30 s doubling to 5 minutes, a penalty of at most 16 of which two successes take one away, 2048
entries, 20 minutes.
"""

from dataclasses import dataclass

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros

Driver = tuple[PeerId, bytes]
"""A peer, and the id of the run that it drives."""

_AGAINST = frozenset(
    {
        ErrorCode.PEER_LOST,
        ErrorCode.PEER_UNREACHABLE,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.ENGINE_CRASHED,
        ErrorCode.ENGINE_UNRESPONSIVE,
        ErrorCode.QUORUM_LOST,
        ErrorCode.SHUTTING_DOWN,
    }
)


def counts_against(code: ErrorCode) -> bool:
    """Whether a failure says that its driver is not there or does not answer."""
    return code in _AGAINST


@dataclass(frozen=True, slots=True)
class RecordPolicy:
    """Times in microseconds; ``weight_percent`` of a new measurement goes into its mean."""

    first_cooling_us: int = 30 * MICROS_PER_SECOND
    longest_cooling_us: int = 300 * MICROS_PER_SECOND
    most_doublings: int = 6
    most_penalty: int = 16
    successes_per_penalty: int = 2
    capacity: int = 2048
    life_us: int = 1200 * MICROS_PER_SECOND
    weight_percent: int = 30
    least_tokens: int = 4
    """An answer of fewer tokens says nothing of the time a token takes."""


@dataclass(frozen=True, slots=True)
class DriverView:
    """What is known of one driver. Means are None while nothing was measured; ``answers`` is how many were."""

    is_cooling: bool = False
    in_flight: int = 0
    answers: int = 0
    start_us: int | None = None
    """From asking to the driver's admission of the request."""
    token_us: int | None = None
    """Between tokens of one answer."""


class _Record:
    __slots__ = ("answers", "cooling_until", "in_flight", "penalty", "start_us", "successes", "token_us", "touched_at")

    def __init__(self) -> None:
        self.penalty = 0
        self.successes = 0
        self.cooling_until = Micros(-1)
        self.in_flight = 0
        self.answers = 0
        self.start_us: int | None = None
        self.token_us: int | None = None
        self.touched_at = Micros(0)


class DriverRecords:
    """Records by driver; those not touched for the longest make room."""

    def __init__(self, policy: RecordPolicy | None = None) -> None:
        self._policy = policy or RecordPolicy()
        self._records: dict[Driver, _Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def view(self, driver: Driver, now: Micros) -> DriverView:
        """What is known of a driver; what was last touched 20 minutes ago counts no more."""
        record = self._records.get(driver)
        if record is None or self._is_old(record, now):
            return DriverView()
        is_cooling = now < record.cooling_until
        return DriverView(is_cooling, record.in_flight, record.answers, record.start_us, record.token_us)

    def begin(self, driver: Driver, now: Micros) -> None:
        """A request goes to it."""
        self._touch(driver, now).in_flight += 1

    def end(self, driver: Driver, now: Micros) -> None:
        """It has ended there, however."""
        record = self._touch(driver, now)
        record.in_flight = max(0, record.in_flight - 1)

    def note_started(self, driver: Driver, took_us: int, now: Micros) -> None:
        """It has admitted a request ``took_us`` after it was asked."""
        record = self._touch(driver, now)
        record.start_us = self._mean(record.start_us, took_us)

    def note_answered(self, driver: Driver, tokens: int, took_us: int, now: Micros) -> None:
        """It has brought an answer to its end: ``tokens`` of it within ``took_us`` of the first one."""
        record = self._touch(driver, now)
        record.answers += 1
        if tokens >= self._policy.least_tokens:
            record.token_us = self._mean(record.token_us, took_us // (tokens - 1))
        record.successes += 1
        if record.successes >= self._policy.successes_per_penalty:
            record.successes = 0
            record.penalty = max(0, record.penalty - 1)

    def note_failed(self, driver: Driver, code: ErrorCode, now: Micros) -> None:
        """A request has failed there; what does not count against it changes nothing."""
        if not counts_against(code):
            return
        policy, record = self._policy, self._touch(driver, now)
        record.successes = 0
        record.penalty = min(policy.most_penalty, record.penalty + 1)
        doublings = min(policy.most_doublings, record.penalty - 1)
        cooling_us = min(policy.longest_cooling_us, policy.first_cooling_us << doublings)
        record.cooling_until = Micros(max(record.cooling_until, now + cooling_us))

    def _touch(self, driver: Driver, now: Micros) -> _Record:
        record = self._records.pop(driver, None)
        if record is None or self._is_old(record, now):
            record = _Record()
        self._records[driver] = record
        record.touched_at = now
        while len(self._records) > self._policy.capacity:
            del self._records[next(iter(self._records))]
        return record

    def _is_old(self, record: _Record, now: Micros) -> bool:
        """A driver with requests on their way is never forgotten for its age."""
        return not record.in_flight and now - record.touched_at >= self._policy.life_us

    def _mean(self, before: int | None, measured: int) -> int:
        if before is None:
            return measured
        weight = self._policy.weight_percent
        return (before * (100 - weight) + measured * weight) // 100
