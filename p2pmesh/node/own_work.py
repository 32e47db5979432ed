"""What this node does now, as others are told: models that are driven here, their lanes, and whether tokens pass."""

from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.retry_after import LEAST_S
from p2pmesh.node.announcements import AnnouncementBoard, OwnLoad
from p2pmesh.node.driver import Drivers
from p2pmesh.node.run_table import RunTable
from p2pmesh.node.speeds import Speeds
from p2pmesh.wire.announcement import ServedModel


class OwnWork:
    """Of one node."""

    def __init__(self, board: AnnouncementBoard, table: RunTable, drivers: Drivers, speeds: Speeds) -> None:
        self._board = board
        self._table = table
        self._drivers = drivers
        self._speeds = speeds
        board.read_load = self._read_load

    def is_generating(self) -> bool:
        """Whether tokens pass through here: they come before measurements, and before files."""
        return any(run.open_sequences for run in self._table.runs()) or any(
            driver.active_sequences for driver in self._drivers.all()
        )

    def announce_models(self) -> None:
        """What is published here, in the announcement; the newest run of a name."""
        published = {
            driver.load.model: ServedModel(
                driver.load.model,
                driver.load.model_digest,
                driver.load.run_id,
                len(driver.load.stages),
                driver.load.context_tokens,
            )
            for driver in self._drivers.all()
            if driver.is_published and not driver.is_leaving
        }
        self._board.change_own(models=tuple(published[name] for name in sorted(published)))

    def retry_after_s(self) -> int:
        """When a request that was refused for its driver's load is worth sending again, by the queues here."""
        return max((driver.lanes.retry_after_s for driver in self._drivers.all()), default=LEAST_S)

    def _read_load(self) -> OwnLoad:
        """Lanes of the runs that are driven here, the speed of the fastest, and that of our engines."""
        driven = [driver for driver in self._drivers.all() if driver.is_published]
        lanes = sum(driver.load.lanes for driver in driven)
        busy = sum(min(driver.load.lanes, driver.active_sequences) for driver in driven)
        steps_us = [driver.step_us for driver in driven if driver.step_us]
        speed_milli = 1000 * MICROS_PER_SECOND // min(steps_us) if steps_us else 0
        return OwnLoad(lanes, lanes - busy, speed_milli, self._speeds.headline)
