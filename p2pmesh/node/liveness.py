"""Finds out who lives: probes, second opinions, reports and leaving, as ``core.membership`` decides.

Wakes the machine that the announcement board holds and carries its effects out. What a peer announces, and who counts,
is read from the board; who may speak at all is ``node.overlay``'s. Normative text: ``protocols/liveness.md``.
"""

from collections import deque
from contextlib import suppress
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.base.ids import ID_BYTES, MeshId, PeerId
from p2pmesh.base.limits import CLOCK_SKEW_MS
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core import membership
from p2pmesh.core.conduct import Offence
from p2pmesh.core.connections import DEFAULT_POLICY as CONNECTION_POLICY
from p2pmesh.core.membership import MembershipPolicy
from p2pmesh.core.shards import shard_bits_of
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.overlay import Overlay, is_definite
from p2pmesh.node.reporting import Report
from p2pmesh.ports.network import Subscription
from p2pmesh.wire.announcement import Announcement
from p2pmesh.wire.liveness import (
    NOTE_LIFE_MS,
    DownReport,
    Leaving,
    LifeProof,
    Note,
    decode_note,
    decode_proof,
    encode_note,
    encode_proof,
    model_topic_of,
    topic_beside,
    topic_of,
)
from p2pmesh.wire.messages.liveness import Farewell, Probe, ProbeAnswer, ProbeReport, ProbeRequest

_POLICY = MembershipPolicy()
PROBE_S = (_POLICY.probe_timeout_us + _POLICY.indirect_timeout_us) / MICROS_PER_SECOND
"""A late answer still counts, so a probe outlives the machine's own patience."""
RELAY_S = 4.0
"""As long as a helper tries; its asker waits a little longer."""
MAX_RELAYS = 8
MAX_PROBES_AT_ONCE = 16
REFUSED_AGAIN_US = 30 * MICROS_PER_SECOND
"""Whoever refused us, or was refused, is not greeted again before this long."""
REFUSED_FOR_GOOD_US = 900 * MICROS_PER_SECOND
MAX_FAREWELLS = 64
FAREWELL_S = 1.0
LEAVING_SAID = 2
"""Gossip loses some; who misses the word believes until its own probe."""
LEAVING_AGAIN_S = 0.3
MAX_NOTES_PER_SPEAKER = 32
"""In ``NOTE_LIFE_MS``; what goes beyond is not forwarded."""
MAX_MODELS_TOLD = 8
MAX_REMEMBERED = 1024


