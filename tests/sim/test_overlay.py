"""Whole simulations of the overlay: what must hold under every fault, what bites, and equal digests."""

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from p2pmesh.base.errors import ConfigError
from p2pmesh.base.quantities import Micros
from p2pmesh.core import admission, membership
from p2pmesh.core.admission import AdmissionMachine
from p2pmesh.core.membership import MembershipMachine
from p2pmesh.core.shards import ShardMachine, ShardPolicy
from p2pmesh.sim import member as members
from p2pmesh.sim import overlay, overlay_faults
from p2pmesh.sim.calendar import RunawayError
from p2pmesh.sim.member import Member
from p2pmesh.sim.overlay import Overlay
from p2pmesh.sim.overlay_faults import schedule_faults
from p2pmesh.sim.overlay_report import OverlayReport, Spread, describe_overlay, make_report, simulate_overlay, spread_of
from p2pmesh.sim.overlay_scenario import (
    ClockStep,
    Eclipse,
    FalseReports,
    Loss,
    OverlayFault,
    OverlayPopulation,
    OverlayScenario,
    RegionLinks,
    Restart,
    Searches,
    Sybils,
    Turnover,
)
from p2pmesh.sim.recorder import Recorder, replay_recording
from p2pmesh.sim.scenario import MINUTE_US, SECOND_US, Crash, Partition
from p2pmesh.sim.scenario_file import builtin_names, builtin_scenario
from tests.sim.regenerate import DIGESTS, digests

OVERLAYS = [name for name in builtin_names() if isinstance(builtin_scenario(name), OverlayScenario)]
PROGRAM = "import json; from tests.sim.regenerate import digests; print(json.dumps(digests()))"
ROOT = Path(__file__).parent.parent.parent


def scenario(minutes: int, *faults: OverlayFault) -> OverlayScenario:
    return OverlayScenario("mine", minutes * MINUTE_US, faults=faults)


def world_of(given: OverlayScenario, peers: int, seed: int = 1) -> Overlay:
    world = Overlay(given, peers, seed)
    schedule_faults(world)
    world.run()
    return world


@cache
def builtin(name: str, peers: int, seed: int) -> OverlayReport:
    found = builtin_scenario(name)
    assert isinstance(found, OverlayScenario)
    return simulate_overlay(found, peers, seed)


def _cases() -> list[Any]:
    """Of the large ones only that with the most coming and going; the others take minutes together."""
    small = [(name, 40, seed) for name in OVERLAYS for seed in (1, 2)]
    return [
        *small,
        *(pytest.param(name, 300, 3, marks=() if name == "churn" else pytest.mark.slow) for name in OVERLAYS),
    ]


@pytest.mark.parametrize(("name", "peers", "seed"), _cases())
def test_what_must_hold_holds_under_every_fault(name: str, peers: int, seed: int) -> None:
    report = builtin(name, peers, seed)
    assert report.violations == ()
    assert report.found_in_time_per_million >= 990_000
    assert report.searches > 10


