"""How this node is reached: whom it asks about itself, which relays keep a place for it, which peers become direct.

Runs ``ReachabilityMachine``, ``ReservationsMachine`` and ``UpgradeMachine`` over ``ports.reach``. What a dial does with
the addresses that come of it is the network's; ``report`` is what the status and ``doctor network`` tell.
"""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from ipaddress import ip_address, ip_network

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_ADDRESS_BYTES, MAX_ADDRESSES
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core import reachability, reservations, upgrades
from p2pmesh.core.addresses import is_loopback
from p2pmesh.core.reachability import DialBack, HeldReservation, Reachability, ReachReport, RelayLoad, Witness
from p2pmesh.core.relaying import ReachSettings, RelayService
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.candidates import is_behind_nat
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.ports.reach import Sight

LOOK_EVERY_S = 10.0
SETTLE_S = 0.05
"""Connections come and go in bursts."""
SETTLE_VIEW_S = 0.25
"""So does what peers announce, which matters less."""
HOSTS_EVERY_S = 5.0
OBSERVE_TIMEOUT_S = 5.0
DIAL_BACK_TIMEOUT_S = 8.0
RESERVE_TIMEOUT_S = 8.0
PUNCH_TIMEOUT_S = 15.0
OBSERVE_AGAIN_S = 600.0
GRACE_S = 5.0
"""A relayed connection stays for so long beside the direct one, for what was just begun on it."""
MAX_ASKED_HOSTS = 2
MAX_RELAY_ADDRESSES = 2
"""Told of each of our relays."""
MAX_CANDIDATES = 64
_INNER = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7")))
MEET_LATER_S = 2.0
"""Of two peers that hear of each other, the one with the greater peer id waits so long for the other."""
MEET_AGAIN_S = 120.0
MAX_MET = 64
"""Peers that are remembered as met, in a small overlay."""


