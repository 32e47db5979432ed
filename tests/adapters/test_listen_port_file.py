"""The port that a node takes again."""

from pathlib import Path

import pytest

from p2pmesh.adapters.listen_port_file import FILE_NAME, keep_port, kept_port


def test_the_port_of_the_last_run(tmp_path: Path) -> None:
    assert kept_port(tmp_path) == 0
    keep_port(tmp_path, 4001)
    assert kept_port(tmp_path) == 4001
    keep_port(tmp_path, 4002)
    assert kept_port(tmp_path) == 4002


@pytest.mark.parametrize("data", [b"", b"0", b"65536", b"-1", b"four", b"1" * 99, bytes(4)])
def test_a_file_without_sense_is_no_port(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(data)
    path.chmod(0o600)
    assert kept_port(tmp_path) == 0


def test_a_home_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    keep_port(tmp_path / "file", 4001)
    assert kept_port(tmp_path / "file") == 0
