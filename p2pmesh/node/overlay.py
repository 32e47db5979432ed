"""The overlay as one node lives in it: hello, admission, invites, and who may open which exchange.

Runs ``AdmissionMachine``. Stages, artifacts and generations register the exchanges that they serve
(``serve_exchange``); what those mean stays with them. What peers announce is ``node.announcements``'.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, PeerUnavailable, RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import (
    CONTROL_PROTOCOL,
    MAX_CONTROL_MESSAGE_BYTES,
    MAX_UNADMITTED_MESSAGE_BYTES,
    PROTOCOL_GENERATION,
)
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core import admission
from p2pmesh.core.ownership import TrustStore
from p2pmesh.node.announcements import AnnouncementBoard, Neighbours
from p2pmesh.node.channels import MessageStream, refusal_of
from p2pmesh.node.conduct import Conduct
from p2pmesh.node.ownership import PeerTrust
from p2pmesh.node.reporting import Report
from p2pmesh.node.runner import MachineRunner
from p2pmesh.ports.network import ByteStream, PeerConnected
from p2pmesh.wire.announcement import Announcement
from p2pmesh.wire.control import Hello, Welcome
from p2pmesh.wire.invite import LIFE_MS as INVITE_LIFE_MS
from p2pmesh.wire.invite import Invite, check_invite_time, decode_invite, encode_invite
from p2pmesh.wire.requirements import MeshRequirements, mesh_id_of
from p2pmesh.wire.schema import from_map, unpack
from p2pmesh.wire.signed import Envelope

Exchange = Callable[[MessageStream, Any], Awaitable[None]]

DIAL_TIMEOUT_S = 10.0
HELLO_TIMEOUT_S = 10.0
REJOIN_FIRST_S = 1.0
REJOIN_LONGEST_S = 60.0
REFUSAL_ARRIVES_S = 0.2
"""A refusal has this long to reach its peer before the connection is closed."""


@dataclass(frozen=True, slots=True)
class OverlaySettings:
    """Who we are. ``invite_text`` is the invite that we join with; None makes this node the founder of its mesh."""

    name: str
    version: str
    memory_bytes: int
    invite_text: str | None = None
    trust: TrustStore = TrustStore()
    ownership: bytes = b""


class Overlay:
    """One node's membership of one mesh."""

    def __init__(self, ports: Neighbours, settings: OverlaySettings, report: Report) -> None:
        self._ports = ports
        self._report = report
        self.trust = PeerTrust(ports.verifier.is_signature_of, ports.clock, settings.trust)
        self._invite_text = (settings.invite_text or "").strip()
        self._invite = self._read_invite()
        own = MeshRequirements(ports.identity.public_key)
        self.requirements = self._invite.requirements if self._invite else own
        self.mesh_id = mesh_id_of(self.requirements)
        self.board = AnnouncementBoard(ports, _first_announcement(ports, settings, self.mesh_id))
        self._admission = admission.AdmissionMachine()
        self._runner: MachineRunner[admission.Event, admission.Effect] = MachineRunner(
            self._admission, ports.clock, self._perform, admission.DeadlinePassed()
        )
        self._hello_locks: dict[PeerId, trio.Lock] = {}
        self.conduct = Conduct(ports.network, ports.clock, report)
        self._exchanges: dict[type, Exchange] = {}
        self._nursery: trio.Nursery | None = None

    # --- what others here ask --------------------------------------------------
    @property
    def own_peer(self) -> PeerId:
        """Our peer id."""
        return self._ports.identity.peer_id

    @property
    def is_founder(self) -> bool:
        """Whether the mesh is named after our key."""
        return self._invite is None

    def is_admitted(self, peer: PeerId) -> bool:
        """Whether the peer's hello was accepted and its connection stands."""
        return self._admission.is_admitted(peer)

    async def wait_admitted(self, peer: PeerId) -> bool:
        """``is_admitted``, after our own hello to the peer if one is on its way: its answer may be behind a stream."""
        lock = self._hello_locks.get(peer)
        if lock is not None and not self.is_admitted(peer):
            with trio.move_on_after(HELLO_TIMEOUT_S):
                async with lock:
                    pass
        return self.is_admitted(peer)

    def admitted_announcements(self) -> tuple[Announcement, ...]:
        """Those of the peers that are connected and admitted now."""
        return tuple(a for a in self.board.others() if self.is_admitted(PeerId(a.peer_id)))

    def serve_exchange(self, first_message: type, exchange: Exchange) -> None:
        """Serves streams of admitted peers that open with ``first_message``."""
        self._exchanges[first_message] = exchange

    def make_invite(self, life_ms: int = INVITE_LIFE_MS) -> str:
        """An invite to our mesh; only its founder can make one, a joined peer hands on the one it has."""
        if self._invite is not None:
            return self._invite_text
        now = self._ports.clock.unix_ms()
        nonce = self._ports.entropy.random_bytes(16)
        addresses = self._ports.network.addresses()
        invite = Invite(nonce, self.requirements, now, UnixMillis(now + life_ms), addresses)
        return encode_invite(invite, self._ports.identity.public_key, self._ports.identity.sign)

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
            await nursery.start(self.board.run)
            task_status.started()

    async def join(self) -> None:
        """Dials the peers of our invite in turn; raises the most telling error if none admits us."""
        assert self._invite is not None
        failures: list[P2PMeshError] = []
        for peer, addresses in self._invite.peers(self._founder()):
            try:
                await self.ensure_admitted(peer, addresses)
            except P2PMeshError as error:
                failures.append(error)
            else:
                return
        if not failures:
            raise ConfigError(ErrorCode.INVITE_MALFORMED, "the invite names no address; ask for a new one")
        raise min(failures, key=lambda error: error.code in (ErrorCode.PEER_UNREACHABLE, ErrorCode.PEER_LOST))

    async def stay_joined(self) -> None:
        """Rejoins, with back-off, whenever no peer of the invite is admitted."""
        if self._invite is None:
            return
        wait_s = REJOIN_FIRST_S
        while True:
            seen = self.board.changes.count
            if any(self.is_admitted(peer) for peer, _ in self._invite.peers(self._founder())):
                wait_s = REJOIN_FIRST_S
                await self.board.changes.wait_beyond(seen)
                continue
            try:
                await self.join()
            except P2PMeshError as error:
                self._report("join_failed", {"code": error.code.value, "message": error.message, "retry_s": wait_s})
                await trio.sleep(wait_s)
                wait_s = min(2 * wait_s, REJOIN_LONGEST_S)

    async def ensure_admitted(self, peer: PeerId, addresses: tuple[str, ...] = ()) -> None:
        """Connects and says hello unless both are done; raises what went wrong."""
        if self.is_admitted(peer):
            return
        lock = self._hello_locks.setdefault(peer, trio.Lock())
        try:
            async with lock:
                if not self.is_admitted(peer):
                    await self._dial_and_say_hello(peer, addresses)
        finally:
            if not lock.locked():  # a waiting task holds it by now
                self._hello_locks.pop(peer, None)

    def _founder(self) -> PeerId:
        return self._ports.verifier.peer_id_of(self.requirements.founder_key)

    # --- hello -----------------------------------------------------------------
    async def _dial_and_say_hello(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        known = self.board.find(peer)
        tried = tuple(dict.fromkeys((*addresses, *(known.addresses if known else ()))))
        await self._ports.network.dial(peer, tried, DIAL_TIMEOUT_S)
        stream = MessageStream(await self._ports.network.open_stream(peer, CONTROL_PROTOCOL, DIAL_TIMEOUT_S))
        try:
            await stream.send(Hello(PROTOCOL_GENERATION, self.mesh_id, self._invite_text, (), self.board.seal_own()))
            welcome = await stream.expect(Welcome, HELLO_TIMEOUT_S)
            # A member may have joined long ago: its invite proves that it was let in, whenever that was.
            self._check_proof(welcome, peer, is_time_checked=False)
        finally:
            await stream.reset()
        self._admit(peer, welcome.announcement)
        for record in welcome.known:
            self.board.learn(record)

    async def _answer_hello(self, stream: MessageStream, hello: Hello) -> None:
        peer = stream.remote_peer
        try:
            self._check_proof(hello, peer, is_time_checked=True)
        except RemoteProtocolError as error:
            self._report("peer_refused", {"peer_id": peer, "code": error.code.value, "message": error.message})
            self.conduct.note_refused_proof(peer, error.code)
            await self._runner.put(admission.HelloRefused(peer, error.code))
            raise
        self._admit(peer, hello.announcement)
        known = self.board.sealed_others(besides=peer)
        own = self.board.seal_own()
        await stream.send(Welcome(PROTOCOL_GENERATION, self.mesh_id, (), own, b"", b"", known))
        await stream.finish()

    def _admit(self, peer: PeerId, announcement: bytes) -> None:
        """At once, not through the runner's queue: the caller's next stream relies on it."""
        if peer not in self._ports.network.connected_peers():
            raise PeerUnavailable(ErrorCode.PEER_LOST, f"peer {peer} went away while it said hello; try again")
        for effect in self._admission.handle(admission.HelloAccepted(peer), self._ports.clock.now()):
            if isinstance(effect, admission.Drop):
                raise PeerUnavailable(effect.code, f"peer {peer} cannot be admitted: {effect.code.value}")
            self._report("peer_joined", {"peer_id": peer})
        self.conduct.note_admitted(peer)
        self.board.learn(announcement, is_admitted=True)
        self.board.changes.mark()

    def _check_proof(self, said: Hello | Welcome, peer: PeerId, *, is_time_checked: bool) -> None:
        """Generation, mesh, announcement and credential of a peer; raises the first that is wrong."""
        if said.generation != PROTOCOL_GENERATION:
            text = f"protocol generation {said.generation}, this peer speaks {PROTOCOL_GENERATION}; update the older"
            raise RemoteProtocolError(ErrorCode.GENERATION_UNSUPPORTED, text)
        if said.mesh_id != self.mesh_id:
            text = "the invite is for another mesh than the peer it leads to; ask for a new one"
            raise RemoteProtocolError(ErrorCode.INVITE_FOREIGN, text)
        if self.board.decode(said.announcement).peer_id != peer:
            raise RemoteProtocolError(ErrorCode.SIGNATURE_INVALID, "the announcement is another peer's")
        if isinstance(said, Welcome):
            return
        if not said.invite:
            key = from_map(Envelope, unpack(said.announcement, "announcement"), "announcement").key
            if key != self.requirements.founder_key:
                raise RemoteProtocolError(ErrorCode.INVITE_MISSING, "an invite is needed; ask a member for one")
            return
        invite = decode_invite(said.invite, self._ports.verifier.is_signature_of)
        if invite.mesh_id != self.mesh_id:
            raise RemoteProtocolError(ErrorCode.INVITE_FOREIGN, "the invite is for another mesh; ask for one of this")
        if is_time_checked:
            check_invite_time(invite, self._ports.clock.unix_ms())

    def _read_invite(self) -> Invite | None:
        if not self._invite_text:
            return None
        invite = decode_invite(self._invite_text, self._ports.verifier.is_signature_of)
        check_invite_time(invite, self._ports.clock.unix_ms())
        return invite

    # --- streams -----------------------------------------------------------------
    async def _serve_control(self, raw_stream: ByteStream) -> None:
        peer = raw_stream.remote_peer
        limit = MAX_CONTROL_MESSAGE_BYTES if self.is_admitted(peer) else MAX_UNADMITTED_MESSAGE_BYTES
        stream = MessageStream(raw_stream, limit)
        try:
            await self.conduct.take_turn(peer)
            message = await stream.receive(HELLO_TIMEOUT_S)
            if isinstance(message, Hello):
                await self._answer_hello(stream, message)
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

    # --- the admission machine ---------------------------------------------------
    async def _follow_connections(self) -> None:
        while True:
            event = await self._ports.network.connection_event()
            if isinstance(event, PeerConnected):
                await self._runner.put(admission.Connected(event.peer))
            else:
                await self._runner.put(admission.Disconnected(event.peer))

    async def _perform(self, effect: admission.Effect) -> None:
        match effect:
            case admission.Admit(peer):
                self._report("peer_joined", {"peer_id": peer})
            case admission.Drop(peer, code):
                assert self._nursery is not None
                self._nursery.start_soon(self._disconnect, peer, code)
            case admission.Lose(peer):
                self._report("peer_left", {"peer_id": peer})
                self.board.forget(peer)
                self.board.changes.mark()

    async def _disconnect(self, peer: PeerId, code: ErrorCode) -> None:
        if code not in (ErrorCode.OVERLOADED, ErrorCode.DEADLINE_EXCEEDED):
            await trio.sleep(REFUSAL_ARRIVES_S)
        if not self.is_admitted(peer):
            await self._ports.network.disconnect(peer)


async def _refuse(stream: MessageStream, error: P2PMeshError) -> None:
    """Says why, then ends the stream; a peer that is gone or does not listen is not waited for."""
    with trio.move_on_after(2):
        try:
            await stream.send(refusal_of(error.code, error.message))
            await stream.finish()
        except P2PMeshError:
            await stream.reset()


def _first_announcement(ports: Neighbours, settings: OverlaySettings, mesh_id: MeshId) -> Announcement:
    return Announcement(
        peer_id=ports.identity.peer_id,
        mesh_id=mesh_id,
        name=settings.name,
        version=settings.version,
        incarnation=ports.clock.unix_ms(),
        sequence=0,
        expires_unix_ms=0,
        addresses=(),
        memory_bytes=settings.memory_bytes,
        free_bytes=settings.memory_bytes,
        models=(),
        ownership=settings.ownership,
    )
