"""The hello of a peer that is not a node, for tests that come as one."""

from p2pmesh.adapters.identity import NodeIdentity
from p2pmesh.adapters.p2p.host import Libp2pNetwork
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import CONTROL_PROTOCOL, PROTOCOL_GENERATION
from p2pmesh.node.channels import MessageStream
from p2pmesh.wire.announcement import Announcement, encode_announcement
from p2pmesh.wire.messages.admission import Hello, Welcome

TIMEOUT_S = 10


async def say_hello(network: Libp2pNetwork, identity: NodeIdentity, peer: PeerId, mesh_id: str, invite: str) -> None:
    """Over the connection that stands; raises why it was refused."""
    said = Announcement(
        peer_id=identity.peer_id, mesh_id=mesh_id, name="stranger", version="0", incarnation=1, sequence=1,
        expires_unix_ms=2**52, addresses=network.addresses(), memory_bytes=0, free_bytes=0, models=(),
    )  # fmt: skip
    stream = MessageStream(await network.open_stream(peer, CONTROL_PROTOCOL, TIMEOUT_S))
    announcement = encode_announcement(said, identity.public_key, identity.sign)
    await stream.send(Hello(PROTOCOL_GENERATION, mesh_id, invite, (), announcement))
    await stream.expect(Welcome, TIMEOUT_S)
    await stream.reset()
