"""One artifact from several sources: which pieces are asked of whom, whom to leave, and when to give up.

Owns that decision and its deadlines. Where sources come from, bytes and hashes are ``node.transfer``'s, whom files are
exchanged with ``core.artifact_policy``'s; blame is ``core.conduct``'s.

A request asks one source for pieces in a row, which come in order and are checked one by one. So a source that fails
costs at most the piece that was under way, and it is known whose bytes a wrong piece is.
"""

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import KIB, MIB, MICROS_PER_SECOND, Micros


class Cause(StrEnum):
    """Why a request or a source came to nothing; the names are those of events."""

    WRONG = "wrong"
    """It sent bytes that are not the piece's. Never asked again."""
    UNKNOWN = "unknown"
    """It does not have the file, or does not give it to us. Never asked again."""
    BUSY = "busy"
    """It gives no more now; asked again later."""
    SLOW = "slow"
    """A piece did not come by its deadline."""
    LOST = "lost"
    """Its connection or stream ended."""


_FINAL = frozenset({Cause.WRONG, Cause.UNKNOWN})
_MOST_TELLING = (Cause.WRONG, Cause.SLOW, Cause.LOST, Cause.BUSY, Cause.UNKNOWN)


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """Bounds and times.

    A piece has ``patience`` times as long as its source's measured rate would take for all that was asked of it, within
    the two bounds; before anything was measured ``assumed_bytes_per_s`` stands for the rate.
    """

    request_bytes: int = 4 * MIB
    first_request_bytes: int = MIB
    request_us: int = 2 * MICROS_PER_SECOND
    """A request is as long as its source's rate lets through in about so much time."""
    per_source: int = 3
    in_all: int = 6
    patience: int = 4
    assumed_bytes_per_s: int = 64 * KIB
    shortest_patience_us: int = 20 * MICROS_PER_SECOND
    longest_patience_us: int = 300 * MICROS_PER_SECOND
    busy_us: int = 5 * MICROS_PER_SECOND
    max_sources: int = 16
    max_returns: int = 5
    """So often a source that was lost or slow may be found again before it brings a piece."""
    max_duplicates: int = 16
    """Pieces that may be asked of a second source at the end, when others have nothing left to do."""
    seek_again_us: int = 10 * MICROS_PER_SECOND
    few_sources: int = 3
    look_again_us: int = 60 * MICROS_PER_SECOND
    """With fewer sources, others are searched again after so long: peers that got the file meanwhile have it, too."""
    quick_seeks: int = 2
    """So many searches follow each other at once when all sources are lost; then each waits ``seek_again_us``."""
    max_seeks: int = 6
    """Searches for sources, one after another, that bring none."""
    stall_us: int = 600 * MICROS_PER_SECOND
    """Without a piece for so long it is over, whatever else is going on."""


# --- events


@dataclass(frozen=True, slots=True)
class TransferStarted:
    """The first event."""


@dataclass(frozen=True, slots=True)
class SourceFound:
    """A peer that may have the file."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PieceVerified:
    """The next piece of a request came, is what it should be, and is on disk."""

    request: int
    piece: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request ended before its last piece."""

    request: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class SeekEnded:
    """A search for sources is over; those that it found were told before. ``is_whole`` False: more may come of it."""

    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = TransferStarted | SourceFound | PieceVerified | RequestFailed | SeekEnded | DeadlinePassed


# --- effects


@dataclass(frozen=True, slots=True)
class AskPieces:
    """Ask a source for ``count`` pieces from ``first`` on."""

    request: int
    peer: PeerId
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Its pieces are not wanted from there any more."""

    request: int


@dataclass(frozen=True, slots=True)
class DropSource:
    """The peer is no source for now, or ever."""

    peer: PeerId
    cause: Cause


@dataclass(frozen=True, slots=True)
class SeekSources:
    """Nobody, or few, are there to ask: look for others. Answered by ``SeekEnded``."""


@dataclass(frozen=True, slots=True)
class Complete:
    """All pieces are on disk."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It cannot be had; ``cause`` is the most telling of those of the sources, None if there was none."""

    cause: Cause | None
    text: str


Effect = AskPieces | CancelRequest | DropSource | SeekSources | Complete | GiveUp


# --- the machine


