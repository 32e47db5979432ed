"""What operators do about peers as the console reaches it in a running node."""

import pytest
from trio.testing import MockClock

from p2pmesh.app.backend import NodeBackend
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.ports.network import FaultKind, PeerFault
from tests.fakes.identity import fake_identity
from tests.fakes.mesh import open_mesh

STRANGER = fake_identity("stranger").peer_id


async def test_a_member_is_removed_and_readmitted_and_a_stranger_only_by_force(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        desk = NodeBackend()
        desk.attach(founder.node)
        with pytest.raises(Refused) as raised:
            await desk.remove_peer(STRANGER, is_forced=False)
        assert raised.value.code is ErrorCode.REQUEST_INVALID
        assert "--force" in raised.value.message
        assert (await desk.remove_peer(STRANGER, is_forced=True))["state"] == "removed"
        removed = await desk.remove_peer(member.peer, is_forced=False)
        assert len(removed["invites"]) == 1
        assert desk.describe_invites()["removed_peers"] == [STRANGER, member.peer]
        assert await desk.readmit_peer(member.peer) == {"peer_id": member.peer, "state": "readmitted"}
        assert desk.describe_invites()["removed_peers"] == [STRANGER]
        with pytest.raises(Refused):
            await desk.remove_peer(founder.peer, is_forced=True)


async def test_any_node_forgives_a_peer(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        desk = NodeBackend()
        desk.attach(member.node)
        for _ in range(3):
            member.network.put_fault(PeerFault(founder.peer, FaultKind.INVALID))
        await member.wait_told("peer_banned")
        assert await desk.forgive_peer(founder.peer) == {"peer_id": founder.peer, "was_banned": True}
        assert member.told("peer_unbanned") == [{"peer_id": founder.peer}]
        assert await desk.forgive_peer(founder.peer) == {"peer_id": founder.peer, "was_banned": False}


async def test_a_member_has_no_desk(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        desk = NodeBackend()
        desk.attach(member.node)
        for act in (desk.remove_peer(STRANGER, is_forced=False), desk.readmit_peer(STRANGER)):
            with pytest.raises(Refused) as raised:
                await act
            assert "founder" in raised.value.message
