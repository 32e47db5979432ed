"""Faults of the simulated overlay as they come: from a scenario's data to what happens to whom.

Who is hit is drawn from the seed and the fault's place in the list, so that one more fault changes no other.
"""

from functools import partial

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.core.membership import DownReported
from p2pmesh.core.shards import shard_bits_of
from p2pmesh.sim.chance import PER_MILLION, Draws
from p2pmesh.sim.member import Member, Said
from p2pmesh.sim.overlay import Overlay
from p2pmesh.sim.overlay_scenario import (
    ClockStep,
    Eclipse,
    FalseReports,
    Loss,
    OverlayFault,
    Restart,
    Slow,
    Sybils,
    Turnover,
)
from p2pmesh.sim.peer import peer_id_of
from p2pmesh.sim.scenario import MINUTE_US, SECOND_US, Crash, Partition
from p2pmesh.sim.traffic import REPORT_BYTES
from p2pmesh.wire.announcement import life_ms

HOUR_US = 60 * MINUTE_US
GRIND_BITS = 8
"""Leading bits that an eclipse's identities share with the victim: 256 keys to make for each, a moment's work."""
MAX_TRIES = 100_000


def schedule_faults(world: Overlay) -> None:
    """All faults of the scenario."""
    for place, fault in enumerate(world.scenario.faults):
        _schedule(world, fault, Draws(world.seed, f"fault {place}"))


