"""What the rounds of ``bench api`` come to, and how its node reads what it is told."""

import pytest

from p2pmesh.app.bench_api import BARE, HERE, THERE, Spent, line_of, rows_of
from p2pmesh.app.bench_driver import _order_of, drive_line
from p2pmesh.app.bench_options import BenchApiOptions
from p2pmesh.base.errors import ConfigError


def test_what_is_added_is_counted_beside_the_bare_loop_of_the_same_round() -> None:
    rounds = [
        {BARE: Spent(1.0, 0.1, 8.0), HERE: Spent(1.25, 0.5, 9.0), THERE: Spent(1.5, 1.1, 10.0)},
        {BARE: Spent(3.0, 0.1, 8.0), HERE: Spent(3.75, 0.5, 9.0), THERE: Spent(3.5, 2.1, 10.0)},
    ]
    bare, here, there = rows_of(rounds)
    assert (bare.driver_ms, bare.added_ms) == (2.0, 0.0)
    assert (here.added_ms, here.lowest_ms, here.highest_ms) == (0.5, 0.25, 0.75)  # the other node has no part in it
    assert there.added_ms == pytest.approx((1.5 + 2.5) / 2)
    assert "2.000" in line_of(bare)


def test_a_node_reads_what_to_drive() -> None:
    number, _, order = drive_line(7, "a model of spaces", 64, (1, 2, 3)).strip().partition(" ")
    assert (number, _order_of(order)) == ("7", ("a model of spaces", 64, (1, 2, 3)))


def test_options_out_of_range_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="--rounds"):
        BenchApiOptions(tmp_path, rounds=0)
