"""Two hundred hostile files: refused with a reason, in bounded memory, by the reader and by commands."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.base.quantities import MIB
from p2pmesh.cli import main as cli
from p2pmesh.cli.exit_codes import EXIT_CODES, FAILED, OK, USAGE
from p2pmesh.model.families import check_model
from p2pmesh.model.gguf import read_index
from tests.fakes.memory_source import MemorySource
from tests.model.hostile_gguf import KINDS, MODEL, hostile_file

SEEDS = range(210)
MOST_BYTES = 16 * MIB
FILE_CODES = {ErrorCode.GGUF_NOT_GGUF, ErrorCode.GGUF_TRUNCATED, ErrorCode.GGUF_INVALID}


def read(data: bytes) -> None:
    """What every user of a file does first."""
    check_model(read_index(MemorySource(data)))


def test_the_sound_file_is_taken_and_all_kinds_of_damage_occur() -> None:
    read(MODEL)
    assert {hostile_file(seed)[0] for seed in SEEDS} == set(KINDS)
    assert len({hostile_file(seed)[1] for seed in SEEDS}) > 150
    assert hostile_file(7) == hostile_file(7)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_reader_refuses_with_a_reason_and_little_memory(seed: int) -> None:
    kind, data = hostile_file(seed)
    tracemalloc.start()
    try:
        with pytest.raises(P2PMeshError) as caught:
            read(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code in FILE_CODES, kind
    assert 10 < len(caught.value.message) < 400
    assert caught.value.message.isprintable()
    assert peak < MOST_BYTES, kind


@pytest.mark.parametrize("command", ["build", "show"])
def test_commands_refuse_with_one_line_and_leave_nothing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "hostile.gguf", tmp_path / "out"
    arguments = ["package", "build", str(path), str(out)] if command == "build" else ["models", "show", str(path)]
    run: Callable[[], int] = lambda: cli.main([*arguments, "--home", str(tmp_path / "home")])  # noqa: E731
    path.write_bytes(MODEL)
    assert run() == OK  # nothing but the damage is refused
    if command == "build":
        out.rename(tmp_path / "sound")
    before = sorted(tmp_path.iterdir())
    capsys.readouterr()
    tracemalloc.start()
    try:
        for seed in SEEDS:
            kind, data = hostile_file(seed)
            path.write_bytes(data)
            exit_code = run()
            said = capsys.readouterr()
            assert exit_code in set(EXIT_CODES.values()) - {FAILED, USAGE}, (seed, kind)
            assert said.out == ""
            assert said.err.count("\n") == 1, (seed, kind, said.err)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * MOST_BYTES
    assert sorted(tmp_path.iterdir()) == before
