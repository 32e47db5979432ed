"""Clients that read slowly, or not at all, at the node that drives their model and at another: who loses what, when."""

import json

import pytest
import trio
from starlette.types import Message
from trio.testing import MockClock

from p2pmesh.api.exchange import SEND_DEADLINE_S
from p2pmesh.api.openai.app import openai_app
from p2pmesh.app.backend import NodeBackend
from p2pmesh.node import sequences
from tests.fakes import network
from tests.fakes.asgi import AsgiClient
from tests.fakes.mesh import Mesh, MeshNode, open_mesh
from tests.fakes.models import FakeModelStore, fake_model

MODEL = fake_model()
FEW_BYTES = 512
"""Of a window: answers of these tests are longer."""
SLOW_S = 25.0
"""From one event to the next: just within what a client may take nothing for."""
TOKENS = 30


async def split_in_two(mesh: Mesh) -> list[MeshNode]:
    """The driver, and a peer that holds its other stage."""
    driver = await mesh.found("driver", store=FakeModelStore(MODEL))
    peer = await mesh.join("peer", driver)
    mesh.serve(driver, MODEL, stage_count=2, context_tokens=100_000)
    stages = (await driver.wait_told("pipeline_ready"))["stages"]
    nodes = {node.peer: node for node in (driver, peer)}
    chain = [nodes[stage["peer_id"]] for stage in stages]
    for node in chain:
        await node.wait_routable()
    return chain


async def ask(node: MeshNode, max_tokens: int, pause_s: float) -> AsgiClient:
    """A streamed answer, of which each part is taken only after a while."""

    async def pause(message: Message) -> None:
        await trio.sleep(pause_s)

    backend = NodeBackend()
    backend.attach(node.node)
    asked = {"model": MODEL.name, "prompt": "hello", "max_tokens": max_tokens, "stream": True, "temperature": 0}
    client = AsgiClient(json.dumps(asked).encode(), before_send=pause)
    await client.run(openai_app(backend), "/v1/completions")
    return client


def lanes_taken(driver: MeshNode) -> int:
    return sum(one.lanes.taken for one in driver.node.drivers.all())


@pytest.mark.parametrize("ingress", [0, 1])
async def test_a_client_that_reads_nothing_loses_its_lane(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, ingress: int
) -> None:
    monkeypatch.setattr(sequences, "OUTPUT_CAPACITY", 16)
    monkeypatch.setattr(network, "PIPE_BYTES", FEW_BYTES)
    async with open_mesh() as mesh:
        chain = await split_in_two(mesh)
        began_s = trio.current_time()
        client = await ask(chain[ingress], 90_000, float("inf"))
        assert client.sent == []
        assert trio.current_time() - began_s == pytest.approx(SEND_DEADLINE_S, abs=2)
        await chain[0].node.drivers.wait_idle()
        assert trio.current_time() - began_s == pytest.approx(SEND_DEADLINE_S, abs=2)
        assert lanes_taken(chain[0]) == 0


@pytest.mark.parametrize("ingress", [0, 1])
async def test_a_slow_client_has_its_whole_answer_and_holds_no_lane_for_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, ingress: int
) -> None:
    monkeypatch.setattr(network, "PIPE_BYTES", FEW_BYTES)
    async with open_mesh() as mesh:
        chain = await split_in_two(mesh)
        answers: list[AsgiClient] = []

        async def read() -> None:
            answers.append(await ask(chain[ingress], TOKENS, SLOW_S))

        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(1)
            await chain[0].node.drivers.wait_idle()
            assert lanes_taken(chain[0]) == 0
            assert trio.current_time() - began_s < SLOW_S
        assert trio.current_time() - began_s > TOKENS * SLOW_S
        chunks = [chunk for chunk in answers[0].events() if chunk != "[DONE]"]
        assert answers[0].is_complete
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert not any("error" in chunk for chunk in chunks)
        assert chain[ingress].told("request_recovered") == []  # nor was any of it made twice
