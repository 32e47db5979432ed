"""``p2pmesh package`` as a person runs it."""

import json
from pathlib import Path

import pytest

from p2pmesh.base.errors import ErrorCode
from p2pmesh.cli.exit_codes import EXIT_CODES, OK
from p2pmesh.cli.main import main
from p2pmesh.model.gguf import read_index
from tests.fakes.memory_source import MemorySource
from tests.fakes.split_gguf import split_gguf, write_parts
from tests.fakes.tiny_gguf import tiny_llama


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("P2PMESH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("P2PMESH_OWNER_PASSPHRASE", "words of an owner")
    (tmp_path / "tiny.gguf").write_bytes(tiny_llama())
    return tmp_path


def facts(capsys: pytest.CaptureFixture[str], *arguments: str, exits: int = OK) -> dict[str, object]:
    assert main(["package", *arguments, "--json"]) == exits
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_a_package_is_built_shown_and_verified(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = str(home / "tiny.gguf"), str(home / "out")
    built = facts(capsys, "build", model, out)
    assert (built["model_id"], built["layer_count"], built["signature"]) == ("tiny", 4, "unsigned")
    shown = facts(capsys, "show", out)
    assert shown["package_id"] == built["package_id"]
    assert isinstance(shown["layers"], list)
    assert len(shown["layers"]) == 4
    verified = facts(capsys, "verify", out)
    assert (verified["is_valid"], verified["signature"], verified["violations"]) == (True, "unsigned", [])


def test_a_model_in_parts_has_the_package_of_the_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = facts(capsys, "build", str(home / "tiny.gguf"), str(home / "one"))
    tensors = len(read_index(MemorySource(tiny_llama())).tensors)
    (first, *_) = write_parts(home, "parts", split_gguf(tiny_llama(), (0, 5, tensors - 5)))
    parts = facts(capsys, "build", str(first), str(home / "two"))
    assert parts["package_id"] == whole["package_id"]
    assert facts(capsys, "verify", str(home / "two"))["is_valid"] is True


def test_an_owner_signs_a_package(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = str(home / "tiny.gguf"), str(home / "out")
    assert main(["package", "build", model, out, "--sign"]) == EXIT_CODES[ErrorCode.OWNER_KEY_MISSING]
    assert not Path(out).exists()
    assert main(["auth", "init", "--json"]) == OK
    owner = json.loads(capsys.readouterr().out)["owner_id"]
    assert facts(capsys, "build", model, out, "--sign")["signature"] == "signed"
    verified = facts(capsys, "verify", out)
    assert (verified["is_valid"], verified["signature"], verified["owner_id"]) == (True, "signed", owner)
    assert facts(capsys, "show", out)["owner_id"] == owner


def test_broken_rules_are_listed_and_have_an_exit_code(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = home / "out"
    facts(capsys, "build", str(home / "tiny.gguf"), str(out))
    (out / "layers" / "layer-00002.gguf").unlink()
    code = EXIT_CODES[ErrorCode.PACKAGE_INVALID]
    verified = facts(capsys, "verify", str(out), exits=code)
    assert verified["is_valid"] is False
    assert [found["code"] for found in verified["violations"]] == ["artifact_missing"] + ["tensor_missing"] * 9
    (out / "model-package.json").write_bytes(b"{}")
    assert main(["package", "show", str(out)]) == code
    assert facts(capsys, "verify", str(home / "nothing"), exits=code)["is_valid"] is False


def test_what_is_there_is_not_written_over(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["package", "build", str(home / "tiny.gguf"), str(home)]) == EXIT_CODES[ErrorCode.CONFIG_INVALID]
    assert "is there already" in capsys.readouterr().err
