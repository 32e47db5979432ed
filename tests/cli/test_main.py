import argparse
import io
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from p2pmesh import __version__
from p2pmesh.app.config import LogFormat, UpOptions
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused
from p2pmesh.base.quantities import GIB
from p2pmesh.cli.benches import decode_options
from p2pmesh.cli.main import main
from p2pmesh.cli.parser import build_parser, chat_options, up_options
from p2pmesh.core.artifact_policy import ArtifactTransfer
from p2pmesh.core.guardrails.policy import GuardrailMode, GuardrailPolicy
from p2pmesh.core.mixture.roles import MixturePolicy
from p2pmesh.core.ownership import TrustPolicy
from p2pmesh.wire.dtype import WireDtype


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("P2PMESH_HOME", str(tmp_path))
    return tmp_path


def up(*arguments: str) -> UpOptions:
    return up_options(build_parser().parse_args(["up", *arguments]))


def test_up_with_nothing_takes_the_defaults(home: Path) -> None:
    assert up() == UpOptions(home=home)


def test_up_with_everything() -> None:
    arguments = (
        "--model a --model b --demo --split 3 --join inv --name me --port 0 --console-port 5 "
        "--listen /ip4/1.2.3.4/tcp/0 --listen /ip4/1.2.3.4/tcp/1 "
        "--home /h --ctx-size 2048 --max-memory 2GiB --log-format json --wire-dtype f16 "
        "--lanes 8 --trace-gossip"
    )
    assert up(*arguments.split()) == UpOptions(
        home=Path("/h"),
        models=("a", "b"),
        is_demo=True,
        split=3,
        invite="inv",
        name="me",
        port=0,
        console_port=5,
        listen=("/ip4/1.2.3.4/tcp/0", "/ip4/1.2.3.4/tcp/1"),
        context_tokens=2048,
        max_memory_bytes=2 * GIB,
        log_format=LogFormat.JSON,
        wire_dtype=WireDtype.F16,
        lanes=8,
        is_tracing_gossip=True,
    )


def test_no_memory_is_not_no_limit() -> None:
    assert up("--max-memory", "0").max_memory_bytes == 0
    assert up("--split", "auto").split is None


def test_up_knows_devices_and_what_the_owner_does_not_want() -> None:
    arguments = "--device CUDA0,cuda1 --gpu-layers 9 --max-layers 12 --exclude-model a --exclude-model b"
    options = up(*arguments.split())
    assert (options.devices, options.gpu_layers) == (("CUDA0", "cuda1"), 9)
    assert (options.max_layers, options.excluded_models) == (12, ("a", "b"))


def test_up_knows_the_owner_and_the_trust_policy() -> None:
    options = up("--trust-policy", "prefer-owned", "--owner-key", "/k", "--passphrase-file", "/p")
    assert (options.trust_policy, options.owner_key, options.passphrase_file) == (TrustPolicy.PREFER_OWNED, "/k", "/p")


def test_up_knows_whom_files_go_to_and_how_much_disk_they_take() -> None:
    options = up("--artifact-transfer", "trusted", "--cache-quota", "2GiB")
    assert (options.artifact_transfer, options.cache_quota_bytes) == (ArtifactTransfer.TRUSTED, 2 * GIB)
    with pytest.raises(ConfigError, match="--cache-quota must be at least 1MiB"):
        up("--cache-quota", "1KiB")
    with pytest.raises(SystemExit):
        up("--artifact-transfer", "all")


def test_a_relay_for_listings_is_told_from_one_behind_nats() -> None:
    with pytest.raises(ConfigError, match="give it as --nostr-relay"):
        up("--relay", "wss://relay.example.org")


