"""Measures the links from this node, shares them, and puts together what peers tell of theirs.

Runs ``LinksMachine``: round trips come from the pings of the connections that stand, throughput from transfers of stage
files and from short probes. What an announcement holds is ``wire.announcement``'s; what a link costs a placement is
``core.planning``'s.
"""

from collections.abc import Callable

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_ANNOUNCED_LINKS, MAX_LINK_CHUNK_BYTES
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core import links
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.overlay import Overlay
from p2pmesh.ports.network import PathKind
from p2pmesh.wire.announcement import Link, peer_hash_of
from p2pmesh.wire.messages.links import LinkBytes, LinkProbe

SAMPLE_EVERY_S = 10.0
PROBE_TIMEOUT_S = 20.0
LINKS_OF_A_CROWD = 8
"""In a large overlay a peer tells the nearest of its links only: each costs bytes at every other peer."""


class Links:
    """The links of one node."""

    def __init__(self, overlay: Overlay, ports: Neighbours, is_busy: Callable[[], bool]) -> None:
        self._overlay = overlay
        self._ports = ports
        self._is_busy = is_busy
        self._machine = links.LinksMachine(int.from_bytes(ports.entropy.random_bytes(8), "big"))
        self._gate = links.ProbeGate()
        self._measured: frozenset[PeerId] = frozenset()
        self._is_probing = False
        overlay.serve_exchange(LinkProbe, self._serve)

    # --- what others here ask ------------------------------------------------------
    def estimates(self) -> tuple[tuple[PeerId, links.LinkEstimate], ...]:
        """The links from here, the most useful first."""
        return self._machine.estimates(self._ports.clock.now())

    def matrix(self) -> links.LinkMatrix:
        """What is known of the link between any two peers: ours as measured, the others' as both ends announce them."""
        self._sample_newcomers()
        own = ((peer, links.PairLink(e.rtt_us, e.throughput_bytes_per_s, e.is_relayed)) for peer, e in self.estimates())
        others = self._overlay.board.others()
        peers = {peer_hash_of(peer): peer for peer in (self._overlay.own_peer, *(PeerId(o.peer_id) for o in others))}
        announced = {PeerId(one.peer_id): _vector(one.links, peers) for one in others}
        return links.combine_vectors(self._overlay.own_peer, own, announced)

    def note_transfer(self, peer: PeerId, size_bytes: int, elapsed_us: int) -> None:
        """Bytes that came for another reason, and the time that they took."""
        self._machine.handle(links.TransferTimed(peer, size_bytes, elapsed_us), self._ports.clock.now())

    def look_again(self) -> None:
        """A path has changed: what is known of it is of another one. Others hear of it with the next announcement."""
        self._sample()
        self._overlay.board.share_links(self._shared())

    # --- measuring -----------------------------------------------------------------
    async def run(self) -> None:
        """Samples, probes and shares until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._sample()
                crowd = links.CrowdChanged(self._overlay.board.is_large)
                self._machine.handle(crowd, self._ports.clock.now())
                event = links.DeadlinePassed(is_busy=self._is_busy() or self._is_probing)
                for effect in self._machine.handle(event, self._ports.clock.now()):
                    self._is_probing = True
                    nursery.start_soon(self._probe, effect.peer)
                self._overlay.board.share_links(self._shared())
                await trio.sleep(SAMPLE_EVERY_S)

    def _sample(self) -> None:
        now = self._ports.clock.now()
        admitted = frozenset(self._overlay.admitted_peers())
        for peer in sorted(self._measured - admitted):
            self._machine.handle(links.ConnectionLost(peer), now)
        self._measured = admitted
        for peer in sorted(admitted):
            self._sample_peer(peer)

    def _sample_newcomers(self) -> None:
        """A plan that is made just after a peer joined need not wait for the next round to know how far it is."""
        now = self._ports.clock.now()
        for peer in sorted(self._overlay.admitted_peers()):
            if self._machine.estimate(peer, now) is None:
                self._sample_peer(peer)

    def _sample_peer(self, peer: PeerId) -> None:
        round_trip_s, path = self._ports.network.round_trip_s(peer), self._ports.network.path_of(peer)
        if round_trip_s is not None and path is not None:
            rtt_us = max(1, round(round_trip_s * MICROS_PER_SECOND))
            relayed = path is PathKind.RELAYED
            self._machine.handle(links.RoundTripMeasured(peer, rtt_us, relayed), self._ports.clock.now())

    def _shared(self) -> tuple[Link, ...]:
        estimates = self.estimates()
        most = LINKS_OF_A_CROWD if self._overlay.board.is_large else MAX_ANNOUNCED_LINKS
        return tuple(
            Link(peer_hash_of(peer), e.rtt_us, e.throughput_bytes_per_s, e.is_relayed) for peer, e in estimates[:most]
        )

    # --- probes --------------------------------------------------------------------
    async def _probe(self, peer: PeerId) -> None:
        try:
            size_bytes, elapsed_us = await self._time_probe(peer)
            self._machine.handle(links.TransferTimed(peer, size_bytes, elapsed_us), self._ports.clock.now())
        except P2PMeshError:
            self._machine.handle(links.ProbeFailed(peer), self._ports.clock.now())
        finally:
            self._is_probing = False

    async def _time_probe(self, peer: PeerId) -> tuple[int, int]:
        """Bytes after the first message, and microseconds from the first to the last."""
        stream = await self._overlay.open_exchange(peer, LinkProbe(links.PROBE_BYTES))
        try:
            first = await stream.expect(LinkBytes, PROBE_TIMEOUT_S)
            began, received_bytes = self._ports.clock.now(), 0
            with trio.move_on_after(PROBE_TIMEOUT_S):
                while len(first.data) + received_bytes < links.PROBE_BYTES:
                    received_bytes += len((await stream.expect(LinkBytes, PROBE_TIMEOUT_S)).data)
            if len(first.data) + received_bytes > links.PROBE_BYTES:
                raise RemoteProtocolError(ErrorCode.MESSAGE_TOO_LARGE, "more bytes than the probe asked for")
        finally:
            await stream.reset()
        return received_bytes, max(1, self._ports.clock.now() - began)

    async def _serve(self, stream: MessageStream, asked: LinkProbe) -> None:
        now: Micros = self._ports.clock.now()
        if not self._gate.admit_probe(stream.remote_peer, now, is_busy=self._is_busy()):
            raise Refused(ErrorCode.OVERLOADED, "no bytes for link probes now; try again in some minutes")
        left_bytes = asked.size_bytes
        while left_bytes:
            size_bytes = min(left_bytes, MAX_LINK_CHUNK_BYTES)
            await stream.send(LinkBytes(bytes(size_bytes)), PROBE_TIMEOUT_S)
            left_bytes -= size_bytes
        await stream.finish()


def _vector(announced: tuple[Link, ...], peers: dict[bytes, PeerId]) -> tuple[tuple[PeerId, links.PairLink], ...]:
    """An announced vector, as far as its other ends are known here; a round trip of 0 was not measured."""
    return tuple(
        (peers[link.peer_hash], links.PairLink(link.rtt_us, link.throughput_bytes_per_s, link.is_relayed))
        for link in announced
        if link.rtt_us and link.peer_hash in peers
    )
