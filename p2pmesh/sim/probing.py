"""Probes of the simulated overlay: what becomes of the question whether a peer lives.

A probe goes over the connection, if there is one, and dials otherwise. Who cannot be dialled is reached over the
connections that it opened itself, those to its relays included. A peer that crashed refuses a dial if its machine is
still up, and is silent otherwise; one across a partition is silent.
"""

from p2pmesh.core.membership import (
    IndirectAnswered,
    ProbeAnswered,
    ProbeUnanswered,
    SendIndirectProbe,
    SendProbe,
)
from p2pmesh.sim.chance import Draws
from p2pmesh.sim.member import Member
from p2pmesh.sim.scenario import SECOND_US
from p2pmesh.sim.surroundings import Surroundings
from p2pmesh.sim.traffic import DIAL_BYTES, FRAMING_BYTES, IDENTIFY_BYTES, PROBE_BYTES, STREAM_BYTES, Cause

HELPER_PATIENCE_US = 3 * SECOND_US
"""A helper that hears nothing says so after this."""
DIAL_ROUND_TRIPS = 3
"""TCP, noise, and the question."""
ASKED_BYTES = STREAM_BYTES + FRAMING_BYTES + PROBE_BYTES
DIALLED_BYTES = ASKED_BYTES + DIAL_BYTES + IDENTIFY_BYTES
TRIED_BYTES = 60


class Probing:
    """Questions and answers between peers."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._draws = Draws(world.seed, "probes")
        self._drop = self._until_drop = 0
        self.sent = 0
        self.lose(world.scenario.links.probe_drop)

    def lose(self, drop: int) -> None:
        """Of a million probes or answers, so many are lost from now on."""
        self._drop = drop
        self._until_drop = self._draws.gap(drop)

    def send(self, member: Member, effect: SendProbe, number: int) -> None:
        """A direct probe of the peer of that number."""
        world = self._world
        self.sent += 1
        took_us = self.ask(member, number)
        if took_us is not None:
            event = ProbeAnswered(effect.peer, effect.ticket, took_us)
            world.answer_at(world.calendar.now_us + took_us, member, event)
        elif self._refuses(member, number):
            event_no = ProbeUnanswered(effect.peer, effect.ticket)
            delay_us = 2 * world.regions.one_way_us(member.number, number)
            world.answer_at(world.calendar.now_us + delay_us, member, event_no)

    def send_indirect(self, member: Member, effect: SendIndirectProbe) -> None:
        """Asks a helper, who asks the peer."""
        world = self._world
        number, helper_number = world.numbers[effect.peer], world.numbers[effect.helper]
        to_helper_us = self.ask(member, helper_number)
        helper = world.members[helper_number]
        if to_helper_us is None or helper is None:
            return  # a sybil does not help
        to_peer_us = self.ask(helper, number)
        is_alive = to_peer_us is not None
        if to_peer_us is None:
            is_quick = self._refuses(helper, number)
            to_peer_us = 2 * world.regions.one_way_us(helper_number, number) if is_quick else HELPER_PATIENCE_US
        event = IndirectAnswered(effect.helper, effect.peer, effect.ticket, is_alive)
        world.answer_at(world.calendar.now_us + to_helper_us + to_peer_us, member, event)

    def ask(self, member: Member, number: int) -> int | None:
        """A question and its answer, paid for: the time that they took, or None if there is none."""
        world = self._world
        own = member.number
        # ``answering``, looked up twice for those that are gone or made up, since this is asked millions of times.
        target = world.members[number] or world.members[world.traits[number].host]
        is_connected = number in member.connections
        relay = None
        if target is not None and target.is_nat and not is_connected:
            relay = self._relay_of(target, member)
            if relay == own:
                is_connected, relay = True, None
        regions = world.regions
        if target is None or relay == _NOBODY or (regions.boundary and not regions.same_side(own, target.number)):
            world.ledger.alone(own, Cause.PROBES, TRIED_BYTES, 0)
            return None
        size_bytes = ASKED_BYTES if is_connected else DIALLED_BYTES
        world.ledger.exchange_alike(own, target.number, Cause.PROBES, size_bytes)
        if relay is None:
            way_us = 2 * regions.one_way_us(own, target.number)
        else:
            way_us = self._relayed_us(own, relay, target.number, size_bytes)
        if self._until_drop > 0:
            self._until_drop -= 1
        else:
            self._until_drop = self._draws.gap(self._drop)
            return None
        return way_us if is_connected else way_us * DIAL_ROUND_TRIPS

    def _relayed_us(self, a: int, relay: int, b: int, size_bytes: int) -> int:
        one_way_us = self._world.regions.one_way_us
        self._world.ledger.alone(relay, Cause.PROBES, 2 * size_bytes, 2 * size_bytes)
        return 2 * (one_way_us(a, relay) + one_way_us(relay, b))

    def _relay_of(self, target: Member, member: Member) -> int:
        """A live relay of one that cannot be dialled."""
        members, regions, relays = self._world.members, self._world.regions, target.relays
        turn = self.sent + member.number
        for _ in relays:
            number = relays[turn % len(relays)]
            turn += 1
            if members[number] is None:
                continue
            side = regions.same_side
            if regions.boundary is None or (side(number, target.number) and side(number, member.number)):
                return number
        return _NOBODY

    def _refuses(self, member: Member, number: int) -> bool:
        """Whether a dial that fails says so at once."""
        world = self._world
        traits = world.traits[number]
        is_gone = world.answering(number) is None
        return is_gone and not traits.is_silent_when_dead and world.regions.same_side(member.number, number)


_NOBODY = -1
