"""Frames to one place, those of one moment together.

A call of an engine gives the rows of many sequences at once. Each sent by itself would cost a system call, a sealed
record and a wake-up at every hop; and the next engine would begin with the first before the last has come. What is sent
and when it is held is the sender's (``node.stage_run``).
"""

from collections.abc import Awaitable, Callable, Sequence

from p2pmesh.wire.stage import StageFrame


class Outlet:
    """Sends at once, or, while it is held, keeps all in order for ``flush``.

    Whoever holds it has a bounded number of frames to send; nothing bounds what is kept but that.
    """

    def __init__(self, send_all: Callable[[Sequence[StageFrame]], Awaitable[None]]) -> None:
        self._send_all = send_all
        self._holders = 0
        self._kept: list[StageFrame] = []

    def hold(self) -> None:
        """Nothing is sent until as many have let it go."""
        self._holders += 1

    def let_go(self) -> None:
        """What was kept goes with the next ``flush`` or ``send``."""
        self._holders -= 1

    async def send(self, frame: StageFrame) -> None:
        """Sends a frame, after those that are kept; raises what sending raises."""
        self._kept.append(frame)
        if not self._holders:
            await self.flush()

    async def flush(self) -> None:
        """Sends what is kept."""
        frames, self._kept = self._kept, []
        if frames:
            await self._send_all(frames)
