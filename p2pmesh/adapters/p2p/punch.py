"""Hole punching (DCUtR): two peers that talk through a relay connect to each other at the same moment.

Owns the exchange (libp2p specification ``relay/DCUtR``), the simultaneous connects from the ports that both listen on,
and who is the initiator of the handshake then. When it is tried is ``core.upgrades``'. Not py-libp2p's own service:
that looks every 2 s, waits out rounds of 5 s, and takes both peers for responders where one connect met a listener
instead of the other connect; its handshake then hangs.
"""

from ipaddress import IPv6Address, ip_address

import trio
from libp2p.abc import ISecureConn
from libp2p.io.exceptions import IOException
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from p2pmesh.adapters.p2p.addresses import TcpAddress, parse_tcp_address
from p2pmesh.adapters.p2p.deadlines import shielded_for
from p2pmesh.adapters.p2p.delimited import receive_delimited, send_delimited
from p2pmesh.adapters.p2p.hardening import HardenedSwarm, HardenedUpgrader
from p2pmesh.adapters.p2p.negotiation import GREETING, NegotiationRefused, encode_line, read_line
from p2pmesh.adapters.p2p.noise import NoiseChannel, NoiseTransport
from p2pmesh.adapters.p2p.sockets import (
    connect_from_listen_port,
    interface_addresses,
    listen_port,
    listens_on_loopback_alone,
)
from p2pmesh.adapters.p2p.streams import PeerStream
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.allowance import spend

DCUTR_PROTOCOL = "/libp2p/dcutr"
NOISE_ID = "/noise"

MESSAGE_TIMEOUT_S = 5.0
MEET_TIMEOUT_S = 5.0
TRY_TIMEOUT_S = 1.6
"""A lost first packet is sent again after a second; a later one would find no hole any more."""
TRY_AGAIN_S = 0.15
"""After a refusal: a NAT may answer for a peer whose hole is not there yet."""
ROLE_S = 0.4
"""So long, and a round trip, whoever shall respond waits for a proposal before it takes itself for the initiator."""
MAX_MET = 8
"""Addresses of one try."""
MAX_MEETINGS = 8
"""Peers that are tried directly at once because they asked for it."""
EACH_US = 10 * MICROS_PER_SECOND
"""Tries that one peer may ask for, in the long run: each aims connects at addresses that it names."""
BURST = 4
MAX_REMEMBERED = 256


async def start(stream: PeerStream, own: tuple[str, ...]) -> tuple[list[TcpAddress], float]:
    """The exchange of the end that starts: where the other may be met, and the round trip through the relay in seconds.

    Whoever calls it connects half a round trip later, when the other does.
    """
    with trio.fail_after(MESSAGE_TIMEOUT_S):
        began = trio.current_time()
        await send_delimited(stream, _message(HolePunch.CONNECT, own))
        answer = await receive_delimited(stream, HolePunch)
        round_trip_s = trio.current_time() - began
        if answer.type != HolePunch.CONNECT:
            raise _unexpected(stream)
        await send_delimited(stream, HolePunch(type=HolePunch.SYNC))
    return _addresses_of(list(answer.ObsAddrs)), round_trip_s


async def answer_start(stream: PeerStream, own: tuple[str, ...]) -> list[TcpAddress]:
    """The exchange of the other end; where whoever started may be met, now."""
    with trio.fail_after(2 * MESSAGE_TIMEOUT_S):
        asked = await receive_delimited(stream, HolePunch)
        if asked.type != HolePunch.CONNECT:
            raise _unexpected(stream)
        await send_delimited(stream, _message(HolePunch.CONNECT, own))
        synchronised = await receive_delimited(stream, HolePunch)
        if synchronised.type != HolePunch.SYNC:
            raise _unexpected(stream)
    return _addresses_of(list(asked.ObsAddrs))


def _message(kind: "HolePunch.Type.ValueType", own: tuple[str, ...]) -> HolePunch:
    return HolePunch(type=kind, ObsAddrs=[Multiaddr(address).to_bytes() for address in own[:MAX_MET]])


def _unexpected(stream: PeerStream) -> RemoteProtocolError:
    return RemoteProtocolError(
        ErrorCode.MESSAGE_UNEXPECTED, "another hole punching message", culprit=stream.remote_peer
    )


def _addresses_of(told: list[bytes]) -> list[TcpAddress]:
    """What can be connected to; names and circuits are left out."""
    found: dict[TcpAddress, None] = {}
    for data in told[: 4 * MAX_MET]:
        try:
            address = parse_tcp_address(str(Multiaddr(data)))
            host = ip_address(address.host)
        except (ConfigError, MultiaddrError, ValueError, TypeError):
            continue
        if address.port and not (host.is_unspecified or host.is_multicast or host.is_link_local):
            found.setdefault(TcpAddress(address.protocol, address.host, address.port, None))
    return list(found)[:MAX_MET]


