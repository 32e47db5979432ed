"""Every value is told by where it came from: typed, a line of the file, or the environment."""

from pathlib import Path

import pytest

from p2pmesh.app.live_settings import LiveSettings
from p2pmesh.base.errors import ConfigError, P2PMeshError
from p2pmesh.cli.configs import FileOfUp
from p2pmesh.cli.main import main
from p2pmesh.cli.parser import build_parser

INVITE = "p2pmesh2-garbled"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("P2PMESH_HOME", "P2PMESH_JOIN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    return tmp_path / "home"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that fails."""
    assert main(arguments) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("p2pmesh: ").rstrip("\n")


def up(capsys: pytest.CaptureFixture[str], home: Path, *arguments: str) -> str:
    return told(capsys, "up", "--port", "0", "--console-port", "0", "--home", str(home), *arguments)


def config(home: Path, text: str) -> Path:
    home.mkdir(exist_ok=True)
    path = home / "config.toml"
    path.write_text(text)
    return path


# --- invites
def test_a_garbled_invite_is_told_by_where_it_was_read(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert up(capsys, home, "--join", INVITE).startswith("--join: the invite cannot be read")
    file = home.parent / "invite.txt"
    file.write_text(INVITE)
    assert up(capsys, home, "--join-file", str(file)).startswith(f"{file}: the invite cannot be read")
    monkeypatch.setenv("P2PMESH_JOIN", INVITE)
    assert up(capsys, home).startswith("$P2PMESH_JOIN: the invite cannot be read")
    assert not home.exists()


def test_an_invite_file_of_the_settings_is_told_with_its_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home.parent / "invite.txt"
    file.write_text(INVITE)
    path = config(home, f'lanes = 2\njoin_file = "{file}"\n')
    line = up(capsys, home)
    assert line.startswith(f"{file}: the invite cannot be read")
    assert line.endswith(f"(join_file, {path}:2)")


# --- the file of settings
def test_what_is_only_wrong_beside_what_is_typed_is_told_with_its_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(home, "lanes = 2\nport = 5555\n")
    line = told(capsys, "up", "--console-port", "5555", "--home", str(home))
    assert line == f"port ({path}:2) and --console-port are both 5555; choose two different ones"


def test_a_value_that_turns_out_to_be_of_no_use_is_told_with_its_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(home, 'name = "there"\nmodel = ["no-such-model"]\n')
    line = up(capsys, home)
    assert line.startswith("there is no model no-such-model;")
    assert line.endswith(f" (model, {path}:2)")
    typed = up(capsys, home, "--model", "no-such-model")
    assert str(path) not in typed


def test_a_port_in_use_of_the_file_is_told_with_its_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = config(home, f"port = {port}\nconsole_port = 0\n")
        line = told(capsys, "up", "--home", str(home))
    assert f"port ({path}:1)" in line
    assert "--port" not in line


async def test_a_file_that_is_read_again_is_named_too(home: Path) -> None:
    path = config(home, "lanes = 2\n")
    argv = ["up", "--home", str(home), "--console-port", "5"]
    file = FileOfUp(build_parser().parse_args(argv), argv)
    settings = LiveSettings(file, file.read(), lambda event: None)

    async def apply(options: object) -> None:
        raise AssertionError

    settings._apply = apply
    path.write_text("lanes = 2\nport = 5\n")
    with pytest.raises(P2PMeshError, match=r"port \(.*config\.toml:2\) and --console-port are both 5"):
        await settings.reload()


# --- the environment
def test_a_home_of_the_environment_is_told_as_such(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.write_text("a file")
    monkeypatch.setenv("P2PMESH_HOME", str(home))
    assert told(capsys, "up").endswith("(the home is that of $P2PMESH_HOME)")
    assert told(capsys, "status").endswith("(the home is that of $P2PMESH_HOME)")
    assert "$P2PMESH_HOME" not in told(capsys, "status", "--home", str(home))
    monkeypatch.setenv("P2PMESH_HOME", "~no-such-user-here/x")
    assert told(capsys, "status").endswith("(the home is that of $P2PMESH_HOME)")


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("HF_ENDPOINT", "nonsense", "HF_ENDPOINT must be a URL"),
        ("HF_HUB_OFFLINE", "1", "org/tiny is not on this machine, and HF_HUB_OFFLINE forbids to fetch it"),
        ("P2PMESH_OWNER_PASSPHRASE", "", "$P2PMESH_OWNER_PASSPHRASE: the passphrase is empty"),
    ],
)
def test_a_value_of_the_environment_is_told_by_its_variable(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    line: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert line in up(capsys, home, "--model", "org/tiny")


def test_a_wrong_passphrase_is_told_by_where_it_was_read(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P2PMESH_OWNER_PASSPHRASE", "right")
    assert main(["auth", "init", "--home", str(home)]) == 0
    capsys.readouterr()
    monkeypatch.setenv("P2PMESH_OWNER_PASSPHRASE", "wrong")
    line = told(capsys, "auth", "sign-node", "--home", str(home))
    assert line.startswith("$P2PMESH_OWNER_PASSPHRASE: the passphrase does not open ")
    file = home.parent / "passphrase"
    file.write_text("wrong\n")
    line = told(capsys, "auth", "sign-node", "--home", str(home), "--passphrase-file", str(file))
    assert line.startswith(f"--passphrase-file {file}: the passphrase does not open ")


def test_a_message_about_nothing_of_the_file_stays_as_it_is(home: Path) -> None:
    config(home, 'model = ["tiny"]\nname = "node"\nport = 5\n')
    argv = ["up", "--home", str(home)]
    file = FileOfUp(build_parser().parse_args(argv), argv)
    file.merged()
    for text in ("the node has no --portal", "tiny.gguf is damaged", "give --console-port"):
        error = ConfigError(0, text)  # type: ignore[arg-type]
        file.name_in(error)
        assert error.message == text
