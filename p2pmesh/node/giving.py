"""What the owner of this machine gives of it: within which bounds, at which times, and how much it came to.

Holds the services that stand for the owner together, and carries out that the owner decided anew. What peers are told
of the machine is ``node.machine_watch``', when anything is given ``node.sharing``'s, the sums are ``node.usage``'s.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import trio

from p2pmesh.core.owner_wishes import OwnerWishes
from p2pmesh.core.sharing import SharingRules
from p2pmesh.node.driver import Drivers
from p2pmesh.node.machine_watch import MachineWatch
from p2pmesh.node.overlay import Overlay, OverlaySettings
from p2pmesh.node.reporting import Report
from p2pmesh.node.sharing import Sharing, SharingParts
from p2pmesh.node.speeds import Speeds
from p2pmesh.node.stages import Stages
from p2pmesh.node.traffic import Traffic
from p2pmesh.node.usage import UsageBook, UsageParts
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.machine import Machine, SpeedStore
from p2pmesh.ports.owner import Owner
from p2pmesh.ports.usage import UsageStore


@dataclass(frozen=True, slots=True)
class OwnersMachine:
    """The machine that is given of, who is at it, and what is kept of both from start to start."""

    machine: Machine | None = None
    """None where nobody looks at it."""
    owner: Owner | None = None
    """None where nobody can be asked: what is given is given at all times."""
    speeds: SpeedStore | None = None
    usage: UsageStore | None = None


@dataclass(frozen=True, slots=True)
class GivingParts:
    """What is given, and who gives it out. ``is_generating``: whether any stage here has a request."""

    overlay: Overlay
    stages: Stages
    drivers: Drivers
    traffic: Traffic
    speeds: Speeds
    clock: Clock
    is_generating: Callable[[], bool]


class Giving:
    """Of one node."""

    def __init__(self, parts: GivingParts, owners: OwnersMachine, settings: OverlaySettings, report: Report) -> None:
        overlay, stages = parts.overlay, parts.stages
        self._stages = stages
        self._drivers = parts.drivers
        self.traffic = parts.traffic
        self.machine = MachineWatch(owners.machine, overlay.board, settings.wishes, parts.speeds)
        sharing = SharingParts(
            owners.owner, stages, parts.clock, parts.is_generating, lambda: overlay.board.own().is_busy, report
        )
        self.sharing = Sharing(sharing, settings.memory_bytes, settings.sharing)
        usage = UsageParts(
            overlay, stages, parts.traffic, parts.clock, lambda: self.sharing.is_giving, owners.usage, report
        )
        self.usage = UsageBook(usage)
        parts.drivers.used = stages.used = self.usage.note_tokens
        self._bound(settings.wishes)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.machine.run)
            nursery.start_soon(self.sharing.run)
            nursery.start_soon(self.usage.run)

    async def change(self, memory_bytes: int, wishes: OwnerWishes, rules: SharingRules) -> None:
        """The owner gives otherwise from now on; others hear of it, and move what is not wanted here any more."""
        self._bound(wishes)
        await self.sharing.change(memory_bytes, rules)

    def _bound(self, wishes: OwnerWishes) -> None:
        self._stages.wishes = self.machine.wishes = wishes
        self.traffic.limit(wishes.up_bytes_per_s, wishes.down_bytes_per_s)
        self._drivers.clients.most = wishes.max_clients

    def describe(self) -> dict[str, Any]:
        """For the status."""
        return {
            "machine": asdict(self.machine.profile()),
            "sharing": self.sharing.describe(),
            "usage": self.usage.describe(),
        }
