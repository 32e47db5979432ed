import json
from pathlib import Path

import pytest

from p2pmesh.app.config import LogFormat, UpOptions
from p2pmesh.app.config_file import ConfigMistakes
from p2pmesh.app.live_settings import LIVE_KEYS
from p2pmesh.base.quantities import GIB
from p2pmesh.cli.configs import FileOfUp, make_settings
from p2pmesh.cli.main import main
from p2pmesh.cli.parser import build_parser, up_options
from p2pmesh.cli.settings import REFUSED


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("P2PMESH_HOME", str(tmp_path))
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / "config.toml"
    path.write_text(text)
    return path


def up(*arguments: str) -> UpOptions:
    argv = ["up", *arguments]
    return up_options(FileOfUp(build_parser().parse_args(argv), argv).merged())


def mistakes(home: Path, text: str) -> list[tuple[int, str]]:
    with pytest.raises(ConfigMistakes) as raised:
        make_settings().read(write(home, text))
    return [(one.line, one.text) for one in raised.value.mistakes]


def test_the_file_says_what_the_command_line_does_not(home: Path) -> None:
    write(
        home,
        'max_memory = "3GiB"\nmodel = ["a", "b"]\ndemo = true\nlanes = 2\nlog_format = "json"\nidle_unload = 1.5\n'
        'device = ["X", "Y"]\ncuts = [3, 6]\nport = 0\n',
    )
    assert up() == UpOptions(
        home=home, max_memory_bytes=3 * GIB, models=("a", "b"), is_demo=True, lanes=2, log_format=LogFormat.JSON,
        idle_unload_s=1.5, devices=("X", "Y"), cuts=(3, 6), port=0,
    )  # fmt: skip


def test_what_is_typed_counts_before_the_file_even_where_it_is_the_default(home: Path) -> None:
    write(home, 'port = 5\nmodel = ["a"]\nlanes = 2\n')
    options = up("--port", "9337", "--model", "b")
    assert (options.port, options.models, options.lanes) == (9337, ("b",), 2)


def test_the_options_are_made_once_and_what_is_typed_changes_none_of_their_defaults(home: Path) -> None:
    write(home, 'port = 5\nmodel = ["a"]\n')
    build_parser.cache_clear()
    argv = ["up", "--lanes", "2"]
    file = FileOfUp(build_parser().parse_args(argv), argv)
    assert file.merged() == file.merged()
    assert file.read() == file.read()
    assert build_parser.cache_info().misses == 1
    assert up_options(build_parser().parse_args(["up"])) == UpOptions(home=home)


def test_no_file_is_no_mistake_and_a_named_one_must_be_there(home: Path) -> None:
    assert up() == UpOptions(home=home)
    assert main(["up", "--config", str(home / "none.toml")]) == 2


def test_a_named_file_counts_instead_of_the_homes(home: Path) -> None:
    write(home, "lanes = 2\n")
    (home / "other.toml").write_text("lanes = 3\n")
    assert up("--config", str(home / "other.toml")).lanes == 3


def test_an_invite_that_is_typed_puts_the_files_away(home: Path) -> None:
    write(home, 'join_file = "/nowhere"\n')
    assert up("--join", "x").invite == "x"
    assert up("--rejoin").invite is None


def test_every_mistake_is_told_with_its_line_and_what_to_do(home: Path) -> None:
    found = mistakes(
        home,
        'max_memry = 1\nmax_layers = 0\nmodel = "a"\ndemo = 1\nlanes = 4.5\nlog_format = "xml"\nsplit = true\n'
        'listen = ["nowhere"]\njoin = "x"\ncache_quota = "much"\n[share]\n',
    )
    assert [line for line, _ in found] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    texts = [text for _, text in found]
    assert texts[0] == "'max_memry' is no setting; did you mean max_memory?"
    assert texts[1] == "max_layers: --max-layers must be 1 to 1024, not 0"
    assert texts[2] == "model: it is a list such as [\"ref\"], not 'a'"
    assert texts[3] == "demo: it is true or false, not 1"
    assert texts[4] == "lanes: it is a whole number, not 4.5"
    assert texts[5] == "log_format: it is one of pretty, json, not 'xml'"
    assert texts[6] == "split: it is a text or a number, not True"
    assert "is not a multiaddr" in texts[7]
    assert "an invite is a secret" in texts[8]
    assert texts[9] == "cache_quota: 'much' is not a size; write for example 0, 512MiB or 8GiB"


