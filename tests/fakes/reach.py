"""``ports.reach.ReachPort`` in memory: what peers see, answer and grant is what a test says."""

from __future__ import annotations

import trio

from p2pmesh.base.errors import ErrorCode, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.core.reachability import DialBack
from p2pmesh.core.relaying import RelayLimits
from p2pmesh.ports.reach import PeerPaths, RelayUse, Sight

NO_PATHS = PeerPaths(has_direct=False, has_relayed=False, was_dialled_through_relay=False)


class FakeReach:
    """Of a node on which nothing is known until a test sets it."""

    def __init__(self) -> None:
        self.hosts: frozenset[str] = frozenset()
        self.port: int | None = None
        self.remote_hosts: dict[PeerId, str] = {}
        self.dialled: dict[PeerId, str] = {}
        self.paths: dict[PeerId, PeerPaths] = {}
        self.sights: dict[PeerId, Sight] = {}
        self.dial_backs: dict[PeerId, DialBack] = {}
        self.grants: dict[PeerId, int] = {}
        self.guests: set[PeerId] = set()
        self.punchable: set[PeerId] = set()
        self.offered: RelayLimits | None = None
        self.own: tuple[str, ...] = ()
        self.besides: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self.asked: list[tuple[str, PeerId]] = []
        """What was done, in order."""
        self._count = 0
        self._news = trio.Event()

    def change_paths(self, peer: PeerId, *, direct: bool = False, relayed: bool = False, inbound: bool = True) -> None:
        """A connection has come or gone."""
        self.paths[peer] = PeerPaths(direct, relayed, relayed and inbound)
        self._count += 1
        self._news.set()
        self._news = trio.Event()

    def own_hosts(self) -> frozenset[str]:
        return self.hosts

    def inner_hosts(self) -> frozenset[str]:
        return frozenset()

    def listen_port(self) -> int | None:
        return self.port

    def remote_host(self, peer: PeerId) -> str | None:
        return self.remote_hosts.get(peer) if self.paths_of(peer).has_direct else None

    def dialled_address(self, peer: PeerId) -> str | None:
        return self.dialled.get(peer) if self.paths_of(peer).has_direct else None

    def paths_of(self, peer: PeerId) -> PeerPaths:
        return self.paths.get(peer, NO_PATHS)

    async def paths_changed(self, seen: int) -> int:
        await trio.lowlevel.checkpoint()
        while self._count <= seen:
            await self._news.wait()
        return self._count

    async def observe(self, peer: PeerId, timeout_s: float) -> Sight | None:
        await trio.lowlevel.checkpoint()
        return self.sights.get(peer)

    async def observe_listen_port(self, peer: PeerId, timeout_s: float) -> Sight | None:
        await trio.lowlevel.checkpoint()
        seen = self.sights.get(peer)
        return None if seen is None or self.port is None else Sight(seen.host, seen.port, self.port)

    async def ask_dial_back(self, peer: PeerId, addresses: tuple[str, ...], timeout_s: float) -> tuple[DialBack, str]:
        await trio.lowlevel.checkpoint()
        self.asked.append(("dial back", peer))
        outcome = self.dial_backs.get(peer, DialBack.DECLINED)
        return outcome, addresses[0] if outcome is DialBack.REACHED and addresses else ""

    async def reserve(self, relay: PeerId, timeout_s: float) -> int:
        await trio.lowlevel.checkpoint()
        self.asked.append(("reserve", relay))
        if relay not in self.grants:
            raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, "the relay is full")
        self.guests.add(relay)
        return self.grants[relay]

    def give_up_relay(self, relay: PeerId) -> None:
        self.guests.discard(relay)

    def announce_besides(self, direct: tuple[str, ...], relayed: tuple[str, ...]) -> None:
        self.besides = (direct, relayed)

    def offer_relay(self, limits: RelayLimits | None) -> None:
        self.offered = limits

    def relay_use(self) -> RelayUse:
        return RelayUse(0, 0)

    def uses_relay(self, peer: PeerId) -> bool:
        return peer in self.guests

    def relay_users(self) -> frozenset[PeerId]:
        return frozenset(self.guests)

    async def punch(self, peer: PeerId, own: tuple[str, ...], timeout_s: float) -> bool:
        await trio.lowlevel.checkpoint()
        self.asked.append(("punch", peer))
        if peer in self.punchable:
            self.change_paths(peer, direct=True, relayed=True)
        return peer in self.punchable

    def set_own_addresses(self, own: tuple[str, ...]) -> None:
        self.own = own

    async def close_relayed(self, peer: PeerId) -> bool:
        await trio.lowlevel.checkpoint()
        self.asked.append(("close relayed", peer))
        self.change_paths(peer, direct=True)
        return True
