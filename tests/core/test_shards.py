"""Depths, topics and intervals: hysteresis, newcomers, liars, and a whole overlay that grows and shrinks."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.shards import (
    DEFAULT_POLICY,
    DeadlinePassed,
    Effect,
    Event,
    Listen,
    Moved,
    PeerElsewhere,
    PeerGone,
    PeerHeard,
    ShardMachine,
    ShardPolicy,
    StopListening,
    announcement_interval_us,
    listening_bits,
    shard_bits_of,
    shared_bits,
)

ME = PeerId("me")
NOW = Micros(0)
SMALL = ShardPolicy(
    deeper_above=12,
    deeper_above_when_full=8,
    up_below=3,
    parent_too_below=6,
    up_patience_us=100,
    lonely_patience_us=30,
    evidence=4,
    justifying=5,
    newcomer_us=50,
    elsewhere_capacity=20,
    elsewhere_us=200,
    view_capacity=24,
    max_depth=4,
)


def peers(count: int, like: str = "") -> list[PeerId]:
    """Peers whose bits begin like ``like``."""
    found: list[PeerId] = []
    number = 0
    while len(found) < count:
        peer = PeerId(f"peer {number}")
        if shard_bits_of(peer).startswith(like):
            found.append(peer)
        number += 1
    return found


def tell(machine: ShardMachine, heard: list[PeerId], depth: int, now: Micros = NOW) -> list[Effect]:
    return [effect for peer in heard for effect in machine.handle(PeerHeard(peer, depth), now)]


def test_a_small_overlay_is_one_topic_at_the_shortest_interval() -> None:
    machine = ShardMachine(ME)
    assert tell(machine, peers(DEFAULT_POLICY.deeper_above), 0) == []
    assert (machine.depth, machine.publish_bits, machine.has_shards) == (0, ("",), False)
    assert machine.listen_bits == ("", machine.bits[:1])
    assert ShardMachine(ME).interval_us == 20 * MICROS_PER_SECOND


def test_one_peer_more_cuts_the_shard_and_both_halves_are_far_from_joining_again() -> None:
    machine = ShardMachine(ME)
    effects = tell(machine, peers(DEFAULT_POLICY.deeper_above + 1), 0)
    assert effects == [Listen(machine.bits[:2]), Moved(1, "")]
    assert machine.listen_bits == ("", machine.bits[:1], machine.bits[:2])
    assert machine.shard_count > 2 * DEFAULT_POLICY.up_below
    assert machine.deadline() is None


def test_only_peers_of_the_own_shard_count_for_its_size() -> None:
    machine = ShardMachine(ME)
    ours, others = machine.bits[0], "10"[int(machine.bits[0])]
    tell(machine, peers(150, ours), 0)
    tell(machine, peers(43, others), 0)
    assert machine.depth == 1
    assert machine.shard_count == 150


def test_a_shard_is_left_only_when_it_has_been_small_for_long() -> None:
    machine = ShardMachine(ME, SMALL)
    known = peers(13)
    tell(machine, known, 0)
    tell(machine, known, 1)
    assert machine.depth == 1
    for peer in known[2:]:
        machine.handle(PeerGone(peer), Micros(5))
    assert machine.deadline() == 105
    assert machine.handle(DeadlinePassed(), Micros(104)) == ()
    more = peers(6, machine.bits[0])
    tell(machine, more, 1, Micros(104))
    assert machine.deadline() is None
    for peer in more:
        machine.handle(PeerGone(peer), Micros(110))
    assert machine.handle(DeadlinePassed(), Micros(210)) == (
        StopListening(machine.bits[:2]),
        Moved(0, machine.bits[:1]),
    )
    assert machine.deadline() is None


def test_a_small_shard_is_heard_in_its_parent_too() -> None:
    machine = ShardMachine(ME)
    half = machine.bits[:1]
    known = peers(200)
    tell(machine, known, 0)
    assert machine.publish_bits == (half,)
    for peer in known[:100]:
        machine.handle(PeerGone(peer), NOW)
    assert machine.shard_count < DEFAULT_POLICY.parent_too_below
    assert machine.publish_bits == (half, "")


def elsewhere(machine: ShardMachine, known: list[PeerId], depth: int, now: Micros = NOW) -> list[Effect]:
    return [effect for peer in known for effect in machine.handle(PeerElsewhere(peer, depth), now)]


def test_a_newcomer_goes_at_once_to_where_the_others_are() -> None:
    machine = ShardMachine(ME)
    other_shard = "0110" if machine.bits[:4] != "0110" else "1001"
    effects = tell(machine, peers(DEFAULT_POLICY.justifying, other_shard), 5)
    assert machine.depth == 5
    assert effects[-1] == Moved(5, "")
    assert {effect.bits for effect in effects if isinstance(effect, Listen)} == {machine.bits[:n] for n in (4, 5, 6)}
    assert {effect.bits for effect in effects if isinstance(effect, StopListening)} == {"", machine.bits[:1]}


def test_a_minority_that_lies_about_its_depth_moves_nobody() -> None:
    machine = ShardMachine(ME)
    known = peers(31)
    tell(machine, known[:16], 0)
    tell(machine, known[16:], 16)
    assert machine.depth == 0


@pytest.mark.parametrize("count", [8, 24, 31])
def test_a_few_made_up_peers_that_say_16_move_neither_a_newcomer_nor_anyone_else(count: int) -> None:
    newcomer, old = ShardMachine(ME), ShardMachine(ME)
    tell(newcomer, peers(count), 16)
    assert newcomer.depth == 0
    tell(old, peers(4), 0)
    made_up = [PeerId(f"made up {number}") for number in range(count)]
    for minute in range(2, 60):
        now = Micros(minute * 60 * MICROS_PER_SECOND)
        elsewhere(old, made_up, 16, now)
        tell(old, made_up, 16, now)
        assert old.depth == 0
        for peer in made_up:
            old.handle(PeerGone(peer), now)


def test_whatever_is_said_of_elsewhere_counts_no_more_than_those_in_view_vouch_for() -> None:
    machine = ShardMachine(ME)
    tell(machine, peers(4), 0)
    elsewhere(machine, [PeerId(f"made up {number}") for number in range(256)], 16)
    assert machine.depth == 0
    tell(machine, peers(20), 0)
    assert machine.depth <= 2, "each level takes twice as many"


def test_who_stays_behind_follows_those_that_went_out_of_earshot() -> None:
    machine = ShardMachine(ME)
    tell(machine, peers(100), 0)
    went = peers(300)[100:]
    elsewhere(machine, went[:92], 1)
    assert machine.depth == 0
    elsewhere(machine, went[92:], 1)
    assert machine.depth == 1
    machine = ShardMachine(ME)
    tell(machine, peers(50), 0)
    elsewhere(machine, went, 3)
    assert machine.depth == 2, "as deep as a shard holds 40 of all that are known"
    assert machine.has_shards


def test_what_went_elsewhere_long_ago_counts_no_more() -> None:
    machine = ShardMachine(ME)
    tell(machine, peers(150), 0)
    went = peers(200)[150:]
    elsewhere(machine, went[:40], 1)
    elsewhere(machine, went[40:], 1, Micros(DEFAULT_POLICY.elsewhere_us))
    assert machine.depth == 0


def test_an_empty_shard_is_left_soon_for_where_others_are() -> None:
    machine = ShardMachine(ME)
    tell(machine, peers(32, machine.bits[:5]), 6)
    assert machine.depth == 6
    for peer in peers(32, machine.bits[:5]):
        machine.handle(PeerGone(peer), NOW)
    assert machine.deadline() == DEFAULT_POLICY.up_patience_us
    elsewhere(machine, peers(5), 1, Micros(7))
    due = machine.deadline()
    assert due == 7 + DEFAULT_POLICY.lonely_patience_us
    assert machine.handle(DeadlinePassed(), Micros(due))[-1] == Moved(1, machine.bits[:6])


def test_every_second_announcement_is_made_in_one_shard_further_up_too() -> None:
    machine = ShardMachine(ME)
    tell(machine, peers(32, machine.bits[:3]), 4)
    assert machine.depth == 4
    usual = machine.publish_bits
    further = [machine.next_publish_bits()[len(usual) :] for _ in range(16)]
    near, far, root = (machine.bits[:2],), (machine.bits[:1],), ("",)
    assert further == [(), near, (), far, (), near, (), root, (), near, (), far, (), near, (), ()]
    flat = ShardMachine(ME)
    assert {flat.next_publish_bits() for _ in range(16)} == {("",)}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 16), st.booleans()), max_size=120))
def test_nobody_goes_deeper_than_known_peers_justify(news: list[tuple[int, int, bool]]) -> None:
    machine = ShardMachine(ME)
    known: set[PeerId] = set()
    for number, depth, is_near in news:
        peer = PeerId(str(number))
        known.add(peer)
        before = machine.depth
        machine.handle(PeerHeard(peer, depth) if is_near else PeerElsewhere(peer, depth), NOW)
        if machine.depth > before:
            crowds = Counter(shard_bits_of(one, machine.depth - 1) for one in known)
            assert max(crowds.values()) >= DEFAULT_POLICY.justifying


def test_made_up_peers_with_our_bits_push_us_one_level_at_most() -> None:
    machine = ShardMachine(ME)
    tell(machine, peers(200, machine.bits[:6]), 0)
    assert machine.depth == 1


def test_the_view_is_bounded_and_does_not_hold_ourselves() -> None:
    machine = ShardMachine(ME, SMALL)
    tell(machine, [ME, *peers(100)], 0)
    assert machine.shard_count <= SMALL.view_capacity


def test_nothing_new_says_nothing() -> None:
    machine = ShardMachine(ME)
    assert machine.handle(PeerGone(PeerId("nobody")), NOW) == ()
    assert machine.handle(DeadlinePassed(), NOW) == ()
    tell(machine, peers(3), 0)
    assert tell(machine, peers(3), 0) == []


@pytest.mark.parametrize(("live", "seconds"), [(0, 20), (1, 20), (4, 48), (50, 600), (74, 888), (192, 900)])
def test_about_one_announcement_of_a_shard_arrives_every_twelve_seconds(live: int, seconds: int) -> None:
    assert announcement_interval_us(live) == seconds * MICROS_PER_SECOND


def test_bits_are_those_of_the_hash() -> None:
    assert shard_bits_of(PeerId("a"), 8) == "11001010"  # sha256 of "a" starts with ca
    assert shard_bits_of(PeerId("a"), 0) == ""
    assert shared_bits(PeerId("a"), PeerId("a")) == 16
    assert shared_bits(PeerId("a"), PeerId("b")) == next(
        n for n in range(17) if shard_bits_of(PeerId("a"), n + 1) != shard_bits_of(PeerId("b"), n + 1)
    )
    assert listening_bits("1100", 0, 4) == ("", "1")
    assert listening_bits("1100", 4, 4) == ("110", "1100")


@given(
    st.text("01", min_size=5, max_size=5), st.text("01", min_size=5, max_size=5), st.integers(0, 4), st.integers(0, 1)
)
def test_who_is_of_one_shard_and_a_level_apart_at_most_hears_each_other(
    one: str, other: str, depth: int, more: int
) -> None:
    deeper = depth + more
    if one[:deeper] == other[:deeper]:
        assert other[:deeper] in listening_bits(one, depth, 5)
        assert one[:depth] in listening_bits(other, deeper, 5)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=60))
def test_the_order_of_news_of_distinct_peers_does_not_matter_at_depth_0(news: list[tuple[int, int]]) -> None:
    huge = ShardPolicy(deeper_above=1000, view_capacity=1000, evidence=1000)
    latest = dict(news)
    one, other = ShardMachine(ME, huge), ShardMachine(ME, huge)
    for number, depth in news:
        one.handle(PeerHeard(PeerId(str(number)), depth), NOW)
    for number, depth in sorted(latest.items()):
        other.handle(PeerHeard(PeerId(str(number)), depth), NOW)
    assert (one.shard_count, one.interval_us, one.has_shards) == (
        other.shard_count,
        other.interval_us,
        other.has_shards,
    )


class Overlay:
    """Peers that announce in rounds, without loss: what a topic carries reaches all that listen to it."""

    def __init__(self, policy: ShardPolicy) -> None:
        self.policy = policy
        self.machines: dict[PeerId, ShardMachine] = {}
        self.views: dict[PeerId, dict[PeerId, int]] = {}
        self.left: dict[PeerId, str] = {}
        """The shards that peers have just moved from, where they still say so."""
        self.now = 0

    def join(self, peer: PeerId) -> None:
        self.machines[peer] = ShardMachine(peer, self.policy)
        self.views[peer] = {}
        introducer = next(iter(self.machines))
        for known in list(self.views[introducer])[:64]:
            if known in self.machines:
                self.tell(peer, PeerHeard(known, self.machines[known].depth))
                self.views[peer][known] = self.now

    def leave(self, peer: PeerId) -> None:
        del self.machines[peer], self.views[peer]
        self.left.pop(peer, None)

    def tell(self, peer: PeerId, event: Event) -> None:
        for effect in self.machines[peer].handle(event, Micros(self.now)):
            if isinstance(effect, Moved):
                self.left[peer] = effect.left_bits

    def announce_all(self, times: int) -> None:
        for _ in range(times):
            self.now += self.policy.up_patience_us // 3 + 1
            listeners: dict[str, list[PeerId]] = {}
            for peer, machine in self.machines.items():
                for bits in machine.listen_bits:
                    listeners.setdefault(bits, []).append(peer)
            said = [
                (peer, bits, machine.depth)
                for peer, machine in self.machines.items()
                for bits in machine.next_publish_bits()
            ]
            said += [(peer, bits, self.machines[peer].depth) for peer, bits in self.left.items()]
            self.left = {}
            for speaker, bits, depth in said:
                for peer in listeners.get(bits, []):
                    if peer != speaker:
                        self.hear(peer, speaker, depth)
            self.expire()

    def hear(self, peer: PeerId, speaker: PeerId, depth: int) -> None:
        view = self.views[peer]
        if shard_bits_of(speaker, depth) not in self.machines[peer].listen_bits:
            view.pop(speaker, None)
            self.tell(peer, PeerElsewhere(speaker, depth))
        elif speaker in view or len(view) < self.policy.view_capacity:
            view[speaker] = self.now
            self.tell(peer, PeerHeard(speaker, depth))

    def expire(self) -> None:
        for peer, view in self.views.items():
            late = [known for known, heard in view.items() if known not in self.machines or heard < self.now]
            for known in late:
                del view[known]
                self.tell(peer, PeerGone(known))
            self.tell(peer, DeadlinePassed())


def test_an_overlay_that_grows_and_shrinks_settles_and_nobody_is_alone() -> None:
    policy = ShardPolicy(
        deeper_above=24,
        deeper_above_when_full=12,
        up_below=5,
        parent_too_below=10,
        up_patience_us=900,
        lonely_patience_us=600,
        evidence=4,
        justifying=6,
        newcomer_us=60,
        elsewhere_us=3600,
        elsewhere_capacity=32,
        view_capacity=32,
    )
    overlay = Overlay(policy)
    everybody = [PeerId(f"peer {number}") for number in range(640)]
    for start in range(0, 640, 20):
        for peer in everybody[start : start + 20]:
            overlay.join(peer)
        overlay.announce_all(1)
    overlay.announce_all(12)
    depths = sorted(machine.depth for machine in overlay.machines.values())
    assert depths[0] >= 2
    assert 4 <= depths[320] <= 6
    assert depths[-1] <= 7
    assert all(machine.shard_count >= policy.up_below for machine in overlay.machines.values())
    for peer in everybody[30:]:
        overlay.leave(peer)
    overlay.announce_all(60)
    depths = [machine.depth for machine in overlay.machines.values()]
    assert max(depths) <= 3
    assert max(depths) - min(depths) <= 2
    assert min(len(view) for view in overlay.views.values()) >= 1


class Shards(RuleBasedStateMachine):
    """Any news in any order, against counts made anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = ShardMachine(ME, SMALL)
        self.known: dict[PeerId, int] = {}
        self.elsewhere: dict[PeerId, tuple[int, int]] = {}
        self.listening = set(self.machine.listen_bits)
        self.now = 0

    def apply(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Listen(bits):
                    assert bits not in self.listening
                    self.listening.add(bits)
                case StopListening(bits):
                    self.listening.remove(bits)
                case Moved(depth, left_bits):
                    assert depth == self.machine.depth
                    assert self.machine.publish_bits[0] != left_bits
                    assert effect is effects[-1]

    @rule(number=st.integers(0, 40), depth=st.integers(-1, 6))
    def hear(self, number: int, depth: int) -> None:
        peer = PeerId(str(number))
        if peer in self.known or len(self.known) < SMALL.view_capacity:
            if self.known.get(peer) != max(0, min(depth, SMALL.max_depth)):
                self.elsewhere.pop(peer, None)
                self.forget_old()
            self.known[peer] = max(0, min(depth, SMALL.max_depth))
        self.apply(self.machine.handle(PeerHeard(peer, depth), Micros(self.now)))

    @rule(number=st.integers(0, 40), depth=st.integers(-1, 6))
    def part(self, number: int, depth: int) -> None:
        peer = PeerId(str(number))
        self.known.pop(peer, None)
        if self.elsewhere.pop(peer, None) is None and len(self.elsewhere) >= SMALL.elsewhere_capacity:
            del self.elsewhere[next(iter(self.elsewhere))]
        self.elsewhere[peer] = (max(0, min(depth, SMALL.max_depth)), self.now)
        self.forget_old()
        self.apply(self.machine.handle(PeerElsewhere(peer, depth), Micros(self.now)))

    def forget_old(self) -> None:
        since = self.now - SMALL.elsewhere_us
        self.elsewhere = {peer: found for peer, found in self.elsewhere.items() if found[1] > since}

    @rule(number=st.integers(0, 40))
    def lose(self, number: int) -> None:
        if self.known.pop(PeerId(str(number)), None) is not None:
            self.forget_old()
        self.apply(self.machine.handle(PeerGone(PeerId(str(number))), Micros(self.now)))

    @rule(us=st.integers(1, 150))
    def wait(self, us: int) -> None:
        self.now += us
        self.forget_old()
        self.apply(self.machine.handle(DeadlinePassed(), Micros(self.now)))
        deadline = self.machine.deadline()
        assert deadline is None or deadline > self.now

    @invariant()
    def counts_are_true(self) -> None:
        own = self.machine.bits[: self.machine.depth]
        depths = [*self.known.values(), *(depth for depth, _ in self.elsewhere.values())]
        assert self.machine.shard_count == sum(shard_bits_of(peer).startswith(own) for peer in self.known)
        assert self.machine.has_shards == (self.machine.depth > 0 or any(depths))
        assert self.listening == set(self.machine.listen_bits)
        assert len(self.listening) <= 3
        assert self.machine.publish_bits[0] == own
        assert set(self.machine.publish_bits) <= self.listening
        assert SMALL.shortest_interval_us <= self.machine.interval_us <= SMALL.longest_interval_us


TestShards = Shards.TestCase


def test_a_newcomer_takes_the_depth_of_those_it_meets_and_others_tolerate_a_level() -> None:
    machine = ShardMachine(ME)
    tell(machine, peers(32), 1)
    assert machine.depth == 1
    tell(machine, peers(32), 2)
    assert machine.depth == 1
