"""Fetching one file over several connections: whatever breaks, what was fetched is not fetched again."""

import fcntl
import hashlib
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.adapters import range_download
from p2pmesh.adapters.file_claims import claimed_alone
from p2pmesh.adapters.range_download import (
    LEAST_ASKED_BYTES,
    DigestMismatch,
    Passing,
    Patience,
    Wanted,
    asked_bytes,
    download,
    fetched_bytes,
)
from p2pmesh.base.quantities import MIB

DATA = random.Random(5).randbytes(40_000)
DIGEST = hashlib.sha256(DATA).hexdigest()
PATIENCE = Patience(attempts=3, first_wait_s=0.0)


@dataclass
class Answer:
    start: int
    data: bytes
    cut: int | None

    def pieces(self) -> Iterator[bytes]:
        end = len(self.data) if self.cut is None else self.cut
        for offset in range(0, min(end, len(self.data)), 1000):
            yield self.data[offset : min(end, offset + 1000)]
        if self.cut is not None and self.cut < len(self.data):
            raise Passing("cut")


class Server:
    """Serves ``DATA``; the next connections are cut after so many bytes."""

    def __init__(self, data: bytes = DATA, cuts: list[int] | None = None, *, knows_ranges: bool = True) -> None:
        self.data = data
        self.cuts = cuts or []
        self.knows_ranges = knows_ranges
        self.asked: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    @contextmanager
    def open_range(self, start: int, end: int) -> Iterator[Answer]:
        with self._lock:
            self.asked.append((start, end))
            cut = self.cuts.pop(0) if self.cuts else None
        yield Answer(start, self.data[start:end], cut) if self.knows_ranges else Answer(0, self.data, cut)


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_download, "LEAST_RANGE_BYTES", 4000)


