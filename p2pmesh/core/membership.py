"""Who is there: the freshest announcement of each peer in view, and whether the peer lives, by probes (SWIM-like).

Owns the states (alive, suspect; failed and left as tombstones), whom to probe and when, whom to ask for a second
opinion, which reports of others to believe, and the view's bound. Signatures, expiry by the wall clock, dialling and
gossip stay in ``node`` and ``sim``; who is connected *and admitted* is told by events.

Rules that everything here follows:

- An announcement is believed because its peer signed it; its order is (incarnation, sequence), never its arrival.
- A peer is suspected when neither it nor anyone asked about it answers, or at once when its connection breaks, and
  fails ``suspect_us`` later unless it is heard. What others report only starts a probe of our own.
- A connection that breaks again within ``probe_timeout_us`` starts no probe at once: where each probe connects and is
  cut off, two peers would spend all their time on it. Others are asked instead.
- A reporter whose victim answers that probe in time is muted: its reports count for nothing for a while.
- A peer that failed returns by a new incarnation, or by a fresher announcement once it has answered; one that left
  returns by a new incarnation only.
- ``PeerExcluded`` is our own will, a ban or a revocation: the peer counts no more at once and is not reported. No word
  of it that gossip carries brings it back, a new incarnation neither, but an answer or its admitted connection.
- ``OutOfEarshot`` is nobody's fault: the peer announces where we do not listen, so it is as if it was never heard.
- A peer that hears nobody at all reports nobody: then it is itself the one that is cut off.

Ten thousand of these machines run in one simulation, so the quiet path (a repeated announcement, a probe and its
answer) makes no object but the effect, and costs a few dictionary accesses. ``deadline`` is one number; it may come
before anything is due, never after.
"""

from collections.abc import Callable, KeysView
from enum import StrEnum
from typing import Generic, TypeVar, cast

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.bounded_times import BoundedTimes
from p2pmesh.core.draws import Draws
from p2pmesh.core.membership_events import (
    Announced,
    AnnouncementReceived,
    AsymmetryFound,
    ConnectionLost,
    ConnectionOpened,
    ConnectionParted,
    DeadlinePassed,
    DownReported,
    Effect,
    Event,
    IndirectAnswered,
    LeavingHeard,
    MembershipPolicy,
    MemberState,
    MemberView,
    OutOfEarshot,
    PeerChanged,
    PeerExcluded,
    PeerFailed,
    PeerForgotten,
    PeerJoined,
    PeerLeft,
    PeerRecovered,
    PeerSuspected,
    ProbeAnswered,
    ProbeUnanswered,
    RefuteSelf,
    ReportDown,
    ReporterMuted,
    SendIndirectProbe,
    SendProbe,
)
from p2pmesh.core.probe_order import ProbeOrder

__all__ = [
    "Announced",
    "AnnouncementReceived",
    "AsymmetryFound",
    "ConnectionLost",
    "ConnectionOpened",
    "ConnectionParted",
    "DeadlinePassed",
    "DownReported",
    "Effect",
    "Event",
    "IndirectAnswered",
    "LeavingHeard",
    "MemberState",
    "MemberView",
    "MembershipMachine",
    "MembershipPolicy",
    "OutOfEarshot",
    "PeerChanged",
    "PeerExcluded",
    "PeerFailed",
    "PeerForgotten",
    "PeerJoined",
    "PeerLeft",
    "PeerRecovered",
    "PeerSuspected",
    "ProbeAnswered",
    "ProbeUnanswered",
    "RefuteSelf",
    "ReportDown",
    "ReporterMuted",
    "SendIndirectProbe",
    "SendProbe",
]


# --- what is kept -------------------------------------------------------------
class _Member:
    """A peer in view. Its times are the very objects of the events, so that a repetition allocates nothing."""

    __slots__ = ("announced_at", "announcement", "heard_at", "lives_us", "rtt_us", "state", "witness")

    def __init__(self, announcement: Announced, lives_us: int, now: Micros) -> None:
        self.announcement = announcement
        self.announced_at = now
        self.lives_us = lives_us
        self.heard_at = now
        self.rtt_us: int | None = None
        self.state = MemberState.ALIVE
        self.witness: PeerId | None = None


class _Phase(StrEnum):
    DIRECT = "direct"
    INDIRECT = "indirect"
    GIVEN_UP = "given up"


