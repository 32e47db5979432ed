"""The overlay as one node lives in it: hello, admission, and who may open which exchange.

Runs ``AdmissionMachine``. Stages, artifacts and generations register the exchanges that they serve
(``serve_exchange``); what those mean stays with them. What peers announce is ``node.announcements``', what they show to
come in ``node.credentials``', and what the founder revokes ``node.revocations``'.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, PeerUnavailable, Refused, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import (
    CONTROL_PROTOCOL,
    MAX_CONTROL_MESSAGE_BYTES,
    MAX_UNADMITTED_MESSAGE_BYTES,
    PROTOCOL_GENERATION,
)
from p2pmesh.core import admission, connections
from p2pmesh.core.artifact_policy import ArtifactTransfer
from p2pmesh.core.credentials import Shown
from p2pmesh.core.owner_wishes import ANYTHING, OwnerWishes
from p2pmesh.core.ownership import TrustStore
from p2pmesh.core.sharing import SharingRules
from p2pmesh.core.standing import Founding, Membership
from p2pmesh.node.announcements import AnnouncementBoard, Neighbours
from p2pmesh.node.channels import MessageStream, error_of, refusal_of
from p2pmesh.node.clock_offsets import ClockOffsets
from p2pmesh.node.conduct import Conduct
from p2pmesh.node.credentials import Attempt, Credentials, CredentialSettings
from p2pmesh.node.ownership import PeerTrust
from p2pmesh.node.reporting import Report
from p2pmesh.node.revocations import Revocations
from p2pmesh.node.runner import MachineRunner
from p2pmesh.ports.network import ByteStream, PeerConnected
from p2pmesh.wire.announcement import Announcement
from p2pmesh.wire.invite import LIFE_MS as INVITE_LIFE_MS
from p2pmesh.wire.messages.admission import Hello, Welcome
from p2pmesh.wire.messages.answers import Refusal

Exchange = Callable[[MessageStream, Any], Awaitable[None]]

DIAL_TIMEOUT_S = 10.0
HELLO_TIMEOUT_S = 10.0
REJOIN_FIRST_S = 1.0
REJOIN_LONGEST_S = 60.0
REJOIN_SETTLED_S = 60.0
"""A membership that held so long was one: the next rejoining is as quick as the first."""
REJOIN_REFUSED_S = 900.0
"""Between questions of a member that is put out: it comes back by itself when it is readmitted."""
RENEWAL_CHECK_S = 3600.0
RENEWAL_PEERS = 8
_REFUSED_PASS = frozenset({ErrorCode.PASS_INVALID, ErrorCode.PASS_EXPIRED, ErrorCode.PEER_REMOVED})
"""With these an invite may do: even a peer that is put out may be so for whoever let it in."""
DEFINITE = _REFUSED_PASS | {
    ErrorCode.INVITE_EXPIRED,
    ErrorCode.INVITE_REVOKED,
    ErrorCode.INVITE_EXHAUSTED,
    ErrorCode.OWNERSHIP_REFUSED,
    ErrorCode.VERSION_UNSUPPORTED,
    ErrorCode.GENERATION_UNSUPPORTED,
}
"""Whoever is refused with these is refused again until somebody changes something."""
OUTCAST = frozenset({ErrorCode.PEER_REMOVED, ErrorCode.OWNERSHIP_REFUSED})
"""Whoever is refused with these is no member to us, whatever gossip says of it."""
JUDGE_CLAIMS_AGAIN_S = 60.0
"""A claim that runs out ends a membership that needs it after at most so long."""
GIVE_UP_S = 1.0
REFUSAL_ARRIVES_S = 0.2
"""A refusal has this long to reach its peer before the connection is closed."""
_DROPPED_UNTOLD = frozenset({ErrorCode.OVERLOADED, ErrorCode.DEADLINE_EXCEEDED})
"""Quarantine ends with these, and nothing is said."""


@dataclass(frozen=True, slots=True)
class OverlaySettings:
    """Who we are. ``invite_text`` is the invite that we join with; see ``CredentialSettings`` for what is beside it."""

    name: str
    version: str
    memory_bytes: int
    invite_text: str | None = None
    trust: TrustStore = TrustStore()
    ownership: bytes = b""
    membership: Membership | None = None
    founding: Founding | None = None
    ways_in: tuple[str, ...] = ()
    engine: str = ""
    """What runs stages here, for the announcement."""
    artifact_transfer: ArtifactTransfer = ArtifactTransfer.OPEN
    wishes: OwnerWishes = ANYTHING
    """Caps of our owner."""
    sharing: SharingRules = SharingRules()
    """When our owner gives anything."""


@dataclass(slots=True)
class _Turn:
    """Our way to one peer: one task goes it at a time, and those that wait meanwhile share what went wrong."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    failure: P2PMeshError | None = None