class Reach:
    """The reach of one node."""

    def __init__(self, overlay: Overlay, ports: Neighbours, settings: ReachSettings, report: Report) -> None:
        self._overlay = overlay
        self._port = ports.network.reach
        self._network = ports.network
        self._clock = ports.clock
        self._settings = settings
        self._report = report
        self._found = reachability.ReachabilityMachine()
        self._relays = reservations.ReservationsMachine(int.from_bytes(ports.entropy.random_bytes(8), "big"))
        self._ways = upgrades.UpgradeMachine()
        self._told = _by_peer(settings.relays)
        self._where: dict[PeerId, tuple[str, ...]] = {}
        """Addresses, without peer id, that relays of ours were met at."""
        self._observed: dict[PeerId, Micros] = {}
        self._both_since: dict[PeerId, Micros] = {}
        """Peers with a direct connection beside a relayed one."""
        self._met: dict[PeerId, Micros] = {}
        """When peers behind NATs are met next."""
        self._own_hosts: frozenset[str] = frozenset()
        self._hosts_due = Micros(0)
        self._is_announced = False
        self._nursery: trio.Nursery | None = None
        self.on_announced: Callable[[], None] = lambda: None
        """Told when others may be told another address than before."""
        self.on_upgraded: Callable[[], None] = lambda: None
        """Told when a peer's path has become direct: what was measured of it is of another path."""
        overlay.is_guest = self._port.uses_relay

    # --- what others here ask ------------------------------------------------------
    def report(self) -> ReachReport:
        """How this node can be reached now."""
        now = self._clock.now()
        reached, failed = self._found.witness_counts()
        use = self._port.relay_use()
        held = tuple(
            HeldReservation(relay, address, self._relays.left_us(relay, now) // MICROS_PER_SECOND)
            for relay in self._relays.held
            for address in self._addresses_at(relay)[:1]
        )
        admitted = self._overlay.admitted_peers()
        direct = sum(self._port.paths_of(peer).has_direct for peer in admitted)
        return ReachReport(
            self._found.verdict,
            self._found.nat,
            self._found.needs_relay,
            reached,
            failed,
            self._found.observed_hosts,
            self._found.confirmed_addresses,
            held,
            RelayLoad(self._offers_relay(), self._is_announced, use.reservations, use.circuits),
            relayed_peers=len(admitted) - direct,
            direct_peers=direct,
        )

    # --- running -------------------------------------------------------------------
    async def run(self) -> None:
        """Until cancelled."""
        self._offer()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._follow_paths)
            while True:
                seen = self._overlay.board.changes.count
                self._look()
                with trio.move_on_after(self._until_deadline_s()):
                    await self._overlay.board.changes.wait_beyond(seen)
                await trio.sleep(SETTLE_VIEW_S)

    async def _follow_paths(self) -> None:
        seen = 0
        while True:
            seen = await self._port.paths_changed(seen)
            self._look()
            await trio.sleep(SETTLE_S)

    def _until_deadline_s(self) -> float:
        deadlines = (self._found.deadline(), self._relays.deadline(), self._ways.deadline())
        meetings = (due for due in self._met.values() if due > self._clock.now())
        due = min((one for one in (*deadlines, *meetings) if one is not None), default=None)
        left_s = LOOK_EVERY_S if due is None else (due - self._clock.now()) / MICROS_PER_SECOND
        return min(LOOK_EVERY_S, max(0.0, left_s))

    def _look(self) -> None:
        """Takes in what has changed around us, and lets every machine see the time."""
        admitted = frozenset(self._overlay.admitted_peers())
        now = self._clock.now()
        if now >= self._hosts_due:  # interfaces change seldom, and the system is slow to tell of them
            self._hosts_due = Micros(now + round(HOSTS_EVERY_S * MICROS_PER_SECOND))
            self._own_hosts = self._port.own_hosts()
            self._tell_found(reachability.OwnHostsChanged(self._own_hosts, self._port.inner_hosts()))
        self._tell_found(reachability.WitnessesChanged(tuple(self._witnesses(admitted))))
        connected = self._network.connected_peers()
        for relay in self._relays.held:
            if relay not in connected or not self._port.paths_of(relay).has_direct:
                self._tell_relays(reservations.RelayLost(relay))
        if self._needs_relay():
            self._tell_relays(reservations.CandidatesChanged(tuple(self._candidates(admitted))))
        self._tell_relays(reservations.NeedChanged(self._needs_relay()))
        self._look_at_ways(admitted, connected)
        for peer in sorted((connected - admitted) & self._port.relay_users()):
            if self._overlay.board.find(peer) is not None:
                self._start(self._meet, peer)
        self._meet_the_hidden(connected)

    def _meet_the_hidden(self, connected: frozenset[PeerId]) -> None:
        """In a small overlay everybody is a neighbour; who is behind a NAT is met as soon as it can be: the way to a
        direct path begins with that."""
        board, now = self._overlay.board, self._clock.now()
        if board.is_large:
            return
        hidden = [PeerId(said.peer_id) for said in board.others() if is_behind_nat(said)]
        self._met = {peer: self._met[peer] for peer in self._met if peer in hidden}
        for peer in hidden[:MAX_MET]:
            later_us = 0 if self._overlay.own_peer < peer else round(MEET_LATER_S * MICROS_PER_SECOND)
            due = self._met.setdefault(peer, Micros(now + later_us))
            if peer not in connected and due <= now:
                self._met[peer] = Micros(now + round(MEET_AGAIN_S * MICROS_PER_SECOND))
                self._start(self._meet, peer)

    async def _meet(self, peer: PeerId) -> None:
        """Says hello, as far as that goes."""
        with suppress(P2PMeshError):
            await self._overlay.ensure_admitted(peer)

    def _start(self, task: Callable[..., object], *args: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task, *args)  # type: ignore[arg-type]

    # --- witnesses -----------------------------------------------------------------
    def _witnesses(self, admitted: frozenset[PeerId]) -> Iterable[Witness]:
        """Members and relays of ours that are connected directly, and not on this machine."""
        asked = sorted(admitted | frozenset(self._relays.held))
        self._observed = {peer: at for peer, at in self._observed.items() if peer in asked}
        for peer in asked:
            host = self._port.remote_host(peer)
            network = None if host is None else reachability.network_of(host)
            if network is not None:
                witness = Witness(peer, network)
                self._observe_soon(witness)
                yield witness

    def _observe_soon(self, witness: Witness) -> None:
        now = self._clock.now()
        last = self._observed.get(witness.peer)
        if last is None or now - last >= OBSERVE_AGAIN_S * MICROS_PER_SECOND:
            self._observed[witness.peer] = now
            self._start(self._observe, witness)

    async def _observe(self, witness: Witness) -> None:
        """Where it sees us; where ports do not stay, also where it sees what leaves from the port we listen on."""
        seen = await self._see(witness)
        if seen is None:
            return
        self._tell_found(reachability.Observed(witness, seen.host, seen.port, seen.local_port))
        if seen.host not in self._own_hosts and seen.port != seen.local_port:
            again = await self._port.observe_listen_port(witness.peer, OBSERVE_TIMEOUT_S)
            if again is not None:
                self._tell_found(reachability.Observed(witness, again.host, again.port, again.local_port))

    async def _see(self, witness: Witness) -> Sight | None:
        """Where a witness sees us; None also where nobody of another machine could."""
        seen = await self._port.observe(witness.peer, OBSERVE_TIMEOUT_S)
        return None if seen is None or reachability.network_of(seen.host) is None else seen

    async def _ask(self, witness: Witness) -> None:
        seen = await self._see(witness)
        outcome, address = DialBack.DECLINED, ""
        if seen is not None:
            self._tell_found(reachability.Observed(witness, seen.host, seen.port, seen.local_port))
            addresses = self._addresses_on((seen.host,))
            outcome, address = await self._port.ask_dial_back(witness.peer, addresses, DIAL_BACK_TIMEOUT_S)
        self._tell_found(reachability.WitnessAnswered(witness, outcome, address))

    def _addresses_on(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Where we would be met on hosts that others see: by the port they saw for ours, or else by ours."""
        port = self._port.listen_port()
        ports = {port} if port is not None else {_port_of(address) for address in self._listened()}
        found = []
        for host in hosts[:MAX_ASKED_HOSTS]:
            for local in sorted(one for one in ports if one):
                mapped = self._found.mapped_port(host, local) or local
                found.append(f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{mapped}")
        return tuple(found)[:MAX_ADDRESSES]

    def _listened(self) -> tuple[str, ...]:
        """Our direct addresses, loopback left out, without peer id."""
        return tuple(address.partition("/p2p/")[0] for address in _direct(self._network.addresses()))

    def _tell_found(self, event: reachability.Event) -> None:
        for effect in self._found.handle(event, self._clock.now()):
            match effect:
                case reachability.AskWitness(witness):
                    self._start(self._ask, witness)
                case reachability.VerdictChanged():
                    self._on_verdict()

    def _on_verdict(self) -> None:
        self._port.set_own_addresses(self._meetable())
        self._offer()
        self._announce()
        self._tell_relays(reservations.NeedChanged(self._needs_relay()))
        facts = {"reachability": self._found.verdict.value, "nat": self._found.nat.value}
        self._report("reach_changed", {**facts, "needs_relay": self._found.needs_relay})

    def _meetable(self) -> tuple[str, ...]:
        """What a peer that tries for a direct connection is told: beyond our NAT first, then on our own networks."""
        return tuple(dict.fromkeys((*self._addresses_on(self._found.observed_hosts), *self._listened())))

    # --- being a relay ---------------------------------------------------------------
    def _offers_relay(self) -> bool:
        """Others are answered in doubt too: who can ask has reached us."""
        if self._settings.service is not RelayService.AUTO:
            return self._settings.service is RelayService.ON
        is_open = self._found.verdict is Reachability.UNKNOWN and not self._found.needs_relay
        return is_open or self._found.verdict is Reachability.PUBLIC

    def _offer(self) -> None:
        offers = self._offers_relay()
        self._port.offer_relay(self._settings.limits if offers else None)
        is_sure = self._settings.service is RelayService.ON or self._found.verdict is Reachability.PUBLIC
        is_announced = offers and is_sure
        if is_announced != self._is_announced:
            self._is_announced = is_announced
            self._overlay.board.note_reach(is_relay=is_announced)

    # --- relays that we use ------------------------------------------------------------
    def _needs_relay(self) -> bool:
        """Whoever names relays wants them, also before there is anybody who could say where he sees us."""
        return bool(self._told) or self._found.needs_relay

    def _candidates(self, admitted: frozenset[PeerId]) -> Iterable[reservations.Candidate]:
        """Those that the operator named, those that say they relay, and members that we have dialled ourselves."""
        known = {PeerId(said.peer_id): said for said in self._overlay.board.others()}
        named = [*self._told, *(peer for peer, said in known.items() if said.is_relay), *sorted(admitted)]
        for peer in list(dict.fromkeys(named))[:MAX_CANDIDATES]:
            said = known.get(peer)
            is_announced = said is not None and said.is_relay
            address = self._port.dialled_address(peer)
            if peer in self._told or is_announced or address is not None:
                host = _host_of(address or next(iter(_direct(said.addresses if said else ())), ""))
                network = reachability.network_of(host) or ""
                yield reservations.Candidate(peer, network, peer in self._told, is_announced, self._order(peer))

    def _order(self, peer: PeerId) -> int:
        digest = hashlib.blake2b(f"{self._overlay.own_peer} {peer}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def _tell_relays(self, event: reservations.Event) -> None:
        for effect in self._relays.handle(event, self._clock.now()):
            match effect:
                case reservations.Reserve(peer):
                    self._start(self._reserve, peer)
                case reservations.RelaysChanged(lost):
                    for relay in lost:
                        self._port.give_up_relay(relay)
                    self._met.clear()  # whoever was out of reach with the last relay may be met through this one
                    self._announce()
                    relays = list(self._relays.held)
                    self._report("relays_changed", {"relays": relays, "count": len(relays)})

    async def _reserve(self, peer: PeerId) -> None:
        try:
            await self._reach_relay(peer)
            life_s = await self._port.reserve(peer, RESERVE_TIMEOUT_S)
        except P2PMeshError:
            self._tell_relays(reservations.ReserveFailed(peer))
            return
        address = self._port.dialled_address(peer)
        if address is not None:
            self._where[peer] = tuple(dict.fromkeys((address, *self._where.get(peer, ()))))[:MAX_RELAY_ADDRESSES]
        self._where = {relay: self._where[relay] for relay in self._where if self._relays.is_relay(relay)}
        self._tell_relays(reservations.Reserved(peer, life_s * MICROS_PER_SECOND))

    async def _reach_relay(self, peer: PeerId) -> None:
        """A member is met as one; who is none, and was named by the operator, is only connected to."""
        addresses = (*self._told.get(peer, ()), *self._where.get(peer, ()))
        is_member = self._overlay.board.find(peer) is not None or self._overlay.is_admitted(peer)
        if is_member or peer not in self._told:
            await self._overlay.ensure_admitted(peer, addresses)
        elif not self._port.paths_of(peer).has_direct:
            await self._network.dial(peer, addresses, RESERVE_TIMEOUT_S)

    def _addresses_at(self, relay: PeerId) -> tuple[str, ...]:
        """Where others dial us through a relay: by the addresses that it announces, and the one that we met it at."""
        said = self._overlay.board.find(relay)
        told = (*_direct(said.addresses if said else ()), *self._where.get(relay, ()), *self._told.get(relay, ()))
        bare = dict.fromkeys(address.partition("/p2p/")[0] for address in told)
        best = sorted(bare, key=lambda address: _is_inner(_host_of(address)))
        through = [f"{address}/p2p/{relay}/p2p-circuit" for address in best if _port_of(address)]
        # What a relay says of itself becomes a part of our own announcement: nobody takes it with one too long.
        room = MAX_ADDRESS_BYTES - len(f"/p2p/{self._overlay.own_peer}")
        return tuple(text for text in through if len(text.encode()) <= room)[:MAX_RELAY_ADDRESSES]

    def _announce(self) -> None:
        relayed = [address for relay in self._relays.held for address in self._addresses_at(relay)]
        self._port.announce_besides(self._found.confirmed_addresses, tuple(relayed))
        self._overlay.board.note_reach(is_relay=self._is_announced)
        self.on_announced()

    # --- direct paths --------------------------------------------------------------------
    def _look_at_ways(self, admitted: frozenset[PeerId], connected: frozenset[PeerId]) -> None:
        for peer in self._ways.relayed:
            if peer not in connected:
                self._tell_ways(upgrades.PeerGone(peer))
        now = self._clock.now()
        both: dict[PeerId, Micros] = {}
        for peer in sorted(admitted):
            paths = self._port.paths_of(peer)
            if paths.has_direct:
                self._tell_ways(upgrades.DirectFound(peer))
            elif paths.has_relayed:
                self._tell_ways(upgrades.RelayedFound(peer, paths.was_dialled_through_relay))
            if paths.has_direct and paths.has_relayed:
                both[peer] = self._both_since.get(peer, now)
                if now - both[peer] >= GRACE_S * MICROS_PER_SECOND:
                    self._start(self._port.close_relayed, peer)
        self._both_since = both
        self._tell_ways(upgrades.DeadlinePassed())

    def _tell_ways(self, event: upgrades.Event) -> None:
        for effect in self._ways.handle(event, self._clock.now()):
            match effect:
                case upgrades.Punch(peer):
                    self._start(self._punch, peer)
                case upgrades.PathUpgraded(peer, after_us, tries):
                    self.on_upgraded()
                    self._report(
                        "path_upgraded",
                        {"peer_id": peer, "path": "direct", "after_ms": after_us // 1000, "tries": tries},
                    )

    async def _punch(self, peer: PeerId) -> None:
        if await self._port.punch(peer, self._meetable(), PUNCH_TIMEOUT_S):
            self._tell_ways(upgrades.DirectFound(peer))
        else:
            self._tell_ways(upgrades.PunchFailed(peer))


def _by_peer(texts: tuple[str, ...]) -> dict[PeerId, tuple[str, ...]]:
    found: dict[PeerId, tuple[str, ...]] = {}
    for text in texts:
        address, _, peer = text.partition("/p2p/")
        found[PeerId(peer)] = (*found.get(PeerId(peer), ()), address)
    return found


def _direct(addresses: Iterable[str]) -> tuple[str, ...]:
    """Those that others may dial: no circuits, no loopback."""
    return tuple(one for one in addresses if "/p2p-circuit" not in one and not is_loopback(one))


def _host_of(address: str) -> str:
    parts = address.split("/")
    return parts[2] if len(parts) > 2 else ""


def _is_inner(host: str) -> bool:
    """Whether an address is one of a home or a company, which leads nowhere from others. A name may lead anywhere."""
    try:
        return any(ip_address(host) in network for network in _INNER if network.version == ip_address(host).version)
    except ValueError:
        return False


def _port_of(address: str) -> int:
    parts = address.split("/")
    return int(parts[4]) if len(parts) > 4 and parts[4].isdigit() else 0
