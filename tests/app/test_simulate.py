"""What ``p2pmesh simulate`` answers."""

import json
from pathlib import Path

import pytest

from p2pmesh.app.simulate import SimulateOptions, describe_replay, describe_simulation, replay_file, run_simulation
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


OVERLAY = 'name = "mine"\nworld = "overlay"\nduration_us = 300_000_000\npeers = 12\n'


def test_a_scenario_file_says_how_many_peers_there_are(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(OVERLAY)
    report = run_simulation(SimulateOptions(str(file)))
    assert (report["scenario"], report["peers"], report["violations"]) == ("mine", 12, [])
    assert "control traffic in, p99" in describe_simulation(report)
    assert json.loads(json.dumps(report))["bars"][0]["is_met"] is True


def test_a_file_that_is_not_there_or_wrong_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for prepare in (lambda: None, lambda: file.write_bytes(b"\xff"), lambda: file.write_text("world = 3")):
        prepare()
        with pytest.raises(ConfigError, match=r"mine\.toml"):
            run_simulation(SimulateOptions(str(file)))


def test_a_recorded_peer_is_replayed(tmp_path: Path) -> None:
    scenario, recording = tmp_path / "mine.toml", tmp_path / "peer.jsonl"
    scenario.write_text(OVERLAY)
    run_simulation(SimulateOptions(str(scenario), record=(3, recording)))
    replayed = replay_file(recording)
    assert replayed["machine"] == "membership"
    assert describe_replay(replayed).count("PeerJoined") == 11
    with pytest.raises(ConfigError, match="--record is for"):
        run_simulation(SimulateOptions("calm", 5, record=(3, recording)))
    with pytest.raises(ConfigError, match="cannot read"):
        replay_file(tmp_path / "nothing")
    for place in (tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="is no file"):
            replay_file(place)
    recording.write_text('{"machine": "generation"}\n')
    with pytest.raises(ConfigError, match="not by this command"):
        replay_file(recording)
    recording.write_text('{"machine": "membership", "setup": {"seed": "x"}}\n')
    with pytest.raises(ConfigError, match="seed a whole number"):
        replay_file(recording)