class _Inquiry:
    """A probe that is under way, until the peer is heard or fails."""

    __slots__ = ("began_at", "candidate", "due", "fails_at", "has_reported", "helpers", "phase", "reporters", "ticket")

    def __init__(self, ticket: int, now: Micros, due: Micros) -> None:
        self.ticket = ticket
        self.phase = _Phase.DIRECT
        self.began_at = now
        self.due = due
        self.fails_at: Micros | None = None
        self.helpers: list[PeerId] = []
        self.reporters: tuple[PeerId, ...] = ()
        self.has_reported = False
        self.candidate: tuple[Announced, int] | None = None
        """What a failed peer must prove by an answer before it counts again."""


class _Tombstone:
    """Who failed or left, and how fresh a word of it must be to count."""

    __slots__ = ("has_connected", "heard_at", "incarnation", "sequence", "state", "until")

    def __init__(self, state: MemberState, incarnation: int, sequence: int, heard_at: Micros, until: Micros) -> None:
        self.state = state
        self.incarnation = incarnation
        self.sequence = sequence
        self.heard_at = heard_at
        self.until = until
        self.has_connected = False


A = TypeVar("A", bound=Announced)
MAX_REPORTERS = 8
"""Of one peer, that are kept while it is probed."""
_NEVER = 2**62
_DEFAULT_POLICY = MembershipPolicy()


