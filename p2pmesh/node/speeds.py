"""How fast this node's engines are, by kind of model: measured at their loads, kept for the next start.

What counts as news, and what stands in for a speed that nobody measured, is ``core.speeds``'.
"""

from p2pmesh.base.limits import MAX_DECODE_BYTES_PER_S
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.speeds import Speed, headline_speed, note_speed, size_class_of
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.engine import EngineFacts
from p2pmesh.ports.machine import SpeedStore
from p2pmesh.ports.models import StageReads


class Speeds:
    """Those of this node; without a store they last as long as it runs."""

    def __init__(self, clock: Clock, store: SpeedStore | None) -> None:
        self._clock = clock
        self._store = store
        self.known: tuple[Speed, ...] = () if store is None else store.load()

    @property
    def headline(self) -> int:
        """Bytes of weights that an engine here reads in a second of decoding, for the announcement; 0: not measured."""
        return headline_speed(self.known)

    def note(self, reads: StageReads, facts: EngineFacts) -> None:
        """An engine has measured itself."""
        found = Speed(
            reads.architecture,
            size_class_of(reads.read_bytes),
            _rate(reads.read_bytes, facts.decode_us),
            _rate(reads.read_bytes - reads.output_bytes, facts.prefill_us),
            self._clock.unix_ms(),
        )
        known = note_speed(self.known, found)
        if known != self.known and self._store is not None:
            self._store.store(known)
        self.known = known


def _rate(read_bytes: int, time_us: int) -> int:
    return min(MAX_DECODE_BYTES_PER_S, read_bytes * MICROS_PER_SECOND // time_us) if time_us else 0
