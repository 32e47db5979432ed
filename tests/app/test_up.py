"""A start of ``up`` that fails leaves no mesh behind. Starts that succeed are in ``tests/e2e``."""

import socket
from pathlib import Path
from typing import Any

import pytest

from p2pmesh.app.config import UpOptions
from p2pmesh.app.up import run_up
from p2pmesh.base.errors import ErrorCode, P2PMeshError


def code_of(home: Path, **given: Any) -> ErrorCode:
    with pytest.raises(P2PMeshError) as raised:
        run_up(UpOptions(home, **{"port": 0, "console_port": 0, **given}), lambda event: None)
    return raised.value.code


@pytest.mark.parametrize("name", ["nope", "nope.gguf", "./nope", "/nope/nope.gguf"])
def test_a_model_that_is_not_there_founds_no_mesh(tmp_path: Path, name: str) -> None:
    assert code_of(tmp_path, models=(name,)) is ErrorCode.MODEL_NOT_FOUND
    assert not list(tmp_path.glob("mesh.*"))


def test_a_file_that_is_no_model_founds_no_mesh(tmp_path: Path) -> None:
    home, junk = tmp_path / "home", tmp_path / "junk.gguf"
    junk.write_bytes(b"junk" * 100)
    assert code_of(home, models=(str(junk),)) is ErrorCode.GGUF_NOT_GGUF
    assert not list(home.glob("mesh.*"))
    assert not (home / "node.key").exists()


def test_a_taken_port_founds_no_mesh_and_drafts_of_a_killed_start_are_gone(tmp_path: Path) -> None:
    draft = tmp_path / ".mesh.invites.abcdefgh"
    draft.write_bytes(b"half")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert code_of(tmp_path, console_port=taken.getsockname()[1]) is ErrorCode.PORT_IN_USE
    assert not list(tmp_path.glob("mesh.*"))
    assert not draft.exists()


def test_an_invite_that_cannot_be_read_makes_no_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert code_of(home, invite="p2pmesh2-mistyped") is ErrorCode.INVITE_MALFORMED
    assert not home.exists()


def test_an_owner_key_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    assert code_of(tmp_path, owner_key=str(tmp_path / "none")) is ErrorCode.OWNER_KEY_MISSING
    assert code_of(tmp_path, passphrase_file=str(tmp_path / "none")) is ErrorCode.CONFIG_INVALID
    assert not list(tmp_path.glob("mesh.*"))
