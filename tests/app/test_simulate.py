"""What ``p2pmesh simulate`` answers."""

import json

import pytest

from p2pmesh.app.simulate import SimulateOptions, describe_simulation, run_simulation
from p2pmesh.base.errors import ConfigError, ErrorCode


def test_a_report_is_json_and_repeats_but_for_the_time_it_took() -> None:
    first, second = (run_simulation(SimulateOptions("stage-loss", 20, 3)) for _ in range(2))
    assert json.loads(json.dumps(first)) == first
    measured = ("elapsed_s", "events_per_s", "cpu_s", "peak_rss_bytes")
    assert [first[key] for key in first if key not in measured] == [
        second[key] for key in second if key not in measured
    ]
    assert (first["scenario"], first["peers"], first["seed"], first["violations"]) == ("stage-loss", 20, 3, [])


def test_a_person_reads_whether_the_invariants_held() -> None:
    report = run_simulation(SimulateOptions(peers=5))
    assert "all invariants held" in describe_simulation(report)
    assert describe_simulation({**report, "violations": ["1 us: wrong"]}).endswith("INVARIANTS BROKEN:\n1 us: wrong")


@pytest.mark.parametrize(
    "options", [SimulateOptions(scenario="storm"), SimulateOptions(peers=0), SimulateOptions(peers=100_001)]
)
def test_options_that_cannot_be_are_refused_with_what_can_be(options: SimulateOptions) -> None:
    with pytest.raises(ConfigError) as caught:
        run_simulation(options)
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert "calm" in caught.value.message or "1 to 100000" in caught.value.message
