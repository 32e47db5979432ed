"""Tells the operator which addresses peers are told, at the start and when that changes (a cable, a VPN, a lease)."""

from collections.abc import Callable

import trio

from p2pmesh.app import events
from p2pmesh.app.events import Emit
from p2pmesh.core.addresses import AddressChoice

LOOKED_EVERY_S = 30.0


async def tell_addresses(choose: Callable[[], AddressChoice], emit: Emit) -> None:
    """Until cancelled."""
    told: AddressChoice | None = None
    while True:
        choice = choose()
        if choice != told:
            emit(events.addresses(choice))
        told = choice
        await trio.sleep(LOOKED_EVERY_S)
