"""Looks at the machine from time to time, and says in our announcement when others should be asked for stages first."""

import trio

from p2pmesh.core.owner_wishes import BusyGate
from p2pmesh.node.announcements import AnnouncementBoard
from p2pmesh.ports.machine import ReadLoad

LOOK_AGAIN_S = 30.0


async def watch_load(read: ReadLoad, board: AnnouncementBoard) -> None:
    """Until cancelled."""
    gate = BusyGate()
    while True:
        load = await read()
        board.note_machine(is_on_battery=load.is_on_battery, is_busy=gate.note(load))
        await trio.sleep(LOOK_AGAIN_S)
