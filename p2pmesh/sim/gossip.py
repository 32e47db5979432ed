"""Gossip of the simulated overlay: topics, announcements, reports, and how they spread.

A message spreads in waves: listeners of equal distance from the publisher hear it at the same moment, in one loop that
calls their machines, without an entry in the calendar for each. Losses and doubled receipts are drawn; the duplicates
that gossipsub itself drops only cost bytes. That a gossip mesh forms, delivers and survives is the adapter's, tested
with real peers; here a topic reaches all of its listeners on the publisher's side of a partition.
"""

from functools import partial
from typing import Any

from p2pmesh.base.limits import CLOCK_SKEW_MS
from p2pmesh.base.quantities import Micros
from p2pmesh.core import membership
from p2pmesh.core.membership import AnnouncementReceived, DownReported, LeavingHeard
from p2pmesh.sim.calendar import WAVE
from p2pmesh.sim.chance import Draws
from p2pmesh.sim.member import Member, Said, lives_us
from p2pmesh.sim.scenario import SECOND_US
from p2pmesh.sim.surroundings import Surroundings
from p2pmesh.sim.traffic import REPORT_BYTES, Cause, measure_sizes
from p2pmesh.wire.announcement import life_ms

HOP_US = 20_000
"""A node's own time to check a message and to forward it."""
DEGREE = 6
REPEATS_US = (2 * SECOND_US, 10 * SECOND_US)
"""After a change an announcement is said again: gossip is lossy, most of all on a topic that has just been joined."""
SKEW_US = CLOCK_SKEW_MS * 1000


class News:
    """A message under way. ``said`` makes an event for each reader's clock; otherwise all get ``event``."""

    __slots__ = ("event", "hearers", "publisher", "said", "size_bytes")

    def __init__(
        self, publisher: Member, hearers: list[Member], said: Said | None, event: Any, size_bytes: int
    ) -> None:
        self.publisher = publisher
        self.hearers = hearers
        self.said = said
        self.event = event
        self.size_bytes = size_bytes

    @property
    def cause(self) -> Cause:
        """What its bytes are spent on."""
        return Cause.NOTES if self.said is None else Cause.ANNOUNCEMENTS


