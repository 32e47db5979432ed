"""The node's key."""

from typing import Protocol

from p2pmesh.base.ids import PeerId


class Identity(Protocol):
    """Ed25519 key of this node; the same one libp2p authenticates connections with."""

    @property
    def peer_id(self) -> PeerId:
        """Our peer id."""

    @property
    def public_key(self) -> bytes:
        """32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""


class Verifier(Protocol):
    """Checks signatures of others."""

    def is_signature_of(self, public_key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether ``signature`` is that of ``message``; false for a malformed key too."""

    def peer_id_of(self, public_key: bytes) -> PeerId:
        """The libp2p peer id of an Ed25519 public key of 32 bytes."""
