"""``p2pmesh invite`` and ``p2pmesh peer``: the founder's invites and members.

A running node is asked through its console, since it alone may change its ledger; otherwise the home's files are
changed while the home is held. A home may have founded a private mesh and a public pool: what is not running is
about the one whose ledger knows what is asked about, and of both about the private one.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pmesh.adapters.credential_files import load_ledger, load_requirements, save_ledger
from p2pmesh.adapters.home_lock import hold_home
from p2pmesh.adapters.identity import Ed25519Verifier, NodeIdentity, load_or_create_identity
from p2pmesh.app.claims import now_unix_ms
from p2pmesh.app.client import ask_console
from p2pmesh.app.run_file import is_node_running
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused
from p2pmesh.base.ids import ID_BYTES, PeerId
from p2pmesh.core import invite_ledger
from p2pmesh.core.invite_ledger import InviteLedger
from p2pmesh.wire.invite import PREFIX, Invite, decode_invite, encode_invite
from p2pmesh.wire.requirements import MeshRequirements
from p2pmesh.wire.schema import to_map

Change = Callable[[InviteLedger], InviteLedger]
Knows = Callable[[InviteLedger], bool]


def create_invite(home: Path, life_s: int, max_uses: int) -> dict[str, Any]:
    """A new invite: ``invite``, the line; ``id``, ``expires_unix_ms``, ``max_uses``, ``addresses``; maybe ``note``."""
    if is_node_running(home):
        return ask_console(home, "POST", "/api/invites", {"life_s": life_s, "max_uses": max_uses})
    _founder_of(home)  # before the home is held, which would make the directory of a mistyped name
    with hold_home(home):
        founder = _founder_of(home)
        is_public = founder.requirements.is_public
        ledger = load_ledger(home, is_public=is_public)
        if not ledger.addresses:
            text = f"the node of {home} has not run yet, so its addresses are unknown; start it with p2pmesh up"
            raise ConfigError(ErrorCode.NODE_NOT_RUNNING, text)
        now = now_unix_ms()
        expires = now + life_s * 1000
        invite = Invite(os.urandom(ID_BYTES), founder.requirements, now, expires, ledger.addresses, max_uses=max_uses)
        save_ledger(home, invite_ledger.issue(ledger, invite, now), is_public=is_public)
        made = describe_new(invite, encode_invite(invite, founder.identity.public_key, founder.identity.sign))
        note = f"no node runs here; it works once p2pmesh up runs in {home} again, with the --listen that it had"
        return {**made, "note": note}


def list_invites(home: Path) -> dict[str, Any]:
    """Every invite that still matters, by id, and the peers that were removed."""
    if is_node_running(home):
        return ask_console(home, "GET", "/api/invites")
    _founder_of(home)
    now = now_unix_ms()
    pruned = (invite_ledger.prune(load_ledger(home, is_public=kind), now) for kind in (False, True))
    mesh, pool = (invite_ledger.describe_ledger(ledger, now) for ledger in pruned)
    return {name: mesh[name] + pool[name] for name in mesh}


def revoke_invite(home: Path, invite: str, *, is_expelling: bool) -> dict[str, Any]:
    """Revokes an invite, given by its id or as the line itself."""
    invite_id = _decode(invite).invite_id.hex() if invite.strip().startswith(PREFIX) else invite.strip().lower()
    if is_node_running(home):
        return ask_console(home, "POST", "/api/invites/revoke", {"id": invite_id, "expel": is_expelling})

    def change(ledger: InviteLedger) -> InviteLedger:
        return invite_ledger.revoke(ledger, invite_id, now_unix_ms(), is_expelling=is_expelling)

    _change(home, change, lambda ledger: ledger.find(invite_id) is not None)
    return {"id": invite_id, "state": "expelled" if is_expelling else "revoked"}


def remove_peer(home: Path, peer: PeerId, *, is_forced: bool = False) -> dict[str, Any]:
    """Puts a member out; one that left no trace here only with ``is_forced``."""
    if is_node_running(home):
        return ask_console(home, "POST", "/api/peers/remove", {"peer_id": peer, "force": is_forced})
    if _founder_of(home).identity.peer_id == peer:
        raise Refused(ErrorCode.REQUEST_INVALID, "the founder cannot be removed from its own mesh")

    def change(ledger: InviteLedger) -> InviteLedger:
        invite_ledger.check_known(peer, is_known=is_forced or invite_ledger.knows(ledger, peer))
        return invite_ledger.remove_peer(ledger, peer, now_unix_ms())

    _change(home, change, lambda ledger: invite_ledger.knows(ledger, peer))
    return {"peer_id": peer, "state": "removed", "invites": []}


def readmit_peer(home: Path, peer: PeerId) -> dict[str, Any]:
    """Lets a removed member in again."""
    if is_node_running(home):
        return ask_console(home, "POST", "/api/peers/readmit", {"peer_id": peer})
    _change(
        home,
        lambda ledger: invite_ledger.readmit_peer(ledger, peer, now_unix_ms()),
        lambda ledger: peer in {entry.peer_id for entry in ledger.removed},
    )
    return {"peer_id": peer, "state": "readmitted"}


def forgive_peer(home: Path, peer: PeerId) -> dict[str, Any]:
    """Forgets what a peer did to the running node, and ends its ban; a node that does not run holds nothing against it.

    ``was_banned`` says whether there was a ban. ``ConfigError(NODE_NOT_RUNNING)``.
    """
    return ask_console(home, "POST", "/api/peers/forgive", {"peer_id": peer})


def show_invite(text: str) -> dict[str, Any]:
    """What an invite says. Its signature is checked, its time is only told."""
    invite = _decode(text)
    verifier = Ed25519Verifier()
    requirements = to_map(invite.requirements)
    del requirements["founder_key"]
    founder = verifier.peer_id_of(invite.requirements.founder_key)
    return {
        "id": invite.invite_id.hex(),
        "mesh_id": invite.mesh_id,
        "founder": founder,
        "expires_unix_ms": invite.expires_unix_ms,
        "is_expired": now_unix_ms() > invite.expires_unix_ms,
        "max_uses": invite.max_uses,
        "requirements": requirements,
        "peers": [{"peer_id": peer, "addresses": list(found)} for peer, found in invite.peers(founder)],
    }


def describe_new(invite: Invite, line: str) -> dict[str, Any]:
    """The answer to ``create``."""
    return {
        "invite": line,
        "id": invite.invite_id.hex(),
        "expires_unix_ms": invite.expires_unix_ms,
        "max_uses": invite.max_uses,
        "addresses": list(invite.addresses),
    }


@dataclass(frozen=True, slots=True)
class _Founder:
    """Who may sign for a mesh."""

    identity: NodeIdentity
    requirements: MeshRequirements


def _founder_of(home: Path, *, is_pool: bool = False) -> _Founder:
    requirements = None if is_pool else load_requirements(home)
    requirements = requirements or load_requirements(home, is_public=True)
    if requirements is None:
        text = f"{home} founded no mesh; only a founder's home makes and revokes invites"
        raise ConfigError(ErrorCode.CONFIG_INVALID, text)
    identity = load_or_create_identity(home)
    if identity.public_key != requirements.founder_key:
        text = f"the mesh of {home} was founded with another node key, which alone can sign for it; restore node.key"
        raise ConfigError(ErrorCode.CONFIG_INVALID, text)
    return _Founder(identity, requirements)


def _change(home: Path, change: Change, knows: Knows) -> None:
    _founder_of(home)
    with hold_home(home):
        is_public = _founder_of(home, is_pool=_is_about_pool(home, knows)).requirements.is_public
        save_ledger(home, change(load_ledger(home, is_public=is_public)), is_public=is_public)


def _is_about_pool(home: Path, knows: Knows) -> bool:
    """Whether the ledger of the home's public pool alone knows what is asked about."""
    return not knows(load_ledger(home)) and knows(load_ledger(home, is_public=True))


def _decode(text: str) -> Invite:
    return decode_invite(text, Ed25519Verifier().is_signature_of)
