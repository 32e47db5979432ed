"""Requests that one peer drives for another."""

import pytest
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.node.exchanges import generate_remotely
from tests.fakes.mesh import open_mesh, read_tokens


async def test_a_model_that_was_never_driven_here_is_refused_as_that(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        joiner = await mesh.join("joiner", founder)
        with pytest.raises(P2PMeshError, match=r"^nowhere is not driven here; try again$") as raised:
            async with generate_remotely(joiner.node.overlay, founder.peer, mesh.request(model="nowhere")) as events:
                await read_tokens(events)
        assert raised.value.code is ErrorCode.MODEL_NOT_READY
