"""What peers do wrong, as this node acts on it: bans, throttled streams, and what it tells of them.

Runs ``ConductMachine``. Whoever reads a peer's bytes reports here. Blame is sure or not at all: an error counts
against its ``culprit``, which is set where the bytes were read, so that a peer never pays for what a third one said.
"""

from dataclasses import dataclass
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core import conduct
from p2pmesh.core.conduct import Offence, offence_of
from p2pmesh.core.flapping import FlappingMachine
from p2pmesh.node.changes import Changes
from p2pmesh.node.reporting import Report
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.network import FaultKind, Network

THROTTLED_STREAM_S = 1.0
"""A throttled peer's streams are served one after another, each so much later."""
MAX_THROTTLED_STREAMS = 4
"""So many of its streams wait; further ones are refused."""

_OFFENCE_OF_FAULT = {FaultKind.INVALID: Offence.CONNECTION_INVALID, FaultKind.FLOOD: Offence.FLOOD}
_FORGED_PROOF = Offence.MESSAGE_UNEXPECTED
"""A signature in a proof may be another's that the peer was handed: more than a mistake, less than a forgery."""


@dataclass(slots=True)
class _Queue:
    """Streams of one throttled peer."""

    lock: trio.Lock
    waiting: int = 0


class Conduct:
    """Scores of all peers, and what follows from them."""

    def __init__(self, network: Network, clock: Clock, report: Report) -> None:
        self._network = network
        self._clock = clock
        self._report = report
        self._machine = conduct.ConductMachine()
        self._flapping = FlappingMachine()
        self._queues: dict[PeerId, _Queue] = {}
        self._bans_changed = Changes()

    # --- reports ------------------------------------------------------------------
    def note(self, peer: PeerId, offence: Offence) -> None:
        """A peer broke a rule, on its own connection. A ban takes effect before this returns."""
        self._handle(conduct.Offended(peer, offence))

    def note_error(self, error: P2PMeshError) -> None:
        """Counts an error whose culprit is known, once, however many hands it goes through; others are nobody's."""
        if isinstance(error, RemoteProtocolError) and error.culprit is not None:
            culprit, error.culprit = PeerId(error.culprit), None
            offence = offence_of(error.code)
            if offence is not None:
                self.note(culprit, offence)

    def note_refused_proof(self, peer: PeerId, code: ErrorCode) -> None:
        """A hello was refused with ``code``."""
        self.note(peer, _FORGED_PROOF if code is ErrorCode.SIGNATURE_INVALID else Offence.PROOF_REFUSED)

    def note_admitted(self, peer: PeerId) -> None:
        """A hello was accepted: the peer's connections get a member's limits. Again and again is a flood."""
        self._network.admit(peer)
        is_excess = self._flapping.is_excess(peer, self._clock.now())
        self._handle(conduct.Admitted(peer))
        if is_excess:
            self.note(peer, Offence.FLOOD)

    def forgive(self, peer: PeerId) -> None:
        """The operator wants all of it forgotten."""
        self._handle(conduct.Forgiven(peer))

    # --- what others ask ------------------------------------------------------------
    def is_banned(self, peer: PeerId) -> bool:
        """Whether a ban stands."""
        return self._machine.is_banned(peer)

    async def take_turn(self, peer: PeerId) -> None:
        """Returns when a new stream of the peer may be served: at once, unless it is throttled.

        Raises ``Refused(OVERLOADED)`` when several of its streams wait already.
        """
        if not self._machine.is_throttled(peer, self._clock.now()):
            return
        queue = self._queues.setdefault(peer, _Queue(trio.Lock()))
        if queue.waiting >= MAX_THROTTLED_STREAMS:
            self.note(peer, Offence.FLOOD)
            raise Refused(ErrorCode.OVERLOADED, "this peer broke rules and is served slowly; try again in a minute")
        queue.waiting += 1
        try:
            async with queue.lock:
                await trio.sleep(THROTTLED_STREAM_S)
        finally:
            queue.waiting -= 1
            if not queue.waiting:
                self._queues.pop(peer, None)

    def describe_bans(self, limit: int) -> list[dict[str, Any]]:
        """Bans for the status, the first to end first."""
        now = self._clock.now()
        return [
            {
                "peer_id": ban.peer,
                "offence": ban.reason.value,
                "ends_in_s": max(0, ban.until - now) // MICROS_PER_SECOND,
            }
            for ban in self._machine.bans()[:limit]
        ]

    # --- running --------------------------------------------------------------------
    async def run(self) -> None:
        """Takes the network's reports and ends bans, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_faults)
            nursery.start_soon(self._end_bans)

    async def _follow_faults(self) -> None:
        while True:
            fault = await self._network.peer_fault()
            self.note(fault.peer, _OFFENCE_OF_FAULT[fault.kind])

    async def _end_bans(self) -> None:
        while True:
            seen = self._bans_changed.count
            deadline = self._machine.deadline()
            wait_s = float("inf") if deadline is None else max(0, deadline - self._clock.now()) / MICROS_PER_SECOND
            with trio.move_on_after(wait_s):
                await self._bans_changed.wait_beyond(seen)
            self._handle(conduct.DeadlinePassed())

    def _handle(self, event: conduct.Event) -> None:
        now = self._clock.now()
        for effect in self._machine.handle(event, now):
            match effect:
                case conduct.Throttle(peer, until, reason):
                    self._tell("peer_throttled", peer, reason, until - now)
                case conduct.Ban(peer, until, reason):
                    self._network.ban(peer)
                    self._bans_changed.mark()
                    self._tell("peer_banned", peer, reason, until - now)
                case conduct.Unban(peer):
                    self._network.unban(peer)
                    self._report("peer_unbanned", {"peer_id": peer})

    def _tell(self, name: str, peer: PeerId, reason: Offence, length_us: int) -> None:
        seconds = round(length_us / MICROS_PER_SECOND)
        self._report(name, {"peer_id": peer, "offence": reason.value, "seconds": seconds})
