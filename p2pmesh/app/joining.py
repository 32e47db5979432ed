"""How a node comes into a mesh: by an invite, by what its home kept, or by founding one.

Reads the home's records before anything runs and refuses what can never work. What is kept while the node runs goes
through ``adapters.credential_files``.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from p2pmesh import __version__
from p2pmesh.adapters.credential_files import (
    load_ledger,
    load_membership,
    load_newest_membership,
    load_requirements,
    save_requirements,
)
from p2pmesh.adapters.identity import Ed25519Verifier, NodeIdentity
from p2pmesh.app.config import RequirementOptions, UpOptions
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import MeshId
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core.credentials import judge_owner, judge_requirements, judge_version
from p2pmesh.core.ownership import open_claim
from p2pmesh.core.standing import Founding, Membership
from p2pmesh.wire.invite import Invite, check_invite_time, decode_invite
from p2pmesh.wire.listing import Listing
from p2pmesh.wire.requirements import MeshRequirements, mesh_id_of


@dataclass(frozen=True, slots=True)
class Standing:
    """What a node starts with: an invite and what was kept of its mesh, only the latter, or a mesh of its own."""

    invite_text: str | None = None
    membership: Membership | None = None
    founding: Founding | None = None
    is_public: bool = False
    """Whether that mesh is a public pool."""
    ways_in: tuple[str, ...] = ()
    """Of an invite from a listing the addresses that a stranger may make us dial; empty means all."""


def choose_standing(options: UpOptions, identity: NodeIdentity, claim: bytes, now: UnixMillis) -> Standing:
    """What ``up`` starts with; ``P2PMeshError`` for what can never work."""
    standing = _choose(options, identity, claim, now)
    if options.pool.is_publishing and not standing.is_public:
        text = "that mesh is not public, and its founder alone could have made it so: leave --publish away"
        raise ConfigError(ErrorCode.CONFIG_INVALID, text)
    return standing


def standing_in_pool(home: Path, listing: Listing, identity: NodeIdentity) -> Standing | None:
    """What a node starts with that found a pool by its listing, the pool that it founded itself included.

    None where it has a founder's part in that pool, and the home has no record of it.
    """
    invite = listing.invite
    if invite.requirements.founder_key != identity.public_key:
        text, kept = listing.content.invite_token, load_membership(home, invite.mesh_id)
        return Standing(text, kept, is_public=True, ways_in=listing.addresses)
    if load_requirements(home, is_public=True) != invite.requirements:
        return None
    return Standing(founding=Founding(invite.requirements, load_ledger(home, is_public=True)), is_public=True)


def last_pool(home: Path) -> MeshId | None:
    """The public pool that this home was in last, if the last mesh that it joined was one."""
    kept = load_newest_membership(home)
    return kept.mesh_id if kept is not None and kept.requirements.is_public else None


def _choose(options: UpOptions, identity: NodeIdentity, claim: bytes, now: UnixMillis) -> Standing:
    if options.invite is not None:
        return _by_invite(options.home, options.invite, identity, now)
    if options.is_rejoining:
        membership = load_newest_membership(options.home)
        if membership is None:
            text = f"no mesh was joined from {options.home} before; give an invite with --join"
            raise ConfigError(ErrorCode.INVITE_MISSING, text)
        return Standing(membership=membership, is_public=membership.requirements.is_public)
    founding = _found(options, identity, claim, now)
    return Standing(founding=founding, is_public=founding.requirements.is_public)


def read_invite(text: str) -> Invite:
    """What an invite says, of whichever mesh and time; ``P2PMeshError`` for what lets nobody in."""
    invite = decode_invite(text, Ed25519Verifier().is_signature_of)
    refusal = judge_requirements(invite.requirements)
    if refusal is not None:
        raise ConfigError(refusal.code, refusal.message)
    return invite


def _by_invite(home: Path, text: str, identity: NodeIdentity, now: UnixMillis) -> Standing:
    invite = read_invite(text)
    if invite.requirements.founder_key == identity.public_key:
        text = "this home founded the mesh of that invite: leave --join away here, and join from another home"
        raise ConfigError(ErrorCode.CONFIG_INVALID, text)
    membership = load_membership(home, invite.mesh_id)
    if membership is None:
        check_invite_time(invite, now)
    return Standing(text, membership, is_public=invite.requirements.is_public)


def _found(options: UpOptions, identity: NodeIdentity, claim: bytes, now: UnixMillis) -> Founding:
    is_public = options.pool.is_publishing
    kept = load_requirements(options.home, is_public=is_public)
    if kept is not None and kept.founder_key != identity.public_key:
        text = (
            f"the mesh of {options.home} was founded with another node key; move mesh.founded away to found a new one"
        )
        raise ConfigError(ErrorCode.CONFIG_INVALID, text)
    name = options.pool.name if is_public else ""
    wanted = replace(
        wanted_requirements(options.requirements, identity.public_key), is_public=is_public, pool_name=name
    )
    if kept is not None and (name or not options.requirements.is_empty) and wanted != kept:
        text = f"other requirements are another mesh than {mesh_id_of(kept)}, which {options.home} founded"
        raise ConfigError(
            ErrorCode.CONFIG_INVALID, f"{text}: leave them away, or found one in a home of its own (--home)"
        )
    requirements = kept or wanted
    opened = open_claim(claim, Ed25519Verifier().is_signature_of)
    own = judge_owner(opened, identity.peer_id, requirements, now, is_founder=True)
    refusal = judge_requirements(requirements)
    if refusal is None and judge_version(__version__, requirements) is not None:
        text = f"this p2pmesh is {__version__}, so it would shut itself out of this mesh: found one that takes it in"
        raise ConfigError(ErrorCode.VERSION_UNSUPPORTED, text)
    refusal = refusal or own
    if refusal is not None:
        raise ConfigError(refusal.code, refusal.message)
    if kept is None:
        save_requirements(options.home, requirements)
    return Founding(requirements, load_ledger(options.home, is_public=is_public))


def wanted_requirements(options: RequirementOptions, founder_key: bytes) -> MeshRequirements:
    """The requirements that flags describe."""
    return MeshRequirements(
        founder_key,
        version_min=options.version_min or "",
        version_max=options.version_max or "",
        requires_owner=options.requires_owner or bool(options.owners),
        owners=tuple(sorted(set(options.owners))),
    )