class Overlay:
    """One node's membership of one mesh."""

    def __init__(self, ports: Neighbours, settings: OverlaySettings, report: Report) -> None:
        self._ports = ports
        self._report = report
        self.trust = PeerTrust(ports.verifier.is_signature_of, ports.clock, settings.trust)
        given = CredentialSettings(settings.invite_text, settings.membership, settings.founding, settings.ways_in)
        self.credentials = Credentials(ports, given, self.trust, report)
        self.mesh_id = self.credentials.mesh_id
        self.board = AnnouncementBoard(ports, _first_announcement(ports, settings, self.credentials))
        self.board.check_speaker = self.credentials.check_speaker
        self._admission = admission.AdmissionMachine()
        self._runner: MachineRunner[admission.Event, admission.Effect] = MachineRunner(
            self._admission, ports.clock, self._perform, admission.DeadlinePassed()
        )
        self.board.is_outcast = lambda peer: self.credentials.is_outcast(peer) or self.conduct.is_banned(peer)
        self.shut_out: P2PMeshError | None = None
        """Why nobody lets us in any more, once all who answered said so."""
        self.returns = 0
        """How often we were let in again after that."""
        self._has_told_put_out = False
        self._left_by: set[PeerId] = set()
        """Admitted peers that put us out: their connections end now, and that will be no death."""
        self._turns: dict[PeerId, _Turn] = {}
        """Of the peers that we are dialling or saying hello to."""
        self._inbound: set[PeerId] = set()
        self.conduct = Conduct(ports.network, ports.clock, report)
        self.clock_offsets = ClockOffsets()
        self.search_nearby_s = 0.0
        """How long joining waits for members that another service meets; 0: there is none."""
        self._exchanges: dict[type, Exchange] = {}
        self._open_exchanges: dict[type, Exchange] = {}
        self.revocations = Revocations(self.credentials, ports, self.put_out)
        self._nursery: trio.Nursery | None = None
        self.is_guest: Callable[[PeerId], bool] = lambda peer: False
        """Whether a peer that says no hello may stay a while longer, since one of us relays for the other."""
        self.has_parted: Callable[[PeerId], bool] = lambda peer: False
        """Whether we and a peer whose connection is gone agreed to end it; asked once."""

    # --- what others here ask --------------------------------------------------
    @property
    def own_peer(self) -> PeerId:
        """Our peer id."""
        return self._ports.identity.peer_id

    @property
    def is_founder(self) -> bool:
        """Whether the mesh is ours."""
        return self.credentials.is_founder

    def is_admitted(self, peer: PeerId) -> bool:
        """Whether the peer's hello was accepted and its connection stands."""
        return self._admission.is_admitted(peer)

    def admitted_peers(self) -> tuple[PeerId, ...]:
        """Peers that are connected and admitted now, by peer id."""
        return tuple(sorted(peer for peer in self._ports.network.connected_peers() if self.is_admitted(peer)))

    def is_inbound(self, peer: PeerId) -> bool:
        """Whether the peer dialled us: its first connection of those that stand came from there."""
        return peer in self._inbound

    async def wait_admitted(self, peer: PeerId) -> bool:
        """``is_admitted``, after our own hello to the peer if one is on its way: its answer may be behind a stream."""
        if peer in self._turns and not self.is_admitted(peer):
            with trio.move_on_after(HELLO_TIMEOUT_S):
                async with self._turn(peer):
                    pass
        return self.is_admitted(peer)

    def admitted_announcements(self) -> tuple[Announcement, ...]:
        """Those of the peers that are connected and admitted now."""
        return tuple(a for a in self.board.others() if self.is_admitted(PeerId(a.peer_id)))

    async def give_up(self, peer: PeerId) -> None:
        """Ends the connection to a peer that does not answer; it is found out now whether it lives at all."""
        with trio.move_on_after(GIVE_UP_S):
            await self._ports.network.disconnect(peer)

    def serve_exchange(self, first_message: type, exchange: Exchange) -> None:
        """Serves streams of admitted peers that open with ``first_message``."""
        self._exchanges[first_message] = exchange

    def serve_anyone(self, first_message: type, exchange: Exchange) -> None:
        """Serves streams that open with ``first_message``, also of peers that are not admitted: answer little."""
        self._open_exchanges[first_message] = exchange

    def make_invite(self, life_ms: int = INVITE_LIFE_MS) -> str:
        """An invite to our mesh. A member hands on the one it came by, and raises ``Refused`` where it cannot."""
        desk = self.credentials.desk
        invite = desk.issue(life_ms) if desk is not None else self.credentials.handed_on()
        if invite is None:
            raise Refused(ErrorCode.INVITE_MISSING, "this node has no invite that others may use; ask the founder")
        return invite

    async def open_stream(self, peer: PeerId, protocol_id: str, addresses: tuple[str, ...] = ()) -> ByteStream:
        """A stream to a peer, admitted first if need be."""
        await self.ensure_admitted(peer, addresses)
        return await self._ports.network.open_stream(peer, protocol_id, DIAL_TIMEOUT_S)

    async def open_exchange(self, peer: PeerId, first_message: Any, addresses: tuple[str, ...] = ()) -> MessageStream:
        """A control stream to a peer, its first message sent."""
        stream = MessageStream(await self.open_stream(peer, CONTROL_PROTOCOL, addresses))
        try:
            await stream.send(first_message)
        except BaseException:
            await stream.reset()
            raise
        return stream

    # --- running ---------------------------------------------------------------
    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Serves the overlay until cancelled; started when hellos are answered."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._ports.network.serve(CONTROL_PROTOCOL, self._serve_control)
            nursery.start_soon(self._runner.run)
            nursery.start_soon(self.conduct.run)
            nursery.start_soon(self._follow_connections)
            nursery.start_soon(self._renew_passes)
            nursery.start_soon(self._follow_trust)
            if self.credentials.desk is not None:
                nursery.start_soon(self.credentials.desk.run)
            await nursery.start(self.revocations.run)
            await nursery.start(self.board.run)
            task_status.started()

    async def join(self) -> None:
        """Dials those we may come in by in turn; raises the most telling error if none admits us."""
        try:
            if self.search_nearby_s:
                await self._join_by_any_or_nearby(self.search_nearby_s)
            else:
                await self._join_by_any()
        except RemoteProtocolError as error:
            if is_definite(error) and not self._admission.has_admitted:
                self._note_shut_out(error)
            raise

    async def _join_by_any_or_nearby(self, patience_s: float) -> None:
        """The same, and content with any member that another service meets, waiting ``patience_s`` for one."""
        failures: list[P2PMeshError] = []

        async def dial_known(is_over: trio.Event) -> None:
            try:
                await self._join_by_any()
            except P2PMeshError as error:
                failures.append(error)
            is_over.set()

        async with trio.open_nursery() as nursery:
            is_over, started_at = trio.Event(), trio.current_time()
            nursery.start_soon(dial_known, is_over)
            nursery.start_soon(self._cancel_once_admitted, nursery.cancel_scope)
            await is_over.wait()
            if failures and not is_definite(failures[0]):
                await trio.sleep_until(started_at + patience_s)
            nursery.cancel_scope.cancel()
        if failures and not self._admission.has_admitted:
            raise failures[0]

    async def _cancel_once_admitted(self, scope: trio.CancelScope) -> None:
        seen = self.board.changes.count
        while not self._admission.has_admitted:
            seen = await self.board.changes.wait_beyond(seen)
        scope.cancel()

    async def _join_by_any(self) -> None:
        failures: list[P2PMeshError] = []
        known = self.credentials.bootstrap()
        for peer, addresses in [one for one in known if not self.credentials.is_outcast(one[0])] or known:
            try:
                await self._ask_in(peer, addresses)
            except P2PMeshError as error:
                failures.append(error)
            else:
                return
        if not failures:
            raise ConfigError(ErrorCode.INVITE_MALFORMED, "the invite names no address; ask for a new one")
        raise min(failures, key=_rank)

    async def stay_joined(self) -> None:
        """Rejoins, with back-off, whenever none of those we came in by is admitted.

        In a large overlay some others will do, or all would keep a connection to the founder.
        """
        if self.is_founder:
            return
        if self.shut_out is not None:
            await trio.sleep(REJOIN_REFUSED_S)
        wait_s = REJOIN_FIRST_S
        joined_at: float | None = None
        while True:
            seen = self.board.changes.count
            if self._is_joined():
                joined_at = trio.current_time() if joined_at is None else joined_at
                await self.board.changes.wait_beyond(seen)
                continue
            if joined_at is not None and trio.current_time() - joined_at >= REJOIN_SETTLED_S:
                wait_s = REJOIN_FIRST_S
            elif joined_at is not None:  # let in and thrown out at once, over and over, is no reason to hurry
                await trio.sleep(wait_s)
                wait_s = min(2 * wait_s, REJOIN_LONGEST_S)
            joined_at = None
            try:
                await self.join()
            except P2PMeshError as error:
                if not self.is_worth_waiting(error):
                    raise
                wait_s = REJOIN_REFUSED_S if is_definite(error) else wait_s
                self._tell_join_failed(error, wait_s)
                await trio.sleep(wait_s)
                wait_s = min(2 * wait_s, REJOIN_LONGEST_S)

    def is_worth_waiting(self, error: P2PMeshError) -> bool:
        """Whether a member that is not let in may be so later without anybody starting it anew."""
        if not self.credentials.passes:
            return False
        return not is_definite(error) or not self.credentials.is_spent

    def _tell_join_failed(self, error: P2PMeshError, retry_s: float) -> None:
        """A refusal for good was told when it came; only another reason is news."""
        if self.shut_out is None:
            self._report("join_failed", {"code": error.code.value, "message": error.message, "retry_s": retry_s})

    def _note_shut_out(self, error: P2PMeshError) -> None:
        """Nobody here takes us for a member: they answer, so they are not dead, but to us they do not count."""
        self.shut_out = error
        self._tell_put_out(error)
        for announcement in self.board.others():
            self.board.exclude(PeerId(announcement.peer_id))

    def _tell_put_out(self, error: P2PMeshError, by: PeerId | None = None) -> None:
        """Once, however many peers say it, until one lets us in."""
        if self._has_told_put_out or not self.credentials.passes:
            return
        self._has_told_put_out = True
        facts: dict[str, Any] = {"code": error.code.value, "message": error.message, "retry_s": REJOIN_REFUSED_S}
        self._report("put_out", facts if by is None else {"peer_id": by, **facts})

    def standing(self) -> dict[str, Any]:
        """For the status: ``founder``, ``member``, ``seeking`` (nobody is reached) or ``put_out``, and why."""
        if self.is_founder:
            return {"standing": "founder", "put_out": None}
        if self.shut_out is not None:
            facts = {"code": self.shut_out.code.value, "message": self.shut_out.message}
            return {"standing": "put_out", "put_out": facts}
        return {"standing": "member" if self._admission.has_admitted else "seeking", "put_out": None}

    def _is_joined(self) -> bool:
        if any(self.is_admitted(peer) for peer, _ in self.credentials.bootstrap()):
            return True
        return self.board.is_large and len(self._admission.admitted()) >= connections.DEFAULT_POLICY.near_kept

    async def ensure_admitted(self, peer: PeerId, addresses: tuple[str, ...] = ()) -> None:
        """Connects and says hello unless both are done; raises what went wrong. Whoever is put out asks nobody."""
        if self.is_admitted(peer):
            return
        if self.shut_out is not None:
            raise Refused(self.shut_out.code, f"this node is put out: {self.shut_out.message}")
        await self._ask_in(peer, addresses)

    @asynccontextmanager
    async def _turn(self, peer: PeerId) -> AsyncIterator[_Turn]:
        """Our turn on the way to a peer; how it ends counts for whoever waits for the next one by then."""
        turn = self._turns.setdefault(peer, _Turn())
        try:
            async with turn.lock:
                try:
                    yield turn
                except P2PMeshError as error:
                    turn.failure = error
                    raise
        finally:
            if not turn.lock.locked():  # a waiting task holds it by now
                self._turns.pop(peer, None)

    async def _ask_in(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        async with self._turn(peer) as turn:
            if self.is_admitted(peer):
                return
            if turn.failure is not None and not addresses:
                raise turn.failure
            await self._dial_and_say_hello(peer, addresses)

    async def knock(self, peer: PeerId) -> None:
        """Reaches a peer and leaves again without a hello: its handshake proves that it lives; raises why not."""
        async with self._turn(peer) as turn:
            if self.is_admitted(peer):
                return
            if isinstance(turn.failure, PeerUnavailable):  # any other was its answer
                raise turn.failure
            await self._ports.network.dial(peer, self.board.addresses_of(peer), DIAL_TIMEOUT_S)
            if not self.is_admitted(peer):
                await self._ports.network.disconnect(peer)

    # --- hello -----------------------------------------------------------------
    async def _dial_and_say_hello(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        tried = tuple(dict.fromkeys((*addresses, *self.board.addresses_of(peer))))
        *first, last = self.credentials.attempts()
        for attempt in first:
            try:
                await self._ports.network.dial(peer, tried, DIAL_TIMEOUT_S)
                return await self._say_hello(peer, attempt)
            except RemoteProtocolError as error:
                if error.code not in _REFUSED_PASS:
                    raise
            # It closes the connection that it refused; another proof needs one of its own.
            await trio.sleep(2 * REFUSAL_ARRIVES_S)
            await self._ports.network.disconnect(peer)
        await self._ports.network.dial(peer, tried, DIAL_TIMEOUT_S)
        return await self._say_hello(peer, last)

    async def _say_hello(self, peer: PeerId, attempt: Attempt) -> None:
        stream = MessageStream(await self._ports.network.open_stream(peer, CONTROL_PROTOCOL, DIAL_TIMEOUT_S))
        own = self.board.seal_own()
        try:
            known = self.board.known_hashes()
            await stream.send(Hello(PROTOCOL_GENERATION, self.mesh_id, attempt.invite, attempt.passes, own, known))
            welcome = await stream.expect(Welcome, HELLO_TIMEOUT_S)
            announcement = self._decode_own_word(welcome)
            self.clock_offsets.note(peer, announcement.issued_unix_ms, self._ports.clock.unix_ms())
            shown = self._check_welcome(welcome, peer, announcement)
        finally:
            await stream.reset()  # where it proves nothing, the quarantine ends the connection
        self._admit(shown, welcome.announcement)
        self._note_let_in()
        await self.revocations.take(welcome.revocation)  # first: it may be what makes our passes good again
        await self.credentials.take_granted(welcome, announcement)
        self.board.show_passes(self.credentials.passes)
        await self.credentials.remember(announcement)
        self.board.learn_handed(welcome.known)

    def _check_welcome(self, welcome: Welcome, peer: PeerId, announcement: Announcement) -> Shown:
        try:
            return self.credentials.check_welcome(welcome, peer, announcement)
        except Refused as refusal:
            self._note_outcast(peer, refusal.code)
            raise

    def _note_outcast(self, peer: PeerId, code: ErrorCode) -> None:
        if code in OUTCAST and not self.is_admitted(peer):
            self.credentials.note_outcast(peer)
            self.board.exclude(peer)

    def _note_let_in(self) -> None:
        self._has_told_put_out = False
        if self.shut_out is not None:
            self.shut_out = None
            self.returns += 1

    async def _answer_hello(self, stream: MessageStream, hello: Hello) -> None:
        peer = stream.remote_peer
        try:
            announcement = self._decode_own_word(hello)
            self.clock_offsets.note(peer, announcement.issued_unix_ms, self._ports.clock.unix_ms())
            shown = await self.credentials.check_hello(hello, peer, announcement)
        except RemoteProtocolError as error:
            self._note_refused(peer, error.code, error.message)
            self.conduct.note_refused_proof(peer, error.code)
            await self._runner.put(admission.HelloRefused(peer, error.code))
            raise
        self._admit(shown, hello.announcement)
        known = self.board.sealed_others(besides=peer, knows=hello.knows)
        own, granted = self.board.seal_own(), self.credentials.grant(shown)
        passes, revocation = self.credentials.passes, self.credentials.sealed_revocation
        await stream.send(Welcome(PROTOCOL_GENERATION, self.mesh_id, passes, own, granted, revocation, known))
        await stream.finish()
        await self.credentials.remember(announcement)

    def _note_refused(self, peer: PeerId, code: ErrorCode, message: str) -> None:
        count = self.credentials.note_refused(peer, code, message)
        if count:
            self._report("peer_refused", {"peer_id": peer, "code": code.value, "message": message, "count": count})
        self._note_outcast(peer, code)

    def _decode_own_word(self, said: Hello | Welcome) -> Announcement:
        """The announcement that a peer shows of itself. Generation and mesh come first: another mesh's is no error."""
        self.credentials.check_kind(said)
        return self.board.decode(said.announcement)

    def _admit(self, shown: Shown, announcement: bytes) -> None:
        """At once, not through the runner's queue: the caller's next stream relies on it."""
        peer = shown.peer
        if peer not in self._ports.network.connected_peers():
            raise PeerUnavailable(ErrorCode.PEER_LOST, f"peer {peer} went away while it said hello; try again")
        effects = self._admission.handle(admission.HelloAccepted(peer), self._ports.clock.now())
        for effect in effects:
            if isinstance(effect, admission.Drop):
                self._drop(effect, is_told=True)
                text = f"peer {self.own_peer} has admitted as many peers as it can; join by another peer"
                raise PeerUnavailable(effect.code, text)
        self.credentials.note_admitted(shown)
        self.board.learn(announcement, is_admitted=True)
        if effects:
            self._report("peer_joined", {"peer_id": peer})  # with the name that its announcement has just told
        self.conduct.note_admitted(peer)
        self.board.changes.mark()

    async def _renew_passes(self) -> None:
        """Says hello again in the second half of our passes' life, to the founder if it is there."""
        while True:
            await trio.sleep(RENEWAL_CHECK_S)
            if self.is_founder or not self.credentials.is_renewal_due():
                continue
            admitted = sorted(self._admission.admitted(), key=lambda peer: peer != self.credentials.founder)
            for peer in admitted[:RENEWAL_PEERS]:
                with suppress(P2PMeshError):
                    await self._say_hello(peer, self.credentials.attempts()[0])
                if not self.credentials.is_renewal_due():
                    break

    # --- streams -----------------------------------------------------------------
    async def _serve_control(self, raw_stream: ByteStream) -> None:
        peer = raw_stream.remote_peer
        # Where our own hello is on its way, the peer may have admitted us and its welcome be behind this stream.
        is_trusted = self.is_admitted(peer) or peer in self._turns
        limit = MAX_CONTROL_MESSAGE_BYTES if is_trusted else MAX_UNADMITTED_MESSAGE_BYTES
        stream = MessageStream(raw_stream, limit)
        try:
            await self.conduct.take_turn(peer)
            message = await stream.receive(HELLO_TIMEOUT_S)
            if isinstance(message, Hello):
                await self._answer_hello(stream, message)
                return
            if isinstance(message, Refusal):
                self._hear_farewell(peer, message)
                return
            anyones = self._open_exchanges.get(type(message))
            if anyones is not None:
                await anyones(stream, message)
                return
            if not await self.wait_admitted(peer):
                raise RemoteProtocolError(ErrorCode.NOT_ADMITTED, "say hello first", culprit=peer)
            exchange = self._exchanges.get(type(message))
            if exchange is None:
                text = f"{type(message).__name__} opens no exchange"
                raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, text, culprit=peer)
            await exchange(stream, message)
        except P2PMeshError as error:
            self.conduct.note_error(error)
            await _refuse(stream, error)

    def _hear_farewell(self, peer: PeerId, refusal: Refusal) -> None:
        """A peer says why it puts us out."""
        if self.is_admitted(peer):
            self._tell_put_out(error_of(refusal), peer)
            self._left_by.add(peer)
            self.board.exclude(peer)

    # --- the admission machine ---------------------------------------------------
    async def _follow_connections(self) -> None:
        while True:
            event = await self._ports.network.connection_event()
            self._inbound.discard(event.peer)
            if isinstance(event, PeerConnected):
                if event.is_inbound:
                    self._inbound.add(event.peer)
                await self._runner.put(admission.Connected(event.peer))
            else:
                await self._runner.put(admission.Disconnected(event.peer))

    async def _perform(self, effect: admission.Effect) -> None:
        match effect:
            case admission.Drop(peer, ErrorCode.DEADLINE_EXCEEDED) if self.is_guest(peer):
                for other in self._admission.handle(admission.Connected(peer), self._ports.clock.now()):
                    await self._perform(other)
            case admission.Drop(_, code):
                self._drop(effect, is_told=code not in _DROPPED_UNTOLD)
            case admission.Lose(peer):
                self.credentials.forget(peer)
                has_parted = self.has_parted(peer)
                if self.conduct.is_banned(peer) or peer in self._left_by:
                    self._left_by.discard(peer)
                    self.board.exclude(peer)
                elif has_parted:
                    self.board.note_parted(peer)
                else:
                    self.board.note_lost(peer)
                self.board.changes.mark()

    async def put_out(self) -> None:
        """Ends the membership of every admitted peer that a revocation, another trust or an old claim puts out.

        Of the others in view those that are members no more count no longer; operators' trust is for connections.
        """
        for peer, refusal in self.credentials.put_out(self._claim_of):
            assert self._nursery is not None
            self._nursery.start_soon(self._say_farewell, peer, refusal_of(refusal.code, refusal.message))
            self.credentials.forget(peer)
            self.board.exclude(peer)  # first: that its connection ends now is no doubt about its life
            for effect in self._admission.handle(admission.PutOut(peer, refusal.code), self._ports.clock.now()):
                await self._perform(effect)
            self._note_refused(peer, refusal.code, refusal.message)
            self._ports.network.dismiss(peer)
            self.board.exclude(peer)
        self.board.exclude_who(self.credentials.is_put_out)

    async def _follow_trust(self) -> None:
        """What the operator changes counts for those who are here, too; so does a claim that runs out meanwhile."""
        seen = self.trust.changes.count
        while True:
            with trio.move_on_after(JUDGE_CLAIMS_AGAIN_S):
                seen = await self.trust.changes.wait_beyond(seen)
            await self.put_out()

    def _claim_of(self, peer: PeerId) -> bytes | None:
        """What a peer shows by its freshest announcement: claims are renewed while their peers stay joined."""
        announcement = self.board.find(peer)
        return announcement.ownership if announcement is not None else None

    async def _say_farewell(self, peer: PeerId, refusal: Refusal) -> None:
        with trio.move_on_after(REFUSAL_ARRIVES_S), suppress(P2PMeshError):
            stream = MessageStream(await self._ports.network.open_stream(peer, CONTROL_PROTOCOL, DIAL_TIMEOUT_S))
            await stream.send(refusal)
            await stream.finish()

    def _drop(self, drop: admission.Drop, *, is_told: bool) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._disconnect, drop.peer, REFUSAL_ARRIVES_S if is_told else 0.0)

    async def _disconnect(self, peer: PeerId, wait_s: float) -> None:
        await trio.sleep(wait_s)
        if not self.is_admitted(peer):
            await self._ports.network.disconnect(peer)


