"""What the owner of a peer wants of it, and whether the peer had better be spared: caps, and states of its machine.

Owns the rules. What the machine says of itself is ``adapters.machine_load``'s, what a plan makes of it
``core.planning``'s.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import LayerRange

BUSY_MILLI = 600
"""Other programs that take so many thousandths of all processors make a machine busy: stages step in lockstep with
their slowest thread, and every other stage waits for it."""
IDLE_MILLI = 300
SETTLED_READINGS = 3
"""So many readings one after the other must say so before a machine counts as busy, or as idle again."""
DIGEST_PREFIX = 12
"""Digits of a digest that name a model."""


@dataclass(frozen=True, slots=True)
class OwnerWishes:
    """Caps of a peer: layers of one stage (None: any), and models that get no stage here, by name or digest.

    ``up_bytes_per_s`` and ``down_bytes_per_s`` are for what it sends to peers and receives (0: any); of other peers'
    clients at most ``max_clients`` are served at a time (None: any).
    """

    max_layers: int | None = None
    excluded_models: tuple[str, ...] = ()
    up_bytes_per_s: int = 0
    down_bytes_per_s: int = 0
    max_clients: int | None = None

    def refusal(self, model: str, digest: str, layers: LayerRange) -> str | None:
        """Why a stage may not be here; None where it may."""
        if excludes(self.excluded_models, model, digest):
            return f"the owner of this peer wants no stage of {model} here"
        if self.max_layers is not None and len(layers) > self.max_layers:
            return f"the owner of this peer gives at most {self.max_layers} layers, not {len(layers)}"
        return None


ANYTHING = OwnerWishes()


def excludes(excluded: tuple[str, ...], model: str, digest: str = "") -> bool:
    """Whether a model is among those: by its name, whatever the case, or by the first digits of its digest if known."""
    name = model.lower()
    return any(
        one.lower() == name or (len(one) >= DIGEST_PREFIX and digest.startswith(one.lower())) for one in excluded
    )


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """A reading. ``others_milli``: what other programs took of all processors since the last one; -1 unknown.

    ``load_milli`` is the load average of a minute for each processor; -1 where the system has none.
    ``battery_percent`` is None without a battery.
    """

    is_on_battery: bool = False
    battery_percent: int | None = None
    load_milli: int = -1
    others_milli: int = -1


class BusyGate:
    """Whether the machine is busy with its owner's work, told late rather than often."""

    def __init__(self) -> None:
        self.is_busy = False
        self._against = 0

    def note(self, load: MachineLoad) -> bool:
        """One more reading; the answer."""
        limit = IDLE_MILLI if self.is_busy else BUSY_MILLI
        says_busy = load.others_milli >= limit
        self._against = self._against + 1 if says_busy != self.is_busy else 0
        if self._against >= SETTLED_READINGS:
            self.is_busy, self._against = says_busy, 0
        return self.is_busy