def test_values_that_contradict_each_other_are_told_at_the_later_one(home: Path) -> None:
    assert mistakes(home, "lanes = 2\nport = 5\nname = 'a'\nconsole_port = 5\n") == [
        (4, "--port and --console-port are both 5; choose two different ones")
    ]


def test_every_option_of_up_is_a_key_or_refused_with_a_reason() -> None:
    settings = make_settings()
    assert {"max_memory", "max_layers", "exclude_model", "join_file", "cache_quota", "demo"} <= set(settings.keys)
    assert not set(settings.keys) & set(REFUSED)


def test_every_default_that_the_command_shows_is_one_that_the_file_may_say(home: Path) -> None:
    settings = make_settings()
    said = [one for one in settings.effective(write(home, "")) if one.value is not None]
    for one in said:
        settings.read(write(home, f"{one.key} = {json.dumps(one.value)}\n"))


def test_validate_tells_a_good_file_and_a_bad_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(home, "lanes = 2\n")
    assert main(["config", "validate"]) == 0
    assert capsys.readouterr().out == f"{path}: 1 setting, valid\n"
    write(home, "lanes = 0\nprot = 5\n")
    assert main(["config", "validate", str(path)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in told] == [f"{path}:1", f"{path}:2"]
    assert main(["config", "validate", "--json"]) == 2
    assert [one["line"] for one in json.loads(capsys.readouterr().out)["mistakes"]] == [1, 2]


def test_show_says_where_values_come_from(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home, "\nlanes = 2\n")
    assert main(["config", "show", "--json"]) == 0
    rows = {one["key"]: one for one in json.loads(capsys.readouterr().out)["settings"]}
    assert (rows["lanes"]["value"], rows["lanes"]["from"]) == ("2", "line 2")
    assert rows["port"]["from"] == "default"
    assert main(["config", "show"]) == 0
    assert "lanes" in capsys.readouterr().out


def test_a_node_with_a_broken_file_does_not_start(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(home, "lanes = 0\nprot = 5\n")
    assert main(["up"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"p2pmesh: {path}:1: lanes: ")
    assert second.startswith(f"p2pmesh: {path}:2: 'prot' is no setting")


def test_what_points_at_characters_stands_below_its_mistake(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(home, 'listen = ["/ip4/nowhere/tcp/1"]\nlanes = 0\n')
    assert main(["config", "show"]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith(f"p2pmesh: {path}:1: listen: ")
    assert [line.strip("^ ") for line in shown[1:-1]] == ["/ip4/nowhere/tcp/1", ""]
    assert shown[-1].startswith(f"p2pmesh: {path}:2: lanes: ")


def test_a_number_is_a_finite_one(home: Path) -> None:
    found = mistakes(home, "replan_after = inf\nidle_unload = nan\n")
    assert found == [(1, "replan_after: it is a number, not inf"), (2, "idle_unload: it is a number, not nan")]


@pytest.mark.parametrize("text", ["[section]\n", "[port]\nx = 1\n", "[[share]]\n", "region.x = 1\n"])
def test_a_section_is_no_mistyped_key(home: Path, text: str) -> None:
    [(line, told)] = mistakes(home, text)
    assert line == 1
    assert "there are none" in told
    assert "did you mean" not in told


@pytest.mark.parametrize("option", ["--pool-name", "--region", "--avoid-pool", "--nostr-relay"])
def test_an_option_of_pools_is_not_ignored_where_none_is_asked_for(
    home: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, 'pool_name = "attic"\n')
    value = "a" * 32 if option == "--avoid-pool" else "wss://a.example"
    assert main(["up", option, value]) == 2
    assert capsys.readouterr().err == (
        f"p2pmesh: {option}: give --publish or --auto with it, for only public pools have it\n"
    )


@pytest.mark.parametrize(
    ("command", "discovery"), [("up", "mdns"), ("up", "none"), ("up --publish", "mdns"), ("doctor network", "mdns")]
)
def test_a_relay_that_nobody_would_ask_is_not_ignored(
    command: str, discovery: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--discovery", discovery, "--nostr-relay", "wss://a.example"]) == 2
    assert capsys.readouterr().err == (
        f"p2pmesh: --nostr-relay: with --discovery {discovery} no relay is asked; leave one of the two away\n"
    )


def test_a_file_that_is_read_again_reads_no_invite(home: Path) -> None:
    write(home, 'join_file = "/nowhere"\nlanes = 2\n')
    argv = ["up"]
    reading = FileOfUp(build_parser().parse_args(argv), argv).read()
    assert reading.options.lanes == reading.keys["lanes"] == 2
    assert reading.keys["join_file"] == "/nowhere"


def test_every_key_that_takes_effect_at_once_is_a_key() -> None:
    assert set(make_settings().keys) >= LIVE_KEYS


def test_hours_and_their_mistakes(home: Path) -> None:
    write(home, 'share_hours = ["22:00-07:00", "Sat 08:00-20:00"]\nidle_only = true\nleave_within = 30\n')
    options = up()
    assert options.sharing.leave_us == 30_000_000
    assert options.sharing.hours.spans
    assert options.sharing.is_only_idle
    (found,) = mistakes(home, '\nshare_hours = ["22-7"]\n')
    assert found[0] == 2
    assert found[1].startswith("share_hours: --share-hours: '22-7' are no hours; write for example 22:00-07:00")
    assert mistakes(home, "idle_after = 1\nleave_within = 0\n")[1][1] == (
        "leave_within: --leave-within must be 1 to 3600, not 0"
    )


def test_the_file_is_read_again_beside_a_search_for_a_pool(tmp_path: Path) -> None:
    argv = ["up", "--home", str(tmp_path), "--auto", "--publish"]
    (tmp_path / "config.toml").write_text("max_clients = 7\n")
    reading = FileOfUp(build_parser().parse_args(argv), argv).read()
    assert (reading.options.pool.is_searching, reading.options.pool.max_clients) == (True, 7)


def test_caps_and_their_mistakes(home: Path) -> None:
    write(home, 'upload_limit = "1MiB"\ndownload_limit = "2MiB"\nmax_clients = 3\nnice = 10\nmax_layers = 5\n')
    options = up()
    wishes = options.wishes
    assert (wishes.up_bytes_per_s, wishes.down_bytes_per_s, wishes.max_clients) == (2**20, 2**21, 3)
    assert (wishes.max_layers, options.niceness) == (5, 10)
    told = [text for _, text in mistakes(home, "upload_limit = 1\ndownload_limit = 0\nmax_clients = -1\nnice = 20\n")]
    assert told == [
        "upload_limit: --upload-limit must be 256KiB to 256TiB a second; a lower one would break transfers off",
        "download_limit: --download-limit must be 256KiB to 256TiB a second; a lower one would break transfers off",
        "max_clients: --max-clients must be 0 (no cap) to 65536, not -1",
        "nice: --nice must be 0 to 19, not 20",
    ]


def test_the_file_of_the_documents_is_valid_and_all_of_it_counts(home: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "volunteers.md").read_text()
    example = text.split("```toml\n")[1].split("```")[0]
    entries = make_settings().read(write(home, example))
    assert len(entries) == len(example.splitlines())
    assert {entry.name for entry in entries} - {"nice"} <= LIVE_KEYS


def test_a_founder_with_requirements_reads_its_file_while_it_runs(tmp_path: Path) -> None:
    argv = ["up", "--home", str(tmp_path), "--require-owner"]
    reading = FileOfUp(build_parser().parse_args(argv), argv).read()
    assert not reading.options.is_rejoining
