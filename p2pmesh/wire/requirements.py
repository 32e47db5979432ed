"""What a mesh demands of its members: fixed by its founder for ever, since the hash of it is the mesh id.

Owns the bytes and the hash. Whether a peer meets them, and whether they make sense, is ``core.credentials``'.
"""

from dataclasses import dataclass

from p2pmesh.base.ids import MeshId, OwnerId, is_owner_id, mesh_id_of_requirements
from p2pmesh.base.limits import MAX_LISTING_NAME_BYTES, MAX_MESH_OWNERS, MAX_VERSION_BYTES, PROTOCOL_GENERATION
from p2pmesh.wire.schema import Boolean, Bytes, Integer, ListOf, Text, checked_map, declared, is_line, pack
from p2pmesh.wire.signed import PUBLIC_KEY_BYTES

_GENERATION = Integer(0, 2**16)
_VERSION = Text(MAX_VERSION_BYTES, is_line)


@dataclass(frozen=True, slots=True)
class MeshRequirements:
    """The founder's key and its terms. An empty version is no bound, ``owners`` empty admits any owner.

    ``is_public``: a pool that strangers find in listings, so members may list it and invite into it. ``pool_name`` is
    what it is listed as, empty for a pool that anybody may join unasked.
    """

    founder_key: bytes = declared(Bytes(PUBLIC_KEY_BYTES, PUBLIC_KEY_BYTES))
    generation_min: int = declared(_GENERATION, PROTOCOL_GENERATION)
    generation_max: int = declared(_GENERATION, PROTOCOL_GENERATION)
    version_min: str = declared(_VERSION, "")
    version_max: str = declared(_VERSION, "")
    requires_owner: bool = declared(Boolean(), False)
    owners: tuple[OwnerId, ...] = declared(ListOf(Text(64, is_owner_id), MAX_MESH_OWNERS), ())
    is_public: bool = declared(Boolean(), False)
    pool_name: str = declared(Text(MAX_LISTING_NAME_BYTES, is_line), "")


def encode_requirements(requirements: MeshRequirements) -> bytes:
    """The canonical bytes: every field, in the order of declaration."""
    return pack(checked_map(requirements))


def mesh_id_of(requirements: MeshRequirements) -> MeshId:
    """The mesh that has these requirements, and no others."""
    return mesh_id_of_requirements(encode_requirements(requirements))
