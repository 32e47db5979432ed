"""How peers of the simulated overlay come, connect and go.

A newcomer asks a peer that it can dial, takes the depth of the shards from what it is handed, looks members of its
shard up in the DHT, connects to some of them and is handed what they know of the shard. A peer that goes deeper or up
looks for members of its new shard in the same way. Connections pass the admission machines of both ends; passes are
always valid here. A process that is killed resets its connections; that a machine is gone is noticed by pings.
"""

from functools import partial

from p2pmesh.base.quantities import Micros
from p2pmesh.core import admission, shards
from p2pmesh.core.membership import AnnouncementReceived, ConnectionLost, ConnectionOpened
from p2pmesh.core.shards import DEFAULT_POLICY, announcement_interval_us
from p2pmesh.sim.chance import Draws
from p2pmesh.sim.gossip import SKEW_US
from p2pmesh.sim.member import Member, Said, lives_us
from p2pmesh.sim.scenario import SECOND_US
from p2pmesh.sim.surroundings import Surroundings
from p2pmesh.sim.traffic import (
    DIAL_BYTES,
    FRAMING_BYTES,
    HANDED_ANNOUNCEMENTS,
    IDENTIFY_BYTES,
    KNOWN_PEER_BYTES,
    PING_BYTES,
    PING_INTERVAL_S,
    STREAM_BYTES,
    Cause,
    measure_sizes,
)
from p2pmesh.wire.announcement import life_ms

DETECT_US = 6 * SECOND_US
"""Three pings in a row that nobody answers; the first comes up to an idle connection's interval after the end."""
RESET_US = SECOND_US
"""A process that is killed leaves a machine that closes its connections at once."""
NEIGHBOURS = 8
"""Connections within its shards below which a peer opens more; with those that others open it has about ten."""
MAX_CONNECTIONS = 32
RELAYS = 2
RELAY_DRAWS = 12
MAX_RESERVATIONS = 32
RETRY_US = 5 * SECOND_US