def _schedule(world: Overlay, fault: OverlayFault, draws: Draws) -> None:  # noqa: C901  one line per kind of fault
    match fault:
        case Crash(at_us, number, down_us):
            if number < world.first_peers:
                world.at(at_us, partial(_crash, world, number, down_us))
        case Partition(at_us, until_us, boundary_percent):
            world.at(at_us, partial(_partition, world, world.first_peers * boundary_percent // 100))
            world.at(until_us, partial(_partition, world, None))
        case Turnover():
            _schedule_turnover(world, fault, draws)
        case Restart(at_us, share, down_us):
            for number in _chosen(world, share, draws):
                world.at(at_us, partial(_crash, world, number, down_us))
        case ClockStep(at_us, share, step_us):
            for number in _chosen(world, share, draws):
                world.at(at_us, partial(_step_clock, world, number, step_us))
        case Slow(at_us, until_us, share, delay_us):
            numbers = _chosen(world, share, draws)
            world.at(at_us, partial(world.regions.slow_down, numbers, delay_us))
            world.at(until_us, partial(world.regions.slow_down, numbers, 0))
        case Loss():
            _schedule_loss(world, fault)
        case FalseReports():
            for number in _chosen(world, fault.share, draws):
                world.at(fault.at_us + draws.below(fault.every_us), partial(_lie, world, number, fault, draws))
        case Sybils(at_us, count):
            world.at(at_us, partial(_make_up, world, count, None, draws))
        case Eclipse(at_us, count):
            world.at(at_us, partial(_eclipse, world, count, draws))


def _chosen(world: Overlay, share: int, draws: Draws) -> tuple[int, ...]:
    """So many of the first peers, the founder never among them."""
    return tuple(number for number in range(1, world.first_peers) if draws.happens(share))


def _crash(world: Overlay, number: int, down_us: int | None) -> None:
    world.arrivals.crash(number)
    if down_us is not None:
        world.after(down_us, partial(world.arrivals.start, number))


def _partition(world: Overlay, boundary: int | None) -> None:
    world.regions.partition(boundary)
    world.audit.on_partition_changed()
    world.arrivals.on_partition_changed()


def _step_clock(world: Overlay, number: int, step_us: int) -> None:
    world.traits[number].clock_us += step_us
    world.gossip.has_wrong_clocks = True


def _schedule_loss(world: Overlay, fault: Loss) -> None:
    links = world.scenario.links
    world.at(fault.at_us, partial(world.gossip.lose, fault.drop, fault.duplicate))
    world.at(fault.at_us, partial(world.probing.lose, fault.probe_drop))
    world.at(fault.until_us, partial(world.gossip.lose, links.drop, links.duplicate))
    world.at(fault.until_us, partial(world.probing.lose, links.probe_drop))


# --- churn ---------------------------------------------------------------------------
def _schedule_turnover(world: Overlay, fault: Turnover, draws: Draws) -> None:
    span_us = min(fault.until_us, world.scenario.duration_us) - fault.from_us
    count = world.first_peers * fault.per_hour * max(0, span_us) // (PER_MILLION * HOUR_US)
    for _ in range(count):
        world.at(fault.from_us + draws.below(span_us), partial(_turn_over, world, fault, draws))


def _turn_over(world: Overlay, fault: Turnover, draws: Draws) -> None:
    number = world.arrivals.pick_live(draws).number if world.live else 0
    if number == 0:
        return
    if draws.happens(fault.leaving):
        world.arrivals.leave(number)
    else:
        world.arrivals.crash(number)
    coming = number if draws.happens(fault.returning) else world.add_peer()
    world.after(fault.down_us, partial(world.arrivals.start, coming))


# --- liars and sybils -------------------------------------------------------------------
def _shard_of(world: Overlay, said: Said) -> str:
    return world.traits[said.number].bits[: said.shard_depth]


def _lie(world: Overlay, number: int, fault: FalseReports, draws: Draws) -> None:
    if world.now_us >= fault.until_us:
        return
    world.after(fault.every_us, partial(_lie, world, number, fault, draws))
    member = world.members[number]
    known = member.machine.announcements() if member is not None else ()
    if member is None or not known:
        return
    said = known[draws.below(len(known))]
    report = DownReported(member.peer_id, PeerId(said.peer_id), said.incarnation)
    world.gossip.spread(member, _shard_of(world, said), None, report, REPORT_BYTES)


def _pick(world: Overlay, among: list[Member], draws: Draws) -> Member:
    """One of those who can play a part in an attack; ``ConfigError`` if nobody can at that moment."""
    if not among:
        raise ConfigError(
            ErrorCode.CONFIG_INVALID,
            f"at {world.now_us // SECOND_US} s nobody is there to attack or to be attacked: let the fault come later, "
            "simulate more peers, or fewer behind NAT",
        )
    return among[draws.below(len(among))]


def _eclipse(world: Overlay, count: int, draws: Draws) -> None:
    victim = _pick(world, world.live, draws)
    world.audit.victim = victim.number
    _make_up(world, count, victim, draws)


def _make_up(world: Overlay, count: int, victim: Member | None, draws: Draws) -> None:
    """Identities whose announcements the attacker gossips, and for which it answers probes."""
    fit = [member for member in world.live if member.is_joined and not member.traits.is_nat and member.number > 0]
    attacker = _pick(world, [member for member in fit if member is not victim], draws)
    for _ in range(count):
        peer_id = None if victim is None else _ground(world, victim, draws)
        number = world.add_peer(peer_id, attacker.number)
        world.traits[number].is_nat = False
        delay_us = draws.below(2 * MINUTE_US)
        world.after(delay_us, partial(_speak_for, world, attacker, number, 1, victim))


def _ground(world: Overlay, victim: Member, draws: Draws) -> PeerId:
    """A peer id that falls into the victim's shard."""
    wanted = victim.traits.bits[:GRIND_BITS]
    for _ in range(MAX_TRIES):
        peer_id = peer_id_of(100_000 + draws.below(899_999))
        if peer_id not in world.numbers and shard_bits_of(peer_id, GRIND_BITS) == wanted:
            return peer_id
    raise ConfigError(
        ErrorCode.CONFIG_INVALID,
        f"no identity is left that begins with {wanted}: simulate fewer or smaller eclipses",
    )


def _speak_for(world: Overlay, attacker: Member, number: int, sequence: int, victim: Member | None) -> None:
    if not attacker.is_up:
        return
    traits = world.traits[number]
    said = Said(traits, 1, sequence)
    said.shard_depth = (victim or attacker).shards.depth
    interval_us = attacker.shards.interval_us
    said.life_us = life_ms(interval_us // 1000) * 1000
    said.expires_us = world.now_us + said.life_us
    world.gossip.spread(attacker, _shard_of(world, said), said, None, 1000)
    world.after(min(interval_us, 120 * SECOND_US), partial(_speak_for, world, attacker, number, sequence + 1, victim))