def is_definite(error: P2PMeshError) -> bool:
    """Whether another peer refused us for good; a ``Refused`` is our own judgement of another."""
    return isinstance(error, RemoteProtocolError) and error.code in DEFINITE


def _rank(error: P2PMeshError) -> int:
    """What tells most about our own joining first: a refusal, that nobody is there, that who is there is no member."""
    if error.code in (ErrorCode.PEER_UNREACHABLE, ErrorCode.PEER_LOST):
        return 1
    return 2 if isinstance(error, Refused) else 0


async def _refuse(stream: MessageStream, error: P2PMeshError) -> None:
    """Says why, then ends the stream; a peer that is gone or does not listen is not waited for."""
    with trio.move_on_after(2):
        try:
            await stream.send(refusal_of(error.code, error.message, error.retry_after_s))
            await stream.finish()
        except P2PMeshError:
            await stream.reset()


def _first_announcement(ports: Neighbours, settings: OverlaySettings, credentials: Credentials) -> Announcement:
    return Announcement(
        peer_id=ports.identity.peer_id,
        mesh_id=credentials.mesh_id,
        name=settings.name,
        version=settings.version,
        incarnation=ports.clock.unix_ms(),
        sequence=0,
        expires_unix_ms=0,
        addresses=(),
        memory_bytes=settings.memory_bytes if settings.sharing.is_always else 0,
        free_bytes=settings.memory_bytes if settings.sharing.is_always else 0,
        models=(),
        ownership=settings.ownership,
        engine=settings.engine,
        passes=credentials.passes,
        max_layers=settings.wishes.max_layers or 0,
    )
