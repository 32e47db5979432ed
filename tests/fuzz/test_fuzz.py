"""Mutated frames of every kind: only documented refusals come out, in bounded memory.

The full million: ``python -m tests.fuzz``.
"""

import random

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.wire.control import KINDS
from p2pmesh.wire.engine import EngineKind
from tests.fuzz.corpus import Reader, readers, samples, with_prefix, without_prefix
from tests.fuzz.mutation import MAX_BYTES, mutate_bytes, mutate_msgpack
from tests.fuzz.run import Fuzzer, FuzzReport, fuzz, heaviest_frame
from tests.wire import vectors

FRAMES = 60_000
GROWTH_BYTES = 32 * 1024 * 1024
PEAK_BYTES = 64 * 1024 * 1024


def test_only_documented_refusals_come_out_and_memory_does_not_grow() -> None:
    report = fuzz(FRAMES, seed=20_261_130)
    assert report.crashes == []
    assert report.frames == FRAMES
    assert len(report.refused) > 10
    assert report.rss_end_bytes - report.rss_warm_bytes < GROWTH_BYTES


def test_no_frame_takes_much_memory_while_it_is_read() -> None:
    heaviest, _, reader = heaviest_frame(2_000, seed=3)
    assert 0 < heaviest < PEAK_BYTES, reader


def test_every_vector_file_and_kind_is_in_the_corpus() -> None:
    names = [sample.name for sample in samples()]
    for path in vectors.DIRECTORY.glob("*.json"):
        if path.stem == "grammars":  # texts within a frame's body, which is in the corpus as such
            continue
        assert any(name.startswith(f"{path.stem} valid ") for name in names), path.stem
    assert {f"engine {kind.name}" for kind in EngineKind} <= set(names)
    kinds = {case["kind"] for case in vectors.load("control")["valid"]}
    assert kinds == set(KINDS)


def test_every_sample_has_a_reader_of_its_own_kind() -> None:
    fuzzer = Fuzzer(0)
    for sample in fuzzer.samples:
        if " valid " in sample.name:
            assert len(fuzzer._takers[sample]) < len(fuzzer.readers), sample.name


def test_prefixes_fit_what_they_stand_before() -> None:
    for sample in samples():
        if " valid " in sample.name or sample.prefix == "engine":
            assert with_prefix(sample.prefix, without_prefix(sample.prefix, sample.data)) == sample.data, sample.name


def test_a_series_is_its_seed() -> None:
    one, same, other = Fuzzer(5), Fuzzer(5), Fuzzer(6)
    frames = [[fuzzer.next_frame()[0] for _ in range(200)] for fuzzer in (one, same, other)]
    assert frames[0] == frames[1] != frames[2]


def test_mutations_are_bounded_and_mostly_change_something() -> None:
    chance = random.Random(1)
    fuzzer = Fuzzer(1)
    frames = [(sample, fuzzer.mutate(sample)) for sample in fuzzer.samples for _ in range(5)]
    changed = sum(data != sample.data for sample, data in frames)
    assert changed > len(frames) * 3 // 4
    assert max(len(data) for _, data in frames) <= MAX_BYTES + 8
    assert mutate_msgpack(b"\xc1", chance) == b"\xc1"
    assert isinstance(mutate_bytes(b"", lambda: b"", chance), bytes)


def test_what_may_not_come_out_is_noted() -> None:
    def fail(error: Exception) -> Reader:
        def read(data: bytes) -> None:
            raise error

        return Reader("a test", read)

    fuzzer, report = Fuzzer(0), FuzzReport()
    fuzzer.try_frame(b"x", fail(RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, "fine")), report)
    assert report.crashes == []
    fuzzer.try_frame(b"x", fail(KeyError("x")), report)
    fuzzer.try_frame(b"x", fail(RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, "two\nlines")), report)
    fuzzer.try_frame(b"x", fail(RecursionError()), report)
    assert len(report.crashes) == 3


def test_every_decoder_of_the_wire_is_found() -> None:
    names = {reader.name for reader in readers()}
    expected = {
        "announcement.decode_announcement",
        "control.decode_control",
        "invite.decode_invite",
        "begin.decode_begin",
    }
    assert expected <= names
    assert "announcement.decode_announcement, signatures checked" in names
