"""What this node knows of drivers, put to use: chooses among those that may be asked, and learns from what they answer.

Runs ``core.routing`` over ``core.driver_records`` and ``core.affinity``. Who serves a model, and who may be asked, is
``node.router``'s.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.affinity import AffinityKeys, AffinityPolicy, AffinityTable, Asker, affinity_keys
from p2pmesh.core.auto_model import ModelChoice, choose_model, classify
from p2pmesh.core.driver_records import Driver, DriverRecords
from p2pmesh.core.routing import DriverChoice, RouteReason, choose_driver
from p2pmesh.node.failures import first_error
from p2pmesh.ports.clock import Clock
from p2pmesh.wire.generation import GenerationDelta, GenerationEvent, GenerationRequest, GenerationStarted

MAX_AUTO_CONVERSATIONS = 1024
"""Mesh LLM's."""

_SLOW_READER = 2
"""An answer whose reader took one part in so many of its time, or more, tells nothing of its driver's speed."""

RoundTrips = Callable[[], Mapping[PeerId, int]]
"""Microseconds to each peer that was measured, this node among them with 0."""


class Note(Protocol):
    """Takes each event of a request."""

    def __call__(self, event: GenerationEvent, held_us: int = 0) -> None:
        """``held_us``: so long the events before it were with whoever reads them, all together."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that drives the model and may be asked."""

    peer: PeerId
    run_id: bytes
    rank: int


class DriverChoices:
    """The memory of one node. Nothing of it leaves the node, and a restart forgets it."""

    def __init__(self, clock: Clock, round_trips: RoundTrips) -> None:
        self._clock = clock
        self._round_trips = round_trips
        self._records = DriverRecords()
        self._affinity: AffinityTable[PeerId] = AffinityTable()
        self._models: AffinityTable[str] = AffinityTable(AffinityPolicy(capacity=MAX_AUTO_CONVERSATIONS))

    def choose(self, candidates: Iterable[Candidate], keys: AffinityKeys) -> tuple[PeerId, RouteReason] | None:
        """Who is asked, and why; None without candidates."""
        now, rtt_us = self._clock.now(), self._round_trips()
        choices = [
            DriverChoice(one.peer, one.rank, rtt_us.get(one.peer), self._records.view((one.peer, one.run_id), now))
            for one in candidates
        ]
        remembered = self._affinity.recall(keys, {choice.peer for choice in choices}, now)
        return choose_driver(choices, keys.spreading, remembered)

    def choose_model(
        self, runs: Mapping[str, Iterable[Driver]], request: GenerationRequest, asker: Asker
    ) -> str | None:
        """Which of the served models, each with its drivers, answers a request for ``auto``; None if none is served.

        A conversation stays with its model as long as that is served.
        """
        now, keys = self._clock.now(), affinity_keys(request, asker)
        remembered = self._models.recall(keys, runs.keys(), now)
        choices = [self._model_choice(name, drivers, now) for name, drivers in runs.items()]
        chosen = choose_model(choices, classify(request), keys.spreading) if remembered is None else remembered[0]
        if chosen is not None:
            self._models.remember(keys, chosen, now)
        return chosen

    def _model_choice(self, name: str, drivers: Iterable[Driver], now: Micros) -> ModelChoice:
        views = (self._records.view(driver, now) for driver in drivers)
        known = [ModelChoice(name, view.answers, view.token_us) for view in views if not view.is_cooling]
        return max(known, key=lambda choice: (choice.is_known, choice.tokens_per_s), default=ModelChoice(name))

    @contextmanager
    def observing(self, driver: Driver, keys: AffinityKeys) -> Iterator[Note]:
        """While one request is asked of a driver; what is yielded takes each of its events."""
        self._records.begin(driver, self._clock.now())
        try:
            yield _Observation(self._clock, self._records, self._affinity, driver, keys).note
        except P2PMeshError as error:
            self._records.note_failed(driver, error.code, self._clock.now())
            raise
        except BaseExceptionGroup as group:
            ours, _ = group.split(P2PMeshError)
            if ours is not None:
                self._records.note_failed(driver, first_error(ours).code, self._clock.now())
            raise
        finally:
            self._records.end(driver, self._clock.now())


class _Observation:
    """One request at one driver."""

    def __init__(
        self, clock: Clock, records: DriverRecords, affinity: AffinityTable[PeerId], driver: Driver, keys: AffinityKeys
    ) -> None:
        self._clock = clock
        self._records = records
        self._affinity = affinity
        self._driver = driver
        self._keys = keys
        self._asked_at = clock.now()
        self._first_at: Micros | None = None
        self._tokens = 0

    def note(self, event: GenerationEvent, held_us: int = 0) -> None:
        """What an event tells of the driver. Called for every token: its clock is read for the first and the last."""
        if isinstance(event, GenerationDelta):
            self._tokens += len(event.tokens)
            if self._first_at is None and event.tokens:
                self._first_at = self._clock.now()
            return
        now = self._clock.now()
        if isinstance(event, GenerationStarted):
            self._records.note_started(self._driver, now - self._asked_at, now)
            self._affinity.remember(self._keys, self._driver[0], now)
        else:
            took_us = 0 if self._first_at is None else now - self._first_at
            tokens = 0 if held_us * _SLOW_READER > took_us else self._tokens
            self._records.note_answered(self._driver, tokens, took_us, now)
