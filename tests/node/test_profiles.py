"""What peers tell of their machines and their owners, and what a plan makes of it."""

import json

import trio
from trio.testing import MockClock

from p2pmesh.base.quantities import GIB
from p2pmesh.core.devices import Device
from p2pmesh.core.owner_wishes import MachineLoad, OwnerWishes
from p2pmesh.node.profiles import ASK_AGAIN_S
from p2pmesh.ports.machine import MachineFacts
from p2pmesh.wire.messages.runs import LoadStage
from p2pmesh.wire.profile import DeviceEntry
from tests.fakes.machine import FakeMachine
from tests.fakes.mesh import open_mesh
from tests.fakes.models import FakeModelStore, fake_model

MODEL = fake_model()


async def test_a_peer_tells_its_machine_its_load_and_its_owners_wishes(autojump_clock: MockClock) -> None:
    device = Device("CUDA0", "a card", "CUDA", "gpu", GIB, 2 * GIB)
    facts = MachineFacts(4, 2500, 3 * GIB, (device,), frozenset({"CUDA0"}))
    machine = FakeMachine(MachineLoad(True, 80, 500, 100), facts=facts, memory_bytes_per_s=10**9)
    async with open_mesh() as mesh:
        founder = await mesh.found("founder")
        wishes = OwnerWishes(excluded_models=("other",))
        joiner = await mesh.join("joiner", founder, machine=machine, settings={"wishes": wishes})
        await trio.sleep(70)
        assert machine.measured == 0  # nobody asked
        await founder.node.profiles.refresh()
        await trio.sleep(ASK_AGAIN_S)
        await founder.node.profiles.refresh()
        profile = founder.node.profiles.find(joiner.peer)
        status = json.loads(json.dumps(joiner.node.status()))
        [seen] = founder.node.status()["peers"]
    assert (seen["is_on_battery"], seen["is_busy"], seen["max_layers"]) == (True, False, None)
    assert status["machine"]["devices"][0]["name"] == "CUDA0"
    assert status["machine"]["excluded_models"] == ["other"]
    assert profile is not None
    assert (profile.threads, profile.processor_quota_milli, profile.reserved_bytes) == (4, 2500, 2 * GIB)
    assert (profile.load_milli, profile.others_milli, profile.battery_percent) == (500, 100, 80)
    assert profile.devices == (DeviceEntry("CUDA0", "CUDA", "gpu", GIB, 2 * GIB, True),)
    assert (profile.memory_bytes_per_s, machine.measured) == (10**9, 1)
    assert profile.excluded_models == ("other",)


async def test_no_stage_of_an_excluded_model_is_asked_for_and_one_that_is_asked_for_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder", store=FakeModelStore(MODEL), memory_bytes=0)
        settings = {"wishes": OwnerWishes(excluded_models=(MODEL.name,))}
        unwilling = await mesh.join("unwilling", founder, settings=settings, memory_bytes=4 * GIB)
        willing = await mesh.join("willing", founder)
        asked: list[str] = []
        unwilling.node.overlay.serve_exchange(LoadStage, lambda stream, load: asked.append(load.model))
        mesh.serve(founder, MODEL)
        [stage] = (await founder.wait_told("pipeline_ready"))["stages"]
        assert stage["peer_id"] == willing.peer
        assert asked == []
        [told] = [peer for peer in (await founder.node.peers())["peers"] if peer["name"] == unwilling.peer]
        assert told["excluded_models"] == [MODEL.name]


async def test_an_owners_own_node_holds_no_stage_of_what_it_excludes(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        settings = {"wishes": OwnerWishes(excluded_models=(MODEL.name,))}
        founder = await mesh.found("founder", store=FakeModelStore(MODEL), settings=settings)
        other = await mesh.join("other", founder)
        mesh.serve(founder, MODEL)
        [stage] = (await founder.wait_told("pipeline_ready"))["stages"]
        assert stage["peer_id"] == other.peer


async def test_a_peer_that_does_not_answer_is_planned_by_what_it_announces(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder", store=FakeModelStore(MODEL), memory_bytes=0)
        silent = await mesh.join("silent", founder)
        silent.node.profiles._own = None  # type: ignore[assignment]
        mesh.serve(founder, MODEL)
        [stage] = (await founder.wait_told("pipeline_ready"))["stages"]
        assert stage["peer_id"] == silent.peer
        assert founder.node.profiles.find(silent.peer) is None


async def test_a_peer_is_asked_anew_after_a_while_and_forgotten_when_it_is_gone(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder")
        machine = FakeMachine(MachineLoad(battery_percent=80), MachineLoad(battery_percent=20))
        joiner = await mesh.join("joiner", founder, machine=machine)
        await trio.sleep(1)

        async def battery() -> int | None:
            await founder.node.profiles.refresh()
            profile = founder.node.profiles.find(joiner.peer)
            assert profile is not None
            return profile.battery_percent

        assert await battery() == 80
        await trio.sleep(40)
        assert await battery() == 80
        await trio.sleep(ASK_AGAIN_S)
        assert await battery() == 20
        await mesh.kill(joiner)
        await trio.sleep(5)
        await founder.node.profiles.refresh()
        assert founder.node.profiles.find(joiner.peer) is None
