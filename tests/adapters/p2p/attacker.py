"""Stock py-libp2p hosts that behave well or badly towards ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from libp2p import new_host
from libp2p.abc import IHost, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol, TSecurityOptions
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from p2pmesh.ports.network import Network

LOOPBACK = Multiaddr("/ip4/127.0.0.1/tcp/0")


@asynccontextmanager
async def stock_host(security: TSecurityOptions | None = None, keys: KeyPair | None = None) -> AsyncIterator[IHost]:
    """A host as py-libp2p makes it, on noise unless told otherwise."""
    keys = keys or create_new_key_pair()
    noise = Noise(keys, noise_privkey=create_noise_key_pair().private_key)
    host = new_host(
        key_pair=keys,
        sec_opt=security or {TProtocol(NOISE): noise},
        muxer_opt={TProtocol(YAMUX): Yamux},
        listen_addrs=[LOOPBACK],
    )
    async with host.run([LOOPBACK]):
        await swarm_of(host).auto_connector.stop()
        try:
            yield host
        finally:
            # Stopping a stock host leaves its connections open.
            with trio.CancelScope(shield=True):
                for connection in swarm_of(host).get_connections():
                    await connection.close()


def swarm_of(host: IHost) -> Swarm:
    """The host's swarm, by its class."""
    network = host.get_network()
    assert isinstance(network, Swarm)
    return network


async def dial(host: IHost, node: Network) -> None:
    """Connects a stock host to a node of ours."""
    address = Multiaddr(node.addresses()[0].partition("/p2p/")[0])
    await swarm_of(host).dial_addr(address, ID.from_base58(node.peer_id))


async def open_stream(host: IHost, node: Network, protocol_id: str) -> INetStream:
    """A stream from a stock host to a node of ours."""
    return await host.new_stream(ID.from_base58(node.peer_id), [TProtocol(protocol_id)])
