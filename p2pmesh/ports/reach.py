"""Being reached behind NATs, as the node sees it: witnesses, relays, direct paths. Part of ``ports.network``."""

from dataclasses import dataclass
from typing import Protocol

from p2pmesh.base.ids import PeerId
from p2pmesh.core.reachability import DialBack
from p2pmesh.core.relaying import RelayLimits


@dataclass(frozen=True, slots=True)
class Sight:
    """Where another saw us, and the port here that the connection leaves from."""

    host: str
    port: int
    local_port: int


@dataclass(frozen=True, slots=True)
class PeerPaths:
    """The connections to a peer that stand."""

    has_direct: bool
    has_relayed: bool
    was_dialled_through_relay: bool
    """The newest relayed one was opened by the other end."""


@dataclass(frozen=True, slots=True)
class RelayUse:
    """What this node relays now."""

    reservations: int
    circuits: int


class ReachPort(Protocol):
    """What libp2p's relay, NAT and hole punching protocols do for one node."""

    # --- what is there

    def own_hosts(self) -> frozenset[str]:
        """Addresses of this machine's interfaces."""

    def inner_hosts(self) -> frozenset[str]:
        """Those of them behind which only this machine's containers and virtual machines are."""

    def listen_port(self) -> int | None:
        """The TCP port that is listened on; None if there are none, or several."""

    def remote_host(self, peer: PeerId) -> str | None:
        """The address at the other end of the direct connection; None without one."""

    def dialled_address(self, peer: PeerId) -> str | None:
        """The multiaddr, without peer id, of a direct connection that we opened; None where there is none."""

    def paths_of(self, peer: PeerId) -> PeerPaths:
        """How a peer is connected now."""

    async def paths_changed(self, seen: int) -> int:
        """Waits until connections have come or gone since ``seen`` (0 at first); what to wait beyond next."""

    # --- witnesses

    async def observe(self, peer: PeerId, timeout_s: float) -> Sight | None:
        """Where a directly connected peer sees us; None where it does not say."""

    async def observe_listen_port(self, peer: PeerId, timeout_s: float) -> Sight | None:
        """The same, over a connection of its own that leaves from the port that we listen on."""

    async def ask_dial_back(self, peer: PeerId, addresses: tuple[str, ...], timeout_s: float) -> tuple[DialBack, str]:
        """Has a peer dial us at ``addresses``; the one that it reached, or empty. Never raises."""

    # --- relays

    async def reserve(self, relay: PeerId, timeout_s: float) -> int:
        """Has a directly connected peer keep a place for us; for how many seconds. Raises ``PeerUnavailable``."""

    def give_up_relay(self, relay: PeerId) -> None:
        """Takes no more circuits from a peer. Never raises."""

    def announce_besides(self, direct: tuple[str, ...], relayed: tuple[str, ...]) -> None:
        """Multiaddrs without our peer id that ``addresses`` names from now on beside what is listened on."""

    def offer_relay(self, limits: RelayLimits | None) -> None:
        """Relays for others within limits from now on; None: no more, what stands may end."""

    def relay_use(self) -> RelayUse:
        """What is relayed now."""

    def uses_relay(self, peer: PeerId) -> bool:
        """Whether a peer has a place or a circuit here, or keeps a place or a circuit for us."""

    def relay_users(self) -> frozenset[PeerId]:
        """All peers that ``uses_relay`` says so of. Walks the connections once."""

    # --- direct paths

    async def punch(self, peer: PeerId, own: tuple[str, ...], timeout_s: float) -> bool:
        """Tries for a direct connection to a peer that dialled us through a relay, which is told that we may be met at
        ``own``; whether one stands. Never raises."""

    def set_own_addresses(self, own: tuple[str, ...]) -> None:
        """What peers that try for a direct connection are told where we may be met."""

    async def close_relayed(self, peer: PeerId) -> bool:
        """Closes relayed connections that we opened where a direct one stands and no exchange is open on them; whether
        none is left. Never raises."""
