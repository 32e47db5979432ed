"""The devices that engines of this machine can run on."""

from typing import Protocol

from p2pmesh.core.devices import DeviceListing


class ListDevices(Protocol):
    """Asks llama.cpp; blocks, for at most half a minute."""

    def __call__(self) -> DeviceListing:
        """What it finds now; ``EngineError(ENGINE_LOAD_FAILED)`` says why that cannot be told."""
