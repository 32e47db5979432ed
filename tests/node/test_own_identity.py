"""One peer id, two nodes: what the earlier and the later one do, over the fake network."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ConfigError, ErrorCode, RemoteProtocolError
from p2pmesh.wire.announcement import encode_announcement
from p2pmesh.wire.messages.identity import IdentityAnswer, IdentityQuery
from tests.fakes.identity import fake_identity
from tests.fakes.mesh import UNIX_MS_AT_START, Mesh, MeshNode, open_mesh


def say_as(node: MeshNode, name: str, witness: MeshNode, *, incarnation: int, sequence: int) -> None:
    """A twin of ``node`` announces itself now, and ``witness`` hears it."""
    identity = fake_identity(name)
    now = UNIX_MS_AT_START + int(trio.current_time() * 1000)
    said = replace(
        node.node.overlay.board.own(),
        incarnation=incarnation,
        sequence=sequence,
        issued_unix_ms=now,
        expires_unix_ms=now + 90_000,
    )
    witness.node.overlay.board.learn(encode_announcement(said, identity.public_key, identity.sign))


async def pair(mesh: Mesh) -> tuple[MeshNode, MeshNode, int]:
    founder = await mesh.found()
    await trio.sleep(5)
    joiner = await mesh.join("joiner", founder)
    return founder, joiner, joiner.node.overlay.board.own().incarnation


async def test_the_earlier_node_tells_goes_on_and_takes_its_place_back(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, joiner, incarnation = await pair(mesh)
        later = incarnation + 100_000
        say_as(joiner, "joiner", founder, incarnation=later, sequence=1)
        told = await joiner.wait_told("error")
        assert told["code"] == ErrorCode.IDENTITY_DUPLICATED.value
        assert "rotate-node" in told["message"]
        found = founder.node.overlay.board.find(joiner.peer)
        assert found is not None
        assert found.incarnation == later
        await trio.sleep(200)
        found = founder.node.overlay.board.find(joiner.peer)
        assert found is not None
        assert found.incarnation > later
        assert len(joiner.told("error")) == 1


async def test_the_later_node_ends_and_names_the_remedy(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(ConfigError, match=r"started earlier.*rotate-node.*node\.key"), flatten_subgroups=True
    ) as raised:
        async with open_mesh() as mesh:
            founder, joiner, incarnation = await pair(mesh)
            with trio.fail_after(90):
                for sequence in range(1, 100):
                    say_as(joiner, "joiner", founder, incarnation=incarnation - 4_000, sequence=sequence)
                    await trio.sleep(20)
    (error,) = raised.value.exceptions
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, ConfigError)
    assert error.code is ErrorCode.IDENTITY_DUPLICATED


async def test_a_restart_within_seconds_is_no_twin(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, joiner, incarnation = await pair(mesh)
        for sequence in range(1, 4):
            say_as(joiner, "joiner", founder, incarnation=incarnation - 4_000, sequence=sequence)
        await mesh.kill(joiner)
        again = await mesh.join("joiner", founder)
        await trio.sleep(300)
        assert again.told("error") == []
        assert not again.is_dead.is_set()


async def test_nobody_is_told_of_another_peers_incarnations(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, joiner, incarnation = await pair(mesh)
        other = await mesh.join("other", founder)
        say_as(joiner, "joiner", founder, incarnation=incarnation - 1, sequence=1)
        for node, expected in ((joiner, 1), (other, 0)):
            query = IdentityQuery(node.node.overlay.board.seal_own())
            stream = await node.node.overlay.open_exchange(founder.peer, query)
            answer = await stream.expect(IdentityAnswer, 5)
            assert len(answer.announcements) == expected


async def test_a_query_with_another_peers_announcement_is_refused(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, joiner, _ = await pair(mesh)
        query = IdentityQuery(founder.node.overlay.board.seal_own())
        stream = await joiner.node.overlay.open_exchange(founder.peer, query)
        with pytest.raises(RemoteProtocolError) as refused:
            await stream.expect(IdentityAnswer, 5)
        assert refused.value.code is ErrorCode.SIGNATURE_INVALID


async def test_a_witness_learns_of_the_earlier_node_from_its_query_alone(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, joiner, incarnation = await pair(mesh)
        say_as(joiner, "joiner", founder, incarnation=incarnation + 5_000, sequence=1)
        query = IdentityQuery(joiner.node.overlay.board.seal_own())
        stream = await joiner.node.overlay.open_exchange(founder.peer, query)
        first = await stream.expect(IdentityAnswer, 5)
        assert [founder.node.overlay.board.decode(one).incarnation for one in first.announcements] == [
            incarnation + 5_000
        ]
        later = replace(joiner.node.overlay.board.own(), incarnation=incarnation + 5_000, sequence=2)
        identity = fake_identity("joiner")
        query = IdentityQuery(encode_announcement(later, identity.public_key, identity.sign))
        stream = await joiner.node.overlay.open_exchange(founder.peer, query)
        second = await stream.expect(IdentityAnswer, 5)
        assert [founder.node.overlay.board.decode(one).incarnation for one in second.announcements] == [incarnation]
