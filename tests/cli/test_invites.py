"""``p2pmesh invite`` and ``peer`` from arguments to what is printed."""

import io
import json
from pathlib import Path

import pytest

from p2pmesh.adapters.credential_files import save_ledger, save_requirements
from p2pmesh.adapters.identity import load_or_create_identity
from p2pmesh.cli.main import main
from p2pmesh.cli.qr import fits, print_qr, qr_lines
from p2pmesh.core.invite_ledger import InviteLedger
from p2pmesh.wire.requirements import MeshRequirements
from tests.fakes.identity import fake_identity


@pytest.fixture
def home(tmp_path: Path) -> str:
    """A founder's home whose node has run once."""
    save_requirements(tmp_path, MeshRequirements(load_or_create_identity(tmp_path).public_key))
    save_ledger(tmp_path, InviteLedger(addresses=("/ip4/192.0.2.7/tcp/4001",)))
    return str(tmp_path)


def test_the_life_of_an_invite(home: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["invite", "create", "--home", home, "--expires", "7d", "--uses", "3", "--qr"]) == 0
    printed = capsys.readouterr().out.splitlines()
    line = printed[2].removeprefix("  p2pmesh up --join ")
    assert line.startswith("p2pmesh2-")
    assert "for 3 peers" in printed[0]
    assert len(printed) > 30  # the code
    monkeypatch.setattr("sys.stdin", io.StringIO(line + "\n"))
    assert main(["invite", "show", "-", "--json", "--home", home]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert main(["invite", "list", "--home", home]) == 0
    assert "0 of 3" in capsys.readouterr().out
    assert main(["invite", "revoke", shown["id"], "--home", home]) == 0
    assert "revoked" in capsys.readouterr().out
    assert main(["invite", "show", line, "--home", home]) == 0
    assert "UTC" in capsys.readouterr().out


def test_removing_a_peer(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    bad = fake_identity("bad").peer_id
    assert main(["peer", "remove", bad, "--home", home]) == 60
    assert "--force" in capsys.readouterr().err
    assert main(["peer", "remove", bad, "--force", "--home", home]) == 0
    assert "is out" in capsys.readouterr().out
    assert main(["peer", "readmit", bad, "--home", home]) == 0
    assert "may come in again" in capsys.readouterr().out
    assert main(["peer", "readmit", bad, "--home", home]) == 60
    assert "is not removed" in capsys.readouterr().err
    assert main(["peer", "forgive", bad, "--home", home]) != 0
    assert "p2pmesh up" in capsys.readouterr().err  # no node, no ban


@pytest.mark.parametrize(
    "arguments",
    [
        ["invite"],
        ["invite", "create", "--expires", "soon"],
        ["invite", "create", "--expires", "0h"],
        ["invite", "create", "--uses", "-1"],
        ["invite", "revoke"],
        ["peer", "remove", "0"],
        ["up", "--join", "x", "--rejoin"],
        ["up", "--join", "x", "--join-file", "y"],
    ],
)
def test_what_cannot_be_understood_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().out == ""


def test_a_code_is_square_and_told_apart_from_none() -> None:
    lines = qr_lines("p2pmesh2-" + "A" * 400)
    assert fits(lines, 80)
    assert not fits(lines, 60)
    assert not fits([], 80)
    assert qr_lines("A" * 8000) == []
    out = io.StringIO()
    print_qr("A" * 8000, out)
    assert "too long" in out.getvalue()
