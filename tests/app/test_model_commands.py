import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from p2pmesh.adapters import hub
from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app.model_commands import ModelsOptions, search_hub, show_model
from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.cli.exit_codes import EXIT_CODES
from p2pmesh.cli.main import main


def test_a_model_is_shown_with_its_facts(tmp_path: Path) -> None:
    facts = show_model(ModelsOptions(tmp_path), DEMO_MODEL)
    assert (facts["name"], facts["architecture"], facts["layer_count"]) == (DEMO_MODEL, "llama", 30)
    assert facts["size_bytes"] == Path(facts["path"]).stat().st_size
    assert len(facts["digest"]) == 64


def a_directory(path: Path) -> None:
    path.mkdir()


def other_bytes(path: Path) -> None:
    path.write_bytes(b"MZ" * 100)


def a_few_bytes(path: Path) -> None:
    path.write_bytes(b"GGUF\x03\x00")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: None, ErrorCode.MODEL_NOT_FOUND),
        (a_directory, ErrorCode.MODEL_NOT_A_FILE),
        (other_bytes, ErrorCode.GGUF_NOT_GGUF),
        (a_few_bytes, ErrorCode.GGUF_TRUNCATED),
    ],
)
def test_a_bad_file_is_one_line_and_its_own_code(
    make: Callable[[Path], None], code: ErrorCode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.gguf"
    make(path)
    assert main(["models", "show", str(path), "--home", str(tmp_path / "home")]) == EXIT_CODES[code]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("p2pmesh: ")


def test_whoever_searches_hears_what_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SEARCH_DEADLINE_S", 0.5)
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(P2PMeshError, match="did not answer"):
            search_hub(ModelsOptions(tmp_path, endpoint, False), "llama", 5, told.append, silence_s=0.01)
    assert told == [f"waiting: the hub at {endpoint} is asked, for 15 s at most"]