def test_up_knows_how_answers_are_made() -> None:
    options = up("--mesh-option", "models=3", "--guardrails", "metrics", "--guardrail-option", "tool-retries=0")
    assert options.mixture == MixturePolicy(models=3)
    assert options.guardrails == GuardrailPolicy(GuardrailMode.METRICS, tool_retries=0)
    with pytest.raises(ConfigError, match="--mesh-option 'speed=1': write NAME=VALUE"):
        up("--mesh-option", "speed=1")
    with pytest.raises(SystemExit):
        up("--guardrails", "on")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            "up --idle-unload soon",
            "p2pmesh up: argument --idle-unload: 'soon' is no number; see p2pmesh up --help",
        ),
        ("up --port abc", "p2pmesh up: argument --port: 'abc' is no whole number; see p2pmesh up --help"),
        ("chaos --every inf", "p2pmesh chaos: argument --every: 'inf' is no number; see p2pmesh chaos --help"),
        ("chat m hi --temperature nan", "p2pmesh chat: argument --temperature: 'nan' is no number"),
        ("gpus --nonsense", "p2pmesh gpus: unrecognized arguments: --nonsense; see p2pmesh gpus --help"),
        (
            "invite create --use=1",
            "p2pmesh invite create: unrecognized arguments: --use=1 (did you mean --uses?); see p2pmesh invite create",
        ),
        ("invite create --uses x", "p2pmesh invite create: argument"),
        ("gpus --jsno", "p2pmesh gpus: unrecognized arguments: --jsno (did you mean --json?); see p2pmesh gpus --help"),
        ("stauts", "p2pmesh: argument COMMAND: invalid choice: 'stauts' (did you mean status?); see p2pmesh --help"),
        ("down", "p2pmesh: argument COMMAND: invalid choice: 'down' (choose from"),
        ("models lits", "p2pmesh models: argument ACTION: invalid choice: 'lits' (did you mean list?)"),
        ("gpus --person", "p2pmesh gpus: unrecognized arguments: --person; see p2pmesh gpus --help"),
        ("up --Max_Mem=1", "p2pmesh up: unrecognized arguments: --Max_Mem=1 (did you mean --max-memory?)"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(capsys: pytest.CaptureFixture[str], arguments: str, line: str) -> None:
    with pytest.raises(SystemExit) as raised:
        build_parser().parse_args(arguments.split())
    assert raised.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(line)
    assert told.count("\n") == 1


def test_the_other_commands(home: Path) -> None:
    parse = build_parser().parse_args
    chat = chat_options(parse(["chat", "m", "hello there", "--seed", "5"]))
    assert (chat.home, chat.model, chat.prompt, chat.seed) == (home, "m", "hello there", 5)
    bench = decode_options(parse(["bench", "decode", "--peers", "1,2", "--tokens", "9", "--json"]))
    assert (bench.peers, bench.decode_tokens, bench.model, bench.is_json) == ((1, 2), 9, None, True)


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "down",
        "up --split half",
        "up --split -1",
        "up --split \u00b2",
        "up --port http",
        "up --max-memory lots",
        "up --wire-dtype q8",
        "up --log-format xml",
        "up --trust-policy all",
        "up --por 1",
        "up --port 99999",
        "up --split 0",
        "chat m",
        "models",
        "models drop",
        "bench decode --peers 1,,2",
    ],
)
def test_a_wrong_command_line_exits_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "p2pmesh" in captured.err
    assert "Traceback" not in captured.err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"p2pmesh {__version__}\n"
    assert main(["up", "--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("model", "demo", "split", "join", "name", "port", "console-port", "listen", "home", "max-memory"):
        assert f"--{name}" in shown


@pytest.mark.parametrize("chosen", [["--log-format", "json"], ["--log-format=json"]])
def test_arguments_that_cannot_be_parsed_are_an_event_too(
    chosen: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", *chosen, "--port", "abc"]) == 2
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["event"], told["code"]) == ("error", "config_invalid")
    assert captured.err == told["message"] + "\n"
    assert main(["up", "--port", "abc"]) == 2
    assert main(["gpus", "--nonsense", *chosen]) == 2
    assert main(["up", *chosen, "--help"]) == 0
    assert '{"event"' not in capsys.readouterr().out


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _parsers(inner)


def test_every_option_says_what_it_is_for() -> None:
    options = [
        (parser.prog, action.option_strings[0], action.help)
        for parser in _parsers(build_parser())
        for action in parser._actions
        if action.option_strings
    ]
    assert len(options) > 150
    assert [(command, option) for command, option, text in options if not text] == []


def test_the_options_of_up_stand_under_headings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--help"]) == 0
    first, *groups = capsys.readouterr().out.split("\n\n")[2:]
    assert [line.split()[0] for line in first.splitlines() if line.startswith("  -")] == [
        "-h,", "--home", "--config", "--log-format", "--trace-gossip",
    ]  # fmt: skip
    headings = [group.partition(":\n")[0] for group in groups]
    assert headings == [
        "models and where they run", "the mesh", "public pools", "API and console", "network",
        "what this machine gives", "model files", "owners and trust",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [("m", "\udcff"), ("\udcff", "hi"), ("m", "hi", "--system", "\udcff")])
def test_bytes_that_are_no_text_are_told_before_a_node_is_asked(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", *words]) == 2
    assert "no UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["chat", "m", "hi"]])
def test_no_node_is_one_line_and_its_own_code(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 21
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "start it with p2pmesh up" in captured.err


def test_a_malformed_multiaddr_is_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--listen", "nonsense", "--log-format", "json"]) == 18
    captured = capsys.readouterr()
    assert json.loads(captured.out)["code"] == "address_invalid"
    assert captured.err.startswith("p2pmesh: --listen 'nonsense'")


Raiser = Callable[..., int]


@pytest.fixture
def run_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Raiser], None]:
    """Puts a function in the place of the node."""

    def install(function: Raiser) -> None:
        module = ModuleType("p2pmesh.app.up")
        module.run_up = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "p2pmesh.app.up", module)

    return install


def raising(error: BaseException) -> Raiser:
    def function(*_: Any, **__: Any) -> int:
        raise error

    return function


def test_up_runs_the_node_and_prints_its_events(run_up: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from p2pmesh.app import events

    def node(options: UpOptions, emit: Any, **_: Any) -> int:
        emit(events.invite(f"for {options.name}"))
        return 0

    run_up(node)
    assert main(["up", "--name", "me", "--log-format", "json"]) == 0
    assert capsys.readouterr().out == '{"event":"invite","invite":"for me"}\n'


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(ErrorCode.PORT_IN_USE, "port 1 is in use"), 17),
        (ExceptionGroup("nursery", [Refused(ErrorCode.INVITE_EXPIRED, "the invite has expired")]), 31),
        (KeyboardInterrupt(), 130),
        (BaseExceptionGroup("nursery", [KeyboardInterrupt()]), 130),
    ],
)
def test_endings_of_a_node(run_up: Any, error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    run_up(raising(error))
    assert main(["up"]) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_a_bug_is_not_hidden(run_up: Any) -> None:
    run_up(raising(ExceptionGroup("nursery", [KeyError("bug")])))
    with pytest.raises(ExceptionGroup):
        main(["up"])


INTERRUPTED_LOADING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "p2pmesh.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
from p2pmesh.__main__ import main
sys.exit(main())
"""


def test_an_interrupt_while_the_commands_load_is_no_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED_LOADING], capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
    scripts = tomllib.loads(Path("pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"p2pmesh": "p2pmesh.__main__:main"}


READER_LEFT = """
import sys, types
from p2pmesh.cli.main import main
module = types.ModuleType("p2pmesh.app.model_commands")
module.list_models = lambda options: []
module.list_unusable = lambda options: ()
module.ModelsOptions = lambda *given: None
sys.modules["p2pmesh.app.model_upkeep"] = types.ModuleType("upkeep")
sys.modules["p2pmesh.app.model_commands"] = module
sys.stdin.read()
sys.exit(main(["models", "list"]))
"""


def test_a_reader_that_left_is_no_traceback() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", READER_LEFT], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


def test_help_loads_neither_trio_nor_http() -> None:
    code = (
        "import sys; from p2pmesh.cli.main import main; main(['--help']); "
        "sys.exit(bool({'trio', 'httpx', 'starlette', 'multiaddr', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_status_and_models_as_text_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("p2pmesh.app.model_commands.list_models", lambda options: [])
    monkeypatch.setattr("p2pmesh.app.model_commands.list_unusable", lambda options: ())
    monkeypatch.setattr("p2pmesh.app.model_commands.show_model", lambda options, reference, tell: {"name": reference})
    client = ModuleType("client")
    client.fetch_status = lambda home: {"peer_id": "x"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "p2pmesh.app.client", client)
    out = io.StringIO()
    for command in ("status", "status --json", "models list", "models list --json", "models show m --json"):
        assert main(command.split()) == 0
        out.write(capsys.readouterr().out)
    lines = out.getvalue()
    assert lines.startswith('peer_id: x\n{\n  "peer_id": "x"\n}\nno models here')
    assert lines.endswith('[]\n{\n  "name": "m"\n}\n')


def test_simulate_prints_a_report_and_fails_when_an_invariant_breaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["simulate", "--peers", "5", "--seed", "2", "churn", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["peers"], report["seed"], report["scenario"], report["violations"]) == (5, 2, "churn", [])
    assert main(["simulate", "--peers", "3"]) == 0
    assert "all invariants held" in capsys.readouterr().out
    monkeypatch.setattr("p2pmesh.app.simulate.run_simulation", lambda _: {**report, "violations": ["1 us: broken"]})
    assert main(["simulate"]) == 1
    assert "1 us: broken" in capsys.readouterr().out


def test_simulate_refuses_a_scenario_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "storm"]) == 2
    assert "stage-loss" in capsys.readouterr().err


def test_a_malformed_multiaddr_is_pointed_at(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong = "/ip4/1.2.3.400/tcp/1"
    assert main(["up", "--home", str(tmp_path), "--listen", wrong]) == 18
    lines = capsys.readouterr().err.splitlines()
    assert "at character 6: '1.2.3.400' is no IPv4 address" in lines[0]
    assert lines[1:] == [f"  {wrong}", "       ^^^^^^^^^"]
    (tmp_path / "config.toml").write_text(f'name = "here"\nlisten = ["/ip4/127.0.0.1/tcp/1", "{wrong}"]\n')
    assert main(["config", "validate", "--home", str(tmp_path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'config.toml'}:2: listen: --listen '{wrong}' is not a multiaddr")
    assert lines[1:] == [f"  {wrong}", "       ^^^^^^^^^"]


def test_a_terminal_that_lacks_a_character_gets_an_escape_for_it() -> None:
    command = [sys.executable, "-m", "p2pmesh", "up", "--help"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, capture_output=True, check=False, timeout=60, env=environment)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert rb"L1,L2,\u2026" in ended.stdout


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_a_stream_that_was_closed_is_replaced_before_a_file_takes_its_number(closed: tuple[int, ...]) -> None:
    code = (
        "import os, sys\n"
        "import p2pmesh.__main__ as entry, p2pmesh.cli.main as commands\n"
        f"commands.main = lambda: print('to nobody') or 10 * (sys.stdin is not None) + os.open({str(__file__)!r}, 0)\n"
        "sys.exit(entry.main())\n"
    )
    shut = " ".join(f"{number}>&-" if number else "<&-" for number in closed)
    command = ["sh", "-c", f'exec "$0" -c "$1" {shut}', sys.executable, code]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (13, b"")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [
        (("models", "list"), 49, 1),
        (("up", "--join", "nonsense", "--log-format", "json"), 30, 1),
    ],
)
def test_a_full_disk_under_stdout_is_one_line(
    arguments: tuple[str, ...], code: int, lines: int, tmp_path: Path
) -> None:
    with FULL.open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "p2pmesh", *arguments, "--home", str(tmp_path)],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    assert len(ended.stderr.splitlines()) == lines
    assert ended.stderr.startswith("p2pmesh: ")


@pytest.mark.parametrize("command", ["up", "status", "config show", "models list"])
def test_a_home_whose_name_is_too_long(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--home", "/tmp/" + "a" * 300]) == 20
    assert "File name too long" in capsys.readouterr().err


def test_an_error_of_the_system_about_a_path_is_one_line(run_up: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_up(raising(PermissionError(13, "Permission denied", "/somewhere")))
    assert main(["up"]) == 2
    assert capsys.readouterr().err == (
        "p2pmesh: /somewhere cannot be used: Permission denied; check its path and its owner\n"
    )
    run_up(raising(OSError(28, "No space left on device")))
    assert main(["up"]) == 49
    assert capsys.readouterr().err == "p2pmesh: the disk is full: free some space, or write elsewhere\n"
    run_up(raising(ConnectionResetError(104, "Connection reset by peer")))
    with pytest.raises(ConnectionResetError):
        main(["up"])


def test_more_memory_than_can_be_announced(capsys: pytest.CaptureFixture[str]) -> None:
    assert up("--max-memory", "8192TiB").max_memory_bytes == 2**53
    assert main(["up", "--max-memory", "8193TiB"]) == 2
    assert capsys.readouterr().err == "p2pmesh: --max-memory must be at most 8,388,608 GiB\n"
