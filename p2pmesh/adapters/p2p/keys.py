"""libp2p's key objects and peer ids from ours."""

from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.peer.id import ID

from p2pmesh.adapters.identity import NodeIdentity
from p2pmesh.base.errors import ErrorCode, PeerUnavailable
from p2pmesh.base.ids import PeerId, is_peer_id


def libp2p_key_pair(identity: NodeIdentity) -> KeyPair:
    """The same key, as libp2p signs handshakes with it."""
    return create_new_key_pair(identity.private_seed)


def libp2p_id(peer: PeerId) -> ID:
    """A peer id as libp2p holds it; ``PeerUnavailable(PEER_UNREACHABLE)`` if it is not one."""
    if not is_peer_id(peer):
        raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, f"{peer[:80]!r} is not a peer id")
    return ID.from_base58(peer)


def peer_id_of(peer: ID) -> PeerId:
    """A libp2p peer id as we write it."""
    return PeerId(peer.to_base58())
