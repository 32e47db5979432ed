"""What must hold in the overlay, and what is measured of it: who believes what of whom, and since when.

Knows what the machines cannot: who really runs. Bounds and invariants are checked every minute of simulated time and
at every belief that changes; the first ``MAX_VIOLATIONS`` are kept as sentences.
"""

from functools import partial
from typing import Any

from p2pmesh.core import membership
from p2pmesh.core.membership import MembershipPolicy, MemberState
from p2pmesh.sim.member import Member, Said
from p2pmesh.sim.scenario import MINUTE_US, SECOND_US
from p2pmesh.sim.surroundings import Surroundings

MAX_VIOLATIONS = 100
DETECTION_BOUND_US = 5 * MINUTE_US
GRACE_US = 2 * MINUTE_US
"""After a partition has begun or healed, live peers may still be held failed, or be failed."""
SAMPLED = 50
"""Members whose whole view is looked at in each check, in turn."""


class End:
    """A run of a peer that is over."""

    __slots__ = ("at_us", "incarnation", "is_leaving", "noticed_us", "reports")

    def __init__(self, at_us: int, incarnation: int, is_leaving: bool) -> None:
        self.at_us = at_us
        self.incarnation = incarnation
        self.is_leaving = is_leaving
        self.noticed_us = 0
        self.reports = 0


