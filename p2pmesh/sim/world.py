"""The simulated overlay: peers, gossip, faults, one coordinator with its model, requests, and the checks.

A simulation is a function of (scenario, number of peers, seed); its digest is equal wherever and however often it runs.
"""

from dataclasses import dataclass
from functools import partial

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.routing import DriverChoice, choose_driver
from p2pmesh.sim.chance import PER_MILLION, Chance
from p2pmesh.sim.coordinator import Outcomes, SimCoordinator, submit_later
from p2pmesh.sim.invariants import violations
from p2pmesh.sim.journal import Journal
from p2pmesh.sim.network import SimNetwork
from p2pmesh.sim.peer import LIFE_US, Character, PeerTraits, SimPeer, number_of, peer_id_of
from p2pmesh.sim.run import RunTexture
from p2pmesh.sim.scenario import MAX_SIMULATED_PEERS, SECOND_US, Churn, Crash, Fault, Partition, Scenario, StageLoss
from p2pmesh.sim.scheduler import Scheduler
from p2pmesh.sim.sequence import SimRequest
from p2pmesh.sim.snapshot import PeerSnapshot, Snapshot
from p2pmesh.wire.announcement import Announcement

MAX_VIOLATIONS = 100
CHECK_EVERY_US = 5 * SECOND_US
GOSSIP_HOP_US = 50_000


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a simulation. ``known_percent`` is how much of the running overlay its peers know, on average."""

    scenario: str
    peers: int
    seed: int
    simulated_us: int
    events: int
    steps: int
    digest: str
    runs: int
    requests: dict[str, int]
    tokens: int
    known_percent: int
    violations: tuple[str, ...]


class World:
    """One simulation; ``run`` it once."""

    def __init__(self, scenario: Scenario, peers: int, seed: int) -> None:
        if not 1 <= peers <= MAX_SIMULATED_PEERS:
            raise ValueError(f"{peers} peers; a simulation has 1 to {MAX_SIMULATED_PEERS}")
        self._scenario = scenario
        self._count = peers
        self._seed = seed
        ids = tuple(peer_id_of(number) for number in range(peers))
        self.scheduler = Scheduler()
        self.journal = Journal()
        self.network = SimNetwork(self.scheduler, scenario.links, ids, seed)
        self._gossip_chances = [Chance(seed, peer_id, "gossip") for peer_id in ids]
        self._chance = Chance(seed, "", "world")
        self._traits = [_draw_traits(scenario, number, seed) for number in range(peers)]
        self._peers: list[SimPeer | None] = [None] * peers
        self._coordinator: SimCoordinator | None = None
        self._runs_before = 0
        self._outcomes = Outcomes({})
        self._violations: list[str] = []
        self._hops = max(1, len(f"{peers:b}") // 2)

    def run(self) -> Report:
        """Runs the whole scenario and checks the invariants on the way."""
        for number in range(self._count):
            start = 0 if number == 0 else self._chance.below(self._scenario.population.start_window_us)
            self.scheduler.at(Micros(start), partial(self._start, number))
        for fault in self._scenario.faults:
            self._schedule(fault)
        if self._scenario.model.layers:
            self._request_later(0)
        end = Micros(self._scenario.duration_us)
        for moment in range(CHECK_EVERY_US, end, CHECK_EVERY_US):
            self.scheduler.run_until(Micros(moment))
            self._check()
        self.scheduler.run_until(end)
        self._check()
        return self._report()

    # --- Surroundings of a peer -------------------------------------------------
    def peer(self, number: int) -> SimPeer | None:
        """A peer that runs."""
        return self._peers[number]

    def gossip(self, sender: int, announcement: Announcement) -> None:
        """Spreads an announcement in waves of equal hop count, to all that can hear it when their wave comes."""
        incarnation = self.network.incarnation(sender)
        for hop in range(self._hops):
            delay_us = (hop + 1) * GOSSIP_HOP_US
            wave = partial(self._wave, sender, incarnation, announcement, hop, delay_us)
            self.scheduler.after(delay_us, wave)

    def on_lost(self, peer: SimPeer, other: int) -> None:
        """Passes a loss on to the coordinator, if it is its peer's."""
        if peer.number == 0 and self._coordinator is not None:
            self._coordinator.on_lost(other)

    def _wave(self, sender: int, incarnation: int, announcement: Announcement, hop: int, delay_us: int) -> None:
        if self.network.incarnation(sender) != incarnation:
            return
        links = self._scenario.links
        lives_us = LIFE_US - delay_us
        for number in range((hop - sender) % self._hops, self._count, self._hops):
            peer = self._peers[number]
            if peer is None or number == sender or not self.network.same_side(sender, number):
                continue
            chance = self._gossip_chances[number]
            if not peer.admission.has_admitted or chance.happens(links.drop):
                continue
            peer.on_announcement(announcement, lives_us)
            if chance.happens(links.duplicate):
                peer.on_announcement(announcement, lives_us)

    # --- starts and faults ------------------------------------------------------
    def _start(self, number: int) -> None:
        peer = SimPeer(self._traits[number], self.network.incarnation(number) + 1, self)
        self._peers[number] = peer
        self.network.start(number, peer)
        peer.start()
        if number == 0 and self._scenario.model.layers:
            texture = RunTexture(
                self._scenario.model, self._scenario.links.reset, Chance(self._seed, peer_id_of(0), "run")
            )
            self._coordinator = SimCoordinator(peer, self, texture, self._outcomes, self._runs_before + 1)
            self.scheduler.after(self._scenario.model.plan_at_us, self._coordinator.plan)

    def _crash(self, number: int, down_us: int | None) -> None:
        peer = self._peers[number]
        if peer is None:
            return
        self.journal.write(f"{self.scheduler.now} crash {number}")
        self._peers[number] = None
        peer.stop()
        self.network.crash(number)
        if number == 0 and self._coordinator is not None:
            self._runs_before += len(self._coordinator.runs)
            self._coordinator.stop()
            self._coordinator = None
        if down_us is not None:
            self.scheduler.after(down_us, partial(self._start, number))

    def _schedule(self, fault: Fault) -> None:
        at = self.scheduler.at
        match fault:
            case Crash(at_us, number, down_us):
                if number < self._count:
                    at(Micros(at_us), partial(self._crash, number, down_us))
            case Churn(every_us, down_us):
                at(Micros(every_us), partial(self._churn, every_us, down_us))
            case Partition(at_us, until_us, boundary_percent):
                boundary = self._count * boundary_percent // 100
                at(Micros(at_us), partial(self.network.partition, boundary))
                at(Micros(until_us), partial(self.network.partition, None))
            case StageLoss(at_us, index):
                at(Micros(at_us), partial(self._lose_stage, index))

    def _churn(self, every_us: int, down_us: int) -> None:
        if self._count > 1:
            self._crash(1 + self._chance.below(self._count - 1), down_us)
        self.scheduler.after(every_us, partial(self._churn, every_us, down_us))

    def _lose_stage(self, index: int) -> None:
        runs = self._coordinator.runs if self._coordinator is not None else ()
        if runs and index < len(runs[-1].stages):
            self._crash(runs[-1].stages[index].peer, None)

    # --- requests ---------------------------------------------------------------
    def _request_later(self, number: int) -> None:
        self.scheduler.after(self._scenario.model.request_every_us, partial(self._request, number))

    def _request(self, number: int) -> None:
        model = self._scenario.model
        self._request_later(number + 1)
        peer = self._peers[self._chance.below(self._count)]
        is_cancelled = self._chance.happens(model.cancelled)
        request = SimRequest(
            number, peer.number if peer is not None else 0, 1 + self._chance.below(model.max_prompt_tokens),
            1 + self._chance.below(model.max_tokens), 1 + self._chance.below(SECOND_US) if is_cancelled else 0,
        )  # fmt: skip
        if peer is None:
            return
        chosen = choose_driver(_drivers(peer), number.to_bytes(8, "big"))
        if chosen is None or self._coordinator is None:
            self._outcomes.add("unrouted")
        else:
            submit_later(self, self._coordinator, request, number_of(chosen[0]))

    # --- checks and the report --------------------------------------------------
    def _check(self) -> None:
        room = MAX_VIOLATIONS - len(self._violations)
        self._violations += violations(self._snapshot())[:room]

    def _snapshot(self) -> Snapshot:
        peers = tuple(
            PeerSnapshot(
                peer.number, len(peer.admission.admitted()), peer.admission.waiting_count, peer.membership.known_count
            )
            for peer in self._peers
            if peer is not None
        )
        coordinator = self._coordinator
        return Snapshot(
            self.scheduler.now, peers, coordinator.run_snapshots() if coordinator else (),
            coordinator.sequence_snapshots() if coordinator else (),
        )  # fmt: skip

    def _report(self) -> Report:
        running = [peer for peer in self._peers if peer is not None and peer.traits.character is Character.HONEST]
        pairs = len(running) * (self._count - 1)
        known = sum(peer.membership.known_count for peer in running)
        coordinator = self._coordinator
        return Report(
            self._scenario.name, self._count, self._seed, self.scheduler.now, self.journal.events,
            self.scheduler.steps, self.journal.digest(),
            self._runs_before + (len(coordinator.runs) if coordinator else 0),
            dict(sorted(self._outcomes.by_name.items())), self._outcomes.tokens,
            100 * known // pairs if pairs else 100, tuple(self._violations),
        )  # fmt: skip


