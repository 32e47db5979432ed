"""Finds out whether a second node lives under our own peer id, and answers others who ask the same of themselves.

Runs ``core.identity_watch``: gossip brings nothing back to the peer that it is from, so a node asks its peers what they
have heard of it. Ends the node (``ConfigError`` out of ``run``) that started later; the other one tells its operator
and, when the later one is gone, announces a higher incarnation, since everybody else took that one for its newest self.
"""

import trio

from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core import identity_watch
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.wire.announcement import Announcement
from p2pmesh.wire.messages.identity import IdentityAnswer, IdentityQuery

YOUNG_S = 120.0
"""A copy is found out within this time of its start, so a young node asks more often."""
ALERT_ASKS_EVERY_S = 10.0
ASKS_EVERY_S = 20.0
ASKED_WHILE_ALERT = 2
"""Peers per turn; the turns go round all of them."""
ANSWER_TIMEOUT_S = 10.0


class IdentityGuard:
    """One peer id, one node."""

    def __init__(self, overlay: Overlay, ports: Neighbours, report: Report) -> None:
        self._overlay = overlay
        self._ports = ports
        self._report = report
        self._started = ports.clock.now()
        own = overlay.board.own()
        self._watch = identity_watch.IdentityWatch(own.incarnation, ports.clock.unix_ms())
        self._book = identity_watch.TwinBook()
        self._last_asked = PeerId("")
        self._gave_way = trio.Event()
        overlay.serve_exchange(IdentityQuery, self._answer)
        overlay.board.on_heard = self._note_heard

    async def run(self) -> None:
        """Asks until cancelled; raises ``IDENTITY_DUPLICATED`` when this is the later of two."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_asking)
            await self._gave_way.wait()
            nursery.cancel_scope.cancel()
        raise ConfigError(ErrorCode.IDENTITY_DUPLICATED, _GIVE_WAY)

    async def _keep_asking(self) -> None:
        while True:
            await trio.sleep(ALERT_ASKS_EVERY_S if self._is_alert() else ASKS_EVERY_S)
            for peer in self._next_peers():
                await self._ask(peer)
            deadline = self._watch.deadline()
            if deadline is not None and deadline <= self._ports.clock.now():
                self._handle(identity_watch.DeadlinePassed())

    # --- asking ------------------------------------------------------------------
    def _is_alert(self) -> bool:
        """Whether this node is young, or knows of another that lives."""
        is_young = self._ports.clock.now() - self._started < YOUNG_S * MICROS_PER_SECOND
        return is_young or self._watch.deadline() is not None

    def _next_peers(self) -> tuple[PeerId, ...]:
        """The admitted peers after the one that was asked last, by peer id and round again."""
        admitted = self._overlay.admitted_peers()
        after = [peer for peer in admitted if peer > self._last_asked]
        turn = (*after, *admitted)[: ASKED_WHILE_ALERT if self._is_alert() else 1]
        return tuple(dict.fromkeys(turn))

    async def _ask(self, peer: PeerId) -> None:
        self._last_asked = peer
        try:
            stream = await self._overlay.open_exchange(peer, IdentityQuery(self._overlay.board.seal_own()))
            try:
                answer = await stream.expect(IdentityAnswer, ANSWER_TIMEOUT_S)
            finally:
                await stream.reset()
            heard = [self._overlay.board.decode(data) for data in answer.announcements]
        except P2PMeshError:
            return  # another peer is asked next time
        for announcement in sorted(heard, key=lambda one: one.freshness):
            self._note_own(announcement)

    # --- answering ---------------------------------------------------------------
    async def _answer(self, stream: MessageStream, asked: IdentityQuery) -> None:
        peer = stream.remote_peer
        said = self._overlay.board.decode(asked.announcement)
        if said.peer_id != peer:
            text = "the announcement of an identity query is another peer's"
            raise RemoteProtocolError(ErrorCode.SIGNATURE_INVALID, text, culprit=peer)
        self._overlay.board.learn(asked.announcement, is_admitted=True)
        known = self._overlay.board.find(peer)
        found: list[bytes] = []
        if known is not None and known.incarnation != said.incarnation:
            found += self._overlay.board.sealed_of(peer)
        older = self._book.find(peer, self._ports.clock.now())
        if older is not None and self._is_of_another(older, said.incarnation):
            found.append(older)
        await stream.send(IdentityAnswer(tuple(found)))
        await stream.finish()

    def _is_of_another(self, sealed: bytes, incarnation: int) -> bool:
        try:
            return self._overlay.board.decode(sealed).incarnation != incarnation
        except RemoteProtocolError:  # pragma: no cover  it was checked when it was kept
            return False

    # --- hearing -----------------------------------------------------------------
    def _note_heard(self, announcement: Announcement, sealed: bytes) -> None:
        """Every checked announcement that comes, before the board weighs it."""
        peer = PeerId(announcement.peer_id)
        if peer == self._overlay.own_peer:
            self._note_own(announcement)
            return
        known = self._overlay.board.find(peer)
        if known is not None and known.incarnation > announcement.incarnation:
            self._book.keep(peer, announcement.freshness, sealed, self._ports.clock.now())

    def _note_own(self, announcement: Announcement) -> None:
        if announcement.peer_id == self._overlay.own_peer:
            self._handle(
                identity_watch.OwnAnnouncementHeard(
                    announcement.incarnation, announcement.sequence, announcement.issued_unix_ms
                )
            )

    def _handle(self, event: identity_watch.Event) -> None:
        for effect in self._watch.handle(event, self._ports.clock.now()):
            match effect:
                case identity_watch.GiveWay():
                    self._gave_way.set()
                case identity_watch.TwinFound():
                    self._report("error", {"code": ErrorCode.IDENTITY_DUPLICATED.value, "message": _TWIN_FOUND})
                case identity_watch.TwinGone(incarnation):
                    self._watch.raised_to(self._overlay.board.raise_incarnation(incarnation))


_REMEDY = "stop one of the two; on the copy run p2pmesh auth rotate-node, or move node.key out of its home"
_GIVE_WAY = f"another node runs with this node's key and started earlier (a copied disk image?): {_REMEDY}"
_TWIN_FOUND = f"a second node runs with this node's key and started later (a copied disk image?): {_REMEDY}"
