"""What a node tells of the models that can be routed from it, and of who joins."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.wire.announcement import ServedModel
from tests.fakes.mesh import open_mesh


def models(count: int) -> tuple[ServedModel, ...]:
    return tuple(ServedModel(f"m{number:02}", "0" * 64, bytes(16), 1, 4096) for number in range(count))


async def test_only_the_difference_is_told_and_few_names_of_many(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        for count in (1, 41, 42, 20):
            founder.node.overlay.board.change_own(models=models(count))
            await wait_all_tasks_blocked()
        first, many, one = founder.told("ready")
        assert first == {"models": ["m00"], "count": 1}
        assert many == {"models": [f"m{number:02}" for number in range(1, 17)], "count": 40}
        assert one == {"models": ["m41"], "count": 1}
        (gone,) = founder.told("not_routable")
        assert (len(gone["models"]), gone["count"]) == (16, 22)


async def test_a_peer_that_comes_again_is_told_by_its_name(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        await member.network.disconnect(founder.peer)
        assert await founder.wait_told("peer_joined", times=2) == {"peer_id": member.peer, "name": "member"}


@pytest.mark.parametrize(("name", "code"), [("coming", ErrorCode.MODEL_NOT_READY), ("never", ErrorCode.MODEL_UNKNOWN)])
async def test_a_model_that_another_peer_is_about_to_serve_is_not_unknown(
    autojump_clock: MockClock, name: str, code: ErrorCode
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        member.node.router.expect("coming")
        member.node.overlay.board.change_own(models=models(1))
        await founder.wait_routable("m00")
        await trio.sleep(5)
        with pytest.raises(Refused) as raised:
            await founder.ask(mesh.request(model=name))
        assert raised.value.code is code