def simulate(scenario: Scenario, peers: int, seed: int) -> Report:
    """Runs a scenario with so many peers."""
    return World(scenario, peers, seed).run()


def _drivers(peer: SimPeer) -> list[DriverChoice]:
    """Whom a peer may ask for the only model: itself, and those that it heard announce it."""
    own_peer = peer_id_of(peer.number)
    own = [DriverChoice(own_peer, rtt_us=0)] if peer.models else []
    heard = peer.membership.announcements()
    return own + [DriverChoice(PeerId(one.peer_id)) for one in heard if one.models]


def _draw_traits(scenario: Scenario, number: int, seed: int) -> PeerTraits:
    population = scenario.population
    chance = Chance(seed, peer_id_of(number), "traits")
    draw = chance.below(PER_MILLION)
    character = Character.HONEST
    if number > 0:  # the founder is the one whom all the others trust
        kinds = (
            (population.foreign, Character.FOREIGN),
            (population.silent, Character.SILENT),
            (population.lying, Character.LYING),
        )
        reached = 0
        for share, kind in kinds:
            if reached <= draw < reached + share:
                character = kind
            reached += share
    dials = dict.fromkeys(chance.below(number) for _ in range(min(number, population.degree)))
    if 0 < number <= 2 * population.degree:
        dials.setdefault(0)  # the first ones have the founder's invite
    free_bytes = population.free_bytes // 2 + chance.below(population.free_bytes)
    slowness = 1 + chance.below(population.slowness)
    return PeerTraits(number, character, tuple(dials), free_bytes, slowness, population.redial_us)
