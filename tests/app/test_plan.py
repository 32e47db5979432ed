"""Plans as facts, and as a person reads them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from p2pmesh.app.plan import DEFAULT_PROMPT_TOKENS, PlanOptions, make_plan
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.quantities import MIB
from p2pmesh.cli.main import main
from p2pmesh.cli.plan import describe_plan
from tests.fakes.tiny_gguf import tiny_llama

PEERS = """
coordinator = "laptop"
[[peers]]
name = "laptop"
memory = "{laptop}"
label = "the old laptop"
decode_bytes_per_s = 1000000000
[[peers]]
name = "desk"
memory = "{desk}"
[[peers]]
name = "phone"
memory = 0
[[links]]
between = ["laptop", "desk"]
rtt_ms = 20
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_llama())
    return str(path)


def peers_of(tmp_path: Path, laptop: str, desk: str = "1GiB") -> Path:
    path = tmp_path / "peers.toml"
    path.write_text(PEERS.format(laptop=laptop, desk=desk))
    return path


def lines_of(options: PlanOptions) -> list[str]:
    return list(describe_plan(make_plan(options)))


def test_a_model_that_fits_on_the_coordinator_stays_there(tmp_path: Path, model: str) -> None:
    facts = make_plan(PlanOptions(tmp_path, model, peers_of(tmp_path, "1GiB")))
    [stage] = facts["placement"]["stages"]
    assert (stage["peer"], stage["label"], stage["layers"]) == ("laptop", "the old laptop", [0, 4])
    assert stage["needed_bytes"] <= stage["usable_bytes"] < stage["offered_bytes"] == 1024**3
    assert facts["placement"]["estimate"]["unknown_speeds"] == 0
    assert {other["why_not"] for other in facts["runner_ups"]} == {"another_driver", "more_peers"}
    assert [(peer["peer"], peer["reason"]) for peer in facts["unused"]] == [
        ("desk", "not_needed"),
        ("phone", "no_memory_offered"),
    ]
    assert json.loads(json.dumps(facts)) == facts


def test_a_split_tells_its_stages_and_what_a_token_takes(tmp_path: Path, model: str) -> None:
    options = PlanOptions(tmp_path, model, peers_of(tmp_path, "1GiB"), stage_count=2, target_ms=10.0)
    estimate = make_plan(options)["placement"]["estimate"]
    assert (estimate["network_us"], estimate["estimated_decode_network_ms_per_token"]) == (20_000, 20.0)
    assert make_plan(options)["placement"]["first_token"] is None
    parts = sum(estimate[f"{part}_us"] for part in ("compute", "network", "transfer", "overhead"))
    assert estimate["tpot_us"] == parts
    assert not estimate["decode_tpot_target_met"]
    text = "\n".join(lines_of(options))
    assert "tiny, 4 layers; 3 peers from" in text
    assert "the old laptop  0-2" in text
    assert "the longest hop of 10.0 ms, 2 times" in text
    assert "the target of 10.0 ms is missed by" in text
    assert "nobody has measured the speed of 1 of these peers" in text
    assert "nobody has measured how fast these peers read prompts" in text


def test_a_first_token_is_predicted_where_prompts_were_measured(tmp_path: Path, model: str) -> None:
    path = peers_of(tmp_path, "1GiB")
    path.write_text(path.read_text().replace("decode_bytes_per_s", 'prefill_bytes_per_s = "2GB"\ndecode_bytes_per_s'))
    options = PlanOptions(tmp_path, model, path, stage_count=2)
    facts = make_plan(options)
    first = facts["placement"]["first_token"]
    assert (first["prompt_tokens"], first["unknown_speeds"]) == (DEFAULT_PROMPT_TOKENS, 1)
    assert first["ttft_us"] > facts["placement"]["estimate"]["network_us"]
    assert all(other["first_token"]["ttft_us"] > 0 for other in facts["runner_ups"])
    text = "\n".join(lines_of(options))
    assert f"the first token after a prompt of 512 tokens is predicted within {first['ttft_us'] / 1000:.1f} ms" in text
    assert "nobody has measured how fast 1 of these peers read prompts" in text
    longer = make_plan(replace(options, prompt_tokens=4000))["placement"]["first_token"]
    assert (longer["prompt_tokens"], longer["ttft_us"] > first["ttft_us"]) == (4000, True)
    short = make_plan(replace(options, context_tokens=100))["placement"]["first_token"]
    assert short["prompt_tokens"] == 99


