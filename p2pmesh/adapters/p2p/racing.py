"""Several ways to one peer, tried side by side: each with a head start over the next, direct ones over relays.

Owns the order in time and why each failed; what an attempt does is its maker's.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from p2pmesh.adapters.p2p.addresses import why_dial_failed
from p2pmesh.base.errors import P2PMeshError

STAGGER_S = 0.25
"""Head start of each address over the next; a faster failure starts the next at once."""
LONGEST_STAGGER_S = 1.5
"""Of all head starts together: many dead addresses cost no more."""
HEAD_START_S = 0.5
"""Of direct addresses over relays."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way; ``connect`` returns once a connection stands, and raises whatever goes wrong."""

    name: str
    connect: Callable[[], Awaitable[object]]


class DialRace:
    """One race. ``failures`` says by name why attempts have failed so far."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    async def run(self, direct: Sequence[Attempt], relayed: Sequence[Attempt] = ()) -> None:
        """Returns when a connection stands or all have failed. Relays begin when direct addresses had a chance."""
        async with trio.open_nursery() as nursery:
            have_failed = trio.Event()

            async def go_direct() -> None:
                await self._stagger(direct, nursery.cancel_scope)
                have_failed.set()

            nursery.start_soon(go_direct)
            if relayed:
                with trio.move_on_after(HEAD_START_S if direct else 0.0):
                    await have_failed.wait()
                await self._stagger(relayed, nursery.cancel_scope)

    async def _stagger(self, attempts: Sequence[Attempt], race: trio.CancelScope) -> None:
        head_start_s = min(STAGGER_S, LONGEST_STAGGER_S / max(1, len(attempts)))
        async with trio.open_nursery() as nursery:
            for attempt in attempts:
                failed = trio.Event()
                nursery.start_soon(self._try, attempt, failed, race)
                with trio.move_on_after(head_start_s):
                    await failed.wait()

    async def _try(self, attempt: Attempt, failed: trio.Event, race: trio.CancelScope) -> None:
        try:
            await attempt.connect()
        except Exception as error:  # noqa: BLE001  libp2p lets through whatever handshakes raise
            log.debug("dialling %s failed: %r", attempt.name, error)
            self.failures[attempt.name] = error.message if isinstance(error, P2PMeshError) else why_dial_failed(error)
            failed.set()
        else:
            race.cancel()
