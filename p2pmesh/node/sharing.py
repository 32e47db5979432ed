"""What this node offers now: all that its owner allows, or nothing at hours and in moments that are the owner's.

Looks at clock and owner from time to time and carries out what ``core.sharing`` decides. A node that stops giving
announces that it offers nothing, and hands its stages over as one that stops does, but stays. Stages themselves are
``node.stages``', how their coordinators move them ``node.moving``'s.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core import sharing
from p2pmesh.core.sharing import OwnerSigns, RestReason, SharingMachine, SharingPhase, SharingRules
from p2pmesh.node.changes import Changes
from p2pmesh.node.reporting import Report
from p2pmesh.node.runner import MachineRunner
from p2pmesh.node.stages import Stages
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.owner import Owner

LOOK_AGAIN_S = 5.0
_CLOSED = {
    RestReason.HOURS: "the owner of this peer shares it at other hours",
    RestReason.OWNER: "the owner of this peer uses it",
}
_NOT_ALLOWED = "the owner of this peer does not allow the stage any more"


@dataclass(frozen=True, slots=True)
class SharingParts:
    """What is asked and told. ``is_working`` says whether any stage here has a request, ``is_busy`` whether other
    programs keep the machine busy."""

    owner: Owner | None
    stages: Stages
    clock: Clock
    is_working: Callable[[], bool]
    is_busy: Callable[[], bool]
    report: Report


class Sharing:
    """Of one node. Without an ``owner`` who can be asked, it gives at all times."""

    def __init__(self, parts: SharingParts, memory_bytes: int, rules: SharingRules) -> None:
        self._parts = parts
        self._memory_bytes = memory_bytes
        self._machine = SharingMachine(self._followed(rules))
        self._runner: MachineRunner[sharing.Event, sharing.Effect] = MachineRunner(
            self._machine, parts.clock, self._perform, sharing.DeadlinePassed()
        )
        self._signs = OwnerSigns()
        self._wanted = Changes()
        self._nursery: trio.Nursery | None = None

    @property
    def is_giving(self) -> bool:
        """Whether anything is offered."""
        return self._machine.phase is SharingPhase.GIVING

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._runner.run)
            while True:
                wanted, released = self._wanted.count, self._parts.stages.released.count
                if not self._machine.rules.is_always:
                    await self._runner.put(await self._look(self._machine.rules))
                await self._wait(wanted, released)

    async def change(self, memory_bytes: int, rules: SharingRules) -> None:
        """The owner allows otherwise from now on. Whoever uses what is not given any more has as long to go as ever."""
        self._memory_bytes = memory_bytes
        if self.is_giving:
            await self._parts.stages.offer(memory_bytes)
            if self._parts.stages.unwanted() and self._nursery is not None:
                self._nursery.start_soon(self._part, rules.leave_us / MICROS_PER_SECOND)
        followed = self._followed(rules)
        if followed != self._machine.rules:
            await self._runner.put(sharing.RulesChanged(followed, await self._look(followed)))
            self._wanted.mark()

    def _followed(self, rules: SharingRules) -> SharingRules:
        return SharingRules() if self._parts.owner is None else rules

    def describe(self) -> dict[str, Any]:
        """For the status."""
        machine, now = self._machine, self._parts.clock.now()
        deadline, change = machine.deadline(), machine.next_change()
        return {
            "state": machine.phase.value,
            "reason": None if machine.reason is None else machine.reason.value,
            "leave_left_s": None if deadline is None else max(0, round((deadline - now) / MICROS_PER_SECOND)),
            "next_change": None if change is None else str(change),
            "only_idle": machine.rules.is_only_idle,
            "owner_told_by": [*self._signs.told_by, "other programs"] if machine.rules.is_only_idle else [],
            "offered_bytes": self._parts.stages.memory_bytes,
            "given_bytes": self._parts.stages.reserved_bytes,
        }

    async def _wait(self, wanted: int, released: int) -> None:
        """For the next look; a stage that goes while the node leaves is a reason for one."""
        if self._machine.rules.is_always:
            await self._wanted.wait_beyond(wanted)
            return
        with trio.move_on_after(LOOK_AGAIN_S):
            if self._machine.phase is SharingPhase.LEAVING:
                await self._parts.stages.released.wait_beyond(released)
            else:
                await self._wanted.wait_beyond(wanted)

    async def _look(self, rules: SharingRules) -> sharing.Looked:
        owner = self._parts.owner
        assert owner is not None
        self._signs = await owner.signs() if rules.is_only_idle else OwnerSigns()
        return sharing.Looked(
            owner.local_time(),
            self._signs.is_owner_here(rules, is_busy=self._parts.is_busy()),
            self._parts.stages.is_holding,
            self._parts.is_working(),
        )

    async def _perform(self, effect: sharing.Effect) -> None:
        stages = self._parts.stages
        match effect:
            case sharing.Give():
                await stages.offer(self._memory_bytes)
            case sharing.Rest(reason):
                await stages.offer(0, _CLOSED[reason])
            case sharing.Leave(reason):
                await stages.offer(0, _CLOSED[reason])
                if self._nursery is not None:
                    self._nursery.start_soon(self._hand_over, self._machine.rules.leave_us / MICROS_PER_SECOND)
            case sharing.EndStages(reason):
                stages.end_unwanted(Refused(ErrorCode.MODEL_NOT_READY, f"{_CLOSED[reason]}; try again"))
                return
        self._tell(effect)

    def _tell(self, effect: sharing.Effect) -> None:
        machine, change = self._machine, self._machine.next_change()
        states = {sharing.Give: SharingPhase.GIVING, sharing.Leave: SharingPhase.LEAVING}
        reason = None if isinstance(effect, sharing.Give) else effect.reason.value
        is_leaving = isinstance(effect, sharing.Leave)
        fields = {
            "state": states.get(type(effect), SharingPhase.RESTING).value,
            "reason": reason,
            "leave_s": machine.rules.leave_us // MICROS_PER_SECOND if is_leaving else None,
            "next_change": None if change is None else str(change),
            "offered_bytes": self._parts.stages.memory_bytes,
        }
        self._parts.report("sharing_changed", fields)

    async def _hand_over(self, leave_s: float) -> None:
        """Coordinators load what is here elsewhere, where they can."""
        with trio.move_on_after(leave_s):
            await self._parts.stages.hand_over_unwanted()

    async def _part(self, leave_s: float) -> None:
        """With stages that the owner allows no more, while others stay."""
        until = trio.current_time() + leave_s
        await self._hand_over(leave_s)
        await trio.sleep_until(until)
        if self.is_giving:
            self._parts.stages.end_unwanted(Refused(ErrorCode.MODEL_NOT_READY, f"{_NOT_ALLOWED}; try again"))
