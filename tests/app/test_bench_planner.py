"""The planner's benchmark asks the same question again, and prints what it measured."""

import io
import json

import pytest

from p2pmesh.app.bench_options import BenchPlannerOptions
from p2pmesh.app.bench_planner import BAR_MS, MEAN_OFFERS_GIB, planner_request, run_planner
from p2pmesh.base.errors import ConfigError
from p2pmesh.core.planning.planner import plan_placement


def test_equal_numbers_give_equal_questions() -> None:
    assert plan_placement(planner_request(6, 8, 5)) == plan_placement(planner_request(6, 8, 5))


def test_a_row_for_each_size_of_the_peers() -> None:
    out = io.StringIO()
    code = run_planner(6, 8, out, is_json=True)
    rows = json.loads(out.getvalue())["rows"]
    assert code == int(max(row["plan_ms"] for row in rows) > BAR_MS)
    assert [row["offer_gib"] for row in rows] == list(MEAN_OFFERS_GIB)
    assert rows[0]["stages"] == 1
    assert all(row["plan_ms"] > 0 for row in rows)
    shown = io.StringIO()
    run_planner(6, 8, shown, is_json=False)
    assert len(shown.getvalue().splitlines()) == 3 + len(rows)
    assert shown.getvalue().endswith("ms, the bar is 200 ms\n")


@pytest.mark.parametrize("wrong", [{"peers": 0}, {"peers": 1025}, {"layers": 0}, {"layers": 1025}])
def test_other_sizes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        BenchPlannerOptions(**wrong)
