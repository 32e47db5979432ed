"""A value-free signal that something changed, for any number of waiting tasks."""

import trio


class Changes:
    """Counts changes; a waiter that knows count ``n`` sleeps until the count is beyond ``n``, so none is missed."""

    def __init__(self) -> None:
        self._count = 0
        self._event = trio.Event()

    @property
    def count(self) -> int:
        """Changes so far."""
        return self._count

    def mark(self) -> None:
        """Notes a change and wakes every waiter."""
        self._count += 1
        self._event.set()
        self._event = trio.Event()

    async def wait_beyond(self, count: int) -> int:
        """Returns the present count once it is beyond ``count``."""
        while self._count <= count:
            await self._event.wait()
        return self._count
