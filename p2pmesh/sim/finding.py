"""Models of the simulated overlay: who serves what, provider records in the DHT, and who finds them in which time.

A seeker looks into its own view first and asks the DHT then. A query takes rounds one after the other, each a dial and
a question to a few servers at once; some of the servers are gone. Its bytes are charged to whoever asks and to servers
drawn at random, but for those that store a record.
"""

from functools import partial

from p2pmesh.base.limits import RECORD_LIFE_S, RECORD_REPEAT_S
from p2pmesh.base.quantities import Micros
from p2pmesh.core import records
from p2pmesh.core.records import KeysChanged, Provide
from p2pmesh.sim.chance import Draws
from p2pmesh.sim.directory import PARALLEL, STALE_PERCENT
from p2pmesh.sim.member import Member
from p2pmesh.sim.peer import MESH_ID
from p2pmesh.sim.runner import check_deadline_moved
from p2pmesh.sim.scenario import SECOND_US
from p2pmesh.sim.surroundings import Surroundings
from p2pmesh.sim.traffic import DHT_REQUEST_BYTES, DHT_RESPONSE_BYTES, DIAL_BYTES, IDENTIFY_BYTES, STREAM_BYTES, Cause
from p2pmesh.wire.records import RecordKey, model_key

_DEADLINE = records.DeadlinePassed()
UPKEEP_US = 300 * SECOND_US
"""So often a server looks its own neighbourhood up."""
ROUND_TRIPS_PER_ROUND = 3
STALE_US = 3 * SECOND_US
SEEK_WINDOW_US = 20 * SECOND_US
SEEK_AGAIN_US = 10 * SECOND_US
BOUND_US = 60 * SECOND_US
CONNECTION_BYTES = DIAL_BYTES + IDENTIFY_BYTES + STREAM_BYTES


class Search:
    """A model that was announced, and how those who look for it fare."""

    __slots__ = ("at_us", "found_us", "model", "provider", "seekers")

    def __init__(self, model: int, provider: Member, at_us: int) -> None:
        self.model = model
        self.provider = provider
        self.at_us = at_us
        self.seekers = 0
        self.found_us: list[int] = []


