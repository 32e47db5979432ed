"""What the node makes of its machine's battery and load, and of its owner's wishes."""

import trio
from trio.testing import MockClock

from p2pmesh.core.owner_wishes import MachineLoad, OwnerWishes
from tests.fakes.machine import FakeMachine
from tests.fakes.mesh import open_mesh
from tests.fakes.models import FakeModelStore, fake_model

MODEL = fake_model()


async def test_a_peer_on_battery_says_so_and_is_asked_after_others(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder", store=FakeModelStore(MODEL), memory_bytes=0)
        spared = await mesh.join("spared", founder, machine=FakeMachine(MachineLoad(is_on_battery=True)))
        await trio.sleep(60)
        assert founder.node.overlay.board.find(spared.peer).is_on_battery
        mesh.serve(founder, MODEL)
        [stage] = (await founder.wait_told("pipeline_ready"))["stages"]
        assert stage["peer_id"] == spared.peer


async def test_a_busy_machine_is_told_after_some_readings_and_gossiped_once(autojump_clock: MockClock) -> None:
    machine = FakeMachine(*[MachineLoad(others_milli=900)] * 4, MachineLoad())
    async with open_mesh() as mesh:
        node = await mesh.found("founder", machine=machine)
        await trio.sleep(45)
        assert not node.node.overlay.board.own().is_busy
        await trio.sleep(60)
        assert node.node.overlay.board.own().is_busy
        await trio.sleep(120)
        assert not node.node.overlay.board.own().is_busy


async def test_no_stage_goes_where_its_owner_does_not_want_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder", store=FakeModelStore(MODEL), memory_bytes=0)
        small = await mesh.join("small", founder, settings={"wishes": OwnerWishes(max_layers=1)})
        large = await mesh.join("large", founder)
        mesh.serve(founder, MODEL)
        [stage] = (await founder.wait_told("pipeline_ready"))["stages"]
        assert stage["peer_id"] == large.peer
        [told] = [peer for peer in (await founder.node.peers())["peers"] if peer["name"] == small.peer]
        assert told["max_layers"] == 1
