"""AutoNAT: asking a peer to dial us back, and dialling back for others; and where a peer sees us, by identify.

Owns the messages (libp2p specifications ``autonat/autonat-v1`` and ``identify``) and the bounds of what we do for
others: we dial nothing but the address that the question came from, a few at a time. What follows from answers is
``core.reachability``'s.
"""

from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import trio
from libp2p.host.autonat.pb.autonat_pb2 import Message
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from p2pmesh.adapters.p2p.addresses import TcpAddress, parse_tcp_address
from p2pmesh.adapters.p2p.deadlines import shielded_for
from p2pmesh.adapters.p2p.delimited import receive_delimited, send_delimited
from p2pmesh.adapters.p2p.keys import libp2p_id
from p2pmesh.adapters.p2p.streams import PeerStream
from p2pmesh.base.errors import ConfigError
from p2pmesh.base.quantities import KIB, MICROS_PER_SECOND, Micros, micros
from p2pmesh.core.allowance import spend
from p2pmesh.core.reachability import DialBack, network_of

AUTONAT_PROTOCOL = "/libp2p/autonat/1.0.0"
IDENTIFY_PROTOCOL = "/ipfs/id/1.0.0"

MESSAGE_TIMEOUT_S = 5.0
DIAL_TIMEOUT_S = 4.0
MAX_DIALLED = 4
"""Addresses of one question."""
MAX_AT_ONCE = 4
EACH_US = 5 * MICROS_PER_SECOND
"""Questions of one network, in the long run."""
BURST = 6
MAX_NETWORKS = 256
MAX_IDENTIFY_BYTES = 64 * KIB

Dial = Callable[[TcpAddress, ID], Awaitable[bool]]


async def ask(stream: PeerStream, own: ID, addresses: tuple[str, ...]) -> tuple[DialBack, str]:
    """Whether the peer reached us, and at which address; ``P2PMeshError``."""
    told = [Multiaddr(address).to_bytes() for address in addresses]
    asked = Message(type=Message.DIAL, dial=Message.Dial(peer=Message.PeerInfo(id=own.to_bytes(), addrs=told)))
    await send_delimited(stream, asked)
    answer = (await receive_delimited(stream, Message)).dialResponse
    if answer.status == Message.OK:
        reached = _text_of(answer.addr)
        return (DialBack.REACHED, reached) if reached in addresses else (DialBack.DECLINED, "")
    return (DialBack.FAILED if answer.status == Message.E_DIAL_ERROR else DialBack.DECLINED), ""


class DialBackServer:
    """Serves ``AUTONAT_PROTOCOL``."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._at_once = 0
        self._full_at: dict[str, Micros] = {}

    async def serve(self, stream: PeerStream) -> None:
        """One question."""
        with trio.move_on_after(MESSAGE_TIMEOUT_S) as waited:
            asked = await receive_delimited(stream, Message)
        if waited.cancelled_caught:
            return
        remote = stream.muxed.get_remote_address()
        if stream.muxed.muxed_conn.is_relayed or remote is None or asked.type != Message.DIAL:
            await _answer(stream, Message.E_DIAL_REFUSED)
            return
        chosen = _dialled(remote[0], list(asked.dial.peer.addrs))
        if not chosen or self._at_once >= MAX_AT_ONCE or not self._has_allowance(remote[0]):
            await _answer(stream, Message.E_DIAL_REFUSED)
            return
        self._at_once += 1
        try:
            reached = await self._try(chosen, libp2p_id(stream.remote_peer))
        finally:
            self._at_once -= 1
        if reached is None:
            await _answer(stream, Message.E_DIAL_ERROR)
        else:
            await _answer(stream, Message.OK, reached.multiaddr().to_bytes())

    def _has_allowance(self, host: str) -> bool:
        network = network_of(host) or host
        before = self._full_at.pop(network, Micros(0))
        full_at = spend(before, micros(trio.current_time()), EACH_US, BURST)
        if len(self._full_at) >= MAX_NETWORKS:
            del self._full_at[next(iter(self._full_at))]
        self._full_at[network] = before if full_at is None else full_at
        return full_at is not None

    async def _try(self, addresses: list[TcpAddress], peer: ID) -> TcpAddress | None:
        reached: list[TcpAddress] = []

        async def dial(address: TcpAddress, others: trio.CancelScope) -> None:
            if await self._dial(address, peer):
                reached.append(address)
                others.cancel()

        with trio.move_on_after(DIAL_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for address in addresses:
                    nursery.start_soon(dial, address, nursery.cancel_scope)
        return reached[0] if reached else None


def _dialled(observed: str, told: list[bytes]) -> list[TcpAddress]:
    """Of what the peer names, that which is where its question came from: a question must not aim us at others."""
    found: dict[TcpAddress, None] = {}
    for data in told[: 4 * MAX_DIALLED]:
        try:
            address = parse_tcp_address(_text_of(data))
            is_same = ip_address(address.host) == ip_address(observed.partition("%")[0])
        except (ConfigError, ValueError):
            continue
        if is_same and address.port:
            found.setdefault(TcpAddress(address.protocol, address.host, address.port, None))
    return list(found)[:MAX_DIALLED]


def _text_of(data: bytes) -> str:
    try:
        return str(Multiaddr(data)) if data else ""
    except (MultiaddrError, ValueError, TypeError):
        return ""


async def _answer(stream: PeerStream, status: "Message.ResponseStatus.ValueType", address: bytes = b"") -> None:
    response = Message.DialResponse(status=status, addr=address)
    with trio.move_on_after(MESSAGE_TIMEOUT_S):
        await send_delimited(stream, Message(type=Message.DIAL_RESPONSE, dialResponse=response))
        await stream.finish()


async def prove_dialable(upgrader: TransportUpgrader, address: TcpAddress, peer: ID) -> bool:
    """Whether the peer itself answers at an address: the handshake proves it, and the connection ends with that."""
    raw: RawConnection | None = None
    try:
        with trio.fail_after(DIAL_TIMEOUT_S):
            raw = RawConnection(TrioTCPStream(await trio.open_tcp_stream(address.host, address.port)), True)
            await upgrader.upgrade_security(raw, True, peer)
    except Exception:  # noqa: BLE001  libp2p lets through whatever handshakes raise; all of it means no
        return False
    finally:
        if raw is not None:
            with shielded_for(1.0):
                await raw.close()
    return True


async def read_observed(stream: PeerStream) -> tuple[str, int] | None:
    """Host and port at which the other end of an identify stream sees us; None if it does not say. ``P2PMeshError``."""
    identify = await receive_delimited(stream, Identify, MAX_IDENTIFY_BYTES)
    try:
        seen = parse_tcp_address(_text_of(identify.observed_addr))
        host = ip_address(seen.host)
    except (ConfigError, ValueError):
        return None  # also for a name: nobody sees a name
    return None if host.is_unspecified or host.is_multicast else (str(host), seen.port)