class Arrivals:
    """Starts, connections and ends."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._draws = Draws(world.seed, "arrivals")
        self._sizes = measure_sizes()
        self._places: dict[int, int] = {}
        self._reserved: dict[int, dict[int, None]] = {}

    # --- starts -------------------------------------------------------------------
    def schedule_starts(self) -> None:
        """The founder first, the others over the start window."""
        window_us = self._world.scenario.population.start_window_us
        if window_us == 0:
            self._stand()
            return
        for number in range(self._world.first_peers):
            when_us = 0 if number == 0 else 1 + number * window_us // self._world.first_peers
            self._world.at(when_us, partial(self.start, number))

    def _stand(self) -> None:
        """An overlay that has stood for long: each peer has heard those of its shard, at moments of their own."""
        world = self._world
        depth = max(0, (world.first_peers // (DEFAULT_POLICY.deeper_above + 1)).bit_length())
        crowd: dict[str, list[Member]] = {}
        for number in range(world.first_peers):
            member = self._appear(number)
            crowd.setdefault(member.traits.bits[:depth], []).append(member)
        for bits in sorted(crowd):
            self._acquaint(crowd[bits], depth)
        for member in world.live:
            member.is_joined = True
        for member in tuple(world.live):
            self.renew_relays(member)
            self.connect_neighbours(member)
            world.finding.stand(member)
        world.ledger.forget()

    def _acquaint(self, shard: list[Member], depth: int) -> None:
        world = self._world
        interval_us = announcement_interval_us(len(shard) - 1)
        for member in shard:
            said = member.say(0, life_ms(interval_us // 1000) * 1000)
            said.shard_depth = depth
            spoke_us = self._draws.below(interval_us)
            said.expires_us -= spoke_us
            world.gossip.announce_later(member, interval_us - spoke_us)
        for member in shard:
            for other in shard[: DEFAULT_POLICY.justifying + 1]:
                world.tell_shards(member, shards.PeerHeard(other.peer_id, depth))
        for other in shard:
            if other.said is None:
                continue
            heard = AnnouncementReceived(other.said, lives_us(other.said, world.now_us, 0, SKEW_US))
            for member in shard:
                if member is not other:
                    world.tell(member, heard)

    def start(self, number: int) -> None:
        """A run of a peer begins."""
        if self._world.members[number] is None:
            self._enter(self._appear(number))

    def _appear(self, number: int) -> Member:
        world = self._world
        traits = world.traits[number]
        traits.starts += 1
        member = Member(traits, world.now_us, world.seed)
        if world.recorder is not None and world.recorder.number == number:
            world.recorder.attach(member)
        world.members[number] = member
        self._places[number] = len(world.live)
        world.live.append(member)
        if not traits.is_nat:
            world.directory.join(number, traits.peer_hash, traits.starts)
        for bits in member.shards.listen_bits:
            world.gossip.listen(member, bits)
        return member

    def pick_live(self, draws: Draws) -> Member:
        """Any peer that runs; there is one."""
        return self._world.live[draws.below(len(self._world.live))]

    def _enter(self, member: Member) -> None:
        """Asks a peer that can be dialled; on and on until there is one."""
        if not member.is_up:
            return
        world = self._world
        self.renew_relays(member)
        other = self._find_entrance(member)
        if other is None:
            if len(world.live) > 1:
                world.after(RETRY_US, partial(self._enter, member))
            else:
                self._be_joined(member)
            return
        handed = self._known_of(other)
        self._shake_hands(member, other, len(handed))
        for said in handed:
            world.tell_shards(member, shards.PeerHeard(said.peer_id, said.shard_depth))
        # What was handed told the depth; who is not of our shards is none of our view.
        for said in handed:
            world.tell_shards(member, shards.PeerGone(said.peer_id))
        delay_us = 6 * world.regions.one_way_us(member.number, other.number)
        world.after(delay_us, partial(self._settle, member))

    def _find_entrance(self, member: Member) -> Member | None:
        world = self._world
        for _ in range(8):
            other = self.pick_live(self._draws)
            is_fit = other is not member and not other.traits.is_nat and other.is_joined
            if is_fit and world.regions.same_side(other.number, member.number):
                return other
        return None

    def _settle(self, member: Member) -> None:
        if member.is_up:
            self._look_for_neighbours(member)
            self._world.after(self._world.finding.lookup_us(member), partial(self._be_joined, member))

    def _be_joined(self, member: Member) -> None:
        if not member.is_up:
            return
        member.is_joined = True
        self.connect_neighbours(member)
        self._world.gossip.announce_change(member)
        self._world.finding.publish_own(member)

    def on_moved(self, member: Member, left_bits: str) -> None:
        """The member announces at another depth from now on."""
        if not member.is_joined:
            return
        self._world.gossip.announce_change(member, left_bits)
        self._look_for_neighbours(member)
        self._world.after(self._world.finding.lookup_us(member), partial(self.connect_neighbours, member))

    def _look_for_neighbours(self, member: Member) -> None:
        self._world.finding.pay_lookup(member, Cause.SEARCHES)

    # --- connections ----------------------------------------------------------------
    def connect_neighbours(self, member: Member) -> None:
        """Opens connections to listeners of the member's shard until it has enough of its own."""
        world = self._world
        if not member.is_up:
            return
        wanted = NEIGHBOURS - sum(1 for number in member.connections if self._is_near(member, number))
        if wanted <= 0:
            return
        listeners = world.gossip.listeners(member.shards.bits[: member.shards.depth])
        for _ in range(4 * wanted):
            if wanted <= 0 or not listeners:
                return
            other = listeners[self._draws.below(len(listeners))]
            is_dialable = not other.traits.is_nat and other.is_joined and len(other.connections) < MAX_CONNECTIONS
            if other is member or other.number in member.connections or not is_dialable:
                continue
            if world.regions.same_side(other.number, member.number):
                self._connect(member, other)
                wanted -= 1

    def _is_near(self, member: Member, number: int) -> bool:
        depth = max(0, member.shards.depth - 1)
        return self._world.traits[number].bits[:depth] == member.shards.bits[:depth]

    def _connect(self, member: Member, other: Member) -> None:
        for one, two in ((member, other), (other, member)):
            before_us = one.connections.pop(two.number, None)
            if before_us is not None:  # with the run before, of whose end it has not heard
                self._pay_pings(one, before_us)
            one.connections[two.number] = self._world.now_us
            self._admit(one, two)
        for one, two in ((member, other), (other, member)):
            if two.said is not None:
                self._hand(one, two.said)
        self._shake_hands(member, other, self._hand_known(other, member))

    def _admit(self, one: Member, two: Member) -> None:
        now = Micros(self._world.now_us)
        one.admission.handle(admission.Connected(two.peer_id), now)
        one.admission.handle(admission.HelloAccepted(two.peer_id), now)
        self._world.events += 2
        self._world.tell(one, ConnectionOpened(two.peer_id))

    def _shake_hands(self, member: Member, other: Member, handed: int) -> None:
        """Hello and welcome, paid for; the welcome hands over so many announcements of others."""
        announced = self._sizes.announcement[0]
        opening = DIAL_BYTES + IDENTIFY_BYTES + STREAM_BYTES + FRAMING_BYTES + self._sizes.chain + announced
        hello = opening + KNOWN_PEER_BYTES * member.machine.live_count
        self._world.ledger.exchange(member.number, other.number, Cause.JOINING, hello, opening + handed * announced)

    def _known_of(self, member: Member) -> list[Said]:
        known = [] if member.said is None else [member.said]
        return [*known, *member.machine.announcements()[:HANDED_ANNOUNCEMENTS]]

    def _hand_known(self, giver: Member, taker: Member) -> int:
        """Of those that the taker does not say that it knows, those of its shards, up to a welcome's bound, beginning
        anywhere; how many."""
        machine = giver.machine
        unknown = sorted((giver.viewed - taker.viewed).difference((taker.peer_id,)))
        if not unknown:
            return 0
        turn = self._draws.below(len(unknown))
        topics = taker.topics
        handed = 0
        for peer_id in unknown[turn:] + unknown[:turn]:
            said = machine.find(peer_id)
            if said is None:
                continue  # gone while the taker took the others
            bits = self._world.traits[said.number].bits[: said.shard_depth]
            if bits in topics and not machine.is_in_doubt(peer_id):
                self._hand(taker, said)
                handed += 1
                if handed == HANDED_ANNOUNCEMENTS:
                    break
        return handed

    def _hand(self, taker: Member, said: Said) -> None:
        lives = lives_us(said, self._world.now_us, taker.traits.clock_us, SKEW_US)
        self._world.tell(taker, AnnouncementReceived(said, lives))

    def _disconnect(self, member: Member, number: int) -> None:
        """The member learns that a connection is gone."""
        since_us = member.connections.pop(number, None)
        if since_us is None:
            return
        self._pay_pings(member, since_us)
        if not member.is_up:
            return
        peer_id = self._world.traits[number].peer_id
        self._world.events += 1
        member.admission.handle(admission.Disconnected(peer_id), Micros(self._world.now_us))
        self._world.tell(member, ConnectionLost(peer_id))

    def _pay_pings(self, member: Member, since_us: int) -> None:
        pings = (self._world.now_us - since_us) // (PING_INTERVAL_S * SECOND_US)
        size_bytes = 2 * pings * PING_BYTES  # our own, and the answer to the other's
        self._world.ledger.alone(member.number, Cause.PINGS, size_bytes, size_bytes)

    def settle_pings(self, member: Member) -> None:
        """Charges the connections that still stand."""
        for since_us in member.connections.values():
            self._pay_pings(member, since_us)

    # --- ends -------------------------------------------------------------------------
    def crash(self, number: int) -> None:
        """The peer is gone at once."""
        self._end(number, is_leaving=False)

    def leave(self, number: int) -> None:
        """The peer says that it goes, and goes."""
        self._end(number, is_leaving=True)

    def _end(self, number: int, *, is_leaving: bool) -> None:
        world = self._world
        member = world.members[number]
        if member is None:
            return
        if is_leaving:
            world.gossip.leave(member)
        member.is_up = False
        world.members[number] = None
        self._take_from_live(number)
        world.directory.leave(number, member.traits.peer_hash)
        world.gossip.on_end(member)
        self._reserve(member, ())
        world.audit.on_end(member, is_leaving=is_leaving)
        world.after(DETECT_US, partial(self.renew_relays_of, number))
        for other_number, since_us in tuple(member.connections.items()):
            self._disconnect(member, other_number)
            other = world.members[other_number]
            if other is not None:
                is_silent = member.traits.is_silent_when_dead and not is_leaving
                quiet_us = DETECT_US + self._draws.below(PING_INTERVAL_S * SECOND_US) if is_silent else 0
                delay_us = quiet_us + self._draws.below(RESET_US)
                world.after(delay_us, partial(self._notice, other, number, since_us))

    def _notice(self, member: Member, number: int, since_us: int) -> None:
        """The connection is found broken, unless it is another one by now."""
        if not member.is_up or member.connections.get(number) != since_us:
            return
        self._disconnect(member, number)
        self.connect_neighbours(member)

    def _take_from_live(self, number: int) -> None:
        live = self._world.live
        place = self._places.pop(number)
        last = live.pop()
        if last.number != number:
            live[place] = last
            self._places[last.number] = place

    # --- relays -----------------------------------------------------------------------
    def renew_relays(self, member: Member) -> None:
        """A peer behind NAT keeps reservations with some that can be dialled."""
        if not member.is_up or not member.traits.is_nat:
            return
        world = self._world
        kept = [n for n in member.relays if world.members[n] is not None and world.regions.same_side(n, member.number)]
        while len(kept) < RELAYS:
            relay = self._choose_relay(member, kept)
            if relay is None:
                break
            kept.append(relay)
        self._reserve(member, tuple(kept))
        if len(kept) < RELAYS:
            world.after(RETRY_US, partial(self.renew_relays, member))

    def _reserve(self, member: Member, relays: tuple[int, ...]) -> None:
        """With these and with no others."""
        for relay in member.relays:
            self._reserved.get(relay, {}).pop(member.number, None)
        for relay in relays:
            self._reserved.setdefault(relay, {})[member.number] = None
        member.relays = relays

    def _choose_relay(self, member: Member, kept: list[int]) -> int | None:
        """Of a few that can be dialled, the one with the fewest reservations, as far as they have room."""
        found: list[tuple[int, int]] = []
        for _ in range(RELAY_DRAWS):
            other = self.pick_live(self._draws)
            count = len(self._reserved.get(other.number, ()))
            is_fit = not other.traits.is_nat and other.number not in kept and count < MAX_RESERVATIONS
            if is_fit and self._world.regions.same_side(other.number, member.number):
                found.append((count, other.number))
        return min(found)[1] if found else None

    def renew_relays_of(self, relay: int) -> None:
        """Those who had a reservation with a relay that is gone."""
        for number in self._reserved.pop(relay, {}):
            member = self._world.members[number]
            if member is not None:
                self.renew_relays(member)

    def on_partition_changed(self) -> None:
        """Connections across the new border are found broken after a while, relays are chosen anew."""
        self._world.after(DETECT_US, self._cut_across)

    def _cut_across(self) -> None:
        side = self._world.regions.same_side
        for member in tuple(self._world.live):
            for number in tuple(member.connections):
                if not side(member.number, number):
                    self._disconnect(member, number)
            self.renew_relays(member)
            self.connect_neighbours(member)
