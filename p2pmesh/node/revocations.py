"""Spreads what the founder revokes: by gossip, kept by every member, in force at once.

What a record says of a peer is ``core.credentials``'; who is put out by it is ``node.overlay``'s to disconnect.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.changes import Changes
from p2pmesh.node.credentials import Credentials
from p2pmesh.ports.network import Subscription
from p2pmesh.wire.revocation import topic_of

REPEATS_AFTER_S = (0.0, 1.0, 4.0, 15.0, 60.0)
"""Gossip is lossy; whoever misses them all reads the record in its next welcome."""


class Revocations:
    """The newest record of the mesh, on its way."""

    def __init__(self, credentials: Credentials, ports: Neighbours, apply: Callable[[], Awaitable[None]]) -> None:
        self._credentials = credentials
        self._ports = ports
        self._apply = apply
        self._news = Changes()

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Listens and spreads until cancelled; started once the topic is joined."""
        subscription = await self._ports.network.subscribe(
            topic_of(self._credentials.mesh_id), self._is_worth_passing_on
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, subscription)
            nursery.start_soon(self._spread)
            task_status.started()

    # --- the founder's commands ----------------------------------------------------
    async def revoke_invite(self, invite_id: str, *, is_expelling: bool) -> None:
        """Revokes an invite by its id in hex; with ``is_expelling`` all who came in by it are put out."""
        await self._put_in_force(await self._credentials.founders_desk().revoke(invite_id, is_expelling=is_expelling))

    async def remove_peer(self, peer: PeerId) -> None:
        """Puts a member out, and those whom it let in."""
        await self._put_in_force(await self._credentials.founders_desk().remove_peer(peer))

    async def readmit_peer(self, peer: PeerId) -> None:
        """Takes a removal back: the peer's passes count again, and so do invites that it shows."""
        await self._put_in_force(await self._credentials.founders_desk().readmit_peer(peer))

    async def _put_in_force(self, sealed: bytes) -> None:
        if self._credentials.learn_revocation(sealed):
            self._news.mark()
            await self._apply()

    # --- what others say -------------------------------------------------------------
    async def take(self, sealed: bytes) -> None:
        """A record out of a welcome, or none; where it is older than ours, ours is spread again."""
        try:
            if sealed and self._credentials.learn_revocation(sealed):
                await self._keep_and_apply()
                return
            told = self._credentials.decode_revocation(sealed).sequence if sealed else 0
        except RemoteProtocolError:
            return  # the founder did not say it: it counts for nothing
        if told < self._credentials.revocation.sequence:
            self._news.mark()

    def _is_worth_passing_on(self, sealed: bytes) -> bool:
        try:
            revocation = self._credentials.decode_revocation(sealed)
        except RemoteProtocolError:
            return False
        return revocation.sequence >= self._credentials.revocation.sequence

    async def _follow(self, subscription: Subscription) -> None:
        while True:
            _, sealed = await subscription.receive()
            try:
                if self._credentials.learn_revocation(sealed):
                    await self._keep_and_apply()
            except RemoteProtocolError:
                continue  # the validator let it through: a record of another founder cannot get here

    async def _keep_and_apply(self) -> None:
        await self._apply()
        await self._credentials.keep_revocation()

    async def _spread(self) -> None:
        topic = topic_of(self._credentials.mesh_id)
        seen = 0
        while True:
            seen = await self._news.wait_beyond(seen)
            for wait_s in REPEATS_AFTER_S:
                with trio.move_on_after(wait_s):
                    await self._news.wait_beyond(seen)
                await self._ports.network.publish(topic, self._credentials.sealed_revocation)
                if self._news.count > seen:
                    break