class Gossip:
    """Topics by the bits of their shard."""

    def __init__(self, world: Surroundings) -> None:
        links = world.scenario.links
        self._world = world
        self._topics: dict[str, dict[int, Member]] = {}
        self._reported: dict[int, dict[int, int]] = {}
        """Per peer, those of which its run has reported the end once, with the depth at which they announced."""
        self._draws = Draws(world.seed, "gossip")
        self._sizes = measure_sizes()
        self.receipts = 0
        self.has_wrong_clocks = False
        self._drop = self._duplicate = 0
        self._until_drop = self._until_duplicate = 0
        self.lose(links.drop, links.duplicate)

    def lose(self, drop: int, duplicate: int) -> None:
        """What is lost and doubled from now on, per million receipts."""
        self._drop, self._duplicate = drop, duplicate
        self._until_drop, self._until_duplicate = self._draws.gap(drop), self._draws.gap(duplicate)

    # --- topics ---------------------------------------------------------------------
    def listen(self, member: Member, bits: str) -> None:
        """Subscribes."""
        self._topics.setdefault(bits, {})[member.number] = member
        member.topics[bits] = None

    def stop_listening(self, member: Member, bits: str) -> None:
        """Ends a subscription."""
        member.topics.pop(bits, None)
        listeners = self._topics.get(bits)
        if listeners is not None and listeners.get(member.number) is member:
            del listeners[member.number]
            if not listeners:
                del self._topics[bits]

    def on_end(self, member: Member) -> None:
        """The run hears and says no more."""
        for bits in tuple(member.topics):
            self.stop_listening(member, bits)
        self._reported.pop(member.number, None)

    def listeners(self, bits: str) -> list[Member]:
        """Who listens, in the order of subscription."""
        return list(self._topics.get(bits, {}).values())

    # --- what a member says -----------------------------------------------------------
    def announce(self, member: Member, also: str | None = None) -> None:
        """Says what the member is now, in its shards and in the one of the bits ``also``."""
        now_us = self._world.calendar.now_us
        interval_us = member.shards.interval_us
        wanted = dict.fromkeys((*member.shards.next_publish_bits(), *(() if also is None else (also,))))
        for bits in wanted:
            said = member.say(now_us, life_ms(interval_us // 1000) * 1000)
            size_bytes = self._sizes.announcement[min(len(said.models), len(self._sizes.announcement) - 1)]
            self.spread(member, bits, said, None, size_bytes)
        self.announce_later(member, interval_us - self._draws.below(interval_us // 10))

    def announce_change(self, member: Member, also: str | None = None) -> None:
        """The same, and again soon: also the shard ``also`` hears it three times, for who misses that it was left keeps
        a peer of whose end it does not learn."""
        self.announce(member, also)
        for delay_us in REPEATS_US:
            self._world.after(delay_us, partial(self._repeat, member, also))

    def _repeat(self, member: Member, also: str | None = None) -> None:
        if member.is_up:
            self.announce(member, also)

    def announce_later(self, member: Member, delay_us: int) -> None:
        """The next announcement if nothing changes."""
        calendar = self._world.calendar
        member.announce_alarm.set_at(calendar, calendar.now_us + delay_us, partial(self._repeat, member))

    def report_down(self, member: Member, effect: membership.ReportDown) -> None:
        """Where the peer announces: there are those who hold it in view."""
        victim = self._world.numbers[effect.peer]
        reported = self._reported.setdefault(member.number, {})
        said = member.machine.find(effect.peer)
        if said is None:  # the second report, when it has failed, goes where the first one went
            depth = reported.pop(victim, member.shards.depth)
        else:
            depth = reported[victim] = said.shard_depth
        report = DownReported(member.peer_id, effect.peer, effect.incarnation)
        self._world.audit.on_report()
        self.spread(member, self._world.traits[victim].bits[:depth], None, report, REPORT_BYTES)

    def leave(self, member: Member) -> None:
        """The last word, twice: who misses it believes until its own probe."""
        for bits in 2 * member.shards.publish_bits:
            self.spread(member, bits, None, LeavingHeard(member.peer_id, member.incarnation), REPORT_BYTES)

    def refute(self, member: Member, effect: membership.RefuteSelf) -> None:
        """A report of ourselves: we speak up."""
        self._world.audit.on_refuted(member, effect)
        self.announce(member)

    # --- how it spreads -----------------------------------------------------------------
    def spread(self, publisher: Member, bits: str, said: Said | None, event: Any, size_bytes: int) -> None:
        """One message on a topic, to those that listen now."""
        world = self._world
        hearers = self.listeners(bits)
        if not hearers:
            return
        turn = self._draws.below(len(hearers))
        hearers = hearers[turn:] + hearers[:turn]
        size_bytes = self._sizes.gossiped(size_bytes)
        news = News(publisher, hearers, said, event, size_bytes)
        world.ledger.alike[world.traits[publisher.number].host] += size_bytes
        world.ledger.pass_on(news.cause, size_bytes)
        delay_us, place, width = 0, 0, DEGREE
        while place < len(hearers):
            delay_us += HOP_US + world.regions.one_way_us(publisher.number, hearers[place].number)
            end = min(len(hearers), place + width)
            world.calendar.put(world.calendar.now_us + delay_us, WAVE, place << 32 | end, news)
            place, width = end, width * DEGREE

    def wave(self, place: int, news: News) -> None:
        """Those of one distance hear."""
        world = self._world
        publisher, said, event, size_bytes = news.publisher, news.said, news.event, news.size_bytes
        now = Micros(world.calendar.now_us)
        hearers = news.hearers[place >> 32 : place & 0xFFFFFFFF]
        if world.regions.boundary is not None:
            side = world.regions.same_side
            hearers = [hearer for hearer in hearers if side(publisher.number, hearer.number)]
        if said is not None:
            event = AnnouncementReceived(said, lives_us(said, now, 0, SKEW_US))
        line, bytes_of, perform, arm = world.fold.line, world.ledger.alike, world.perform, world.arm
        append = line.append
        line.extend((now, publisher.number, said.sequence if said is not None else 0))
        until_drop, has_wrong_clocks = self._until_drop, self.has_wrong_clocks
        hearers = [hearer for hearer in hearers if hearer.is_up and hearer is not publisher]
        world.ledger.pass_on(news.cause, len(hearers) * size_bytes)
        for member in hearers:
            number = member.number
            bytes_of[number] += size_bytes
            if until_drop <= 0:
                until_drop = self._draws.gap(self._drop)
                continue
            until_drop -= 1
            append(number)
            effects = member.handle(self._event_for(member, said, event) if has_wrong_clocks else event, now)
            if effects:
                perform(member, effects)
                arm(member)
            elif said is None:
                arm(member)  # what is not an announcement may set a deadline and want nothing done
        self._until_drop = until_drop
        world.events += len(hearers)
        self.receipts += len(hearers)
        if self._duplicate:
            self._double(hearers, said, event)

    def _event_for(self, member: Member, said: Said | None, event: Any) -> Any:
        """By the reader's own clock, if clocks are wrong."""
        if said is None or not self.has_wrong_clocks:
            return event
        return AnnouncementReceived(said, lives_us(said, self._world.now_us, member.traits.clock_us, SKEW_US))

    def _double(self, hearers: list[Member], said: Said | None, event: Any) -> None:
        """Some hear twice."""
        for member in hearers:
            if self._until_duplicate <= 0:
                self._until_duplicate = self._draws.gap(self._duplicate)
                self._world.tell(member, self._event_for(member, said, event))
            else:
                self._until_duplicate -= 1