class Noted:
    """Sums what was noted, from any thread."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self.total += count


def fetch(path: Path, server: Server, connections: int = 4, digest: str | None = DIGEST) -> Noted:
    noted = Noted()
    download(Wanted(path, len(DATA), digest), connections, server.open_range, PATIENCE, noted)
    return noted


def test_a_file_comes_over_several_connections(tmp_path: Path) -> None:
    server = Server()
    assert fetch(tmp_path / "f", server).total == len(DATA)
    assert (tmp_path / "f").read_bytes() == DATA
    assert sorted(server.asked) == [(0, 10_000), (10_000, 20_000), (20_000, 30_000), (30_000, 40_000)]
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_all_connections_together_ask_for_a_hundredth_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_download, "LEAST_RANGE_BYTES", 16 * MIB)
    for size_bytes in (64 * MIB, 250 * MIB, 250 * MIB + 1, 40_000 * MIB):
        for connections in (1, 3, 4, 16, 99):
            number = min(connections, 16, size_bytes // (16 * MIB))
            asked = asked_bytes(size_bytes, connections)
            assert asked * number < size_bytes / 100 + number or asked == LEAST_ASKED_BYTES
    assert asked_bytes(1, 4) == LEAST_ASKED_BYTES


def test_a_range_is_asked_for_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_download, "LEAST_ASKED_BYTES", 8_000)
    server = Server(cuts=[8_000, 1_000])
    fetch(tmp_path / "f", server, connections=2)
    assert (tmp_path / "f").read_bytes() == DATA
    ends = [end for start, end in sorted(server.asked)]
    assert all(end - start <= 8_000 for start, end in server.asked)
    assert {20_000, 40_000} <= set(ends)


def test_a_server_without_ranges_is_not_asked_for_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_download, "LEAST_ASKED_BYTES", 8_000)
    server = Server(knows_ranges=False)
    assert fetch(tmp_path / "f", server, connections=1).total == len(DATA)
    assert server.asked == [(0, 8_000)]


def test_a_cut_connection_goes_on_where_it_was(tmp_path: Path) -> None:
    server = Server(cuts=[3000, 2500])
    fetch(tmp_path / "f", server, connections=1)
    assert server.asked == [(0, 40_000), (3000, 40_000), (5500, 40_000)]


def test_patience_ends_and_what_came_stays(tmp_path: Path) -> None:
    server = Server(cuts=[12_000, 0, 0, 0])
    with pytest.raises(Passing):
        fetch(tmp_path / "f", server, connections=1)
    assert fetched_bytes(tmp_path / "f", len(DATA)) == 12_000
    assert not (tmp_path / "f").exists()
    again = Server()
    assert fetch(tmp_path / "f", again, connections=1).total == len(DATA) - 12_000
    assert again.asked == [(12_000, 40_000)]
    assert (tmp_path / "f").read_bytes() == DATA


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 12_000), max_size=12), st.integers(1, 6))
def test_any_cuts_end_in_the_right_file_and_no_byte_comes_twice(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], connections: int
) -> None:
    path = tmp_path_factory.mktemp("cuts") / "f"
    server, total = Server(cuts=list(cuts)), 0
    noted = Noted()
    while not path.exists():
        try:
            download(Wanted(path, len(DATA), DIGEST), connections, server.open_range, PATIENCE, noted)
        except Passing:
            total += 1
    assert path.read_bytes() == DATA
    assert noted.total == len(DATA)


def test_a_server_without_ranges_is_read_from_the_start(tmp_path: Path) -> None:
    server = Server(knows_ranges=False)
    assert fetch(tmp_path / "f", server).total == len(DATA)
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_server_without_ranges_that_breaks_is_read_again_but_not_for_ever(tmp_path: Path) -> None:
    server = Server(cuts=[9000], knows_ranges=False)
    assert fetch(tmp_path / "f", server, connections=1).total == len(DATA)
    assert (tmp_path / "f").read_bytes() == DATA
    with pytest.raises(Passing):
        fetch(tmp_path / "g", Server(cuts=[9000] * 9, knows_ranges=False), connections=1)


def test_a_wrong_digest_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DigestMismatch):
        fetch(tmp_path / "f", Server(), digest="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_a_half_file_that_was_damaged_is_fetched_anew(tmp_path: Path) -> None:
    with pytest.raises(Passing):
        fetch(tmp_path / "f", Server(cuts=[20_000, 0, 0, 0]), connections=1)
    with (tmp_path / "f.incomplete").open("r+b") as file:
        file.write(b"damage")
    noted = fetch(tmp_path / "f", Server(), connections=1)
    assert (tmp_path / "f").read_bytes() == DATA
    assert noted.total == len(DATA) - 20_000


@pytest.mark.parametrize("journal", [b"", b"p2d1", b"\xff" * 60, b"p2d1" + bytes(12)])
def test_a_damaged_journal_is_forgotten(tmp_path: Path, journal: bytes) -> None:
    (tmp_path / "f.progress").write_bytes(journal)
    (tmp_path / "f.incomplete").write_bytes(b"x" * len(DATA))
    assert fetched_bytes(tmp_path / "f", len(DATA)) == 0
    fetch(tmp_path / "f", Server())
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_full_disk_is_the_callers_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        fetch(tmp_path / "f", Server())


def test_two_who_fetch_the_same_file_fetch_it_once(tmp_path: Path) -> None:
    server = Server()
    threads = [threading.Thread(target=fetch, args=(tmp_path / "f", server, 1)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 1


def test_a_file_that_is_being_fetched_is_seen_to_be_in_use(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Watching(Server):
        @contextmanager
        def open_range(self, start: int, end: int) -> Iterator[Answer]:
            for suffix in (".incomplete", ".progress"):
                with claimed_alone(tmp_path / f"f{suffix}") as is_free:
                    seen.append(is_free)
            with super().open_range(start, end) as answer:
                yield answer

    fetch(tmp_path / "f", Watching(), connections=1)
    assert seen == [False, False]


def test_there_are_signs_of_life_while_the_digest_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_download, "PIECE_BYTES", 4000)
    heard: list[int] = []
    download(Wanted(tmp_path / "f", len(DATA), DIGEST), 1, Server().open_range, PATIENCE, heard.append)
    assert heard == [1000] * 40 + [0] * 10


def test_there_are_signs_of_life_while_another_process_holds_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_download, "LOCK_RETRY_S", 0.0)
    other = os.open(tmp_path / "f.progress", os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    heard: list[int] = []

    def note(count: int) -> None:
        heard.append(count)
        if len(heard) == 3:
            os.close(other)

    download(Wanted(tmp_path / "f", len(DATA)), 1, Server().open_range, PATIENCE, note)
    assert heard[:4] == [0, 0, 0, 1000]


def test_waits_grow_up_to_their_longest() -> None:
    patience = Patience(first_wait_s=1.0, longest_wait_s=30.0)
    assert [patience.wait_s(n) for n in (1, 2, 3, 9)] == [1.0, 2.0, 4.0, 30.0]