def test_digests_are_as_pinned_and_do_not_depend_on_the_order_of_hashing() -> None:
    pinned = json.loads(DIGESTS.read_text(encoding="utf-8"))
    assert digests() == pinned, "a machine decides otherwise: see why, then python -m tests.sim.regenerate"
    assert len(set(pinned.values())) == len(pinned)
    environment = {**os.environ, "PYTHONHASHSEED": "4242"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == pinned


def test_the_seed_and_the_number_of_peers_make_another_run() -> None:
    reports = [builtin("nat", 40, 1), builtin("nat", 40, 2), simulate_overlay(builtin_scenario("nat"), 41, 1)]  # type: ignore[arg-type]
    assert len({report.digest for report in reports}) == 3
    assert simulate_overlay(builtin_scenario("nat"), 41, 1) == reports[2]  # type: ignore[arg-type]


def test_an_overlay_that_stands_is_cut_into_shards_and_everybody_knows_its_own() -> None:
    world = world_of(scenario(2), 400)
    assert {member.shards.depth for member in world.live} == {2}
    for member in world.live[::37]:
        known = {said.peer_id for said in member.machine.announcements()}
        assert known == {
            other.peer_id
            for other in world.live
            if other is not member and other.traits.bits[:2] == member.traits.bits[:2]
        }


def test_crashes_are_noticed_by_all_that_knew_the_peer_and_leaving_is_heard_at_once() -> None:
    turnover = Turnover(MINUTE_US, 15 * MINUTE_US, 800_000)
    report = simulate_overlay(scenario(20, turnover), 60, 1)
    assert report.crashes > 3
    assert report.leaves > 1
    assert report.detection_us.most < 60 * SECOND_US
    assert report.leaving_us.p50 < 2 * SECOND_US
    assert report.believed_late == 0
    assert report.violations == ()


def test_a_peer_that_is_back_within_five_seconds_is_known_again() -> None:
    world = world_of(scenario(4, Restart(60 * SECOND_US, 300_000, 4 * SECOND_US)), 40)
    assert world.audit.crashes > 5
    back = {member.peer_id: member.incarnation for member in world.live if member.incarnation > 60 * SECOND_US}
    assert len(back) == world.audit.crashes
    for member in world.live:
        for peer_id, incarnation in back.items():
            if peer_id != member.peer_id:
                said = member.machine.find(membership.PeerId(peer_id))
                assert said is not None
                assert said.incarnation == incarnation


def test_a_peer_that_is_back_before_its_end_is_noticed_keeps_its_new_connections() -> None:
    world = world_of(scenario(3, Restart(60 * SECOND_US, 300_000, SECOND_US)), 40)
    assert world.audit.crashes > 5
    for member in world.live:
        for number, since_us in member.connections.items():
            other = world.members[number]
            assert other is not None
            assert other.connections.get(member.number) == since_us


def test_a_shard_that_was_left_is_told_so_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gossip loses some: who missed the only word of it would keep a peer of whose end it never hears."""
    world = Overlay(scenario(1), 20, 1)
    world.arrivals.schedule_starts()
    said: list[str] = []
    monkeypatch.setattr(world.gossip, "spread", lambda publisher, bits, *rest: said.append(bits))
    world.arrivals.on_moved(world.live[3], "left")
    world._run_until(15 * SECOND_US)
    assert said.count("left") == 3


def test_a_relay_counts_no_reservation_of_peers_that_are_gone_or_went_to_another() -> None:
    faults = (Turnover(MINUTE_US, 8 * MINUTE_US, 5_000_000), Partition(3 * MINUTE_US, 5 * MINUTE_US, 40))
    world = world_of(scenario(9, *faults), 60)
    assert world.audit.crashes + world.audit.leaves > 20
    reserved = {(relay, number) for relay, numbers in world.arrivals._reserved.items() for number in numbers}
    assert reserved == {(relay, member.number) for member in world.live for relay in member.relays}


def test_machines_that_believe_no_report_and_probe_nobody_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = MembershipMachine.handle

    def credulous(machine: MembershipMachine[object], event: membership.Event, now: Micros) -> tuple[object, ...]:
        deaf = (membership.DeadlinePassed, membership.DownReported, membership.ConnectionLost)
        return () if isinstance(event, deaf) else handle(machine, event, now)

    monkeypatch.setattr(MembershipMachine, "handle", credulous)
    monkeypatch.setattr(MembershipMachine, "deadline", lambda _: None)
    report = simulate_overlay(scenario(8, Crash(MINUTE_US, 3)), 20, 1)
    assert any("alive five minutes after its end" in text for text in report.violations)
    assert report.believed_late == 19


def test_a_machine_that_is_not_woken_by_its_deadline_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = Overlay.arm

    def careless(world: Overlay, member: Member) -> None:
        if member.number != 7 or world.now_us < MINUTE_US:
            arm(world, member)

    monkeypatch.setattr(Overlay, "arm", careless)
    report = simulate_overlay(scenario(3), 20, 1)
    assert report.violations
    assert all(text.split(": ")[1].startswith("peer 7 sleeps beyond its deadline") for text in report.violations)


def test_a_machine_that_keeps_a_deadline_of_which_it_was_told_ends_the_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = MembershipMachine.handle

    def stubborn(machine: MembershipMachine[object], event: membership.Event, now: Micros) -> tuple[object, ...]:
        return () if isinstance(event, membership.DeadlinePassed) else handle(machine, event, now)

    monkeypatch.setattr(MembershipMachine, "handle", stubborn)
    with pytest.raises(RunawayError, match="MembershipMachine keeps a deadline"):
        simulate_overlay(scenario(3), 20, 1)


EVERYBODY_GOES = (Crash(MINUTE_US, 0), Crash(MINUTE_US, 1))


@pytest.mark.parametrize(
    "faults",
    [
        (*EVERYBODY_GOES, Sybils(2 * MINUTE_US, 3)),
        (*EVERYBODY_GOES, Eclipse(2 * MINUTE_US, 3)),
        (Crash(MINUTE_US, 1), Sybils(2 * MINUTE_US, 3)),
        (Crash(MINUTE_US, 1), Eclipse(2 * MINUTE_US, 3)),
    ],
)
def test_an_attack_for_which_nobody_is_there_is_the_scenarios_mistake(faults: tuple[OverlayFault, ...]) -> None:
    with pytest.raises(ConfigError, match="at 120 s nobody is there to attack or to be attacked: let the fault come"):
        simulate_overlay(scenario(3, *faults), 2, 1)


def test_an_overlay_that_everybody_has_left_goes_on_to_its_end() -> None:
    turnover = Turnover(90 * SECOND_US, 19 * MINUTE_US, 10_000_000, down_us=30 * MINUTE_US)
    given = dataclasses.replace(scenario(20, *EVERYBODY_GOES, turnover), searches=Searches(from_us=2 * MINUTE_US))
    report = simulate_overlay(given, 2, 1)
    assert (report.live, report.violations) == (0, ())


def test_more_keys_than_a_simulation_holds_are_the_scenarios_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "MAX_KEYS", 21)
    with pytest.raises(ConfigError, match="more than 21 keys by 60 s: simulate fewer peers"):
        simulate_overlay(scenario(3, Sybils(MINUTE_US, 3)), 20, 1)


def test_an_eclipse_that_finds_no_identity_is_the_scenarios_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay_faults, "MAX_TRIES", 1)
    with pytest.raises(ConfigError, match="simulate fewer or smaller eclipses"):
        simulate_overlay(scenario(3, Eclipse(MINUTE_US, 3)), 20, 1)


def test_a_newcomer_that_hears_a_farewell_before_it_knows_anybody_probes_all_the_same() -> None:
    """Its machine then has a deadline and nothing to do; that once passed unnoticed, for good."""
    population = OverlayPopulation(start_window_us=MINUTE_US)
    world = Overlay(dataclasses.replace(scenario(6), population=population), 20, 1)
    unknown = world.traits[world.add_peer()].peer_id

    def say_farewell() -> None:
        speaker, newcomer = world.live[0], world.live[-1]
        assert newcomer.machine.known_count == 0
        world.gossip.spread(speaker, "", None, membership.LeavingHeard(unknown, 1), 100)

    starts = [1 + number * MINUTE_US // 20 for number in range(1, 20)]
    for start_us in starts:
        world.at(start_us, lambda: world.after(0, say_farewell))
    world.run()
    assert make_report(world).violations == ()


def test_an_admission_machine_that_misses_the_end_of_a_connection_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = AdmissionMachine.handle

    def deaf(machine: AdmissionMachine, event: admission.Event, now: Micros) -> tuple[object, ...]:
        return () if isinstance(event, admission.Disconnected) else handle(machine, event, now)

    monkeypatch.setattr(AdmissionMachine, "handle", deaf)
    report = simulate_overlay(scenario(3, Crash(MINUTE_US, 3)), 20, 1)
    assert report.violations
    assert all(text.endswith("admits others than it is connected to") for text in report.violations)


def test_machines_that_believe_whatever_is_reported_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(machine: MembershipMachine[object], _: object, peer: membership.PeerId, *__: object) -> object:
        if peer in machine._members:
            machine._remove(peer)
            return (membership.PeerFailed(peer),)
        return ()

    monkeypatch.setattr(MembershipMachine, "_on_report", believe)
    faults = FalseReports(MINUTE_US, 5 * MINUTE_US, 200_000, 60 * SECOND_US)
    report = simulate_overlay(scenario(6, faults), 30, 1)
    assert any("which runs and can be reached" in text for text in report.violations)


def test_liars_are_muted_and_harm_nobody() -> None:
    report = builtin("liars", 40, 1)
    assert report.beliefs["muted"] > 0
    assert report.beliefs["failed_alive"] == 0


def test_a_partition_is_noticed_and_healed_from() -> None:
    report = builtin("partition-large", 40, 1)
    assert report.beliefs["suspected"] > 100
    assert report.view.mean == 39


def test_lost_and_doubled_gossip_changes_little() -> None:
    loss = Loss(MINUTE_US, 9 * MINUTE_US, 300_000, 300_000, 100_000)
    report = simulate_overlay(scenario(15, loss, Crash(5 * MINUTE_US, 3)), 40, 1)
    assert report.violations == ()
    assert report.detection_us.count == 39


def test_gossip_that_is_heard_twice_lives_as_long_by_the_same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = MembershipMachine.handle
    heard: dict[tuple[int, int, int], list[int]] = {}

    def note(machine: MembershipMachine[object], event: membership.Event, now: Micros) -> tuple[object, ...]:
        if isinstance(event, membership.AnnouncementReceived):
            heard.setdefault((id(machine), id(event.announcement), now), []).append(event.lives_us)
        return handle(machine, event, now)

    monkeypatch.setattr(MembershipMachine, "handle", note)
    clocks = (ClockStep(MINUTE_US, 300_000, -20 * SECOND_US), ClockStep(MINUTE_US, 300_000, 40 * SECOND_US))
    world = Overlay(scenario(4, *clocks, Loss(2 * MINUTE_US, 4 * MINUTE_US, 0, 500_000)), 20, 1)
    schedule_faults(world)
    world.run()
    assert sum(len(lives) > 1 for lives in heard.values()) > 20
    assert all(len(set(lives)) == 1 for lives in heard.values())


def test_made_up_identities_get_few_places_in_a_view_and_hide_no_model() -> None:
    report = builtin("sybil", 300, 3)
    assert 0 < report.most_sybil_share_percent <= 10
    assert report.view.most <= 256
    assert report.found_in_time_per_million >= 990_000
    assert [bar.name for bar in report.bars][-1] == "made-up identities in a view"


def test_an_eclipse_hides_no_model_from_its_victim() -> None:
    report = builtin("eclipse", 300, 3)
    assert 0 < report.victim_sybil_share_percent <= 10
    assert report.found_in_time_per_million >= 990_000


def test_an_overlay_that_grows_from_nothing_comes_together() -> None:
    population = OverlayPopulation(start_window_us=2 * MINUTE_US)
    world = world_of(dataclasses.replace(scenario(12), population=population), 40)
    assert all(member.machine.live_count == 39 for member in world.live)
    assert make_report(world).violations == ()


SMALL_SHARDS = ShardPolicy(
    deeper_above=48, deeper_above_when_full=24, up_below=10, parent_too_below=20, evidence=4, justifying=8,
    us_per_peer=12 * SECOND_US,
)  # fmt: skip


def test_an_overlay_that_grows_ends_at_one_depth_and_comes_up_again_when_it_shrinks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members, "ShardMachine", partial(ShardMachine, policy=SMALL_SHARDS))
    population = OverlayPopulation(start_window_us=90 * SECOND_US)
    world = Overlay(dataclasses.replace(scenario(60), population=population), 300, 1)
    depths: list[Counter[int]] = []

    def shrink() -> None:
        depths.append(Counter(member.shards.depth for member in world.live))
        for member in tuple(world.live)[40:]:
            world.arrivals.leave(member.number)

    world.at(15 * MINUTE_US, shrink)
    world.run()
    depths.append(Counter(member.shards.depth for member in world.live))
    grown, shrunk = depths
    assert set(grown) <= {2, 3}
    assert grown[3] >= 285
    median = sorted(shrunk.elements())[20]
    assert median <= 1
    assert set(shrunk) <= {0, 1, 2}


def test_slow_ways_cost_time_and_no_lives() -> None:
    links = RegionLinks(one_way_us=((250_000,),), region_weights=(1,))
    report = simulate_overlay(dataclasses.replace(scenario(12), links=links), 40, 1)
    assert report.violations == ()
    assert report.beliefs["failed_alive"] == 0
    assert report.found_us.p50 > builtin("liars", 40, 1).found_us.p50 // 2


def test_what_a_peer_was_told_is_recorded_and_its_replay_decides_the_same() -> None:
    recorder = Recorder(3)
    given = scenario(6, Crash(MINUTE_US, 5), Crash(2 * MINUTE_US, 3, SECOND_US))
    without = simulate_overlay(given, 20, 1)
    world = Overlay(given, 20, 1, recorder)
    schedule_faults(world)
    world.run()
    assert make_report(world) == without
    machine, effects = replay_recording(recorder.text())
    assert machine == "membership"
    member = world.members[3]
    assert member is not None
    failed = {effect.peer for _, effect in effects if isinstance(effect, membership.PeerFailed)}
    known = {effect.peer for _, effect in effects if isinstance(effect, membership.PeerJoined)}
    assert known - failed == {said.peer_id for said in member.machine.announcements()}


def test_a_report_is_a_table_for_people() -> None:
    lines = describe_overlay(dataclasses.asdict(builtin("nat", 40, 1)))
    assert any("control traffic out, mean" in line and " met" in line for line in lines)


def test_a_spread_of_nothing_is_nothing() -> None:
    assert spread_of([]) == Spread(0, 0, 0, 0, 0)
    assert spread_of(list(range(200, 0, -1))) == Spread(200, 100, 101, 199, 200)