class Audit:
    """Counts, samples and violations."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._capacity = MembershipPolicy().capacity
        self._turn = 0
        self._partition_changed_us = -GRACE_US
        self.violations: list[str] = []
        self.ends: dict[int, End] = {}
        self._failed: dict[int, dict[int, int]] = {}
        """Per peer, those that its run held failed or gone, with the incarnation."""
        self.crashes = 0
        self.leaves = 0
        self.detected_us: list[int] = []
        """Per peer that held a crashed one alive: how long after the crash it stopped to."""
        self.left_us: list[int] = []
        self.believed_late = 0
        self.counts = dict.fromkeys(
            ("suspected", "recovered", "failed_alive", "reports", "muted", "asymmetries", "refuted", "returned"), 0
        )
        self.victim: int | None = None
        self.most_sybil_share = 0
        self.victim_sybil_share = 0
        self.most_viewed = 0

    # --- news from the world --------------------------------------------------------
    def on_partition_changed(self) -> None:
        """A partition begins or heals."""
        self._partition_changed_us = self._world.now_us

    def on_end(self, member: Member, *, is_leaving: bool) -> None:
        """A run is over."""
        world = self._world
        member.traits.up_us += world.now_us - member.started_us
        self._failed.pop(member.number, None)
        self.ends[member.number] = End(world.now_us, member.incarnation, is_leaving)
        if is_leaving:
            self.leaves += 1
        else:
            self.crashes += 1
        world.after(DETECTION_BOUND_US, partial(self._check_forgotten, member))

    def on_heard(self, member: Member, effect: Any, said: Said) -> None:
        """A peer joined a view or changed."""
        number = said.number
        failed = self._failed.get(member.number, {}).get(number)
        if failed is None or type(effect) is not membership.PeerJoined:
            return
        self.counts["returned"] += 1
        end = self.ends.get(number)
        is_gone = self._world.answering(number) is None and end is not None
        if is_gone and end is not None and said.incarnation <= min(failed, end.incarnation):
            self._violate(f"peer {member.number} holds {number} alive again, which is gone")

    def on_gone(self, member: Member, effect: Any) -> None:
        """A peer failed, left or was forgotten in a view."""
        world = self._world
        number = world.numbers[effect.peer]
        end = self.ends.get(number)
        kind = type(effect)
        is_running = world.answering(number) is not None
        if kind is not membership.PeerForgotten:
            incarnation = end.incarnation if end is not None and not is_running else world.now_us
            self._failed.setdefault(member.number, {})[number] = incarnation
        if is_running:
            if kind is membership.PeerFailed and not self._is_excused(member, number):
                self.counts["failed_alive"] += 1
                self._violate(f"peer {member.number} holds {number} failed, which runs and can be reached")
        elif end is not None and kind is not membership.PeerForgotten:
            (self.left_us if end.is_leaving else self.detected_us).append(world.now_us - end.at_us)

    def _is_excused(self, member: Member, number: int) -> bool:
        world = self._world
        if world.regions.boundary is not None or world.now_us - self._partition_changed_us < GRACE_US:
            return True
        running = world.answering(number)
        return running is None or world.now_us - running.started_us < GRACE_US  # the run before did fail

    def on_suspected(self, member: Member, effect: Any) -> None:
        """Somebody may be gone."""
        self.counts["suspected"] += 1

    def on_recovered(self, member: Member, effect: Any) -> None:
        """A suspect was heard."""
        self.counts["recovered"] += 1

    def on_muted(self, member: Member, effect: Any) -> None:
        """A report proved false."""
        self.counts["muted"] += 1

    def on_asymmetry(self, member: Member, effect: Any) -> None:
        """One reaches whom the other does not."""
        self.counts["asymmetries"] += 1

    def on_refuted(self, member: Member, effect: Any) -> None:
        """Somebody heard that it is down."""
        self.counts["refuted"] += 1

    def on_report(self) -> None:
        """An honest report goes out."""
        self.counts["reports"] += 1

    # --- checks ---------------------------------------------------------------------
    def check(self) -> None:
        """Bounds of all members; the whole views of some, in turn."""
        world = self._world
        for member in world.live:
            viewed = member.machine.live_count
            self.most_viewed = max(self.most_viewed, viewed)
            if viewed > self._capacity or member.machine.known_count > 2 * self._capacity:
                self._violate(f"peer {member.number} views {viewed} peers and knows {member.machine.known_count}")
            due = member.machine.deadline()
            if due is not None and not world.now_us <= member.wake_us <= max(due, world.now_us):
                self._violate(f"peer {member.number} sleeps beyond its deadline of {due // SECOND_US} s")
        for _ in range(min(SAMPLED, len(world.live))):
            self._turn = (self._turn + 1) % len(world.live)
            self._check_view(world.live[self._turn])
        if len(world.traits) > world.first_peers:
            self._check_sybils()

    def _check_view(self, member: Member) -> None:
        if set(member.topics) != set(member.shards.listen_bits):
            self._violate(f"peer {member.number} listens to {sorted(member.topics)}")
        connected = {self._world.traits[number].peer_id for number in member.connections}
        if set(member.admission.admitted()) != connected:
            self._violate(f"peer {member.number} admits others than it is connected to")
        views = member.machine.views()
        counting = sum(view.state in (MemberState.ALIVE, MemberState.SUSPECT) for view in views)
        if counting != member.machine.live_count or len(views) != member.machine.known_count:
            self._violate(f"peer {member.number}: the states do not add up")
        if any(view.peer == member.peer_id for view in views):
            self._violate(f"peer {member.number} is in its own view")

    def _check_sybils(self) -> None:
        world = self._world
        made_up = {traits.peer_id for traits in world.traits if traits.host != traits.number}
        hosts = {traits.host for traits in world.traits if traits.host != traits.number}
        if not made_up:
            return
        for member in world.live:
            views = member.machine.announcements()
            if len(views) < 20 or member.number in hosts:
                continue
            share = 100 * sum(said.peer_id in made_up for said in views) // len(views)
            if member.number == self.victim:
                self.victim_sybil_share = max(self.victim_sybil_share, share)
            else:
                self.most_sybil_share = max(self.most_sybil_share, share)

    def _check_forgotten(self, ended: Member) -> None:
        """Five minutes after an end nobody believes in it."""
        world = self._world
        if world.members[ended.number] is not None:
            return
        end = self.ends[ended.number]
        if end.incarnation != ended.incarnation:
            return
        peer_id = ended.peer_id
        for member in [member for member in world.live if peer_id in member.viewed]:
            said = member.machine.find(peer_id)
            if said is not None and said.incarnation <= ended.incarnation:
                self.believed_late += 1
                if world.regions.boundary is None:
                    self._violate(f"peer {member.number} holds {ended.number} alive five minutes after its end")

    def finish(self) -> None:
        """What is still open when the scenario ends."""
        world = self._world
        for member in world.live:
            member.traits.up_us += world.now_us - member.started_us
            world.arrivals.settle_pings(member)

    def _violate(self, text: str) -> None:
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(f"{self._world.now_us // SECOND_US} s: {text}")
