"""Identifiers that cross module and process boundaries.

Owns their shapes and checks. Creation of random ones needs entropy and lives behind ``ports.clock``.
"""

import hashlib
import itertools
import re
from dataclasses import dataclass
from typing import NewType

PeerId = NewType("PeerId", str)
"""libp2p peer id, base58btc text (``12D3Koo…`` for Ed25519)."""

MeshId = NewType("MeshId", str)
"""32 lower-case hex digits; the hash of the mesh's requirements, the founder's key among them."""

RequestId = NewType("RequestId", bytes)
"""128 random bits, one per request; the ``sequence`` beside it numbers the choices of that request."""

RunId = NewType("RunId", bytes)
"""128 random bits, one per placement that was put into effect."""

Digest = NewType("Digest", str)
"""sha256 of a file's bytes, 64 lower-case hex digits."""

OwnerId = NewType("OwnerId", str)
"""sha256 of an owner's Ed25519 public key, 64 lower-case hex digits."""

ID_BYTES = 16

_PEER_ID = re.compile(r"[1-9A-HJ-NP-Za-km-z]{32,128}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_MESH_ID = re.compile(r"[0-9a-f]{32}\Z")


def is_peer_id(text: str) -> bool:
    """Whether ``text`` has the shape of a base58 peer id (the key inside is not checked here)."""
    return _PEER_ID.match(text) is not None


def is_digest(text: str) -> bool:
    """Whether ``text`` is 64 lower-case hex digits."""
    return _DIGEST.match(text) is not None


def is_mesh_id(text: str) -> bool:
    """Whether ``text`` is 32 lower-case hex digits."""
    return _MESH_ID.match(text) is not None


def mesh_id_of_requirements(encoded: bytes) -> MeshId:
    """The name of the mesh whose requirements have these canonical bytes (``wire.requirements``)."""
    return MeshId(hashlib.sha256(b"p2pmesh-mesh-id-v2\0" + encoded).hexdigest()[:32])


def is_owner_id(text: str) -> bool:
    """Whether ``text`` has the shape of an owner id."""
    return is_digest(text)


def owner_id_of_key(public_key: bytes) -> OwnerId:
    """The owner id of an Ed25519 public key (32 bytes)."""
    return OwnerId(hashlib.sha256(public_key).hexdigest())


@dataclass(frozen=True, slots=True, order=True)
class LayerRange:
    """Layers ``[start, end)`` of a model, counted over the whole model; never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"layer range [{self.start}, {self.end}) is empty or negative")

    def __len__(self) -> int:
        return self.end - self.start

    def is_first(self) -> bool:
        """Whether the range takes token ids rather than activations."""
        return self.start == 0

    def is_last(self, layer_count: int) -> bool:
        """Whether the range ends at the output head of a model of ``layer_count`` layers."""
        return self.end == layer_count

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


def ranges_tile(ranges: tuple[LayerRange, ...], layer_count: int) -> bool:
    """Whether the ranges, in order, cover layers ``[0, layer_count)`` once each."""
    if not ranges or ranges[0].start != 0 or ranges[-1].end != layer_count:
        return False
    return all(a.end == b.start for a, b in itertools.pairwise(ranges))
