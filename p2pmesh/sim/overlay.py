"""The overlay at scale: ten thousand peers, each with the very machines of ``core``, over regions of the Internet.

The machines decide; the modules beside this one are what ``node`` is around them, in short, and what the network is
around the nodes: ``sim.gossip``, ``sim.probing``, ``sim.arrivals`` (starts, connections, ends), ``sim.finding`` (models
through the DHT), ``sim.overlay_faults``. This one holds who there is, the loop over time, and a machine's events and
effects. What must hold is ``sim.audit``'s.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core import membership, shards
from p2pmesh.sim.alarm import NEVER
from p2pmesh.sim.arrivals import Arrivals
from p2pmesh.sim.audit import Audit
from p2pmesh.sim.calendar import ANSWER, CALL, WAKE, WAVE, Calendar
from p2pmesh.sim.chance import Draws
from p2pmesh.sim.directory import Directory
from p2pmesh.sim.finding import Finding
from p2pmesh.sim.fold import Fold
from p2pmesh.sim.gossip import Gossip
from p2pmesh.sim.member import Member, Said, Traits, draw_traits
from p2pmesh.sim.overlay_scenario import OverlayScenario
from p2pmesh.sim.peer import peer_id_of
from p2pmesh.sim.probing import Probing
from p2pmesh.sim.recorder import Recorder
from p2pmesh.sim.regions import Regions
from p2pmesh.sim.runner import check_deadline_moved
from p2pmesh.sim.scenario import SECOND_US
from p2pmesh.sim.traffic import TrafficLedger

CHECK_US = 60 * SECOND_US
MAX_KEYS = 90_000

_DEADLINE = membership.DeadlinePassed()
_SHARD_DEADLINE = shards.DeadlinePassed()
_EFFECTS = (
    membership.SendProbe, membership.SendIndirectProbe, membership.ReportDown, membership.PeerJoined,
    membership.PeerChanged, membership.PeerSuspected, membership.PeerRecovered, membership.PeerFailed,
    membership.PeerLeft, membership.PeerForgotten, membership.ReporterMuted, membership.AsymmetryFound,
    membership.RefuteSelf,
)  # fmt: skip
_CODES: dict[type[Any], int] = {kind: number + 1 << 40 for number, kind in enumerate(_EFFECTS)}
_PROBE_CODE = _CODES[membership.SendProbe]


class Overlay:
    """One simulation; ``run`` it once."""

    def __init__(self, scenario: OverlayScenario, peers: int, seed: int, recorder: Recorder | None = None) -> None:
        self.recorder = recorder
        self.scenario = scenario
        self.seed = seed
        self.first_peers = peers
        self.calendar = Calendar()
        self.regions = Regions(scenario.links, seed)
        self.directory = Directory()
        self.ledger = TrafficLedger()
        self.fold = Fold()
        self.draws = Draws(seed, "overlay")
        self.traits: list[Traits] = []
        self.members: list[Member | None] = []
        self.numbers: dict[str, int] = {}
        self.live: list[Member] = []
        self.events = 0
        self.gossip = Gossip(self)
        self.probing = Probing(self)
        self.arrivals = Arrivals(self)
        self.finding = Finding(self)
        self.audit = Audit(self)
        self._performers = self._make_performers()
        for _ in range(peers):
            self.add_peer()

    def answering(self, number: int) -> Member | None:
        """Who answers for a key now: its peer, or the one that made it up; None if nobody."""
        return self.members[self.traits[number].host]

    @property
    def now_us(self) -> int:
        """Simulated time."""
        return self.calendar.now_us

    def add_peer(self, peer_id: PeerId | None = None, host: int | None = None) -> int:
        """One more key, with the traits that the population gives it; its number."""
        number = len(self.traits)
        if number >= MAX_KEYS:
            raise ConfigError(
                ErrorCode.CONFIG_INVALID,
                f"the scenario makes more than {MAX_KEYS} keys by {self.now_us // SECOND_US} s: "
                "simulate fewer peers, a smaller turnover, or fewer made-up identities",
            )
        traits = draw_traits(number, peer_id or peer_id_of(number), self.scenario.population, self.seed)
        traits.host = number if host is None else host
        self.traits.append(traits)
        self.members.append(None)
        self.numbers[traits.peer_id] = number
        self.ledger.add_peer()
        return number

    # --- time ---------------------------------------------------------------------
    def run(self) -> None:
        """The whole scenario, with the invariants checked on the way."""
        self.arrivals.schedule_starts()
        self.finding.schedule()
        end_us = self.scenario.duration_us
        for moment_us in range(CHECK_US, end_us, CHECK_US):
            self._run_until(moment_us)
            self.audit.check()
        self._run_until(end_us)
        self.audit.check()
        self.audit.finish()

    def at(self, when_us: int, action: Callable[[], None]) -> None:
        """Something that happens once."""
        self.calendar.put(when_us, CALL, 0, action)

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """The same, from now."""
        self.calendar.put(self.calendar.now_us + delay_us, CALL, 0, action)

    def _run_until(self, end_us: int) -> None:
        take, fold = self.calendar.take, self.fold
        wake, answer, wave = self._wake, self._answer, self.gossip.wave
        while True:
            entry = take(end_us)
            if entry is None:
                break
            kind = entry[2]
            if kind == WAKE:
                wake(entry[4], entry[0])
            elif kind == ANSWER:
                answer(entry[4])
            elif kind == WAVE:
                wave(entry[3], entry[4])
                fold.settle()
            else:
                entry[4]()
        fold.settle()
        self.calendar.now_us = end_us

    # --- one machine -----------------------------------------------------------------
    def tell(self, member: Member, event: Any) -> None:
        """One event of membership, its effects carried out."""
        if not member.is_up:
            return
        now_us = self.calendar.now_us
        self.events += 1
        append = self.fold.line.append
        append(now_us)
        append(member.number)
        effects = member.handle(event, now_us)  # type: ignore[arg-type]  # the call that makes it Micros costs
        if effects:
            self.perform(member, effects)
        self.arm(member)

    def answer_at(self, when_us: int, member: Member, event: Any) -> None:
        """An event for later; the machine need not be woken for its deadline before."""
        self.calendar.put(when_us, ANSWER, 0, (member, event))
        if when_us < member.wake_us:
            member.wake_us = when_us

    def _answer(self, told: tuple[Member, Any]) -> None:
        member, event = told
        if member.wake_us <= self.calendar.now_us:
            member.wake_us = NEVER
        self.tell(member, event)

    def _wake(self, member: Member, when_us: int) -> None:
        if when_us != member.wake_us or not member.is_up:
            return  # another entry took its place
        member.wake_us = NEVER
        due = member.machine.deadline()
        if due is not None and due <= when_us:
            self.events += 1
            append = self.fold.line.append
            append(when_us)
            append(member.number)
            effects = member.handle(_DEADLINE, when_us)  # type: ignore[arg-type]  # as in ``tell``, whose call costs
            if effects:
                self.perform(member, effects)
            self.arm(member)
            if member.wake_us <= when_us:
                check_deadline_moved(member.machine, when_us)
        else:
            self.arm(member)

    def arm(self, member: Member) -> None:
        """Sees to it that the machine is looked at by its deadline, or now if that has passed."""
        due = member.machine.deadline()
        if due is not None and due < member.wake_us:
            calendar = self.calendar
            # As the entry will say, or it counts for nothing.
            member.wake_us = when_us = due if due > calendar.now_us else calendar.now_us
            calendar.put(when_us, WAKE, 0, member)

    def perform(self, member: Member, effects: tuple[Any, ...]) -> None:
        """Carries effects out, each with its trace in the digest."""
        line, numbers, performers = self.fold.line, self.numbers, self._performers
        for effect in effects:
            kind = type(effect)
            if kind is membership.SendProbe:  # nine of ten
                number = numbers[effect.peer]
                line.append(_PROBE_CODE | number)
                self.probing.send(member, effect, number)
                continue
            code, perform = performers[kind]
            line.append(code | numbers[effect.reporter if kind in _ABOUT_REPORTERS else effect.peer])
            perform(member, effect)

    def _make_performers(self) -> dict[type[Any], tuple[int, Callable[[Member, Any], None]]]:
        """For each kind of effect its mark in the digest, and what carries it out."""
        audit = self.audit
        performers: dict[type[Any], Callable[[Member, Any], None]] = {
            membership.SendIndirectProbe: self.probing.send_indirect,
            membership.ReportDown: self.gossip.report_down,
            membership.PeerJoined: self._heard,
            membership.PeerChanged: self._heard,
            membership.PeerSuspected: audit.on_suspected,
            membership.PeerRecovered: audit.on_recovered,
            membership.PeerFailed: self._gone,
            membership.PeerLeft: self._gone,
            membership.PeerForgotten: self._gone,
            membership.ReporterMuted: audit.on_muted,
            membership.AsymmetryFound: audit.on_asymmetry,
            membership.RefuteSelf: self.gossip.refute,
        }
        return {kind: (_CODES[kind], performer) for kind, performer in performers.items()}

    def _heard(self, member: Member, effect: membership.PeerJoined | membership.PeerChanged) -> None:
        said = member.machine.find(effect.peer)
        if said is not None:
            self.audit.on_heard(member, effect, said)
            if self._is_in_earshot(member, said) and self._has_place(member, said):
                self.tell_shards(member, shards.PeerHeard(effect.peer, said.shard_depth))
            else:
                self._part_from(member, said)

    def _has_place(self, member: Member, said: Said) -> bool:
        host = self.traits[said.number].host
        return host == said.number or member.takes_made_up(PeerId(said.peer_id), host)

    def _is_in_earshot(self, member: Member, said: Said) -> bool:
        return self.traits[said.number].bits[: said.shard_depth] in member.topics

    def _forget_those_out_of_earshot(self, member: Member) -> None:
        for said in member.machine.announcements():
            if not self._is_in_earshot(member, said):
                self._part_from(member, said)

    def _part_from(self, member: Member, said: Said) -> None:
        """Who is out of earshot leaves the view, and its depth counts for a while."""
        if not self._is_in_earshot(member, said):
            self.tell_shards(member, shards.PeerElsewhere(said.peer_id, said.shard_depth))
        self.tell(member, membership.OutOfEarshot(said.peer_id))

    def _gone(self, member: Member, effect: Any) -> None:
        self.audit.on_gone(member, effect)
        if member.hosts is not None:
            member.hosts.forget(effect.peer)
        self.tell_shards(member, shards.PeerGone(effect.peer))

    # --- shards --------------------------------------------------------------------------
    def tell_shards(self, member: Member, event: shards.Event) -> None:
        """One event of the shard machine, its effects carried out."""
        self.events += 1
        for effect in member.shards.handle(event, Micros(self.calendar.now_us)):
            match effect:
                case shards.Listen(bits):
                    self.gossip.listen(member, bits)
                case shards.StopListening(bits):
                    self.gossip.stop_listening(member, bits)
                case shards.Moved(depth, left_bits):
                    self.fold.line.append(depth)
                    self._forget_those_out_of_earshot(member)
                    self.arrivals.on_moved(member, left_bits)
        due = member.shards.deadline()
        if due is not None and due < member.shards_alarm.due_us:
            member.shards_alarm.set_at(self.calendar, due, partial(self._wake_shards, member))

    def _wake_shards(self, member: Member) -> None:
        if member.is_up:
            self.tell_shards(member, _SHARD_DEADLINE)
            check_deadline_moved(member.shards, self.now_us)


_ABOUT_REPORTERS = (membership.ReporterMuted, membership.RefuteSelf)
