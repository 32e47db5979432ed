"""The network interfaces of this machine."""

from typing import Protocol

from p2pmesh.core.addresses import InterfaceAddress


class Interfaces(Protocol):
    """What the system says of them now: they come and go while a node runs."""

    def survey(self) -> tuple[InterfaceAddress, ...]:
        """Every IP address of every interface, bounded; never raises."""
