"""What is on disk of a file that is being received: whatever became of it, the next try ends with the right file."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.adapters.model_files import Disk
from p2pmesh.adapters.partial_files import PartialFiles
from p2pmesh.base.ids import Digest
from p2pmesh.base.limits import MIN_PIECE_BYTES
from tests.fakes.models import pieces_of

DATA = bytes(range(256)) * 1024 * 4 + b"end"
DIGEST = Digest(hashlib.sha256(DATA).hexdigest())
PIECES = pieces_of(DATA)


def unhurried() -> None:
    """A checkpoint that never ends the work."""


def piece(number: int) -> bytes:
    return DATA[number * MIN_PIECE_BYTES :][: PIECES.length_of(number)]


def receive(folder: Path, numbers: Iterator[int] | list[int]) -> tuple[int, ...]:
    """Writes some pieces and ends as a killed process does; the pieces that were there before."""
    partial = PartialFiles(folder, Disk()).open(DIGEST, PIECES, unhurried)
    before = partial.have
    for number in numbers:
        partial.write(number, piece(number))
    partial.close()
    return before


def finish(folder: Path) -> tuple[int, ...]:
    """What was there, once the file is whole."""
    partial = PartialFiles(folder, Disk()).open(DIGEST, PIECES, unhurried)
    before = partial.have
    for number in range(PIECES.count):
        partial.write(number, piece(number))
    partial.commit(folder / "whole")
    assert (folder / "whole").read_bytes() == DATA
    assert [path.name for path in folder.iterdir()] == ["whole"]
    return before


@settings(deadline=None)
@given(
    written=st.lists(st.integers(0, PIECES.count - 1), max_size=8),
    cut=st.none() | st.integers(0, 120),
    flips=st.lists(st.integers(0, len(DATA) - 1), max_size=3),
    extra=st.binary(max_size=40),
)
def test_whatever_became_of_both_files_the_next_try_ends_with_the_right_one(
    written: list[int], cut: int | None, flips: list[int], extra: bytes
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        receive(folder, written)
        part, journal = folder / f"{DIGEST}.part", folder / f"{DIGEST}.journal"
        assert part.exists() is journal.exists() is bool(written)
        if written:
            journal.write_bytes(journal.read_bytes()[:cut] + extra)
            data = bytearray(part.read_bytes())
            for offset in flips:
                data[offset] ^= 0xFF
            part.write_bytes(data)
        have = finish(folder)
        assert set(have) <= set(written)
        if cut is None and not extra:
            flipped = {offset // MIN_PIECE_BYTES for offset in flips if flips.count(offset) % 2}
            assert set(have) == set(written) - flipped


def test_a_part_that_is_gone_or_cut_short_starts_anew(tmp_path: Path) -> None:
    receive(tmp_path, [0, 1, 2])
    part = tmp_path / f"{DIGEST}.part"
    part.write_bytes(part.read_bytes()[: MIN_PIECE_BYTES + 5])
    assert receive(tmp_path, []) == (0,)
    part.unlink()
    assert finish(tmp_path) == ()


def test_what_is_open_is_nobodys_to_remove(tmp_path: Path) -> None:
    files = PartialFiles(tmp_path, Disk())
    partial = files.open(DIGEST, PIECES, unhurried)
    partial.write(0, piece(0))
    assert files.entries() == []
    assert files.size_bytes() >= MIN_PIECE_BYTES
    files.remove(DIGEST)
    files.tidy(now_s=1e12)
    assert partial.have == (0,)
    partial.close()
    (entry,) = files.entries()
    assert entry.digest == DIGEST
    files.tidy(now_s=1e12)
    assert list(tmp_path.iterdir()) == []


class LookedAt:
    """What is opened first is somebody else's just then, who looks whether it may go, and removes it or not."""

    def __init__(self, *, is_removed: bool) -> None:
        self._is_removed = is_removed
        self._looking: int | None = None
        self.opened = 0

    def disk(self) -> Disk:
        return Disk(open_partial=self._open)

    def _open(self, path: Path) -> BinaryIO:
        self.opened += 1
        if self._looking is not None:
            os.close(self._looking)
            self._looking = None
        file = Disk().open_partial(path)
        if self.opened == 1:
            self._looking = os.open(path, os.O_RDONLY)
            fcntl.flock(self._looking, fcntl.LOCK_EX)
            if self._is_removed:
                path.unlink()
                os.close(self._looking)
                self._looking = None
        return file


@pytest.mark.parametrize("is_removed", [False, True])
def test_whoever_looks_at_the_moment_of_opening_takes_nothing_away(tmp_path: Path, is_removed: bool) -> None:
    looked = LookedAt(is_removed=is_removed)
    files = PartialFiles(tmp_path, looked.disk())
    partial = files.open(DIGEST, PIECES, unhurried)
    assert looked.opened == 2
    files.remove(DIGEST)
    for number in range(PIECES.count):
        partial.write(number, piece(number))
    assert files.entries() == []
    partial.commit(tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == DATA


def test_a_journal_without_its_part_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{DIGEST}.journal").write_bytes(b"x")
    PartialFiles(tmp_path, Disk()).tidy()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_no_error(tmp_path: Path) -> None:
    (tmp_path / f"{DIGEST}.journal").mkdir()
    PartialFiles(tmp_path, Disk()).tidy()


@pytest.mark.parametrize("numbers", [[], [0, 0], [4, 3]])
def test_missing_bytes_are_those_of_the_other_pieces(tmp_path: Path, numbers: list[int]) -> None:
    receive(tmp_path, numbers)
    partial = PartialFiles(tmp_path, Disk()).open(DIGEST, PIECES, unhurried)
    assert partial.missing_bytes == len(DATA) - sum(PIECES.length_of(number) for number in set(numbers))
    partial.close()
