"""Findings about the machine: kept, bounded, and never worth a failure."""

import os
from pathlib import Path

import pytest

from p2pmesh.adapters.llama import findings
from p2pmesh.adapters.llama.findings import load_findings, store_findings


def test_what_was_stored_is_loaded(tmp_path: Path) -> None:
    store_findings(tmp_path / "engine", "width-1", {"exact_width": 7})
    assert load_findings(tmp_path / "engine", "width-1") == {"exact_width": 7}
    assert [path.name for path in (tmp_path / "engine").iterdir()] == ["width-1.json"]


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"{" + b" " * 5000 + b"}"])
def test_damaged_findings_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "probe-1.json").write_bytes(content)
    assert load_findings(tmp_path, "probe-1") is None


def test_absent_findings_are_none(tmp_path: Path) -> None:
    assert load_findings(tmp_path / "nowhere", "probe-1") is None


def test_the_oldest_findings_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "MAX_FILES", 3)
    for number in range(5):
        store_findings(tmp_path, f"width-{number}", {"number": number})
        os.utime(tmp_path / f"width-{number}.json", ns=(number, number))
    store_findings(tmp_path, "width-5", {"number": 5})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["width-3.json", "width-4.json", "width-5.json"]


def test_a_disk_that_refuses_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store_findings(tmp_path / "file", "width-1", {})
    assert load_findings(tmp_path / "file", "width-1") is None