class Finding:
    """Records and searches."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._draws = Draws(world.seed, "finding")
        self.searches: list[Search] = []

    def schedule(self) -> None:
        """All searches that are over before the scenario is."""
        searches = self._world.scenario.searches
        last_us = self._world.scenario.duration_us - BOUND_US - SECOND_US
        for at_us in range(searches.from_us, max(searches.from_us, last_us), searches.every_us):
            self._world.at(at_us, self._begin)

    # --- the DHT --------------------------------------------------------------------
    def lookup_us(self, member: Member) -> int:
        """How long a query of this member takes now."""
        total_us = 0
        for _ in range(self._world.directory.rounds()):
            server = self._world.arrivals.pick_live(self._draws)
            total_us += 2 * ROUND_TRIPS_PER_ROUND * self._world.regions.one_way_us(member.number, server.number)
            if all(self._draws.below(100) < STALE_PERCENT for _ in range(PARALLEL)):
                total_us += STALE_US
        return total_us

    def pay_lookup(self, member: Member, cause: Cause) -> None:
        """The bytes of a query."""
        world = self._world
        requests = world.directory.rounds() * PARALLEL
        sent, received = DHT_REQUEST_BYTES + CONNECTION_BYTES, DHT_RESPONSE_BYTES + CONNECTION_BYTES
        for _ in range(requests):
            server = world.arrivals.pick_live(self._draws)
            world.ledger.exchange(member.number, server.number, cause, sent, received)

    def stand(self, member: Member) -> None:
        """It has run for long: its records lie there, to be told again at moments of their own."""
        for model in member.models:
            self._put(member, key_of(model))
        self._world.after(self._draws.below(RECORD_REPEAT_S * SECOND_US), partial(self._begin_records, member))

    def publish_own(self, member: Member) -> None:
        """A member's records are told from now on."""
        self._begin_records(member)

    def _begin_records(self, member: Member) -> None:
        if member.is_up:
            self._tell_records(member, KeysChanged(tuple(key_of(model) for model in member.models)))
            if not member.traits.is_nat:
                self._world.after(self._draws.below(UPKEEP_US), partial(self._keep_up, member))

    def change_records(self, member: Member) -> None:
        """What the member serves is something else now."""
        self._tell_records(member, KeysChanged(tuple(key_of(model) for model in member.models)))

    def _keep_up(self, member: Member) -> None:
        if member.is_up:
            self.pay_lookup(member, Cause.UPKEEP)
            self._world.after(UPKEEP_US, partial(self._keep_up, member))

    # --- the machine that says when ----------------------------------------------------
    def _tell_records(self, member: Member, event: records.Event) -> None:
        if not member.is_up:
            return
        self._world.events += 1
        for effect in member.records.handle(event, Micros(self._world.now_us)):
            if isinstance(effect, Provide):
                self.pay_lookup(member, Cause.RECORDS)
                self._world.after(self.lookup_us(member), partial(self._store, member, effect.key))
        wake = partial(self._wake_records, member)
        member.records_alarm.set_by(self._world.calendar, member.records.deadline(), wake)

    def _wake_records(self, member: Member) -> None:
        if member.is_up:
            self._tell_records(member, _DEADLINE)
            check_deadline_moved(member.records, self._world.now_us)

    def _store(self, member: Member, key: RecordKey) -> None:
        world = self._world
        if not member.is_up:
            return
        holders = self._put(member, key)
        world.fold.line.extend(holders)
        for holder in holders:
            world.ledger.exchange(
                member.number, holder, Cause.RECORDS, DHT_REQUEST_BYTES + CONNECTION_BYTES, CONNECTION_BYTES
            )
        self._tell_records(member, records.Told(key, len(holders)))

    def _put(self, member: Member, key: RecordKey) -> tuple[int, ...]:
        reach = partial(self._world.regions.same_side, member.number)
        return self._world.directory.publish(key, member.number, self._world.now_us + RECORD_LIFE_S * SECOND_US, reach)

    # --- searches -----------------------------------------------------------------------
    def _begin(self) -> None:
        world = self._world
        provider = self._pick_provider()
        if provider is None:
            return
        search = Search(world.scenario.population.models + len(self.searches), provider, world.now_us)
        self.searches.append(search)
        provider.models = (*provider.models[-2:], search.model)
        world.gossip.announce_change(provider)
        self.change_records(provider)
        for _ in range(world.scenario.searches.seekers):
            seeker = world.arrivals.pick_live(self._draws)
            if seeker is not provider and seeker.is_joined:
                search.seekers += 1
                world.after(self._draws.below(SEEK_WINDOW_US), partial(self._seek, search, seeker))

    def _pick_provider(self) -> Member | None:
        for _ in range(16 if self._world.live else 0):
            member = self._world.arrivals.pick_live(self._draws)
            if member.is_joined and not member.traits.is_lying:
                return member
        return None

    def _seek(self, search: Search, seeker: Member) -> None:
        world = self._world
        is_possible = world.regions.same_side(seeker.number, search.provider.number)
        if not (seeker.is_up and search.provider.is_up and is_possible):
            search.seekers -= 1  # nobody looks, or there is nothing to find
            return
        if any(search.model in said.models for said in seeker.machine.announcements()):
            search.found_us.append(world.now_us - search.at_us)
            return
        self.pay_lookup(seeker, Cause.SEARCHES)
        world.after(self.lookup_us(seeker), partial(self._conclude, search, seeker))

    def _conclude(self, search: Search, seeker: Member) -> None:
        world = self._world
        reach = partial(world.regions.same_side, seeker.number)
        found = world.directory.find(key_of(search.model), world.now_us, reach)
        world.fold.line.extend(found)
        if any(world.members[number] is not None and reach(number) for number in found):
            search.found_us.append(world.now_us - search.at_us)
        elif world.now_us - search.at_us < BOUND_US:
            world.after(SEEK_AGAIN_US, partial(self._seek, search, seeker))


def key_of(model: int) -> RecordKey:
    """Where the records of a model lie."""
    return model_key(MESH_ID, f"model {model}")
