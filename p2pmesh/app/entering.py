"""How a running node comes into its mesh, and what it shows to those who want to follow: joining, pools, invites.

What a node starts with is ``app.joining``', which pools there are ``app.pools``', the hello itself ``node.overlay``'s.
"""

import trio

from p2pmesh.app import events
from p2pmesh.app.events import Emit, Event, EventName
from p2pmesh.app.pools import JOIN_S, Pools, joined_event
from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.node.node import Node
from p2pmesh.node.overlay import REJOIN_FIRST_S
from p2pmesh.node.pool_finder import FoundPool
from p2pmesh.wire.invite import LIFE_MS as INVITE_LIFE_MS


async def join(node: Node, emit: Emit) -> None:
    """The first joining ends the command where it fails; a member of old waits for the others, or the founder."""
    try:
        await node.overlay.join()
    except P2PMeshError as error:
        if not node.overlay.is_worth_waiting(error):
            raise
        if node.overlay.shut_out is not None:
            return  # that was told
        facts = {"code": error.code.value, "message": error.message, "retry_s": REJOIN_FIRST_S}
        emit(Event(EventName.JOIN_FAILED, facts))
    else:
        emit(Event(EventName.JOINED, {"mesh_id": node.overlay.mesh_id}))


async def join_pool(node: Node, pools: Pools, found: FoundPool, emit: Emit) -> bool:
    """Whether the node is where it was to be; a pool that does not let it in is given up."""
    failure: P2PMeshError | None = None
    with trio.move_on_after(JOIN_S) as scope:
        try:
            await pools.come_in(node, found)
        except P2PMeshError as error:
            failure = error
    if failure is None and not scope.cancelled_caught:
        emit(Event(EventName.JOINED, {"mesh_id": node.overlay.mesh_id}))
        emit(joined_event(found))
        return True
    pools.avoid(found.mesh_id, found.listing.addresses)
    code = failure.code if failure else ErrorCode.DEADLINE_EXCEEDED
    message = failure.message if failure else f"the pool did not let this node in within {JOIN_S:g} s"
    emit(Event(EventName.JOIN_FAILED, {"code": code.value, "message": message, "retry_s": 0.0}))
    return node.overlay.is_founder


async def keep_inviting(node: Node, emit: Emit) -> None:
    """An invite lives a day; the founder makes a fresh one before the last is over, or when it was revoked.

    A member hands on the one that it came by, while others may use it.
    """
    credentials = node.overlay.credentials
    if credentials.desk is None:
        handed_on = credentials.handed_on()
        if handed_on is not None:
            emit(events.invite(handed_on))
        return
    shown = ""
    while True:
        seen = credentials.desk.revoked.count
        line = await credentials.desk.stand()
        if line != shown:
            emit(events.invite(line))
        shown = line
        with trio.move_on_after(INVITE_LIFE_MS / 2000):
            await credentials.desk.revoked.wait_beyond(seen)
