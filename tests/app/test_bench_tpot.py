"""What ``bench tpot`` makes of a prediction and of what was measured."""

import pytest

from p2pmesh.app.bench_options import BenchTpotOptions
from p2pmesh.app.bench_tpot import BAR_PERCENT, TpotRow, at_position, line_of, ring_of, row_of
from p2pmesh.base.errors import ConfigError
from p2pmesh.core.planning.bytes import PREDICTED_POSITION

PREDICTED = {
    "predicted_tpot_us": 100_000,
    "planned_tpot_us": 95_000,
    "estimated_decode_network_ms_per_token": 80.0,
    "decode_tpot_target_met": False,
    "compute_us": 15_000,
    "network_us": 80_000,
    "transfer_us": 1_000,
    "overhead_us": 4_000,
    "cache_us": 1_000,
}


def row(stages: int, delay_ms: int, *times_ms: float) -> TpotRow:
    return row_of((stages, delay_ms), {"predicted_tpot_us": 90_000}, PREDICTED, times_ms)


def test_a_row_tells_the_error_of_the_prediction_and_the_efficiency_of_the_links() -> None:
    found = row(2, 40, 130.0, 110.0, 125.0)
    assert (found.planned_ms, found.replanned_ms, found.predicted_ms) == (90.0, 95.0, 100.0)
    assert found.measured_ms == 125.0
    assert (found.lowest_ms, found.highest_ms) == (110.0, 130.0)
    assert found.error_percent == pytest.approx(-20.0)
    assert not found.is_within_bar
    assert found.efficiency == pytest.approx(80 / 125)
    assert found.parts_ms == {"compute": 15.0, "network": 80.0, "transfer": 1.0, "overhead": 4.0}
    assert all(text in line_of(found) for text in ("-20.0%", "missed", "0.64", "compute 15.0"))


def test_links_without_a_delay_have_no_efficiency() -> None:
    assert row(2, 0, 100.0).efficiency is None
    assert row(1, 40, 100.0).efficiency is None


@pytest.mark.parametrize(("measured_ms", "is_within"), [(100.0, True), (118.0, False), (88.0, True), (86.0, False)])
def test_the_bar_counts_both_ways(measured_ms: float, is_within: bool) -> None:
    assert BAR_PERCENT == 15
    assert row(1, 0, measured_ms).is_within_bar == is_within


def test_a_later_token_reads_more_of_the_cache() -> None:
    twice = at_position(PREDICTED, 2 * PREDICTED_POSITION)
    assert (twice["predicted_tpot_us"], twice["compute_us"], twice["cache_us"]) == (101_000, 16_000, 2_000)
    assert at_position(PREDICTED, PREDICTED_POSITION) == PREDICTED
    assert at_position(PREDICTED, 0)["predicted_tpot_us"] == 99_000
    assert at_position(PREDICTED, 0)["planned_tpot_us"] == 94_000


def test_the_links_of_a_ring_are_those_of_neighbours() -> None:
    stages = [{"peer_id": name, "layers": [0, 1]} for name in "abc"]
    assert ring_of({"placements": [{"stages": stages}]}) == {frozenset("ab"), frozenset("bc"), frozenset("ca")}
    assert ring_of({"placements": [{"stages": stages[:2]}]}) == {frozenset("ab")}
    assert ring_of({"placements": [{"stages": stages[:1]}]}) == set()


@pytest.mark.parametrize(
    "wrong", [{"stages": (0,)}, {"delays_ms": (2000,)}, {"tokens": 1}, {"requests": 0}, {"prompt_tokens": 0}]
)
def test_what_makes_no_sense_is_refused(wrong: dict, tmp_path) -> None:  # type: ignore[type-arg, no-untyped-def]
    with pytest.raises(ConfigError):
        BenchTpotOptions(tmp_path, **wrong)
