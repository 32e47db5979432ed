"""Folding of connection events."""

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from p2pmesh.adapters.p2p.events import ConnectionEvents
from p2pmesh.base.ids import PeerId
from p2pmesh.ports.network import PeerConnected, PeerDisconnected

A, B = PeerId("a"), PeerId("b")


async def test_a_connection_that_came_and_went_unheard_is_not_told() -> None:
    events = ConnectionEvents()
    events.connected(A, is_inbound=True)
    events.disconnected(A)
    events.connected(B, is_inbound=False)
    assert await events.next() == PeerConnected(B, is_inbound=False)


async def test_a_loss_is_told_although_the_peer_is_back() -> None:
    events = ConnectionEvents()
    events.connected(A, is_inbound=True)
    assert await events.next() == PeerConnected(A, is_inbound=True)
    events.disconnected(A)
    events.connected(A, is_inbound=False)
    assert await events.next() == PeerDisconnected(A)
    assert await events.next() == PeerConnected(A, is_inbound=False)


async def test_waiting_ends_with_the_next_event() -> None:
    events = ConnectionEvents()
    async with trio.open_nursery() as nursery:

        async def expect() -> None:
            assert await events.next() == PeerConnected(A, is_inbound=True)

        nursery.start_soon(expect)
        await wait_all_tasks_blocked()
        events.connected(A, is_inbound=True)


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.sampled_from(["up", "down", "listen"])), max_size=60))
def test_what_is_told_alternates_and_ends_at_the_truth(steps: list[tuple[PeerId, str]]) -> None:
    truth = {A: False, B: False}
    told = {A: False, B: False}

    async def listen(events: ConnectionEvents) -> bool:
        with trio.move_on_after(1):
            event = await events.next()
            assert told[event.peer] != isinstance(event, PeerConnected)
            told[event.peer] = isinstance(event, PeerConnected)
            return True
        return False

    async def run() -> None:
        events = ConnectionEvents()
        for peer, step in steps:
            if step == "up":
                events.connected(peer, is_inbound=False)
                truth[peer] = True
            elif step == "down":
                events.disconnected(peer)
                truth[peer] = False
            else:
                await listen(events)
        while await listen(events):
            pass
        assert told == truth
        assert events.connected_peers() == {peer for peer, is_up in truth.items() if is_up}

    trio.run(run, clock=MockClock(autojump_threshold=0))