class MembershipMachine(Generic[A]):
    """One peer's view of the others.

    Args:
        own_peer: never part of the view.
        policy: times and bounds.
        seed: of every random choice; different at each peer.
        is_change: whether a fresher announcement says something that others here must hear of; None: never.
    """

    __slots__ = (
        "_clear_at", "_connected", "_draws", "_due", "_expiry_at", "_heard_any_at", "_inquiries", "_is_change", "_lost",
        "_members", "_muted", "_order", "_own_peer", "_policy", "_refuted_at", "_round_at", "_tickets", "_told",
        "_tombstones",
    )  # fmt: skip

    def __init__(
        self,
        own_peer: PeerId,
        policy: MembershipPolicy | None = None,
        seed: int = 0,
        is_change: Callable[[A, A], bool] | None = None,
    ) -> None:
        self._own_peer = own_peer
        self._policy = policy = policy or _DEFAULT_POLICY
        self._draws = Draws(seed)
        self._is_change = is_change
        self._members: dict[PeerId, _Member] = {}
        self._tombstones: dict[PeerId, _Tombstone] = {}
        self._inquiries: dict[PeerId, _Inquiry] = {}
        self._connected: dict[PeerId, None] = {}
        self._muted: BoundedTimes[PeerId] = BoundedTimes(policy.capacity)
        """Reporters, and until when."""
        self._told: BoundedTimes[tuple[PeerId, PeerId]] = BoundedTimes(policy.capacity)
        """Asymmetries, and until when they are old news."""
        self._lost: BoundedTimes[PeerId] = BoundedTimes(policy.capacity)
        """When the connection to a peer broke last."""
        self._order = ProbeOrder(self._draws, policy.probe_interval_us)
        self._tickets = 0
        self._round_at = _NEVER
        self._due = _NEVER
        self._expiry_at = _NEVER
        self._clear_at = _NEVER
        """Not after the first tombstone is over."""
        self._heard_any_at = -1
        self._refuted_at = -_NEVER

    # --- what others ask --------------------------------------------------------
    def find(self, peer: PeerId) -> A | None:
        """The announcement of a peer that counts (alive or suspect), the very object that came."""
        member = self._members.get(peer)
        return None if member is None else member.announcement  # type: ignore[return-value]  # a cast is a call

    def announcements(self) -> tuple[A, ...]:
        """Those of all peers that count, by peer id."""
        members = self._members
        return tuple([members[peer].announcement for peer in sorted(members)])  # type: ignore[misc]

    def peers(self) -> KeysView[PeerId]:
        """The peers that count, now and later: the view stays and follows."""
        return self._members.keys()

    def candidate(self, peer: PeerId) -> A | None:
        """What a failed peer says that must first prove itself by an answer: where else would it be asked?"""
        inquiry = self._inquiries.get(peer)
        return None if inquiry is None or inquiry.candidate is None else cast(A, inquiry.candidate[0])

    @property
    def live_count(self) -> int:
        """Peers that count."""
        return len(self._members)

    @property
    def known_count(self) -> int:
        """Peers that count, and tombstones."""
        return len(self._members) + len(self._tombstones)

    def state_of(self, peer: PeerId) -> MemberState | None:
        """What is believed of a peer; None if nothing is."""
        member = self._members.get(peer)
        if member is not None:
            return member.state
        tombstone = self._tombstones.get(peer)
        return None if tombstone is None else tombstone.state

    def is_in_doubt(self, peer: PeerId) -> bool:
        """Whether a peer that counts is suspect or just being asked: not one to recommend to a newcomer."""
        member = self._members.get(peer)
        return member is not None and (member.state is MemberState.SUSPECT or peer in self._inquiries)

    def is_muted(self, reporter: PeerId, now: Micros) -> bool:
        """Whether reports of a peer count for nothing at present."""
        return self._muted.get(reporter) > now

    def views(self) -> tuple[MemberView, ...]:
        """Every peer of which something is believed, by peer id."""
        found = [
            MemberView(peer, m.state, m.heard_at, m.rtt_us, m.witness, peer in self._connected)
            for peer, m in self._members.items()
        ]
        found += [
            MemberView(peer, stone.state, stone.heard_at, None, None, peer in self._connected)
            for peer, stone in self._tombstones.items()
        ]
        return tuple(sorted(found, key=lambda view: view.peer))

    def deadline(self) -> Micros | None:
        """Not after the earliest thing due; None if nothing is."""
        return None if self._due == _NEVER else self._due  # type: ignore[return-value]  # a cast is a call

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event. The frequent kinds come first: this is the hot path of the simulator."""
        kind = type(event)
        if kind is AnnouncementReceived:
            return self._on_announcement(event.announcement, event.lives_us, now)  # type: ignore[union-attr]
        if kind is DeadlinePassed:
            return self._on_deadline(now)
        if kind is ProbeAnswered:
            return self._on_answer(event.peer, event.ticket, event.rtt_us, now)  # type: ignore[union-attr]
        return self._handle_rare(event, now)

    def _handle_rare(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        match event:
            case ProbeUnanswered(peer, ticket):
                return self._on_unanswered(peer, ticket, now)
            case IndirectAnswered(helper, peer, ticket, is_alive):
                return self._on_indirect(helper, peer, ticket, is_alive, now)
            case ConnectionOpened(peer):
                return self._on_opened(peer, now)
            case ConnectionLost(peer):
                return self._on_lost(peer, now)
            case ConnectionParted(peer):
                return self._on_parted(peer, now)
            case DownReported(reporter, peer, incarnation):
                return self._on_report(reporter, peer, incarnation, now)
            case LeavingHeard(peer, incarnation):
                return self._on_leaving(peer, incarnation, now)
            case OutOfEarshot(peer):
                return self._on_out_of_earshot(peer)
            case PeerExcluded(peer):
                return self._on_excluded(peer, now)
        raise TypeError(f"{type(event).__name__} is no event of membership")

    # --- announcements ------------------------------------------------------------
    def _on_announcement(self, announcement: Announced, lives_us: int, now: Micros) -> tuple[Effect, ...]:
        member = self._members.get(announcement.peer_id)  # type: ignore[call-overload]  # a PeerId is a str
        if member is None:
            return self._on_news(announcement, lives_us, now)
        before = member.announcement
        is_same_life = announcement.incarnation == before.incarnation
        if (is_same_life and announcement.sequence <= before.sequence) or lives_us <= 0:
            return ()
        if announcement.incarnation < before.incarnation:
            return ()
        member.announcement = announcement
        member.announced_at = member.heard_at = now
        member.lives_us = lives_us
        if not is_same_life:
            return self._on_new_life(PeerId(announcement.peer_id), member, now)
        if member.state is MemberState.SUSPECT:
            return self._changed(before, announcement) + self._on_word_of_suspect(PeerId(announcement.peer_id), now)
        if self._is_change is None or not self._is_change(before, announcement):  # type: ignore[arg-type]
            return ()
        return (PeerChanged(PeerId(announcement.peer_id)),)

    def _changed(self, before: Announced, after: Announced) -> tuple[Effect, ...]:
        if self._is_change is None or not self._is_change(before, after):  # type: ignore[arg-type]
            return ()
        return (PeerChanged(PeerId(after.peer_id)),)

    def _on_new_life(self, peer: PeerId, member: _Member, now: Micros) -> tuple[Effect, ...]:
        """Reports of the life before it were true. Incarnations cost nothing, so whoever is asked has to answer."""
        member.witness = None
        inquiry = self._inquiries.get(peer)
        if inquiry is not None:
            inquiry.reporters = ()
        if member.state is MemberState.SUSPECT:
            return (PeerChanged(peer), *self._on_word_of_suspect(peer, now))
        return (PeerChanged(peer),)

    def _on_word_of_suspect(self, peer: PeerId, now: Micros) -> tuple[Effect, ...]:
        """It was signed lately, perhaps just before the end: worth another probe, not belief.

        Nor patience without end: a peer that speaks and never answers is no use to anyone.
        """
        inquiry = self._inquiries[peer]
        longest = inquiry.began_at + self._policy.longest_suspicion_us
        inquiry.fails_at = Micros(max(inquiry.fails_at or now, min(now + self._policy.suspect_us, longest)))
        if inquiry.phase is not _Phase.GIVEN_UP:
            return ()
        return self._ask_directly(peer, inquiry, now)

    def _on_news(self, announcement: Announced, lives_us: int, now: Micros) -> tuple[Effect, ...]:
        """Of a peer that does not count now."""
        peer = PeerId(announcement.peer_id)
        if peer == self._own_peer or lives_us <= 0:
            return ()
        stone = self._tombstones.get(peer)
        if stone is None:
            return self._join(peer, announcement, lives_us, now)
        if (announcement.incarnation, announcement.sequence) <= (stone.incarnation, stone.sequence):
            return ()
        if self._may_return(peer, stone, announcement):
            return self._join(peer, announcement, lives_us, now)
        inquiry = self._inquiries.get(peer)
        if inquiry is not None:
            if _is_fresher(announcement, inquiry.candidate):
                inquiry.candidate = (announcement, lives_us)
            return ()
        inquiry = self._begin(peer, now)
        inquiry.candidate = (announcement, lives_us)
        return (SendProbe(peer, inquiry.ticket),)

    def _may_return(self, peer: PeerId, stone: "_Tombstone", announcement: Announced) -> bool:
        """Whether a fresher word is enough. Who failed has to answer: by a connection made since, or else a probe."""
        if stone.state is MemberState.FAILED:
            return stone.has_connected
        is_new_life = announcement.incarnation > stone.incarnation and stone.state is MemberState.LEFT
        return is_new_life or peer in self._connected

    def _join(self, peer: PeerId, announcement: Announced, lives_us: int, now: Micros) -> tuple[Effect, ...]:
        made_room: tuple[Effect, ...] = ()
        if len(self._members) >= self._policy.capacity:
            other = self._least_needed() if peer in self._connected else None
            if other is None:
                return ()
            self._remove(other)
            made_room = (PeerForgotten(other),)
        self._tombstones.pop(peer, None)
        if self._inquiries:
            self._end_inquiry(peer)
        self._members[peer] = _Member(announcement, lives_us, now)
        self._order.add(peer)
        if now + lives_us < self._expiry_at:
            self._expiry_at = now + lives_us
        if len(self._order) == 1:
            self._start_rounds(now)
        return (*made_room, PeerJoined(peer))

    def _least_needed(self) -> PeerId | None:
        """Who makes room for a connected peer: of those that are not connected, the one not heard for longest."""
        others = [peer for peer in self._members if peer not in self._connected]
        return min(others, key=lambda peer: (self._members[peer].heard_at, peer), default=None)

    def _remove(self, peer: PeerId) -> _Member:
        self._order.remove(peer)
        self._end_inquiry(peer)
        return self._members.pop(peer)

    # --- connections ----------------------------------------------------------------
    def _on_opened(self, peer: PeerId, now: Micros) -> tuple[Effect, ...]:
        """A connection proves a life. Its announcement follows with the hello and revives whoever had failed."""
        if peer == self._own_peer:
            return ()
        self._connected[peer] = None
        self._heard_any_at = now
        member = self._members.get(peer)
        if member is None:
            stone = self._tombstones.get(peer)
            if stone is not None:
                stone.has_connected = True
            return ()
        self._end_inquiry(peer)
        return self._heard(peer, member, None, now)

    def _on_lost(self, peer: PeerId, now: Micros) -> tuple[Effect, ...]:
        if peer not in self._connected:
            return ()
        del self._connected[peer]
        member = self._members.get(peer)
        if member is None or member.state is MemberState.SUSPECT:
            return ()
        member.state = MemberState.SUSPECT
        inquiry = self._inquiries.get(peer)
        is_quiet = self._breaks_again(peer, now) or inquiry is not None
        inquiry = inquiry or self._begin(peer, now)
        inquiry.fails_at = Micros(now + self._policy.suspect_us)
        return (PeerSuspected(peer),) if is_quiet else (PeerSuspected(peer), SendProbe(peer, inquiry.ticket))

    def _on_parted(self, peer: PeerId, now: Micros) -> tuple[Effect, ...]:
        """It has just agreed to this, so it lives."""
        member = self._members.get(peer) if self._connected.pop(peer, now) is None else None
        if member is not None:
            member.heard_at = now
        return ()

    def _breaks_again(self, peer: PeerId, now: Micros) -> bool:
        before = self._lost.get(peer)
        self._lost.put(peer, now)
        return now - before < self._policy.probe_timeout_us

    # --- probes -----------------------------------------------------------------------
    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        if self._inquiries:
            for peer, inquiry in [found for found in self._inquiries.items() if found[1].due <= now]:
                if peer in self._inquiries:  # not ended by what came of another
                    effects += self._advance(peer, inquiry, now)
        if now >= self._round_at:
            if now >= self._clear_at:
                self._clear_tombstones(effects, now)
            if now >= self._expiry_at:
                self._expire(effects, now)
            self._probe_next(effects, now)
        self._due = self._round_at
        for inquiry in self._inquiries.values():
            if inquiry.due < self._due:
                self._due = inquiry.due
        return tuple(effects)

    def _start_rounds(self, now: Micros) -> None:
        """The first round falls anywhere in an interval: a crowd that started at once must not probe at once."""
        first = now + 1 + self._draws.below(self._policy.probe_interval_us)
        if first < self._round_at:
            self._round_at = first
            self._due = min(self._due, first)

    def _probe_next(self, effects: list[Effect], now: Micros) -> None:
        """Probes one member, each once per pass, in an order that is drawn as it goes."""
        order = self._order
        if not order:
            self._round_at = max(now + 1, min((stone.until for stone in self._tombstones.values()), default=_NEVER))
            return
        self._round_at = now + self._policy.probe_interval_us
        urgent = order.take_urgent()
        peer = urgent if urgent is not None and urgent in self._members else order.take()
        if peer not in self._inquiries:
            effects.append(SendProbe(peer, self._begin(peer, now).ticket))

    def _begin(self, peer: PeerId, now: Micros) -> _Inquiry:
        self._tickets += 1
        due = now + self._policy.probe_timeout_us
        inquiry = self._inquiries[peer] = _Inquiry(self._tickets, now, due)  # type: ignore[arg-type]  # likewise
        if due < self._due:
            self._due = due
        return inquiry

    def _end_inquiry(self, peer: PeerId) -> _Inquiry | None:
        inquiry = self._inquiries.pop(peer, None)
        if not self._inquiries:
            self._due = self._round_at
        return inquiry

    def _ask_directly(self, peer: PeerId, inquiry: _Inquiry, now: Micros) -> tuple[Effect, ...]:
        """Once more from the start, under the same ticket."""
        inquiry.phase = _Phase.DIRECT
        inquiry.helpers = []
        self._wait(inquiry, now + self._policy.probe_timeout_us)
        return (SendProbe(peer, inquiry.ticket),)

    def _wait(self, inquiry: _Inquiry, until: int) -> None:
        inquiry.due = Micros(until)
        self._due = min(self._due, until)

    def _on_answer(self, peer: PeerId, ticket: int, rtt_us: int, now: Micros) -> tuple[Effect, ...]:
        inquiry = self._inquiries.get(peer)
        if inquiry is None or inquiry.ticket != ticket:
            return ()
        del self._inquiries[peer]
        if not self._inquiries:
            self._due = self._round_at
        self._heard_any_at = now
        member = self._members.get(peer)
        if member is None:
            return self._revive(peer, inquiry, now)
        member.rtt_us = rtt_us
        member.heard_at = now
        member.witness = None
        if member.state is MemberState.ALIVE and not inquiry.reporters:
            return ()
        # In time only: one that was slow may have looked dead to an honest reporter. A mere handshake (0) may be that
        # of the peer's next life.
        false = inquiry.reporters if inquiry.phase is _Phase.DIRECT and rtt_us else ()
        return self._heard(peer, member, None, now) + self._mute(false, now)

    def _heard(self, peer: PeerId, member: _Member, witness: PeerId | None, now: Micros) -> tuple[Effect, ...]:
        member.heard_at = now
        member.witness = witness
        if member.state is MemberState.ALIVE:
            return ()
        member.state = MemberState.ALIVE
        return (PeerRecovered(peer),)

    def _revive(self, peer: PeerId, inquiry: _Inquiry, now: Micros) -> tuple[Effect, ...]:
        if inquiry.candidate is None:
            return ()
        announcement, lives_us = inquiry.candidate
        return self._join(peer, announcement, lives_us, now)

    def _on_unanswered(self, peer: PeerId, ticket: int, now: Micros) -> tuple[Effect, ...]:
        inquiry = self._inquiries.get(peer)
        if inquiry is None or inquiry.ticket != ticket or inquiry.phase is not _Phase.DIRECT:
            return ()
        return self._ask_others(peer, inquiry, now)

    def _advance(self, peer: PeerId, inquiry: _Inquiry, now: Micros) -> tuple[Effect, ...]:
        match inquiry.phase:
            case _Phase.DIRECT:
                return self._ask_others(peer, inquiry, now)
            case _Phase.INDIRECT:
                return self._give_up(peer, inquiry, now)
            case _Phase.GIVEN_UP:
                assert inquiry.fails_at is not None
                if now >= inquiry.fails_at:
                    return self._fail(peer, inquiry, now)
                inquiry.due = inquiry.fails_at
                return (SendProbe(peer, inquiry.ticket),)  # a last time, half-way to the end

    def _ask_others(self, peer: PeerId, inquiry: _Inquiry, now: Micros) -> tuple[Effect, ...]:
        inquiry.helpers = self._choose_helpers(peer)
        if not inquiry.helpers:
            return self._give_up(peer, inquiry, now)
        inquiry.phase = _Phase.INDIRECT
        self._wait(inquiry, now + self._policy.indirect_timeout_us)
        return tuple(SendIndirectProbe(helper, peer, inquiry.ticket) for helper in inquiry.helpers)

    def _choose_helpers(self, peer: PeerId) -> list[PeerId]:
        """Drawn among the members that are alive; the connected ones come first, for they can be asked at once."""
        chosen = self._draw_of(
            [other for other in self._connected if self._can_help(other, peer)], self._policy.helpers
        )
        missing = self._policy.helpers - len(chosen)
        if not missing:
            return chosen  # as mostly: the rest of the view is not looked through
        rest = [other for other in self._order if other not in self._connected and self._can_help(other, peer)]
        return chosen + self._draw_of(rest, missing)

    def _draw_of(self, pool: list[PeerId], count: int) -> list[PeerId]:
        chosen: list[PeerId] = []
        while pool and len(chosen) < count:
            index = self._draws.below(len(pool))
            pool[index], pool[-1] = pool[-1], pool[index]
            chosen.append(pool.pop())
        return chosen

    def _can_help(self, other: PeerId, peer: PeerId) -> bool:
        member = self._members.get(other)
        return member is not None and other != peer and member.state is MemberState.ALIVE

    def _on_indirect(
        self, helper: PeerId, peer: PeerId, ticket: int, is_alive: bool, now: Micros
    ) -> tuple[Effect, ...]:
        inquiry = self._inquiries.get(peer)
        if inquiry is None or inquiry.ticket != ticket or helper not in inquiry.helpers:
            return ()
        inquiry.helpers.remove(helper)
        self._heard_any_at = now
        if is_alive:
            self._end_inquiry(peer)
            return self._reached_by(helper, peer, inquiry, now)
        if inquiry.helpers or inquiry.phase is not _Phase.INDIRECT:
            return ()
        return self._give_up(peer, inquiry, now)

    def _reached_by(self, helper: PeerId, peer: PeerId, inquiry: _Inquiry, now: Micros) -> tuple[Effect, ...]:
        """Reporters are not blamed: they saw what we see."""
        member = self._members.get(peer)
        effects = self._revive(peer, inquiry, now) if member is None else self._heard(peer, member, helper, now)
        return effects + self._tell_asymmetry(peer, helper, now)

    def _tell_asymmetry(self, peer: PeerId, witness: PeerId, now: Micros) -> tuple[Effect, ...]:
        pair = (peer, witness)
        if self._told.get(pair) > now:
            return ()
        self._told.put(pair, Micros(now + self._policy.asymmetry_repeat_us))
        return (AsymmetryFound(peer, witness),)

    # --- the end of a peer -------------------------------------------------------------
    def _give_up(self, peer: PeerId, inquiry: _Inquiry, now: Micros) -> tuple[Effect, ...]:
        member = self._members.get(peer)
        if member is None:
            return self._refuse_revival(peer, inquiry)
        inquiry.phase = _Phase.GIVEN_UP
        effects: tuple[Effect, ...] = ()
        if member.state is MemberState.ALIVE:
            member.state = MemberState.SUSPECT
            effects = (PeerSuspected(peer),)
        if inquiry.fails_at is None:
            inquiry.fails_at = Micros(now + self._policy.suspect_us)
        self._wait(inquiry, max(now + 1, (now + inquiry.fails_at) // 2))
        if inquiry.has_reported or inquiry.reporters or self._heard_any_at < inquiry.began_at:
            return effects
        inquiry.has_reported = True
        return (*effects, ReportDown(peer, member.announcement.incarnation))

    def _refuse_revival(self, peer: PeerId, inquiry: _Inquiry) -> tuple[Effect, ...]:
        """What did not prove itself must be followed by something fresher still."""
        self._end_inquiry(peer)
        stone = self._tombstones.get(peer)
        if stone is not None and inquiry.candidate is not None:
            stone.sequence = max(stone.sequence, inquiry.candidate[0].sequence)
        return ()

    def _fail(self, peer: PeerId, inquiry: _Inquiry, now: Micros) -> tuple[Effect, ...]:
        incarnation = self._members[peer].announcement.incarnation
        ended = (*self._end(peer, MemberState.FAILED, now), PeerFailed(peer))
        # Said again, since gossip loses some, and who came in between has not heard it.
        return (*ended, ReportDown(peer, incarnation)) if inquiry.has_reported else ended

    def _on_excluded(self, peer: PeerId, now: Micros) -> tuple[Effect, ...]:
        """Gossip does not bring it back, its own connection does."""
        self._connected.pop(peer, None)
        if peer not in self._members:
            stone = self._tombstones.get(peer)
            if stone is not None:  # no answer to what it is asked now brings it back
                self._end_inquiry(peer)
                stone.state = MemberState.EXCLUDED
            return ()
        return (*self._end(peer, MemberState.EXCLUDED, now), PeerForgotten(peer))

    def _on_out_of_earshot(self, peer: PeerId) -> tuple[Effect, ...]:
        """It is as if we had never heard of it, unless it is connected: then we would learn of its end."""
        if peer not in self._members or peer in self._connected:
            return ()
        self._remove(peer)
        return (PeerForgotten(peer),)

    def _end(self, peer: PeerId, state: MemberState, now: Micros) -> tuple[Effect, ...]:
        """Takes a member out of the view, under a tombstone."""
        member = self._remove(peer)
        said = member.announcement
        # Not before what it said has expired everywhere: an echo of that would make it a new peer.
        until = Micros(max(now + self._policy.tombstone_us, member.announced_at + member.lives_us))
        return self._bury(peer, _Tombstone(state, said.incarnation, said.sequence, member.heard_at, until))

    def _bury(self, peer: PeerId, stone: _Tombstone) -> tuple[Effect, ...]:
        """The oldest tombstone makes room, and says so."""
        self._tombstones.pop(peer, None)
        made_room: tuple[Effect, ...] = ()
        if len(self._tombstones) >= self._policy.capacity:
            oldest = next(iter(self._tombstones))
            del self._tombstones[oldest]
            self._end_inquiry(oldest)
            made_room = (PeerForgotten(oldest),)
        self._tombstones[peer] = stone
        self._clear_at = min(self._clear_at, stone.until)
        return made_room

    def _on_leaving(self, peer: PeerId, incarnation: int, now: Micros) -> tuple[Effect, ...]:
        """Also of a peer that is not in view: what it said before may still come, and must not bring it in.

        Strangers displace no tombstones: whoever makes up peers could have all of them forgotten.
        """
        stone = self._tombstones.get(peer)
        if peer == self._own_peer or (stone is not None and stone.incarnation > incarnation):
            return ()
        member = self._members.get(peer)
        if member is None and stone is None and len(self._tombstones) >= self._policy.capacity:
            return ()
        until = Micros(max(now + self._policy.tombstone_us, 0 if stone is None else stone.until))
        if member is not None:
            if member.announcement.incarnation > incarnation:
                return ()
            self._remove(peer)
            until = Micros(max(until, member.announced_at + member.lives_us))
        else:
            self._end_inquiry(peer)
        # Nobody comes back from exclusion by saying that it goes and comes again.
        is_excluded = stone is not None and stone.state is MemberState.EXCLUDED
        state = MemberState.EXCLUDED if is_excluded else MemberState.LEFT
        made_room = self._bury(peer, _Tombstone(state, incarnation, _NEVER, now, until))
        if self._round_at == _NEVER:
            self._start_rounds(now)
        return made_room if member is None else (*made_room, PeerLeft(peer))

    def _clear_tombstones(self, effects: list[Effect], now: Micros) -> None:
        again = _NEVER
        for peer, stone in list(self._tombstones.items()):
            if stone.until > now:
                again = min(again, stone.until)
                continue
            del self._tombstones[peer]
            self._end_inquiry(peer)
            effects.append(PeerForgotten(peer))
        self._clear_at = again

    def _expire(self, effects: list[Effect], now: Micros) -> None:
        """Forgets members whose announcement expired, unless they are connected or being asked."""
        again = _NEVER
        for peer, member in list(self._members.items()):
            due = member.announced_at + member.lives_us
            if due > now:
                if due < again:
                    again = due
            elif peer in self._connected or peer in self._inquiries:
                again = min(again, now + self._policy.probe_interval_us)
            else:
                self._remove(peer)
                effects.append(PeerForgotten(peer))
        self._expiry_at = again

    # --- reports -------------------------------------------------------------------------
    def _on_report(self, reporter: PeerId, peer: PeerId, incarnation: int, now: Micros) -> tuple[Effect, ...]:
        if reporter in (self._own_peer, peer) or self.is_muted(reporter, now):
            return ()
        is_known = reporter in self._members
        if peer == self._own_peer:
            return self._on_report_of_us(reporter, now) if is_known else ()
        member = self._members.get(peer)
        if member is None or member.announcement.incarnation != incarnation:
            return ()
        if not is_known:
            # A newcomer knows few yet, and would else not learn of an end that only others report.
            self._order.hurry(peer, now)
            return ()
        inquiry = self._inquiries.get(peer)
        # An answer to what we asked of ourselves, perhaps just before the end, would refute nothing: ask anew.
        is_fresh = inquiry is not None and (inquiry.reporters or inquiry.fails_at or inquiry.phase is not _Phase.DIRECT)
        if inquiry is None or not is_fresh:
            if inquiry is None and len(self._inquiries) >= self._policy.max_verifications:
                return ()
            inquiry = self._begin(peer, now)
            inquiry.reporters = (reporter,)
            return (SendProbe(peer, inquiry.ticket),)
        if reporter not in inquiry.reporters and len(inquiry.reporters) < MAX_REPORTERS:
            inquiry.reporters = (*inquiry.reporters, reporter)
        return ()

    def _on_report_of_us(self, reporter: PeerId, now: Micros) -> tuple[Effect, ...]:
        """False beyond doubt, but others may believe it, so we speak up; the reporter may mean well."""
        muted = self._mute((reporter,), now)
        if now - self._refuted_at < self._policy.refute_us:
            return muted
        self._refuted_at = now
        return (*muted, RefuteSelf(reporter))

    def _mute(self, reporters: tuple[PeerId, ...], now: Micros) -> tuple[Effect, ...]:
        fresh = tuple(reporter for reporter in reporters if not self.is_muted(reporter, now))
        for reporter in fresh:
            self._muted.put(reporter, Micros(now + self._policy.mute_us))
        return tuple(ReporterMuted(reporter) for reporter in fresh)


def _is_fresher(announcement: Announced, than: tuple[Announced, int] | None) -> bool:
    if than is None:
        return True
    known = than[0]
    return (announcement.incarnation, announcement.sequence) > (known.incarnation, known.sequence)
