"""What the parts of the simulated overlay know of the world and of each other, so that none imports another."""

from collections.abc import Callable
from typing import Any, Protocol

from p2pmesh.core import membership, shards
from p2pmesh.sim.calendar import Calendar
from p2pmesh.sim.chance import Draws
from p2pmesh.sim.directory import Directory
from p2pmesh.sim.fold import Fold
from p2pmesh.sim.member import Member, Traits
from p2pmesh.sim.overlay_scenario import OverlayScenario
from p2pmesh.sim.recorder import Recorder
from p2pmesh.sim.regions import Regions
from p2pmesh.sim.traffic import Cause, TrafficLedger


class GossipPart(Protocol):
    """``sim.gossip`` for the others."""

    def listen(self, member: Member, bits: str) -> None:
        """Subscribes."""

    def on_end(self, member: Member) -> None:
        """The run hears and says no more."""

    def listeners(self, bits: str) -> list[Member]:
        """Who listens."""

    def announce_change(self, member: Member, also: str | None = None) -> None:
        """Announces now and again soon."""

    def announce_later(self, member: Member, delay_us: int) -> None:
        """Announces then, if nothing changes before."""

    def leave(self, member: Member) -> None:
        """The last word."""


class ArrivalsPart(Protocol):
    """``sim.arrivals`` for the others."""

    def pick_live(self, draws: Draws) -> Member:
        """Any peer that runs; there is one."""

    def settle_pings(self, member: Member) -> None:
        """Charges the connections that still stand."""


class FindingPart(Protocol):
    """``sim.finding`` for the others."""

    def lookup_us(self, member: Member) -> int:
        """How long a query takes."""

    def pay_lookup(self, member: Member, cause: Cause) -> None:
        """The bytes of a query."""

    def publish_own(self, member: Member) -> None:
        """Publishes what a member serves for as long as it runs."""

    def stand(self, member: Member) -> None:
        """It has been published for long."""


class AuditPart(Protocol):
    """``sim.audit`` for the others."""

    def on_end(self, member: Member, *, is_leaving: bool) -> None:
        """A run is over."""

    def on_report(self) -> None:
        """An honest report goes out."""

    def on_refuted(self, member: Member, effect: membership.RefuteSelf) -> None:
        """Somebody heard that it is down."""


class Surroundings(Protocol):
    """``sim.overlay`` for its parts."""

    scenario: OverlayScenario
    seed: int
    first_peers: int
    calendar: Calendar
    regions: Regions
    directory: Directory
    ledger: TrafficLedger
    fold: Fold
    traits: list[Traits]
    members: list[Member | None]
    numbers: dict[str, int]
    live: list[Member]
    events: int
    recorder: Recorder | None

    @property
    def gossip(self) -> GossipPart:
        """Topics and what travels on them."""

    @property
    def arrivals(self) -> ArrivalsPart:
        """Starts, connections, ends."""

    @property
    def finding(self) -> FindingPart:
        """Models and the DHT."""

    @property
    def audit(self) -> AuditPart:
        """What must hold."""

    @property
    def now_us(self) -> int:
        """Simulated time."""

    def answering(self, number: int) -> Member | None:
        """Who answers for a key now."""

    def at(self, when_us: int, action: Callable[[], None]) -> None:
        """Something that happens once."""

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """The same, from now."""

    def tell(self, member: Member, event: membership.Event) -> None:
        """One event of membership."""

    def answer_at(self, when_us: int, member: Member, event: membership.Event) -> None:
        """The same, later."""

    def arm(self, member: Member) -> None:
        """Sees to a machine's deadline."""

    def perform(self, member: Member, effects: tuple[Any, ...]) -> None:
        """Carries effects out."""

    def tell_shards(self, member: Member, event: shards.Event) -> None:
        """One event of the shard machine."""
