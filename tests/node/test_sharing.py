"""Owners take their machines back: what runs there moves or finishes, nothing is cut that can go on elsewhere."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.owner_wishes import ANYTHING, OwnerWishes
from p2pmesh.core.share_hours import LocalTime, parse_share_hours
from p2pmesh.core.sharing import SharingRules
from p2pmesh.node.serving_options import ServingOptions, planning_model_of
from p2pmesh.wire.stage import WireDtype
from tests.fakes.mesh import Mesh, MeshNode, expected, open_mesh, read_tokens
from tests.fakes.models import FakeModelStore, fake_model
from tests.fakes.owner import FakeOwner

MODEL = fake_model()
WHOLE_BYTES = 4 * planning_model_of(MODEL, ServingOptions(None, 4096, 4, WireDtype.F32)).least.bytes_of(
    LayerRange(0, MODEL.index.layer_count)
)
NIGHT, DAY = LocalTime(0, 60), LocalTime(0, 720)
LEAVE_S = 60
NIGHTS = SharingRules(parse_share_hours(["22:00-07:00"]), leave_us=LEAVE_S * MICROS_PER_SECOND)
IDLE = SharingRules(is_only_idle=True, leave_us=LEAVE_S * MICROS_PER_SECOND)


class Shared:
    """A coordinator that holds nothing, a volunteer with rules, and room for another peer."""

    def __init__(self, mesh: Mesh, coordinator: MeshNode, volunteer: MeshNode, owner: FakeOwner) -> None:
        self.mesh = mesh
        self.coordinator = coordinator
        self.volunteer = volunteer
        self.owner = owner

    async def spare_joins(self) -> MeshNode:
        return await self.mesh.join("spare", self.coordinator, memory_bytes=WHOLE_BYTES)

    async def ask(self) -> None:
        request = self.mesh.request()
        assert await self.coordinator.ask(request) == expected(request)


@asynccontextmanager
async def shared(rules: SharingRules = NIGHTS, local: LocalTime = NIGHT) -> AsyncIterator[Shared]:
    async with open_mesh() as mesh:
        coordinator = await mesh.found("coordinator", memory_bytes=0, store=FakeModelStore(MODEL))
        owner = FakeOwner(local, idle_s=1000)
        volunteer = await mesh.join(
            "volunteer", coordinator, memory_bytes=WHOLE_BYTES, owner=owner, settings={"sharing": rules}
        )
        mesh.serve(coordinator, MODEL, replan_after_s=120.0)
        yield Shared(mesh, coordinator, volunteer, owner)


async def test_the_end_of_the_hours_moves_what_runs_here(autojump_clock: MockClock) -> None:
    async with shared() as one:
        await one.coordinator.wait_told("pipeline_ready")
        spare = await one.spare_joins()
        one.owner.local = DAY
        leaving = await one.volunteer.wait_told("sharing_changed", 2)
        assert (leaving["state"], leaving["reason"], leaving["leave_s"]) == ("leaving", "hours", LEAVE_S)
        began_s = trio.current_time()
        moved = await one.coordinator.wait_told("replanned")
        assert moved["reason"] == "peer_leaves"
        assert [stage["peer_id"] for stage in moved["stages"]] == [spare.peer]
        assert trio.current_time() - began_s < 10
        rested = await one.volunteer.wait_told("sharing_changed", 3)
        assert rested["state"] == "resting"
        assert trio.current_time() - began_s < LEAVE_S / 2
        assert one.volunteer.node.stages.reserved_bytes == 0
        await one.coordinator.wait_told("pipeline_ready", 2)
        await one.ask()


async def test_a_running_answer_that_takes_too_long_goes_on_elsewhere(autojump_clock: MockClock) -> None:
    async with shared() as one:
        await one.coordinator.wait_routable()
        await one.spare_joins()
        one.volunteer.engine.hold()
        request = one.mesh.request(max_tokens=50)
        async with one.coordinator.node.generate(request) as events:
            one.owner.local = DAY
            assert await read_tokens(events) == expected(request)
        await one.coordinator.wait_told("replanned")


async def test_a_running_answer_may_finish_where_nobody_else_has_room(autojump_clock: MockClock) -> None:
    rules = replace(NIGHTS, quiet_us=MICROS_PER_SECOND // 10)
    async with shared(rules) as one:
        await one.coordinator.wait_routable()
        one.volunteer.engine.hold()
        request = one.mesh.request(max_tokens=50)
        async with one.coordinator.node.generate(request) as events:
            one.owner.local = DAY
            await one.volunteer.node.giving.change(WHOLE_BYTES, ANYTHING, replace(rules, is_only_idle=True))
            await trio.sleep(1)
            one.volunteer.engine.go_on()
            assert await read_tokens(events) == expected(request)
        await one.volunteer.wait_told("sharing_changed", 3)
        await trio.sleep(1)
        assert not one.volunteer.node.stages.is_holding


async def test_no_stage_is_taken_until_the_hours_begin_again(autojump_clock: MockClock) -> None:
    async with shared(local=DAY) as one:
        assert (await one.volunteer.wait_told("sharing_changed"))["state"] == "resting"
        await trio.sleep(120)
        assert not one.coordinator.told("pipeline_ready")
        assert one.volunteer.node.status()["sharing"]["next_change"] == "Mon 22:00"
        one.owner.local = NIGHT
        await one.coordinator.wait_told("pipeline_ready")
        await one.ask()


async def test_an_owner_who_comes_back_gets_the_machine(autojump_clock: MockClock) -> None:
    async with shared(IDLE) as one:
        await one.coordinator.wait_told("pipeline_ready")
        one.owner.idle_s = 0
        await one.volunteer.wait_told("sharing_changed", 3)
        told = [(fields["state"], fields["reason"]) for fields in one.volunteer.told("sharing_changed")]
        assert told == [("giving", None), ("leaving", "owner"), ("resting", "owner")]
        assert one.volunteer.node.status()["sharing"]["owner_told_by"] == ["keyboard", "other programs"]
        await trio.sleep(60)
        assert not one.volunteer.node.stages.is_holding
        one.owner.idle_s = 400
        await one.coordinator.wait_told("pipeline_ready", 2)


async def test_less_memory_moves_what_does_not_fit_any_more(autojump_clock: MockClock) -> None:
    async with shared(SharingRules()) as one:
        await one.coordinator.wait_told("pipeline_ready")
        spare = await one.spare_joins()
        await one.volunteer.node.giving.change(1000, ANYTHING, SharingRules())
        moved = await one.coordinator.wait_told("replanned")
        assert (moved["reason"], moved["stages"][0]["peer_id"]) == ("peer_leaves", spare.peer)
        await one.coordinator.wait_told("pipeline_ready", 2)
        await one.ask()


async def test_a_cap_on_layers_counts_at_once(autojump_clock: MockClock) -> None:
    async with shared(SharingRules()) as one:
        await one.coordinator.wait_told("pipeline_ready")
        spare = await one.spare_joins()
        await one.volunteer.node.giving.change(WHOLE_BYTES, OwnerWishes(max_layers=1), SharingRules())
        moved = await one.coordinator.wait_told("replanned")
        assert (moved["reason"], moved["stages"][0]["peer_id"]) == ("peer_leaves", spare.peer)


async def test_what_nobody_takes_over_is_ended_when_memory_is_taken_back(autojump_clock: MockClock) -> None:
    async with shared(SharingRules()) as one:
        await one.coordinator.wait_told("pipeline_ready")
        await one.volunteer.node.giving.change(1000, ANYTHING, NIGHTS)
        withdrawn = await one.coordinator.wait_told("model_withdrawn")
        assert withdrawn["code"] == ErrorCode.MODEL_NOT_READY.value
        assert "does not allow the stage any more" in withdrawn["message"]


async def test_rules_that_change_while_it_runs_count_at_once(autojump_clock: MockClock) -> None:
    async with shared(SharingRules(), DAY) as one:
        await one.coordinator.wait_told("pipeline_ready")
        await one.volunteer.node.giving.change(WHOLE_BYTES, ANYTHING, NIGHTS)
        assert (await one.volunteer.wait_told("sharing_changed"))["state"] == "leaving"
        await one.volunteer.wait_told("sharing_changed", 2)
        await one.volunteer.node.giving.change(WHOLE_BYTES, ANYTHING, SharingRules())
        assert (await one.volunteer.wait_told("sharing_changed", 3))["state"] == "giving"
        await one.coordinator.wait_told("pipeline_ready", 2)


async def test_an_owner_who_is_there_is_seen_by_rules_that_ask_for_it_first(autojump_clock: MockClock) -> None:
    async with shared(NIGHTS, DAY) as one:
        await trio.sleep(1)
        one.owner.idle_s = 0
        told = len(one.volunteer.told("sharing_changed"))
        await one.volunteer.node.giving.change(WHOLE_BYTES, ANYTHING, IDLE)
        await trio.sleep(5)
        assert [fields["state"] for fields in one.volunteer.told("sharing_changed")[told:]] in ([], ["resting"])


@asynccontextmanager
async def alone() -> AsyncIterator[tuple[Mesh, MeshNode, FakeOwner]]:
    """A volunteer that serves a model of its own."""
    async with open_mesh() as mesh:
        owner = FakeOwner(NIGHT)
        node = await mesh.found(
            "node", memory_bytes=WHOLE_BYTES, owner=owner, store=FakeModelStore(MODEL), settings={"sharing": NIGHTS}
        )
        mesh.serve(node, MODEL, replan_after_s=120.0)
        await node.wait_told("pipeline_ready")
        yield mesh, node, owner


async def test_a_model_of_ones_own_goes_to_others_and_comes_back(autojump_clock: MockClock) -> None:
    async with alone() as (mesh, node, owner):
        spare = await mesh.join("spare", node, memory_bytes=WHOLE_BYTES)
        owner.local = DAY
        moved = await node.wait_told("replanned")
        assert [stage["peer_id"] for stage in moved["stages"]] == [spare.peer]
        await node.wait_told("pipeline_ready", 2)
        request = mesh.request()
        assert await node.ask(request) == expected(request)
        assert (await node.wait_told("sharing_changed", 3))["state"] == "resting"
        assert not node.node.stages.is_holding
        owner.local = NIGHT
        await node.wait_told("sharing_changed", 4)
        await mesh.kill(spare)
        ready = await node.wait_told("pipeline_ready", 3)
        assert [stage["peer_id"] for stage in ready["stages"]] == [node.peer]


async def test_a_model_that_nobody_else_holds_waits_for_the_hours(autojump_clock: MockClock) -> None:
    async with alone() as (mesh, node, owner):
        owner.local = DAY
        await node.wait_told("sharing_changed", 3)
        await node.wait_told("model_withdrawn")
        await trio.sleep(300)
        assert not node.node.stages.is_holding
        assert len(node.told("pipeline_ready")) == 1
        owner.local = NIGHT
        await node.wait_told("pipeline_ready", 2)
        request = mesh.request()
        assert await node.ask(request) == expected(request)


async def test_an_owner_who_comes_and_goes_at_once_costs_a_move_and_no_more(autojump_clock: MockClock) -> None:
    async with shared(IDLE) as one:
        await one.coordinator.wait_told("pipeline_ready")
        await one.spare_joins()
        for _ in range(3):
            one.owner.idle_s = 0
            await trio.sleep(7)
            one.owner.idle_s = 1000
            await trio.sleep(7)
        await trio.sleep(300)
        await one.ask()
        assert len(one.coordinator.told("pipeline_ready")) <= 3
        assert one.volunteer.node.stages.memory_bytes == WHOLE_BYTES


async def test_where_no_owner_can_be_asked_it_gives_at_all_hours(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        node = await mesh.found(memory_bytes=WHOLE_BYTES, settings={"sharing": NIGHTS})
        await node.node.giving.sharing.change(WHOLE_BYTES // 2, IDLE)
        await trio.sleep(LEAVE_S)
        assert node.node.giving.sharing.is_giving
        assert node.node.stages.memory_bytes == WHOLE_BYTES // 2
        assert node.told("sharing_changed") == []
