"""What the streams of a round come to."""

import io
import json
from pathlib import Path

import pytest

from p2pmesh.app.bench_options import BenchStreamsOptions
from p2pmesh.app.bench_streams import (
    OURS,
    THEIRS,
    StreamsRow,
    StreamTimes,
    body_of,
    compare,
    line_of,
    row_of,
    run_streams,
    times_of,
)
from p2pmesh.base.errors import ConfigError, Refused
from tests.fakes.models import fake_model

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def answer(*events: object, end: str = "[DONE]") -> bytes:
    return HEAD + "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + f"data: {end}\n\n".encode()


def test_tokens_are_those_of_the_usage() -> None:
    usage = {"usage": {"completion_tokens": 40}}
    assert times_of(answer({"choices": [1]}, {"choices": [], **usage}), 0.5, 2.0) == StreamTimes(0.5, 2.0, 40)


@pytest.mark.parametrize(
    "given",
    [
        HEAD,
        b"HTTP/1.1 429 Too Many\r\n\r\n{}",
        answer({"choices": [1]}),
        answer({"usage": {"completion_tokens": 0}}),
        answer({"usage": {"completion_tokens": 4}}, end="{}"),
    ],
)
def test_a_stream_without_its_end_or_usage_has_not_finished(given: bytes) -> None:
    assert times_of(given, 0.5, 2.0) is None


def test_a_row_tells_the_rate_and_the_slowest_over_the_fastest() -> None:
    row = row_of(OURS, 2, 2, 4.0, 1.24, [StreamTimes(1.0, 4.0, 31), StreamTimes(1.0, 2.0, 31)])
    assert (row.finished, row.tokens, row.tokens_per_s) == (2, 62, 15.5)
    assert row.cpu_ms_per_token == pytest.approx(20)
    assert row.fairness == pytest.approx(2.0)
    assert row.decode_fairness == pytest.approx(3.0)
    assert not row.is_good
    assert row_of(OURS, 4, 2, 4.0, 1.0, [StreamTimes(1.0, 4.0, 31)] * 3).finished == 3
    assert "15.5" in line_of(row)


def test_more_streams_than_lanes_need_only_finish() -> None:
    answers = [StreamTimes(1.0, 2.0, 10), StreamTimes(9.0, 10.0, 10)]
    assert row_of(OURS, 2, 1, 10.0, 1.0, answers).is_good
    assert not row_of(OURS, 3, 1, 10.0, 1.0, answers).is_good
    with pytest.raises(Refused):
        row_of(OURS, 3, 1, 10.0, 1.0, [])


def rated(server: str, streams: int, tokens_per_s: float) -> StreamsRow:
    return row_of(server, streams, 2, 10 / tokens_per_s, 1.0, [StreamTimes(1.0, 2.0, 10)])


def test_the_other_server_is_compared_round_by_round_and_not_judged_itself() -> None:
    pairs = [(10, 20), (10, 8), (9, 10)]
    rows = [rated(name, 2, rate) for ours, theirs in pairs for name, rate in ((OURS, ours), (THEIRS, theirs))]
    [found] = compare(rows)
    assert found.ratios == pytest.approx((0.5, 1.25, 0.9))
    assert found.ratio == pytest.approx(0.9)
    assert found.is_good
    assert not compare(rows[:2])[0].is_good
    assert compare([rated(OURS, 3, 10), rated(THEIRS, 3, 20)])[0].is_good, "more streams than lanes need only finish"
    assert compare([rated(OURS, 2, 10)]) == ()
    assert row_of(THEIRS, 3, 2, 1.0, 1.0, [StreamTimes(1.0, 2.0, 10)]).is_good


def test_every_client_has_a_prompt_of_its_own() -> None:
    options = BenchStreamsOptions(Path("/home"))
    prompts = [json.loads(body_of(fake_model(), options, number))["prompt"] for number in range(64)]
    assert len(set(map(tuple, prompts))) == 64
    with pytest.raises(ConfigError, match="--ctx-size"):
        BenchStreamsOptions(Path("/home"), context_tokens=100)


def test_a_server_that_is_not_there_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    options = BenchStreamsOptions(tmp_path, llama_server=tmp_path / "none")
    with pytest.raises(ConfigError, match="there is no such program"):
        run_streams(options, io.StringIO())
    assert list(tmp_path.iterdir()) == []
