"""``p2pmesh key`` from arguments to what is printed."""

import json
from pathlib import Path

import pytest

from p2pmesh.cli.main import main


def test_the_life_of_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = str(tmp_path)
    assert main(["key", "list", "--home", home]) == 0
    assert "any API key is accepted" in capsys.readouterr().out
    assert main(["key", "create", "--home", home, "--name", "laptop", "--per-minute", "60", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["key", "create", "--home", home]) == 0
    assert "p2pmesh-sk-" in capsys.readouterr().out
    assert main(["key", "list", "--home", home]) == 0
    listed = capsys.readouterr().out
    assert "laptop" in listed
    assert made["key"] not in listed
    assert main(["key", "revoke", made["id"], "--home", home]) == 0
    assert main(["key", "revoke", made["id"], "--home", home]) == 2
    capsys.readouterr()
    assert main(["key", "allow-any", "--home", home]) == 0
    assert "any API key" in capsys.readouterr().out