@dataclass(slots=True)
class _Source:
    rate: int = 0
    """Bytes a second, measured over the last pieces; 0 before the first."""
    progress_at: int = 0
    rests_until: int = 0
    returns: int = 0
    cause: Cause | None = None
    """Why it was dropped; None while it is a source."""


@dataclass(slots=True)
class _Request:
    peer: PeerId
    next: int
    end: int
    deadline: int

    def pieces(self) -> range:
        """Those that are still to come."""
        return range(self.next, self.end)


@dataclass(slots=True)
class _Free:
    """Pieces that nobody is asked for and that are not here, as ranges in order."""

    ranges: list[tuple[int, int]] = field(default_factory=list)

    def take(self, most: int) -> tuple[int, int]:
        """The first of them in a row, at most so many."""
        start, end = self.ranges.pop(0)
        taken = min(end, start + most)
        if taken < end:
            self.ranges.insert(0, (taken, end))
        return start, taken

    def give_back(self, pieces: Iterable[int]) -> None:
        """They are to be asked for again."""
        for piece in pieces:
            insort(self.ranges, (piece, piece + 1))
        joined: list[tuple[int, int]] = []
        for start, end in self.ranges:
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        self.ranges = joined


class TransferMachine:
    """The transfer of one file of ``piece_count`` pieces, some of which are here already."""

    def __init__(
        self, piece_count: int, piece_bytes: int, kept: Iterable[int] = (), policy: TransferPolicy | None = None
    ) -> None:
        self._policy = policy or TransferPolicy()
        self._piece_bytes = piece_bytes
        self._is_here = bytearray(piece_count)
        for piece in kept:
            self._is_here[piece] = 1
        self._left = piece_count - sum(self._is_here)
        self._free = _Free(list(_gaps(self._is_here)))
        self._sources: dict[PeerId, _Source] = {}
        self._requests: dict[int, _Request] = {}
        self._asked = 0
        self._duplicated: set[int] = set()
        self._seeks = 0
        self._is_seeking = False
        self._is_seek_due = True
        self._seek_at: int | None = None
        self._progress_at: int | None = None
        """None before it began: a runner looks at the deadline before it takes the first event."""
        self._is_over = False

    # --- what others ask

    @property
    def left(self) -> int:
        """Pieces that are not here yet."""
        return self._left

    @property
    def sources(self) -> tuple[PeerId, ...]:
        """Peers that are asked, or would be."""
        return tuple(peer for peer, source in self._sources.items() if source.cause is None)

    def is_here(self, piece: int) -> bool:
        """Whether a piece came."""
        return bool(self._is_here[piece])

    def deadline(self) -> Micros | None:
        """When the next piece is late, a source has rested, or it is time to search again."""
        if self._is_over or self._progress_at is None:
            return None
        times = [self._progress_at + self._policy.stall_us, *(request.deadline for request in self._requests.values())]
        if self._free.ranges and len(self._requests) < self._policy.in_all:
            times += [source.rests_until for source in self._live() if source.rests_until]
        if self._seek_at is not None:
            times.append(self._seek_at)
        return Micros(min(times))

    # --- events

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event."""
        if self._is_over:
            return ()
        effects: tuple[Effect, ...] = ()
        match event:
            case TransferStarted():
                self._progress_at = now
            case SourceFound(peer):
                self._on_found(peer)
            case PieceVerified(request, piece):
                effects = self._on_verified(request, piece, now)
            case RequestFailed(request, cause):
                effects = self._on_failed(request, cause, now)
            case SeekEnded(is_whole):
                effects = self._on_seek_ended(now, is_whole=is_whole)
            case DeadlinePassed():
                effects = self._on_deadline(now)
        for source in self._live():
            if source.rests_until <= now:
                source.rests_until = 0
        return (*effects, *self._go_on(now))

    def _on_found(self, peer: PeerId) -> None:
        known = self._sources.get(peer)
        if known is None:
            if len(self._sources) >= self._policy.max_sources:
                self._forget_a_useless_one()
            if len(self._sources) < self._policy.max_sources:
                self._sources[peer] = _Source()
        elif known.cause is not None and known.cause not in _FINAL and known.returns < self._policy.max_returns:
            known.returns += 1
            known.cause = None

    def _forget_a_useless_one(self) -> None:
        """One that does not have the file; else a few made-up holders would keep out all others."""
        useless = next((peer for peer, source in self._sources.items() if source.cause is Cause.UNKNOWN), None)
        if useless is not None:
            del self._sources[useless]

    def _on_verified(self, number: int, piece: int, now: int) -> tuple[Effect, ...]:
        if not self._is_here[piece]:
            self._is_here[piece] = 1
            self._left -= 1
        self._progress_at, self._seeks = now, 0
        request = self._requests.get(number)
        if request is None:
            self._take_out(piece)
        else:
            self._measure(request.peer, now)
            self._sources[request.peer].returns = 0
            request.next = piece + 1
            request.deadline = now + self._patience_us(request.peer)
        done = [number for number, other in self._requests.items() if all(self._is_here[p] for p in other.pieces())]
        ended = {over: self._requests.pop(over) for over in done}
        return tuple(CancelRequest(over) for over, request in ended.items() if request.pieces())

    def _take_out(self, piece: int) -> None:
        """A request that is over brought it all the same."""
        ranges = self._free.ranges
        for index, (start, end) in enumerate(ranges):
            if start <= piece < end:
                ranges[index : index + 1] = [r for r in ((start, piece), (piece + 1, end)) if r[0] < r[1]]
                return

    def _on_failed(self, number: int, cause: Cause, now: int) -> tuple[Effect, ...]:
        request = self._end_request(number)
        if request is None:
            return ()
        source = self._sources[request.peer]
        if cause is Cause.BUSY:
            source.rests_until = now + self._policy.busy_us
            return ()
        return self._drop(request.peer, cause, now)

    def _on_seek_ended(self, now: int, *, is_whole: bool) -> tuple[Effect, ...]:
        self._is_seeking = False
        if self.sources:
            if len(self.sources) < self._policy.few_sources:
                self._seek_at = now + self._policy.look_again_us
            return ()
        causes = [source.cause for source in self._sources.values()]
        is_vain = is_whole and bool(causes) and all(cause in _FINAL for cause in causes)
        if self._seeks >= self._policy.max_seeks or is_vain:
            return (self._give_up("no source is left"),)
        self._seek_at = now + self._policy.seek_again_us
        return ()

    def _on_deadline(self, now: int) -> tuple[Effect, ...]:
        if self._progress_at is not None and now >= self._progress_at + self._policy.stall_us:
            return (self._give_up(f"nothing came for {self._policy.stall_us // MICROS_PER_SECOND} s"),)
        if self._seek_at is not None and now >= self._seek_at:
            self._seek_at, self._is_seek_due = None, True
        effects: list[Effect] = []
        late = dict.fromkeys(request.peer for request in self._requests.values() if request.deadline <= now)
        for peer in late:
            effects += self._drop(peer, Cause.SLOW, now)
        return tuple(effects)

    # --- sources and requests

    def _live(self) -> Iterator[_Source]:
        return (source for source in self._sources.values() if source.cause is None)

    def _drop(self, peer: PeerId, cause: Cause, now: int) -> tuple[Effect, ...]:
        source = self._sources[peer]
        source.cause, source.rate, source.rests_until = cause, 0, 0
        numbers = [number for number, request in self._requests.items() if request.peer == peer]
        for number in numbers:
            self._end_request(number)
        if not self.sources:
            self._is_seek_due = self._seeks < self._policy.quick_seeks
            self._seek_at = None if self._is_seek_due else now + self._policy.seek_again_us
        elif self._seek_at is None and len(self.sources) < self._policy.few_sources:
            self._seek_at = now + self._policy.look_again_us
        return (*(CancelRequest(number) for number in numbers), DropSource(peer, cause))

    def _end_request(self, number: int) -> _Request | None:
        request = self._requests.pop(number, None)
        if request is not None:
            elsewhere = {piece for other in self._requests.values() for piece in other.pieces()}
            self._free.give_back(p for p in request.pieces() if not self._is_here[p] and p not in elsewhere)
        return request

    def _measure(self, peer: PeerId, now: int) -> None:
        source = self._sources[peer]
        rate = self._piece_bytes * MICROS_PER_SECOND // max(1, now - source.progress_at)
        source.rate = max(1, (3 * source.rate + rate) // 4 if source.rate else rate)
        source.progress_at = now

    def _patience_us(self, peer: PeerId) -> int:
        """So long the next piece of any request to the peer may take: its requests share its rate."""
        policy, rate = self._policy, self._sources[peer].rate or self._policy.assumed_bytes_per_s
        wanted = policy.patience * max(1, self._busy(peer)) * self._piece_bytes * MICROS_PER_SECOND // rate
        return max(policy.shortest_patience_us, min(wanted, policy.longest_patience_us))

    def _busy(self, peer: PeerId) -> int:
        return sum(request.peer == peer for request in self._requests.values())

    # --- what to do next

    def _go_on(self, now: int) -> tuple[Effect, ...]:
        if self._is_over:
            return ()
        if not self._left:
            self._is_over = True
            return (*(CancelRequest(number) for number in self._requests), Complete())
        effects: list[Effect] = []
        while (ask := self._next_ask(now)) is not None:
            effects.append(ask)
        if self._is_seek_due and not self._is_seeking:
            self._is_seeking, self._is_seek_due = True, False
            self._seeks += not self.sources
            effects.append(SeekSources())
        return tuple(effects)

    def _next_ask(self, now: int) -> AskPieces | None:
        if len(self._requests) >= self._policy.in_all:
            return None
        peer = self._idle_source()
        if peer is None:
            return None
        if self._free.ranges:
            start, end = self._free.take(self._request_pieces(peer))
            return self._ask(peer, start, end, now)
        piece = self._piece_to_double(peer)
        return None if piece is None else self._ask(peer, piece, piece + 1, now)

    def _ask(self, peer: PeerId, start: int, end: int, now: int) -> AskPieces:
        if not self._busy(peer):
            self._sources[peer].progress_at = now
        self._asked += 1
        request = self._requests[self._asked] = _Request(peer, start, end, 0)
        request.deadline = now + self._patience_us(peer)
        return AskPieces(self._asked, peer, start, end - start)

    def _idle_source(self) -> PeerId | None:
        """Who is asked next: first whoever has not been measured, by one request, then the fastest."""
        waiting: list[tuple[int, PeerId]] = []
        for peer, source in self._sources.items():
            busy = self._busy(peer)
            most = self._policy.per_source if source.rate else 1
            if source.cause is None and not source.rests_until and busy < most:
                waiting.append((-source.rate if source.rate else -(2**62), peer))
        return min(waiting)[1] if waiting else None

    def _request_pieces(self, peer: PeerId) -> int:
        policy, rate = self._policy, self._sources[peer].rate
        wanted = rate * policy.request_us // MICROS_PER_SECOND if rate else policy.first_request_bytes
        return max(1, min(wanted, policy.request_bytes) // self._piece_bytes)

    def _piece_to_double(self, peer: PeerId) -> int | None:
        """The piece that comes last of all that others were asked for, where this source brings it much sooner."""
        own = self._sources[peer].rate
        if not own or len(self._duplicated) >= self._policy.max_duplicates:
            return None
        expected = [
            ((piece - request.next + 1) * self._piece_bytes // (self._sources[request.peer].rate or 1), piece)
            for request in self._requests.values()
            if request.peer != peer
            for piece in request.pieces()
            if not self._is_here[piece] and piece not in self._duplicated
        ]
        if not expected:
            return None
        wait_s, piece = max(expected)
        if wait_s <= 1 + 2 * self._piece_bytes // own:
            return None
        self._duplicated.add(piece)
        return piece

    def _give_up(self, text: str) -> Effect:
        self._is_over = True
        causes = {source.cause for source in self._sources.values()}
        cause = next((cause for cause in _MOST_TELLING if cause in causes), None)
        named = sorted(f"{peer} {source.cause}" for peer, source in self._sources.items() if source.cause)
        return GiveUp(cause, f"{text}: {', '.join(named[:4])}" if named else text)


def _gaps(is_here: bytearray) -> Iterator[tuple[int, int]]:
    """Ranges of pieces that are not here."""
    start = is_here.find(0)
    while start >= 0:
        end = is_here.find(1, start)
        yield start, end if end >= 0 else len(is_here)
        start = is_here.find(0, end) if end >= 0 else -1
