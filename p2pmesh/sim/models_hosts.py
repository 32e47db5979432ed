"""What the peers of the world ``models`` have, what is known of it elsewhere, and the ways between them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.base.quantities import GIB
from p2pmesh.core.links import LinkMatrix, PairLink
from p2pmesh.sim.chance import PER_MILLION, Draws, mixed
from p2pmesh.sim.models_scenario import ModelsScenario
from p2pmesh.sim.peer import peer_id_of
from p2pmesh.sim.scenario import MINUTE_US

GIGABYTE = 1_000_000_000
EngineKey = tuple[int, LayerRange]
"""A model and the layers that an engine holds of it."""


@dataclass(slots=True)
class Host:
    """One peer: ``used`` is what stages take, by model; ``engines`` wait, oldest first, and give way to stages.

    ``said_free_bytes`` and ``is_said_up`` are what others believe.
    """

    number: int
    peer_id: PeerId
    total_bytes: int
    bytes_per_s: int
    region: int
    is_nat: bool
    is_lying: bool
    said_free_bytes: int
    is_said_up: bool = True
    is_said_soon: bool = False
    used: dict[int, int] = field(default_factory=dict)
    engines: dict[EngineKey, int] = field(default_factory=dict)

    @property
    def free_bytes(self) -> int:
        """What stages may take."""
        return self.total_bytes - sum(self.used.values())

    def make_room(self, needed_bytes: int) -> bool:
        """Whether a stage has room; engines that wait give way."""
        if self.free_bytes < needed_bytes:
            return False
        while self.engines and self.free_bytes - sum(self.engines.values()) < needed_bytes:
            del self.engines[next(iter(self.engines))]
        return True


class Hosts:
    """All peers of a world, by number."""

    def __init__(self, scenario: ModelsScenario, seed: int) -> None:
        self.all: list[Host] = []
        self.numbers: dict[PeerId, int] = {}
        self.known_boundary = 0
        """Of the partition, as peers have noticed it."""
        self._scenario = scenario
        self._seed = mixed(seed)
        self._draws = Draws(seed, "hosts")
        self._ways = Draws(seed, "ways")
        self._typical_us: dict[tuple[int, int], int] = {}
        self._views: dict[int, tuple[list[int], int]] = {}

    def add(self) -> Host:
        """One more peer, as the scenario mixes them."""
        mix, links, draws = self._scenario.hosts, self._scenario.links, self._draws
        gib, gigabytes_per_s, _ = mix.rows[_pick([row[2] for row in mix.rows], draws)]
        total_bytes = gib * GIB * (60 + draws.below(61)) // 100
        speed = gigabytes_per_s * GIGABYTE * (60 + draws.below(61)) // 100
        number = len(self.all)
        host = Host(
            number, peer_id_of(number), total_bytes, speed, _pick(links.region_weights, draws), draws.happens(mix.nat),
            draws.happens(mix.lying), total_bytes,
        )  # fmt: skip
        self.all.append(host)
        self.numbers[host.peer_id] = number
        return host

    def view(self, number: int) -> list[int]:
        """Whom a peer knows: the same share of all peers, whoever they are."""
        known, upto = self._views.get(number, ([], 0))
        first, wanted = self._scenario.peers, self._scenario.view
        key = self._seed ^ number << 24
        known += [j for j in range(upto, len(self.all)) if j != number and mixed(key ^ j) % max(1, first) < wanted]
        self._views[number] = (known, len(self.all))
        return known

    # --- ways -----------------------------------------------------------------------
    def typical_us(self, one: int, other: int) -> int:
        """One way between two peers, without jitter; a relay takes half as long again."""
        pair = (one, other) if one <= other else (other, one)
        found = self._typical_us.get(pair)
        if found is None:
            links, first, second = self._scenario.links, self.all[pair[0]], self.all[pair[1]]
            spread = links.spread_percent[mixed(self._seed ^ (pair[0] << 32 | pair[1])) % len(links.spread_percent)]
            found = links.one_way_us[first.region][second.region] * spread // 100
            found += found // 2 if first.is_nat and second.is_nat else 0
            self._typical_us[pair] = found
        return found

    def way_us(self, one: int, other: int) -> int:
        """The same with jitter."""
        typical, jitters = self.typical_us(one, other), self._scenario.links.jitter_percent
        return typical + typical * jitters[self._ways.below(len(jitters))] // 100

    def measured(self, now_us: int) -> "MeasuredLinks":
        """All links as they are known now."""
        return MeasuredLinks(self, now_us // MINUTE_US)

    def wavering(self, value: int, what: int, minute: int) -> int:
        """``value`` as it is measured in a minute; ``what`` names what is measured."""
        noise = self._scenario.noise_percent
        if noise == 0:
            return value
        return value * (100 - noise + mixed(self._seed ^ what ^ minute << 48) % (2 * noise + 1)) // 100

    def speed(self, host: Host, now_us: int) -> int:
        """Bytes that it reads in a second, as it announces them."""
        return self.wavering(host.bytes_per_s, host.number, now_us // MINUTE_US)

    def announce(self, host: Host, later: Callable[[int, Callable[[], None]], None]) -> None:
        """What it offers has changed; others know that in a while."""
        if host.is_said_soon:
            return
        host.is_said_soon = True

        def said() -> None:
            host.is_said_soon = False
            host.said_free_bytes = host.free_bytes

        later(self._scenario.gossip_us, said)


class MeasuredLinks(LinkMatrix):
    """The matrix of a minute, made as it is asked for."""

    __slots__ = ("_hosts", "_minute", "_seen")

    def __init__(self, hosts: Hosts, minute: int) -> None:
        super().__init__()
        self._hosts = hosts
        self._minute = minute
        self._seen: dict[tuple[PeerId, PeerId], PairLink] = {}

    def between(self, one: PeerId, other: PeerId) -> PairLink:
        """The link of a pair: its typical time, measured with noise."""
        pair = (one, other) if one <= other else (other, one)
        found = self._seen.get(pair)
        if found is None:
            hosts = self._hosts
            a, b = hosts.numbers[pair[0]], hosts.numbers[pair[1]]
            rtt_us = hosts.wavering(2 * hosts.typical_us(a, b), a << 24 | b, self._minute)
            is_relayed = hosts.all[a].is_nat and hosts.all[b].is_nat
            found = self._seen[pair] = PairLink(rtt_us, 0, is_relayed)
        return found

    def one_way_us(self, one: PeerId, other: PeerId) -> int:
        """Half of it."""
        return 0 if one == other else self.between(one, other).rtt_us // 2


def _pick(weights: tuple[int, ...] | list[int], draws: Draws) -> int:
    point = draws.below(sum(weights))
    for index, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return index
    raise AssertionError("the weights add up to more than every point")


def share_of(count: int, total: int) -> int:
    """Per million."""
    return PER_MILLION * count // max(1, total)
