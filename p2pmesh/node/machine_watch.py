"""Looks at the machine from time to time: what others should know of it, in our announcement and in our profile.

The announcement says when others should be asked for stages first; the rule is ``core.owner_wishes``'.
"""

import trio

from p2pmesh.base.limits import MAX_DECODE_BYTES_PER_S, MAX_PROFILE_DEVICES
from p2pmesh.core.owner_wishes import BusyGate, MachineLoad, OwnerWishes
from p2pmesh.node.announcements import AnnouncementBoard
from p2pmesh.node.speeds import Speeds
from p2pmesh.ports.machine import Machine, MachineFacts
from p2pmesh.wire.profile import DeviceEntry, Profile, SpeedEntry
from p2pmesh.wire.schema import as_line

LOOK_AGAIN_S = 30.0
MEASURED_AFTER_S = 60.0
"""A node that was asked for its profile and has no speed of any engine by then measures its memory: the moments after a
start are the busiest, and where nobody plans nothing need be known."""
_SHORT_BYTES = 64


class MachineWatch:
    """Of this node's machine; without one that can be asked, everything about it is unknown."""

    def __init__(self, machine: Machine | None, board: AnnouncementBoard, wishes: OwnerWishes, speeds: Speeds) -> None:
        self._machine = machine
        self._board = board
        self.wishes = wishes
        self._speeds = speeds
        self._load = MachineLoad()
        self._memory_bytes_per_s = 0
        self._was_asked = trio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        if self._machine is None:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_load, self._machine)
            nursery.start_soon(self._measure_memory, self._machine)

    async def _watch_load(self, machine: Machine) -> None:
        gate = BusyGate()
        while True:
            self._load = await machine.read_load()
            self._board.note_machine(is_on_battery=self._load.is_on_battery, is_busy=gate.note(self._load))
            await trio.sleep(LOOK_AGAIN_S)

    async def _measure_memory(self, machine: Machine) -> None:
        await trio.sleep(MEASURED_AFTER_S)
        await self._was_asked.wait()
        if not self._speeds.known and self._board.own().memory_bytes:
            self._memory_bytes_per_s = await machine.memory_bytes_per_s()

    def tell(self) -> Profile:
        """Our profile, for somebody who plans."""
        self._was_asked.set()
        return self.profile()

    def profile(self) -> Profile:
        """What is known now."""
        facts = MachineFacts() if self._machine is None else self._machine.facts()
        return Profile(
            threads=facts.threads,
            processor_quota_milli=facts.processor_quota_milli,
            load_milli=max(0, self._load.load_milli),
            others_milli=max(0, self._load.others_milli),
            battery_percent=self._load.battery_percent,
            reserved_bytes=max(0, facts.available_bytes - self._board.own().memory_bytes),
            memory_bytes_per_s=min(MAX_DECODE_BYTES_PER_S, self._memory_bytes_per_s),
            devices=_devices_of(facts),
            speeds=tuple(
                SpeedEntry(
                    as_line(one.architecture, _SHORT_BYTES), one.size_class, one.decode_bytes_per_s,
                    one.prefill_bytes_per_s,
                )
                for one in self._speeds.known
            ),
            excluded_models=self.wishes.excluded_models,
            up_bytes_per_s=self.wishes.up_bytes_per_s,
            down_bytes_per_s=self.wishes.down_bytes_per_s,
        )  # fmt: skip


def _devices_of(facts: MachineFacts) -> tuple[DeviceEntry, ...]:
    return tuple(
        DeviceEntry(
            as_line(device.name, _SHORT_BYTES), as_line(device.backend, _SHORT_BYTES),
            as_line(device.type, _SHORT_BYTES), device.free_bytes, device.total_bytes, device.name in facts.used,
        )
        for device in facts.devices[:MAX_PROFILE_DEVICES]
    )  # fmt: skip