class Liveness:
    """The life and death of the peers of one node's view."""

    def __init__(self, overlay: Overlay, ports: Neighbours, report: Report) -> None:
        self._overlay = overlay
        self._board = overlay.board
        self._ports = ports
        self._report = report
        self._nursery: trio.Nursery | None = None
        self._limiter = trio.CapacityLimiter(MAX_PROBES_AT_ONCE)
        self._relays = 0
        self._unwelcome: dict[PeerId, tuple[Micros, int]] = {}
        """Peers that refuse us or whose answer we refuse, and until when we leave them alone, unless we were let in
        again since: not reached, and yet nothing to report."""
        self._seen: dict[tuple[PeerId, PeerId, int], None] = {}
        self._heard: dict[str, tuple[Subscription, trio.CancelScope]] = {}
        self._places: dict[PeerId, tuple[str, ...]] = {}
        """Topics on which peers were reported."""
        self._spoken: dict[PeerId, deque[Micros]] = {}
        self._asymmetries: dict[tuple[PeerId, PeerId], Micros] = {}
        self._names: dict[PeerId, str] = {}
        self._board.on_effect = self._perform
        overlay.serve_exchange(Probe, self._answer_probe)
        overlay.serve_exchange(ProbeRequest, self._answer_request)
        overlay.serve_exchange(Farewell, self._hear_farewell)

    # --- running -----------------------------------------------------------------
    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Probes and listens until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._join_and_leave(nursery)
            nursery.start_soon(self._keep_deadlines)
            task_status.started()
            try:
                await self._keep_topics(nursery)
            finally:
                self._nursery = None  # what still comes in while we stop starts nothing

    async def _keep_topics(self, nursery: trio.Nursery) -> None:
        while True:
            seen = self._board.topics.moved.count
            await self._join_and_leave(nursery)
            await self._board.topics.moved.wait_beyond(seen)

    async def _join_and_leave(self, nursery: trio.Nursery) -> None:
        """Notes are heard beside each topic on which announcements are."""
        wanted = {topic_beside(topic) for topic in self._board.topics.heard}
        for topic in sorted(self._heard.keys() - wanted):
            subscription, scope = self._heard.pop(topic)
            scope.cancel()
            await subscription.close()
        for topic in sorted(wanted - self._heard.keys()):
            subscription = await self._ports.network.subscribe(topic, self._is_worth_passing)
            scope = trio.CancelScope()
            self._heard[topic] = (subscription, scope)
            nursery.start_soon(self._follow, subscription, scope)

    async def leave(self) -> None:
        """Tells everybody that this life ends; afterwards nothing is announced any more."""
        self._board.stop_announcing()
        own = self._board.own()
        leaving = Leaving(
            self._overlay.mesh_id, own.peer_id, own.incarnation, own.sequence + 1, self._ports.clock.unix_ms()
        )
        note = self._seal(leaving)
        with trio.move_on_after(FAREWELL_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._say_leaving, leaving, self._topics_about(own))
                for peer in self._overlay.admitted_peers()[:MAX_FAREWELLS]:
                    nursery.start_soon(self._say_farewell, peer, note)

    async def _keep_deadlines(self) -> None:
        """Not a ``MachineRunner``: the board must see at once what it has just learnt, so it feeds the machine."""
        while True:
            seen = self._board.handled.count
            deadline = self._board.deadline()
            wait_s = float("inf") if deadline is None else (deadline - self._ports.clock.now()) / MICROS_PER_SECOND
            with trio.move_on_after(max(0.0, wait_s)):
                await self._board.handled.wait_beyond(seen)
            deadline = self._board.deadline()
            if deadline is not None and deadline <= self._ports.clock.now():
                self._board.tell(membership.DeadlinePassed())

    async def _say_leaving(self, leaving: Leaving, topics: tuple[str, ...]) -> None:
        """More than once, each time as a message of its own."""
        for turn in range(LEAVING_SAID):
            if turn:
                await trio.sleep(LEAVING_AGAIN_S)
            await self._publish(self._seal(leaving), topics)

    # --- what the machine wants ------------------------------------------------------
    def _perform(self, effect: membership.Effect) -> None:  # noqa: C901 - one line per kind of effect
        match effect:
            case membership.SendProbe(peer, ticket):
                self._start(self._probe, peer, ticket)
            case membership.SendIndirectProbe(helper, peer, ticket):
                self._start(self._probe_through, helper, peer, ticket)
            case membership.ReportDown(peer, incarnation):
                self._report_down(peer, incarnation)
            case membership.RefuteSelf():
                self._board.speak_up()  # whether it can reach us is its finding to make: we are no witness of ourselves
            case membership.AsymmetryFound(peer, witness):
                if not self._is_unwelcome(peer):
                    self._tell_asymmetry(peer, self._overlay.own_peer, witness)
            case membership.ReporterMuted(reporter):
                self._tell("reporter_muted", reporter)
                self._overlay.conduct.note(reporter, Offence.REPORT_FALSE)
            case membership.PeerJoined(peer) | membership.PeerChanged(peer):
                announcement = self._board.find(peer)
                if announcement is not None:
                    self._names[peer] = announcement.name
            case membership.PeerSuspected(peer):
                self._tell("peer_suspected", peer)
            case membership.PeerRecovered(peer):
                self._tell("peer_recovered", peer)
            case membership.PeerFailed(peer):
                self._tell("peer_failed", peer)
            case membership.PeerLeft(peer):
                self._tell("peer_left", peer)
            case membership.PeerForgotten(peer):
                self._names.pop(peer, None)
                self._unwelcome.pop(peer, None)

    def _start(self, task: Any, *arguments: Any) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(task, *arguments)

    def _tell(self, name: str, peer: PeerId) -> None:
        self._report(name, {"peer_id": peer, "name": self._names.get(peer, "")})

    def _tell_asymmetry(self, peer: PeerId, by: PeerId, witness: PeerId) -> None:
        """``by`` does not reach ``peer``, ``witness`` does; once per pair and hour."""
        now = self._ports.clock.now()
        pair = (peer, by)
        if self._asymmetries.get(pair, Micros(-1)) <= now:
            self._report("visibility_asymmetric", {"peer_id": peer, "unreached_by": by, "witness": witness})
            self._asymmetries.pop(pair, None)
            _remember(self._asymmetries, pair, Micros(now + _POLICY.asymmetry_repeat_us))

    def _is_unwelcome(self, peer: PeerId) -> bool:
        return peer in self._unwelcome or self._overlay.conduct.is_banned(peer)

    # --- asking --------------------------------------------------------------------
    async def _probe(self, peer: PeerId, ticket: int) -> None:
        if self._is_left_alone(peer) and not self._overlay.is_admitted(peer):
            self._board.tell(membership.ProbeUnanswered(peer, ticket))
            return
        with trio.move_on_after(PROBE_S):
            async with self._limiter:
                try:
                    rtt_us = await self._ask_or_knock(peer)
                except P2PMeshError as error:
                    self._note_unwelcome(peer, error)
                    self._board.tell(membership.ProbeUnanswered(peer, ticket))
                else:
                    self._unwelcome.pop(peer, None)
                    self._asymmetries.pop((peer, self._overlay.own_peer), None)
                    self._board.tell(membership.ProbeAnswered(peer, ticket, rtt_us))

    def _note_unwelcome(self, peer: PeerId, error: P2PMeshError) -> None:
        if error.code in (ErrorCode.PEER_UNREACHABLE, ErrorCode.PEER_LOST):
            return
        is_final = is_definite(error)
        if is_final:
            self._board.exclude(peer)  # it answered, so it is not dead; but to us it is no member either
        pause_us = REFUSED_FOR_GOOD_US if is_final else REFUSED_AGAIN_US
        _remember(self._unwelcome, peer, (Micros(self._ports.clock.now() + pause_us), self._overlay.returns))

    def _is_left_alone(self, peer: PeerId) -> bool:
        if self._overlay.shut_out is not None:
            return True
        until, returns = self._unwelcome.get(peer, (Micros(-1), 0))
        return until > self._ports.clock.now() and returns == self._overlay.returns

    async def _ask_or_knock(self, peer: PeerId) -> int:
        """The round trip in microseconds, 0 where only the handshake proves that the peer lives.

        In a large overlay only some probes leave a connection behind.
        """
        if not self._overlay.is_admitted(peer) and self._has_enough_connections():
            await self._overlay.knock(peer)
            return 0
        await self._overlay.ensure_admitted(peer)
        started = self._ports.clock.now()
        await self._ask(peer, self._ports.entropy.random_bytes(ID_BYTES))
        return max(1, self._ports.clock.now() - started)

    def _has_enough_connections(self) -> bool:
        if not self._board.is_large:
            return False
        near = [peer for peer in self._overlay.admitted_peers() if self._board.is_near(peer)]
        return len(near) >= CONNECTION_POLICY.opened_below

    async def _ask(self, peer: PeerId, nonce: bytes) -> bytes:
        """The peer's proof; what it announces besides is learnt. Its caller bounds the time."""
        known = self._board.find(peer)
        incarnation, sequence = known.freshness if known is not None else (0, 0)
        stream = await self._overlay.open_exchange(peer, Probe(nonce, incarnation, sequence))
        try:
            answer = await stream.expect(ProbeAnswer, PROBE_S)
        finally:
            await stream.reset()
        self._check_proof(answer.proof, peer, nonce)
        if answer.announcement and self._board.decode(answer.announcement).peer_id == peer:
            self._board.learn(answer.announcement)
        return answer.proof

    async def _probe_through(self, helper: PeerId, peer: PeerId, ticket: int) -> None:
        """A helper that fails us says nothing; the machine has a deadline for that."""
        nonce = self._ports.entropy.random_bytes(ID_BYTES)
        with trio.move_on_after(PROBE_S), suppress(P2PMeshError):
            async with self._limiter:
                stream = await self._overlay.open_exchange(helper, ProbeRequest(nonce, peer))
                try:
                    said = await stream.expect(ProbeReport, PROBE_S)
                finally:
                    await stream.reset()
                if said.proof:
                    self._check_proof(said.proof, peer, nonce)
                self._board.tell(membership.IndirectAnswered(helper, peer, ticket, bool(said.proof)))

    def _check_proof(self, proof: bytes, peer: PeerId, nonce: bytes) -> None:
        verifier = self._ports.verifier
        decode_proof(proof, peer, nonce, verifier.is_signature_of, verifier.peer_id_of)

    # --- being asked -----------------------------------------------------------------
    async def _answer_probe(self, stream: MessageStream, asked: Probe) -> None:
        own, identity = self._board.own(), self._ports.identity
        proof = LifeProof(own.peer_id, asked.nonce, own.incarnation, own.sequence)
        is_fresher = own.freshness > (asked.incarnation, asked.sequence)
        announcement = self._board.sealed_own if is_fresher else b""
        sealed = encode_proof(proof, identity.public_key, identity.sign)
        await stream.send(ProbeAnswer(sealed, announcement))
        await stream.finish()

    async def _answer_request(self, stream: MessageStream, asked: ProbeRequest) -> None:
        peer = PeerId(asked.peer_id)
        if self._relays >= MAX_RELAYS:
            raise Refused(ErrorCode.OVERLOADED, "this peer helps as many others as it can; ask another")
        proof = b""
        self._relays += 1
        try:
            if peer != stream.remote_peer and self._board.find(peer) is not None:
                with trio.move_on_after(RELAY_S), suppress(P2PMeshError):
                    proof = await self._ask(peer, asked.nonce)
        finally:
            self._relays -= 1
        await stream.send(ProbeReport(proof))
        await stream.finish()

    # --- notes ---------------------------------------------------------------------
    def _report_down(self, peer: PeerId, incarnation: int) -> None:
        if self._is_unwelcome(peer):
            return
        announcement = self._board.find(peer)
        if announcement is not None:  # the second report, when it has failed, goes where the first one went
            _remember(self._places, peer, self._topics_about(announcement))
        issued = self._ports.clock.unix_ms()
        note = DownReport(self._overlay.mesh_id, self._overlay.own_peer, peer, incarnation, issued)
        self._start(self._publish, self._seal(note), self._places.get(peer, ()))

    def _topics_about(self, announcement: Announcement) -> tuple[str, ...]:
        """Beside the topics on which the peer announces."""
        mesh_id, depth = self._overlay.mesh_id, announcement.shard_depth
        bits = shard_bits_of(PeerId(announcement.peer_id), depth)
        topics = [topic_of(mesh_id, bits)]
        if depth:
            topics.append(topic_of(mesh_id, bits[:-1]))
        if depth or self._board.topics.has_shards:
            topics += [model_topic_of(mesh_id, model.digest) for model in announcement.models[:MAX_MODELS_TOLD]]
        return tuple(dict.fromkeys(topics))

    def _seal(self, note: Note) -> bytes:
        return encode_note(note, self._ports.identity.public_key, self._ports.identity.sign)

    async def _publish(self, note: bytes, topics: tuple[str, ...]) -> None:
        for topic in topics:
            await self._ports.network.publish(topic, note)

    async def _say_farewell(self, peer: PeerId, note: bytes) -> None:
        with suppress(P2PMeshError):
            stream = await self._overlay.open_exchange(peer, Farewell(note))
            await stream.finish()

    async def _hear_farewell(self, stream: MessageStream, said: Farewell) -> None:
        note = self._decode(said.leaving)
        if not isinstance(note, Leaving) or note.speaker != stream.remote_peer:
            raise RemoteProtocolError(
                ErrorCode.SIGNATURE_INVALID, "a farewell of another peer", culprit=stream.remote_peer
            )
        self._heed(note)
        await stream.finish()

    async def _follow(self, subscription: Subscription, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                _, data = await subscription.receive()
                with suppress(RemoteProtocolError):  # it was checked on arrival, but its time may be over now
                    self._heed(self._decode(data))

    def _decode(self, data: bytes) -> Note:
        """A checked note that still counts."""
        verifier = self._ports.verifier
        mesh_id = MeshId(self._overlay.mesh_id)
        note = decode_note(data, mesh_id, verifier.is_signature_of, verifier.peer_id_of)
        age_ms = self._ports.clock.unix_ms() - note.issued_unix_ms
        if not -CLOCK_SKEW_MS <= age_ms <= NOTE_LIFE_MS + CLOCK_SKEW_MS:
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, "a note of another time")
        return note

    def _heed(self, note: Note) -> None:
        """Each report once: it comes by several topics, and said again by others it must not hurt its writer."""
        peer = PeerId(note.peer_id)
        if isinstance(note, Leaving):
            self._board.tell(membership.LeavingHeard(peer, note.incarnation))
            return
        key = (note.speaker, peer, note.issued_unix_ms)
        if key not in self._seen and not self._is_of_our_life_before(note):
            _remember(self._seen, key, None)
            self._board.tell(membership.DownReported(note.speaker, peer, note.incarnation))

    def _is_of_our_life_before(self, note: DownReport) -> bool:
        """Whether it says that we died before this start: that was true, and its writer is no liar."""
        return note.peer_id == self._overlay.own_peer and note.incarnation < self._board.own().incarnation

    def _is_worth_passing(self, data: bytes) -> bool:
        """Checked, of now, from a speaker who neither lies nor floods."""
        try:
            note = self._decode(data)
        except RemoteProtocolError:
            return False
        speaker = note.speaker
        is_heeded = not self._board.is_muted(speaker) and not self._board.is_outcast(speaker)
        return is_heeded and self._is_within_rate(speaker)

    def _is_within_rate(self, speaker: PeerId) -> bool:
        now = self._ports.clock.now()
        if speaker not in self._spoken:
            _remember(self._spoken, speaker, deque[Micros](maxlen=MAX_NOTES_PER_SPEAKER))
        spoken = self._spoken[speaker]
        if len(spoken) == MAX_NOTES_PER_SPEAKER and now - spoken[0] < NOTE_LIFE_MS * 1000:
            return False
        spoken.append(now)
        return True

    # --- what the status shows ---------------------------------------------------------
    def describe(self) -> dict[PeerId, dict[str, Any]]:
        """Each peer's health, that of lately gone ones too; ``is_direct`` is null where only gossip tells."""
        now = self._ports.clock.now()
        return {view.peer: _describe(view, self._names.get(view.peer, ""), now) for view in self._board.views()}

    def describe_asymmetries(self) -> list[dict[str, str]]:
        """Pairs that do not see each other both ways, of the last hour; not those that are connected by now."""
        now = self._ports.clock.now()
        for pair in [pair for pair, until in self._asymmetries.items() if until <= now or self._is_direct(*pair)]:
            del self._asymmetries[pair]
        return [{"peer_id": peer, "unreached_by": by} for peer, by in self._asymmetries]

    def _is_direct(self, peer: PeerId, by: PeerId) -> bool:
        other = peer if by == self._overlay.own_peer else by
        return self._overlay.is_admitted(other)


def _describe(view: membership.MemberView, name: str, now: Micros) -> dict[str, Any]:
    is_direct: bool | None = None
    if view.is_connected or view.rtt_us is not None:
        is_direct = True
    if view.witness is not None:
        is_direct = False
    return {
        "peer_id": view.peer,
        "name": name,
        "health": view.state.value,
        "last_heard_s": max(0, now - view.heard_at) // MICROS_PER_SECOND,
        "rtt_us": view.rtt_us or None,
        "is_direct": is_direct,
        "reached_by": view.witness,
    }


def _remember(table: dict[Any, Any], key: Any, value: Any) -> None:
    """Keeps ``MAX_REMEMBERED``; gives up what came first."""
    if key not in table and len(table) >= MAX_REMEMBERED:
        del table[next(iter(table))]
    table[key] = value
