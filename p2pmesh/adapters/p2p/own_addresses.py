"""The addresses of this node, as they are now: interfaces come and go while it listens on every one of them."""

from collections.abc import Iterable

from multiaddr import Multiaddr

from p2pmesh.core.addresses import AddressChoice, choose_announced, order_dials
from p2pmesh.ports.interfaces import Interfaces


class OwnAddresses:
    """What others are told of what is bound; ``told`` where the operator gave it, word for word."""

    def __init__(self, told: tuple[Multiaddr, ...], interfaces: Interfaces) -> None:
        self._told = tuple(str(address) for address in told)
        self._interfaces = interfaces

    def choose(self, bound: Iterable[Multiaddr]) -> AddressChoice:
        """What others are told, without our peer id."""
        if self._told:
            return AddressChoice(self._told)
        return choose_announced([str(address) for address in bound], self._interfaces.survey())

    def order_dials(self, addresses: Iterable[Multiaddr], bound: Iterable[Multiaddr]) -> tuple[Multiaddr, ...]:
        """A peer's addresses, the likeliest first, without those where only this node answers."""
        interfaces = self._interfaces.survey()
        own = choose_announced([str(address) for address in bound], interfaces)
        mine = (*own.announced, *(untold.address for untold in own.left_out))
        return tuple(Multiaddr(text) for text in order_dials([str(one) for one in addresses], interfaces, mine))
