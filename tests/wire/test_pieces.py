"""How a file is cut into pieces, and that a list is made, named and checked as the document says."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import Digest
from p2pmesh.base.limits import MAX_ARTIFACT_BYTES, MAX_PIECE_BYTES, MIN_PIECE_BYTES
from p2pmesh.base.quantities import GIB, KIB, MIB
from p2pmesh.wire.pieces import (
    FEW_PIECES,
    PieceHasher,
    PieceList,
    checked_piece_list,
    piece_bytes_of,
    piece_count_of,
    single_piece_list,
)


def list_of(data: bytes) -> PieceList:
    hasher = PieceHasher(len(data))
    hasher.update(data)
    return hasher.finish()


@pytest.mark.parametrize(
    ("size_bytes", "piece_bytes"),
    [
        (1, 256 * KIB), (512 * MIB, 256 * KIB), (512 * MIB + 1, 512 * KIB), (1 * GIB, 512 * KIB),
        (4 * GIB, 2 * MIB), (8 * GIB, 4 * MIB), (8 * GIB + 1, 4 * MIB), (MAX_ARTIFACT_BYTES, 4 * MIB),
    ],
)  # fmt: skip
def test_pieces_grow_with_the_file(size_bytes: int, piece_bytes: int) -> None:
    assert piece_bytes_of(size_bytes) == piece_bytes


@given(st.integers(1, MAX_ARTIFACT_BYTES))
def test_pieces_cover_the_file_and_are_few_unless_they_are_as_long_as_may_be(size_bytes: int) -> None:
    piece_bytes, count = piece_bytes_of(size_bytes), piece_count_of(size_bytes)
    assert MIN_PIECE_BYTES <= piece_bytes <= MAX_PIECE_BYTES
    assert (count - 1) * piece_bytes < size_bytes <= count * piece_bytes
    assert count <= FEW_PIECES or piece_bytes == MAX_PIECE_BYTES


@given(st.integers(1, 3 * MIN_PIECE_BYTES), st.integers(1, MIN_PIECE_BYTES + 7))
def test_a_list_is_the_same_in_whatever_portions_the_bytes_come(size_bytes: int, portion: int) -> None:
    data = (bytes(range(251)) * (size_bytes // 251 + 1))[:size_bytes]
    hasher = PieceHasher(size_bytes)
    for start in range(0, size_bytes, portion):
        hasher.update(data[start : start + portion])
    pieces = hasher.finish()
    cut = [data[start : start + pieces.piece_bytes] for start in range(0, size_bytes, pieces.piece_bytes)]
    assert pieces.hashes == b"".join(hashlib.sha256(piece).digest() for piece in cut)
    assert [pieces.length_of(index) for index in range(pieces.count)] == [len(piece) for piece in cut]
    assert all(pieces.is_piece(index, piece) for index, piece in enumerate(cut))
    assert not pieces.is_piece(0, cut[0] + b"x")
    assert checked_piece_list(pieces.hashes, size_bytes, pieces.digest) == pieces


def test_a_file_of_one_piece_is_its_own_list() -> None:
    data = b"x" * MIN_PIECE_BYTES
    digest = Digest(hashlib.sha256(data).hexdigest())
    assert single_piece_list(digest, len(data)) == list_of(data)
    assert single_piece_list(digest, len(data) + 1) is None


@pytest.mark.parametrize("broken", [b"", b"x" * 32, b"x" * 64, b"x" * 63, b"x" * 96])
def test_other_bytes_than_the_list_are_refused(broken: bytes) -> None:
    data = bytes(MIN_PIECE_BYTES + 1)
    with pytest.raises(RemoteProtocolError) as raised:
        checked_piece_list(broken, len(data), list_of(data).digest)
    assert raised.value.code is ErrorCode.ARTIFACT_CORRUPT


def test_the_right_list_of_another_length_is_refused() -> None:
    pieces = list_of(bytes(MIN_PIECE_BYTES + 1))
    with pytest.raises(RemoteProtocolError):
        checked_piece_list(pieces.hashes, MIN_PIECE_BYTES, pieces.digest)


@pytest.mark.parametrize("said", [1, MIN_PIECE_BYTES, 3 * MIN_PIECE_BYTES])
def test_a_file_of_another_length_than_was_said_has_no_list(said: int) -> None:
    hasher = PieceHasher(said)
    hasher.update(bytes(MIN_PIECE_BYTES + 1))
    with pytest.raises(ValueError, match="2 pieces"):
        hasher.finish()
