"""Bytes to and from peers are counted, and go no faster than the owner allows; activations before files."""

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.base.quantities import KIB, MIB, Micros
from p2pmesh.core.owner_wishes import OwnerWishes
from p2pmesh.core.sharing import SharingRules
from p2pmesh.node.traffic import MeteredStream, Traffic
from tests.fakes.mesh import MockedClock, expected, open_mesh
from tests.fakes.models import FakeModelStore, fake_model

MODEL = fake_model()
CAP = 256 * KIB


class FakeStream:
    """Takes and gives anything at once."""

    remote_peer = "peer"

    async def receive_exactly(self, count: int) -> bytes:
        return bytes(count)

    def receive_nowait(self, count: int) -> bytes | None:
        return bytes(count) if count < 10 else None

    async def send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    def send_nowait(self, data: bytes) -> bool:
        return True


def mesh_now() -> Micros:
    return MockedClock().now()


def metered(*, is_stage: bool, up: int = 0, down: int = 0) -> tuple[MeteredStream, Traffic]:
    traffic = Traffic(MockedClock())
    traffic.limit(up, down)
    return MeteredStream(FakeStream(), traffic, is_stage=is_stage), traffic  # type: ignore[arg-type]


async def test_what_comes_and_goes_is_counted(autojump_clock: MockClock) -> None:
    stream, traffic = metered(is_stage=False)
    await stream.send(b"abc")
    assert stream.send_nowait(b"de")
    assert await stream.receive_exactly(100) == bytes(100)
    assert stream.receive_nowait(4) == bytes(4)
    assert stream.receive_nowait(50) is None
    assert (traffic.sent_bytes, traffic.received_bytes) == (5, 104)


async def test_activations_wait_for_the_cap_and_messages_do_not(autojump_clock: MockClock) -> None:
    for is_stage, seconds in ((True, 3), (False, 0)):
        stream, _ = metered(is_stage=is_stage, up=CAP)
        began_s = trio.current_time()
        for _ in range(5):
            await stream.send(bytes(CAP))
        assert round(trio.current_time() - began_s) == seconds
        assert stream.send_nowait(b"x") is not is_stage  # then whoever sends waits


async def test_what_comes_to_a_stage_is_read_no_faster_than_allowed(autojump_clock: MockClock) -> None:
    stream, traffic = metered(is_stage=True, down=CAP)
    began_s = trio.current_time()
    for _ in range(5):
        await stream.receive_exactly(CAP)
    assert round(trio.current_time() - began_s) == 3
    assert stream.receive_nowait(4) is None  # then whoever reads waits
    traffic.limit(0, 0)
    assert stream.receive_nowait(4) == bytes(4)
    await stream.receive_exactly(100 * CAP)
    await stream.receive_exactly(1)
    assert round(trio.current_time() - began_s) == 3


async def test_files_wait_for_activations_too(autojump_clock: MockClock) -> None:
    stream, traffic = metered(is_stage=True, up=CAP)
    await stream.send(bytes(11 * CAP))
    began_s = trio.current_time()
    await traffic.wait_to_send_file()
    assert round(trio.current_time() - began_s) == 10


@pytest.mark.parametrize("is_sender", [False, True])
async def test_a_stage_file_waits_for_the_caps_at_both_ends(autojump_clock: MockClock, *, is_sender: bool) -> None:
    async with open_mesh() as mesh:
        holder = await mesh.found("holder", memory_bytes=0, store=FakeModelStore(MODEL))
        taker = await mesh.join("taker", holder)
        traffic = holder.node.giving.traffic if is_sender else taker.node.giving.traffic
        traffic.limit(MIB, MIB)
        began_s = trio.current_time()
        for cap in (traffic.up, traffic.down):
            cap.note(16 * MIB, mesh_now(), is_first=False)  # a file that has just gone
        mesh.serve(holder, MODEL)
        await taker.wait_told("stage_fetched")
        assert 15 <= trio.current_time() - began_s < 20


async def test_caps_are_told_to_whoever_plans_and_change_while_it_runs(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        node = await mesh.found("node", settings={"wishes": OwnerWishes(up_bytes_per_s=MIB)})
        other = await mesh.join("other", node)
        await other.node.profiles.refresh()
        told = other.node.profiles.find(node.peer)
        assert told is not None
        assert (told.up_bytes_per_s, told.down_bytes_per_s) == (MIB, 0)
        await node.node.giving.change(MIB, OwnerWishes(down_bytes_per_s=CAP), SharingRules())
        assert (node.node.giving.traffic.up.bytes_per_s, node.node.giving.traffic.down.bytes_per_s) == (0, CAP)
        known = (await node.node.peers())["peers"][0]
        assert (known["up_bytes_per_s"], known["down_bytes_per_s"]) == (0, CAP)


async def test_only_so_many_clients_of_others_are_served_at_a_time(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found(
            "driver", store=FakeModelStore(MODEL), settings={"wishes": OwnerWishes(max_clients=1)}
        )
        one = await mesh.join("one", driver, memory_bytes=0)
        other = await mesh.join("other", driver, memory_bytes=0)
        mesh.serve(driver, MODEL)
        await one.wait_routable()
        await other.wait_routable()
        driver.engine.hold()
        first = mesh.request(max_tokens=30)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ask, first)
            await trio.sleep(0.1)
            assert driver.node.drivers.clients.served == 1
            with pytest.raises(P2PMeshError, match="no more than 1 at a time") as refused:
                await other.ask(mesh.request())
            assert refused.value.code is ErrorCode.OVERLOADED
            driver.engine.go_on()
        await trio.sleep(1)
        again = mesh.request()
        assert await other.ask(again) == expected(again)
        own = mesh.request()
        assert await driver.ask(own) == expected(own)
