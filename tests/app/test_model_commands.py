import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from p2pmesh.adapters import hub
from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app import model_commands
from p2pmesh.app.model_commands import ModelsOptions, pull_model, search_hub, show_model
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
    with mute_hub() as endpoint, pytest.raises(P2PMeshError, match="did not answer"):
        search_hub(ModelsOptions(tmp_path, endpoint, False), "llama", 5, told.append, silence_s=0.01)
    assert told == [f"waiting: the hub at {endpoint} is asked, for 15 s at most"]


def pull_unwatched(options: ModelsOptions, reference: str, tell: Callable[[str], None], silence_s: float) -> object:
    return pull_model(options, reference, lambda fields: None, tell, silence_s)


@pytest.mark.parametrize("ask", [show_model, pull_unwatched])
def test_whoever_asks_for_a_repository_hears_what_is_waited_for_and_that_it_failed(
    ask: Callable[[ModelsOptions, str, Callable[[str], None], float], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_commands, "COMMAND_QUESTION_DEADLINE_S", 1.0)
    told: list[str] = []
    with mute_hub() as endpoint, pytest.raises(P2PMeshError) as failure:
        ask(ModelsOptions(tmp_path, endpoint, False), "org/tiny", told.append, 0.01)
    assert failure.value.code is ErrorCode.HUB_UNREACHABLE
    assert f"the hub at {endpoint} did not answer within 1 s" in failure.value.message
    assert told == [f"waiting: the hub at {endpoint} is asked for org/tiny, for 1 s at most"]


@contextmanager
def mute_hub() -> Iterator[str]:
    """The URL of one that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        yield f"http://127.0.0.1:{mute.getsockname()[1]}"