def test_what_a_hop_was_found_to_take_counts(tmp_path: Path, model: str) -> None:
    path = peers_of(tmp_path, "1GiB")
    options = PlanOptions(tmp_path, model, path, stage_count=2)
    assumed = make_plan(options)["placement"]["estimate"]
    path.write_text("hop_overhead_ms = 4.5\n" + path.read_text())
    found = make_plan(options)["placement"]["estimate"]
    assert found["overhead_us"] == assumed["overhead_us"] + 2 * 3000


def test_a_refusal_tells_the_reason_the_numbers_and_each_peer(tmp_path: Path, model: str) -> None:
    options = PlanOptions(tmp_path, model, peers_of(tmp_path, "1MiB", "2MiB"))
    facts = make_plan(options)
    assert (facts["placement"], facts["refusal"]["reason"]) == (None, "memory_short")
    text = "\n".join(lines_of(options))
    assert "no placement (memory_short): the model needs" in text
    assert "desk: 1.9 MiB within its head room, the smallest stage needs" in text
    assert "phone: it offers 0 B" in text
    assert facts["refusal"]["numbers"]["needed_bytes"] > facts["refusal"]["numbers"]["usable_bytes"]
    desk = next(peer for peer in facts["unused"] if peer["peer"] == "desk")
    assert desk["numbers"]["offered_bytes"] == 2 * MIB
    assert desk["numbers"]["smallest_stage_bytes"] > desk["numbers"]["usable_bytes"]


def test_auto_takes_the_longest_context_that_costs_nothing(tmp_path: Path, model: str) -> None:
    asked = PlanOptions(tmp_path, model, peers_of(tmp_path, "1GiB"), context_tokens=None, lanes=None)
    placement = make_plan(asked)["placement"]
    assert len(placement["stages"]) == 1
    assert placement["lanes"] == 4
    assert placement["context_tokens"] >= 64


@pytest.mark.parametrize(
    "changes",
    [
        {"context_tokens": 0}, {"lanes": 65}, {"stage_count": 0}, {"target_ms": 0.0}, {"target_ms": float("nan")},
        {"prompt_tokens": 0}, {"prompt_tokens": 4096},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        PlanOptions(tmp_path, "m", None, **changes)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.CONFIG_INVALID


def test_without_a_node_and_without_a_file_there_is_nothing_to_plan_with(tmp_path: Path, model: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(PlanOptions(tmp_path, model))
    assert caught.value.code is ErrorCode.NODE_NOT_RUNNING
    assert "--peers FILE" in caught.value.message


def test_the_command_prints_json_and_its_exit_code_says_whether_there_is_a_placement(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fits, short = peers_of(tmp_path, "1GiB"), tmp_path / "short.json"
    short.write_text('{"peers": [{"name": "a", "memory": "1MiB"}]}')
    base = ["plan", model, "--home", str(tmp_path), "--json", "--peers"]
    assert main([*base, str(fits), "--context", "auto", "--lanes", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["placement"]["lanes"] == 2
    assert main([*base, str(short)]) == 40
    assert json.loads(capsys.readouterr().out)["refusal"]["could_peers_help"] is True
    assert main(["plan", model, "--home", str(tmp_path), "--peers", str(fits), "--split", "2"]) == 0
    assert main([*base, str(fits), "--context", "many"]) == 2
    assert main([*base, str(fits), "--prompt", "0"]) == 2
    capsys.readouterr()
    assert main([*base, str(fits), "--ctx-size", "512"]) == 0  # as refusals and `up` call it
    assert json.loads(capsys.readouterr().out)["placement"]["context_tokens"] == 512
