"""Private files: whole, durable, bounded, and nobody else's to read."""

import os
import time
from pathlib import Path

import pytest

from p2pmesh.adapters.owner_keystore import KdfCost, OwnerKey, save_owner_key
from p2pmesh.adapters.private_files import read_private, remove_drafts, remove_private, write_private
from p2pmesh.base.errors import ConfigError, ErrorCode


def refusal(path: Path, max_bytes: int = 100) -> str:
    with pytest.raises(ConfigError) as error:
        read_private(path, max_bytes)
    assert error.value.code is ErrorCode.HOME_UNUSABLE
    assert str(path) in error.value.message
    return error.value.message


def test_a_file_is_written_read_and_replaced_with_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "home" / "file"
    write_private(path, b"one")
    write_private(path, b"two")
    assert read_private(path, 3) == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["file"]


def test_no_file_is_none(tmp_path: Path) -> None:
    assert read_private(tmp_path / "none", 1) is None
    remove_private(tmp_path / "none")


def test_a_file_that_others_can_read_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    path.chmod(0o644)
    assert read_private(path, 1) == b"x"
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_too_long_or_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 101)
    assert "100" in refusal(path)
    assert "directory" in refusal(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    assert "regular file" in refusal(tmp_path / "fifo")


def test_a_directory_that_is_a_file_is_refused_and_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError):
        write_private(tmp_path / "file" / "x", b"")
    (tmp_path / "directory").mkdir()
    with pytest.raises(ConfigError):
        write_private(tmp_path / "directory", b"")
    assert sorted(os.listdir(tmp_path)) == ["directory", "file"]


def test_old_drafts_of_certificates_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "certificates" / "wire"
    folder.mkdir(parents=True)
    old, young, whole = (
        folder / name for name in (f".{'a' * 64}.json.abcdefgh", f".{'b' * 64}.json.abcdefgh", "c.json")
    )
    for path in (old, young, whole):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    os.utime(whole, (0, 0))
    remove_drafts(tmp_path)
    assert sorted(folder.iterdir()) == [young, whole]


def test_drafts_of_a_killed_writer_are_removed_and_nothing_else(tmp_path: Path) -> None:
    mesh = "0123456789abcdef" * 2
    drafts = [".node.key.0123456789abcdef", ".node.claim.abcdefgh", ".trust.json.abcdefgh", ".mesh.invites.abcdefgh"]
    drafts += [".pool.invites.abcdefgh", ".listen-port.abcdefgh", ".run.json.abcdefgh", f"memberships/.{mesh}.abcdefgh"]
    kept = ["node.key", ".owner.key.abcdefgh", ".profile", ".node.key.bak", f"memberships/{mesh}"]
    (tmp_path / "memberships").mkdir()
    for name in (*drafts, *kept):
        (tmp_path / name).write_bytes(b"x")
    remove_drafts(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(kept)
    remove_drafts(tmp_path / "none")


def test_old_drafts_of_owners_keys_are_removed(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".owner.key.abcdefgh", tmp_path / ".owner.key.hgfedcba"
    for draft in (old, fresh):
        draft.write_bytes(b"half")
    hours_ago = time.time() - 2 * 3600
    os.utime(old, (hours_ago, hours_ago))
    remove_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [fresh.name]
    os.utime(fresh, (hours_ago, hours_ago))
    save_owner_key(tmp_path / "owner.key", OwnerKey.generate(), "words", cost=KdfCost(memory_kib=8, iterations=1))
    assert [path.name for path in tmp_path.iterdir()] == ["owner.key"]
