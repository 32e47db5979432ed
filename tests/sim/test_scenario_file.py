"""Scenario files: those of the package, and what is wrong with a wrong one."""

import pytest

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.sim.claims_scenario import ClaimsScenario
from p2pmesh.sim.overlay_scenario import OverlayScenario, RegionLinks, Turnover
from p2pmesh.sim.scenario import Crash, LinkModel, Scenario
from p2pmesh.sim.scenario_file import builtin_names, builtin_scenario, decode_scenario

RUNS = 'name = "mine"\nworld = "runs"\nduration_us = 5\n'
OVERLAY = 'name = "mine"\nworld = "overlay"\nduration_us = 5\n'


@pytest.mark.parametrize("name", builtin_names())
def test_every_scenario_of_the_package_loads_under_its_own_name_and_says_what_it_is_about(name: str) -> None:
    scenario = builtin_scenario(name)
    assert scenario.name == name
    assert scenario.about.endswith(".")


def test_all_worlds_have_the_scenarios_that_documents_name() -> None:
    kinds = {name: type(builtin_scenario(name)) for name in builtin_names()}
    assert {name for name, kind in kinds.items() if kind is Scenario} == {
        "calm", "lossy", "churn", "partition", "stage-loss", "coordinator-loss",
    }  # fmt: skip
    assert {name for name, kind in kinds.items() if kind is OverlayScenario} == {
        "ten-thousand", "partition-large", "sybil", "eclipse", "liars", "nat",
    }  # fmt: skip
    assert {name for name, kind in kinds.items() if kind is ClaimsScenario} == {"claims-churn", "claims-partition"}


def test_what_a_file_leaves_out_has_its_default() -> None:
    assert decode_scenario(RUNS, "f") == Scenario("mine", 5)
    assert decode_scenario(OVERLAY, "f") == OverlayScenario("mine", 5)


def test_tables_rows_and_faults_come_into_records() -> None:
    text = RUNS + '[links]\ndrop = 7\n[[faults]]\nkind = "crash"\nat_us = 1\nnumber = 2\n'
    assert decode_scenario(text, "f") == Scenario("mine", 5, links=LinkModel(drop=7), faults=(Crash(1, 2, None),))
    text = (
        OVERLAY
        + "[links]\nregion_weights = [1, 2]\none_way_us = [[1, 2], [3, 4]]\n"
        + '[[faults]]\nkind = "turnover"\nfrom_us = 1\nuntil_us = 2\nper_hour = 3\n'
    )
    assert decode_scenario(text, "f") == OverlayScenario(
        "mine", 5, links=RegionLinks((1, 2), ((1, 2), (3, 4))), faults=(Turnover(1, 2, 3),)
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "world is None; it is one of 'runs', 'overlay'"),
        ('world = "moon"', "'moon'"),
        ("world = 3", "world is 3"),
        ("world = ", "not TOML"),
        ("a = " + "[" * 5000, "not TOML"),
        ("#" * 100_001, "longer than"),
        ('world = "runs"\nname = "x"', "duration_us is missing"),
        (RUNS + "speed = 1", "speed is no key; there are name, duration_us"),
        (RUNS + "[links]\nlatency_ms = 1", "links.latency_ms is no key; there are latency_us"),
        (RUNS + "links = 3", "links is no table"),
        (RUNS + "[links]\ndrop = 1_000_001", "links.drop is 1000001; it is a whole number from 0 to 1000000"),
        (RUNS + "[links]\ndrop = -1", "links.drop is -1"),
        (RUNS + "[links]\ndrop = 0.5", "links.drop is 0.5"),
        (RUNS + "[links]\ndrop = true", "links.drop is True"),
        (RUNS + '[links]\ndrop = "1"', "links.drop is '1'"),
        (RUNS.replace("mine", "Not me"), "write small letters"),
        (RUNS.replace('"mine"', "3"), "name is no line"),
        (RUNS + 'about = "a\\nb"', "about is no line"),
        (RUNS + "faults = 3", "faults are at most"),
        (RUNS + "faults = [3]", "faults are at most"),
        (RUNS + "[[faults]]", "faults[0].kind is None; it is one of crash, churn"),
        (RUNS + '[[faults]]\nkind = "sybils"\nat_us = 1\ncount = 1', "'sybils'"),
        (RUNS + '[[faults]]\nkind = "crash"\nat_us = 1', "faults[0].number is missing"),
        (RUNS + '[[faults]]\nkind = "crash"\nat_us = 1\nnumber = 1\nsize = 1', "faults[0].size is no key"),
        (
            RUNS + '[[faults]]\nkind = "partition"\nat_us = 9\nuntil_us = 9\nboundary_percent = 1',
            "faults[0].until_us is 9; it comes after 9",
        ),
        (OVERLAY + "[links]\nregion_weights = 3", "region_weights is no list"),
        (OVERLAY + "[links]\nregion_weights = []", "region_weights is no list"),
        (OVERLAY + "[links]\nregion_weights = [1, -1, 2]", "links.region_weights[1] is -1"),
        (OVERLAY + "[links]\nregion_weights = [1, 2]", "no table of 2 by 2"),
        (OVERLAY + "[links]\nregion_weights = [0, 0, 0]", "are all 0"),
        (OVERLAY + "[links]\none_way_us = [[1], [1, 2], [1, 2, 3]]", "no table of 3 by 3"),
        (OVERLAY + "[links]\none_way_us = [[0]]", "links.one_way_us[0][0] is 0"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_the_place(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_scenario(text, "my.toml")
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert caught.value.message.startswith("my.toml: ")
    assert what in caught.value.message
    assert "\n" not in caught.value.message