def _is_loopback(address: TcpAddress) -> bool:
    host = ip_address(address.host)
    mapped = host.ipv4_mapped if isinstance(host, IPv6Address) else None
    return (mapped or host).is_loopback


class Meetings:
    """Which peers have us try for a direct connection now, each once at a time, and how often each may."""

    def __init__(self) -> None:
        self._now: set[PeerId] = set()
        self._full_at: dict[PeerId, Micros] = {}

    def enter(self, peer: PeerId, now: Micros) -> bool:
        """Whether a peer may have a try; ``leave`` follows if so."""
        if peer in self._now or len(self._now) >= MAX_MEETINGS:
            return False
        full_at = spend(self._full_at.get(peer, Micros(0)), now, EACH_US, BURST)
        if full_at is None:
            return False
        self._full_at.pop(peer, None)
        if len(self._full_at) >= MAX_REMEMBERED:
            del self._full_at[next(iter(self._full_at))]
        self._full_at[peer] = full_at
        self._now.add(peer)
        return True

    def leave(self, peer: PeerId) -> None:
        """Its try is over."""
        self._now.discard(peer)


class Meeting:
    """The connects of one try. ``is_server`` is the end that started the exchange: it responds in the handshake."""

    def __init__(
        self, swarm: HardenedSwarm, noise: NoiseTransport, peer: ID, round_trip_s: float, *, is_server: bool
    ) -> None:
        self._swarm = swarm
        self._noise = noise
        self._peer = peer
        self._round_trip_s = round_trip_s
        self._is_server = is_server

    async def run(self, addresses: list[TcpAddress]) -> bool:
        """Connects to all of them until a direct connection stands, whoever made it; whether one does."""
        own_hosts, own_port = interface_addresses(), listen_port(self._swarm)
        if not listens_on_loopback_alone(self._swarm):  # a peer must not aim us at services of this machine
            addresses = [address for address in addresses if not _is_loopback(address)]
        with trio.move_on_after(MEET_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, nursery.cancel_scope)
                for address in addresses:
                    if address.host not in own_hosts or address.port != own_port:  # that would be ourselves
                        nursery.start_soon(self._try, address)
        return self._is_met()

    def _is_met(self) -> bool:
        return self._swarm.direct_connection(self._peer) is not None

    async def _watch(self, others: trio.CancelScope) -> None:
        while not self._is_met():
            await self._swarm.paths.wait_changed()
        others.cancel()

    async def _try(self, address: TcpAddress) -> None:
        while not self._is_met():
            raw: RawConnection | None = None
            try:
                with trio.move_on_after(TRY_TIMEOUT_S):
                    raw = await connect_from_listen_port(self._swarm, address.host, address.port)
                if raw is not None:
                    await self._upgrade(raw)
                    return
            except P2PMeshError:
                await trio.sleep(TRY_AGAIN_S)
            except Exception:  # noqa: BLE001  libp2p lets through whatever handshakes raise
                await trio.sleep(TRY_AGAIN_S)

    async def _upgrade(self, raw: RawConnection) -> None:
        is_done = False
        try:
            if self._is_server:
                await self._respond(raw)
            else:
                await self._swarm.upgrade_outbound_raw_conn(raw, self._peer)
            is_done = True
        finally:
            if not is_done:
                with shielded_for(1.0):
                    await raw.close()

    async def _respond(self, raw: RawConnection) -> None:
        """Responds; unless the other end responds too, since our connect met its listener and not its connect."""
        session = await self._secure(raw)
        if not isinstance(session, NoiseChannel) or session.get_remote_peer() != self._peer:
            raise NegotiationRefused("another peer answered")
        upgrader = self._swarm.upgrader
        assert isinstance(upgrader, HardenedUpgrader)
        muxed = await upgrader.upgrade_connection(session, self._peer)
        await self._swarm.add_conn(muxed, direction="outbound" if session.is_initiator else "inbound")

    async def _secure(self, raw: RawConnection) -> ISecureConn:
        try:
            raw.is_initiator = not await self._is_proposed_to(raw)
        except IOException as error:
            raise NegotiationRefused("the peer went away") from error
        if raw.is_initiator:
            return await self._noise.secure_outbound(raw, self._peer)
        return await self._noise.secure_inbound(raw)

    async def _is_proposed_to(self, raw: RawConnection) -> bool:
        """Agrees on noise; whether the other end proposed it, and is the initiator."""
        await raw.write(encode_line(GREETING))
        if await read_line(raw) != GREETING:
            raise NegotiationRefused("the peer does not speak multistream")
        lines: list[str] = []
        with trio.move_on_after(ROLE_S + self._round_trip_s):
            lines.append(await read_line(raw))
        is_proposed_to = bool(lines)
        await raw.write(encode_line(NOISE_ID))
        if not is_proposed_to:
            lines.append(await read_line(raw))
        if lines != [NOISE_ID]:
            raise NegotiationRefused("the peer does not speak noise")
        return is_proposed_to
