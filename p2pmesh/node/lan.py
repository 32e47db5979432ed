"""Members of our mesh on the local network: told that we are there, sighted, asked for their proof, joined.

Runs ``core.lan``. What is sent and heard is the port's (``ports.lan``); records are ``wire.lan_record``'s. Pools that
are open to everyone are chosen elsewhere; here only those are met who belong to the mesh that this node is in, or has
an invite to. An invite is never shown to whoever has not proved to be a member.
"""

from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import CONTROL_PROTOCOL, MAX_LAN_ADDRESSES, MAX_UNADMITTED_MESSAGE_BYTES
from p2pmesh.core import lan as lan_machine
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.overlay import DIAL_TIMEOUT_S, HELLO_TIMEOUT_S, Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.runner import MachineRunner
from p2pmesh.ports.lan import Lan
from p2pmesh.wire.lan_record import CHALLENGE_BYTES, LanRecord, fingerprint_of
from p2pmesh.wire.messages.admission import Proof, ProofQuery

SEARCH_S = 5.0
"""How long the first joining waits for members on the link, beside those that the invite names: answers take a second
or two, and a slow machine's probing as long again."""
TELL_AGAIN_S = 30.0
"""Addresses change: a cable, a lease."""


class LanMeetings:
    """One node's acquaintances on its links. ``lan`` None: it meets nobody, and answers who asks for its proof."""

    def __init__(self, overlay: Overlay, ports: Neighbours, lan: Lan | None, report: Report) -> None:
        self._overlay = overlay
        self._ports = ports
        self._lan = lan
        self._report = report
        self._machine = lan_machine.LanMachine()
        self._runner: MachineRunner[lan_machine.Event, lan_machine.Effect] = MachineRunner(
            self._machine, ports.clock, self._perform, lan_machine.DeadlinePassed()
        )
        self._challenge = ports.entropy.random_bytes(CHALLENGE_BYTES) if lan is not None else b""
        self._nursery: trio.Nursery | None = None
        overlay.serve_anyone(ProofQuery, self._answer)
        if lan is not None:
            overlay.search_nearby_s = SEARCH_S

    async def run(self) -> None:
        """Until cancelled."""
        if self._lan is None:
            return
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._runner.run)
            nursery.start_soon(self._keep_telling, self._lan)
            try:
                await self._follow(self._lan)
            finally:
                self._lan.tell(None)

    async def _keep_telling(self, lan: Lan) -> None:
        told: LanRecord | None = None
        while True:
            changes = self._overlay.board.changes.count
            record = self._own_record() if self._is_member() else None
            if record != told:
                lan.tell(record)
            told = record
            with trio.move_on_after(TELL_AGAIN_S):
                await self._overlay.board.changes.wait_beyond(changes)

    def _is_member(self) -> bool:
        """Whoever only has an invite cannot prove anything to those who would dial it."""
        return self._overlay.is_founder or bool(self._overlay.credentials.passes)

    def _own_record(self) -> LanRecord:
        """Without anything that names the mesh to whoever does not know it."""
        own = self._overlay.own_peer
        suffix = f"/p2p/{own}"
        direct = (text.removesuffix(suffix) for text in self._ports.network.addresses() if text.endswith(suffix))
        addresses = tuple(text for text in direct if "/p2p" not in text and text.startswith("/ip"))
        mesh_id = self._overlay.mesh_id
        return LanRecord(
            own, addresses[:MAX_LAN_ADDRESSES], self._challenge, fingerprint_of(mesh_id, own, self._challenge),
            self._overlay.board.own().version,
        )  # fmt: skip

    async def _follow(self, lan: Lan) -> None:
        sighted: dict[PeerId, tuple[str, ...]] = {}
        while True:
            changes = lan.changes
            now = {one.peer: one.addresses for one in lan.seen() if self._is_of_interest(one)}
            for peer in sorted(set(sighted) - set(now)):
                await self._runner.put(lan_machine.Gone(peer))
            for peer in sorted(now):
                if sighted.get(peer) != now[peer]:
                    await self._runner.put(lan_machine.Sighted(peer, now[peer]))
            sighted = now
            await lan.wait_changed_beyond(changes)

    def _is_of_interest(self, record: LanRecord) -> bool:
        return record.peer != self._overlay.own_peer and bool(record.addresses) and record.is_of(self._overlay.mesh_id)

    async def _perform(self, effect: lan_machine.Effect) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._meet, effect.peer, effect.addresses)

    async def _meet(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        outcome: lan_machine.Event = lan_machine.Missed(peer)
        try:
            if not self._is_known(peer):
                await self._prove(peer, addresses)
                await self._overlay.ensure_admitted(peer, addresses)
                self._report("lan_peer_met", {"peer_id": peer})
            outcome = lan_machine.Met(peer)
        except P2PMeshError as error:
            self._report("lan_peer_missed", {"peer_id": peer, "code": error.code.value, "message": error.message})
        await self._runner.put(outcome)

    def _is_known(self, peer: PeerId) -> bool:
        """Whether the overlay has the peer already. What gossip says of it is no help while nobody admitted us."""
        if self._overlay.is_admitted(peer) or self._overlay.shut_out is not None:
            return True
        return bool(self._overlay.admitted_peers()) and self._overlay.board.find(peer) is not None

    async def _prove(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Raises unless the peer is a member; whom our invite names, its founder vouches for."""
        if self._overlay.credentials.is_vouched_for(peer):
            return
        await self._ports.network.dial(peer, addresses, DIAL_TIMEOUT_S)
        raw = await self._ports.network.open_stream(peer, CONTROL_PROTOCOL, DIAL_TIMEOUT_S)
        stream = MessageStream(raw, MAX_UNADMITTED_MESSAGE_BYTES)
        try:
            await stream.send(ProofQuery(self._overlay.mesh_id))
            proof = await stream.expect(Proof, HELLO_TIMEOUT_S)
            self._overlay.credentials.check_proof(peer, proof.passes)
        except RemoteProtocolError as error:
            if not (self._overlay.is_admitted(peer) or self._overlay.is_inbound(peer)):
                await self._ports.network.disconnect(peer)
            text = f"peer {peer} of the local network does not prove to be a member: {error.message}"
            raise Refused(error.code, text) from None
        finally:
            await stream.reset()

    async def _answer(self, stream: MessageStream, asked: ProofQuery) -> None:
        if asked.mesh_id != self._overlay.mesh_id:
            raise RemoteProtocolError(ErrorCode.INVITE_FOREIGN, "this peer belongs to another mesh")
        await stream.send(Proof(self._overlay.credentials.passes))
        await stream.finish()

    def describe(self) -> dict[str, Any] | None:
        """For the status; None where nothing is done on the local network."""
        if self._lan is None:
            return None
        state = self._lan.state()
        return {
            "is_listening": state.is_listening,
            "is_told": state.is_told,
            "seen": state.seen,
            "refused": state.refused,
            "of_this_mesh": self._machine.size,
            "detail": state.detail,
        }
