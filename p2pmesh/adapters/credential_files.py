"""The files of a home that say which mesh it founded and which it joined: mode 0600, replaced whole.

``mesh.founded`` holds the requirements of the home's own mesh, ``mesh.invites`` its ledger; ``pool.founded`` and
``pool.invites`` those of the public pool that it founded; ``memberships/<mesh id>`` what is kept of a mesh that was
joined: each one msgpack map of a declared record. A damaged file is an error that names
it, never an empty record: that would let used invites work again, or found another mesh.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import trio

from p2pmesh.adapters.private_files import read_private, write_private
from p2pmesh.base.errors import ConfigError, ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import MeshId, is_mesh_id
from p2pmesh.base.quantities import MIB
from p2pmesh.core.invite_ledger import InviteLedger
from p2pmesh.core.standing import Membership
from p2pmesh.wire.requirements import MeshRequirements
from p2pmesh.wire.schema import checked_map, from_map, pack, unpack

REQUIREMENTS_FILE = "mesh.founded"
LEDGER_FILE = "mesh.invites"
POOL_REQUIREMENTS_FILE = "pool.founded"
POOL_LEDGER_FILE = "pool.invites"
MEMBERSHIPS_FOLDER = "memberships"
MAX_FILE_BYTES = 2 * MIB
MAX_MEMBERSHIPS_READ = 256

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class HomeCredentials:
    """Implements ``ports.credentials.CredentialStore`` in one home; a founder's ledger is that of its mesh's kind."""

    home: Path
    is_public: bool = False

    async def save_ledger(self, ledger: InviteLedger) -> None:
        """See the port."""
        await trio.to_thread.run_sync(lambda: save_ledger(self.home, ledger, is_public=self.is_public))

    async def save_membership(self, membership: Membership) -> None:
        """See the port."""
        await trio.to_thread.run_sync(save_membership, self.home, membership)


def load_requirements(home: Path, *, is_public: bool = False) -> MeshRequirements | None:
    """The requirements of the mesh, or the public pool, that this home founded, if it has."""
    return _load(
        home / (POOL_REQUIREMENTS_FILE if is_public else REQUIREMENTS_FILE),
        MeshRequirements,
        "the next start founds another mesh without",
    )


def save_requirements(home: Path, requirements: MeshRequirements) -> None:
    """Fixes what this home's mesh of that kind requires."""
    _save(home / (POOL_REQUIREMENTS_FILE if requirements.is_public else REQUIREMENTS_FILE), requirements)


def load_ledger(home: Path, *, is_public: bool = False) -> InviteLedger:
    """The founder's ledger; an empty one if there is no file."""
    return _load(home / _ledger_file(is_public), InviteLedger, "counted invites are refused without") or InviteLedger()


def save_ledger(home: Path, ledger: InviteLedger, *, is_public: bool = False) -> None:
    """Replaces the founder's ledger."""
    _save(home / _ledger_file(is_public), ledger)


def load_membership(home: Path, mesh_id: MeshId) -> Membership | None:
    """What is kept of a mesh that this home joined, if it did."""
    return _load(home / MEMBERSHIPS_FOLDER / mesh_id, Membership, "an invite is needed again without")


def load_newest_membership(home: Path) -> Membership | None:
    """That of the mesh which this home joined, or renewed its pass of, last."""
    try:
        names = sorted(path.name for path in (home / MEMBERSHIPS_FOLDER).iterdir() if is_mesh_id(path.name))
    except OSError:
        return None
    found = [load_membership(home, MeshId(name)) for name in names[:MAX_MEMBERSHIPS_READ]]
    return max((one for one in found if one is not None), key=lambda one: one.saved_unix_ms, default=None)


def save_membership(home: Path, membership: Membership) -> None:
    """Replaces what is kept of one mesh."""
    _save(home / MEMBERSHIPS_FOLDER / membership.mesh_id, membership)


def _ledger_file(is_public: bool) -> str:
    return POOL_LEDGER_FILE if is_public else LEDGER_FILE


def _load(path: Path, cls: type[R], consequence: str) -> R | None:
    data = read_private(path, MAX_FILE_BYTES)
    if data is None:
        return None
    try:
        return from_map(cls, unpack(data, path.name), path.name)
    except RemoteProtocolError as error:
        message = f"{path} is damaged ({error.message}); restore it from a backup, or move it away: {consequence} it"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message) from None


def _save(path: Path, record: Any) -> None:
    write_private(path, pack(checked_map(record)))
