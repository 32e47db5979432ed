import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from p2pmesh.app.run_file import RunFile, is_process_alive, read_run_file, remove_run_file, write_run_file
from p2pmesh.base.errors import ConfigError, ErrorCode

RECORD = RunFile(os.getpid(), "http://127.0.0.1:1", "http://127.0.0.1:2", "secret", "12D3KooWExample")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_run_file(tmp_path, RECORD)
    assert read_run_file(tmp_path) == RECORD
    assert json.loads((tmp_path / "run.json").read_text())["console_token"] == "secret"


def test_only_the_owner_may_read_it_and_nothing_else_is_left(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("old")
    (tmp_path / "run.json").chmod(0o644)
    write_run_file(tmp_path, RECORD)
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def refusal(home: Path) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        read_run_file(home)
    return raised.value


def test_no_file_means_no_node(tmp_path: Path) -> None:
    error = refusal(tmp_path)
    assert error.code is ErrorCode.NODE_NOT_RUNNING
    assert "start it with p2pmesh up" in error.message


def test_the_file_of_a_dead_process_means_no_node(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    write_run_file(tmp_path, RunFile(child.pid, "a", "b", "c", "d"))
    assert refusal(tmp_path).code is ErrorCode.NODE_NOT_RUNNING


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"pid": "1"}', '{"pid": 1, "api_url": 2}', "[" * 10_000, '{"pid": -1}', '{"pid": true}'],
)
def test_a_damaged_file_means_no_node(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert refusal(tmp_path).code is ErrorCode.NODE_NOT_RUNNING


def test_a_file_that_is_none_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    assert refusal(tmp_path).code is ErrorCode.HOME_UNUSABLE


def test_a_pipe_means_no_node_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    assert refusal(tmp_path).code is ErrorCode.NODE_NOT_RUNNING
    writer = os.open(tmp_path / "run.json", os.O_RDWR)
    assert refusal(tmp_path).code is ErrorCode.NODE_NOT_RUNNING
    os.close(writer)


def test_a_home_that_is_none_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        write_run_file(tmp_path / "missing", RECORD)
    assert raised.value.code is ErrorCode.HOME_UNUSABLE


def test_a_node_removes_its_own_file_only(tmp_path: Path) -> None:
    write_run_file(tmp_path, RECORD)
    remove_run_file(tmp_path, RECORD.pid + 1)
    assert (tmp_path / "run.json").exists()
    remove_run_file(tmp_path, RECORD.pid)
    remove_run_file(tmp_path, RECORD.pid)
    assert not (tmp_path / "run.json").exists()


def test_an_impossible_process_is_not_alive() -> None:
    assert not is_process_alive(2**80)
    assert is_process_alive(os.getpid())
