"""The files of a home that say which mesh it founded and which it joined."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from p2pmesh.adapters import credential_files as files
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.core.invite_ledger import InviteLedger, IssuedInvite, RemovedPeer
from p2pmesh.core.standing import Membership
from p2pmesh.wire.requirements import MeshRequirements
from tests.wire.keys import FOUNDER, JOINER, STRANGER

LEDGER = InviteLedger(
    7,
    (IssuedInvite("ab" * 16, 1, 2, 3, 1, (JOINER.peer_id,), 5, True),),
    (RemovedPeer(STRANGER.peer_id, 9),),
    ("/ip4/192.0.2.7/tcp/1",),
)
MEMBERSHIP = Membership(FOUNDER.requirements, (f"/ip4/192.0.2.7/tcp/1/p2p/{FOUNDER.peer_id}",), (b"pass",), b"r", 5)


def modes_of(home: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*") if path.is_file()}


async def test_what_is_saved_is_read_again_by_the_next_run(tmp_path: Path) -> None:
    store = files.HomeCredentials(tmp_path)
    await store.save_ledger(LEDGER)
    await store.save_membership(MEMBERSHIP)
    files.save_requirements(tmp_path, FOUNDER.requirements)
    assert files.load_ledger(tmp_path) == LEDGER
    assert files.load_membership(tmp_path, MEMBERSHIP.mesh_id) == MEMBERSHIP
    assert files.load_requirements(tmp_path) == FOUNDER.requirements
    assert modes_of(tmp_path) == {0o600}


def test_a_fresh_home_knows_nothing(tmp_path: Path) -> None:
    assert files.load_requirements(tmp_path) is None
    assert files.load_ledger(tmp_path) == InviteLedger()
    assert files.load_membership(tmp_path, FOUNDER.mesh_id) is None
    assert files.load_newest_membership(tmp_path) is None


def test_the_newest_mesh_of_several_is_the_one_to_rejoin(tmp_path: Path) -> None:
    other = replace(MEMBERSHIP, requirements=MeshRequirements(STRANGER.public_key), saved_unix_ms=9)
    files.save_membership(tmp_path, MEMBERSHIP)
    files.save_membership(tmp_path, other)
    (tmp_path / files.MEMBERSHIPS_FOLDER / "notes.txt").write_text("not a mesh")
    assert files.load_newest_membership(tmp_path) == other


def load_all(home: Path) -> None:
    files.load_requirements(home)
    files.load_ledger(home)
    files.load_membership(home, FOUNDER.mesh_id)


@pytest.mark.parametrize("name", [files.REQUIREMENTS_FILE, files.LEDGER_FILE, f"memberships/{FOUNDER.mesh_id}"])
@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x80", b"\xdf\xff\xff\xff\xff"])
def test_a_damaged_file_is_never_taken_for_an_empty_one(tmp_path: Path, name: str, damage: bytes) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(damage)
    if (name, damage) == (files.LEDGER_FILE, b"\x80"):
        assert files.load_ledger(tmp_path) == InviteLedger()  # a whole record in which everything has its default
        return
    with pytest.raises(ConfigError, match=path.name) as raised:
        load_all(tmp_path)
    assert raised.value.code is ErrorCode.HOME_UNUSABLE
    assert "\n" not in raised.value.message


def test_the_largest_ledger_can_be_read_again(tmp_path: Path) -> None:
    invites = tuple(
        IssuedInvite(f"{number:032x}", 1, 2, 1024, 1024, (JOINER.peer_id,) * (1024 if number < 8 else 0))
        for number in range(512)
    )
    largest = InviteLedger(1, invites, (RemovedPeer(JOINER.peer_id, 1),) * 512)
    files.save_ledger(tmp_path, largest)
    assert files.load_ledger(tmp_path) == largest
