"""Which peers in which order: all orders where they are few, and from good starts step by step where they are many.

Up to ``most_exhaustive_orders`` orders (five peers always) every one is tried, so that the best is found. Beyond that
the search starts from the largest, the fastest and the nearest peers, and replaces or swaps one at a time while the
step gets shorter. It may then miss the best, and, where layers are very uneven, a fit that another order would have.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, permutations
from math import perm
from typing import NamedTuple

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.planning.cutting import NEVER, CutTables, Cutting, Seat
from p2pmesh.core.planning.pricing import Prices
from p2pmesh.core.planning.request import PlanningPeer, PlanRequest

Order = tuple[int, ...]
"""Peers by their place among those considered."""
_NEAREST_STARTS = 3
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Considered:
    """The peers that are looked at, the largest first, and what a stage on each may be.

    ``rooms`` are bytes that no stage on a peer can exceed, by its memory and by its owner's cap on layers.
    """

    peers: tuple[PlanningPeer, ...]
    seats: tuple[Seat, ...]
    rooms: tuple[int, ...]
    coordinator: int | None
    """The place of the coordinator, if it is among them."""

    def ids(self, order: Order) -> tuple[PeerId, ...]:
        """The peers of an order."""
        return tuple(self.peers[place].peer_id for place in order)


def consider_peers(request: PlanRequest, prices: Prices) -> Considered:
    """Peers that offer memory, the largest rooms first, ties by offer and peer id; the coordinator among them."""
    rooms = {peer.peer_id: _room_bytes(request, peer) for peer in request.peers if peer.offered_bytes > 0}
    offering = [peer for peer in request.peers if peer.peer_id in rooms]
    ordered = sorted(offering, key=lambda peer: (-rooms[peer.peer_id], -peer.offered_bytes, peer.peer_id))
    peers = ordered[: request.policy.most_peers]
    beyond = ordered[request.policy.most_peers :]
    peers[-1:] = [peer for peer in beyond if peer.peer_id == request.coordinator] or peers[-1:]
    layers = request.model.layer_count
    seats = tuple(
        Seat(
            request.usable_bytes(peer),
            layers if peer.most_layers is None else peer.most_layers,
            prices.speed_of(peer),
        )
        for peer in peers
    )
    places = {peer.peer_id: place for place, peer in enumerate(peers)}
    coordinator = None if request.coordinator is None else places.get(request.coordinator)
    return Considered(tuple(peers), seats, tuple(rooms[peer.peer_id] for peer in peers), coordinator)


def _room_bytes(request: PlanRequest, peer: PlanningPeer) -> int:
    usable, shape = request.usable_bytes(peer), request.model.least
    if peer.most_layers is None:
        return usable
    capped = peer.most_layers * max(shape.layer_bytes)
    return min(usable, capped + shape.first_bytes + shape.last_bytes + shape.stage_bytes)


class Change(NamedTuple):
    """A step from an order to another: the peer at ``at`` becomes ``other``, or changes places with ``later``."""

    at: int
    other: int
    later: int = -1


def _changed(order: Order, change: Change) -> Order:
    new = list(order)
    if change.other >= 0:
        new[change.at] = change.other
    else:
        new[change.at], new[change.later] = new[change.later], new[change.at]
    return tuple(new)


class HopTable:
    """What each hop between considered peers counts for: forward with an activation, and back with a token.

    Filled as it is asked for: what fits on one peer needs hardly any of it.
    """

    def __init__(self, considered: Considered, prices: Prices) -> None:
        self._ids = [peer.peer_id for peer in considered.peers]
        self._prices = prices
        self._alone_us = prices.overhead_us(1)
        self._step_us = prices.overhead_us(2) - 2 * prices.hop_overhead_us
        unknown = [_UNKNOWN] * len(self._ids)
        self._back = [list(unknown) for _ in self._ids]
        self._forward = [list(unknown) for _ in self._ids]

    def _back_us(self, at: int, to: int) -> int:
        """Of a hop with a token; as long in both directions."""
        found = self._back[at][to]
        if found == _UNKNOWN:
            found = self._prices.hop_us(self._ids[at], self._ids[to])
            self._back[at][to] = self._back[to][at] = found
        return found

    def _forward_us(self, at: int, to: int) -> int:
        """Of a hop with an activation."""
        found = self._forward[at][to]
        if found == _UNKNOWN:
            found = self._back_us(at, to) + self._prices.transfer_us(self._ids[at], self._ids[to])
            self._forward[at][to] = found
        return found

    def ring_us(self, order: Order) -> int:
        """All but compute of a step."""
        if len(order) == 1:
            return self._alone_us
        forward = sum(self._forward_us(one, other) for one, other in pairwise(order))
        return forward + self._back_us(order[-1], order[0]) + self._step_us

    def difference_us(self, order: Order, change: Change) -> int:
        """What a change adds to the ring."""
        count = len(order)
        if count == 1:
            return 0
        new = _changed(order, change)
        touched = {change.at, (change.at - 1) % count}
        if change.other < 0:
            touched |= {change.later, change.later - 1}
        return sum(self._edge_us(new, at) - self._edge_us(order, at) for at in touched)

    def _edge_us(self, order: Order, at: int) -> int:
        last = at == len(order) - 1
        return self._back_us(order[at], order[0]) if last else self._forward_us(order[at], order[at + 1])

    def nearest_ring(self, first: int, count: int) -> list[int]:
        """From a peer to the nearest that is left, again and again."""
        ring = [first]
        left = [place for place in range(len(self._ids)) if place != first]
        while len(ring) < count and left:
            last = ring[-1]
            nearest = min(left, key=lambda place: (self._back_us(last, place), place))
            left.remove(nearest)
            ring.append(nearest)
        return ring


class OrderSearch:
    """Orders of the peers, with what a step through them takes."""

    def __init__(self, request: PlanRequest, considered: Considered, tables: CutTables, prices: Prices) -> None:
        self._policy = request.policy
        self._considered = considered
        self._tables = tables
        self._hops = HopTable(considered, prices)
        self._found: dict[Order, int] = {}
        self._evaluated_stages = 0
        self._looked_at = 0

    # --- what an order costs
    def ring_us(self, order: Order) -> int:
        """All but compute, with penalties."""
        return self._hops.ring_us(order)

    def cost_us(self, order: Order) -> int:
        """The shortest step through an order; ``NEVER`` where the model does not fit so."""
        if order not in self._found:
            self._evaluated_stages += len(order)
            cutting = self._tables.fastest(order)
            self._found[order] = NEVER if cutting is None else self.ring_us(order) + cutting.compute_us
        return self._found[order]

    # --- how many
    def fewest(self, counts: Sequence[int]) -> int | None:
        """The first of ``counts`` (ascending) in which some order fits."""
        rooms = tuple(accumulate(sorted(self._considered.rooms, reverse=True)))
        hopeful = [n for n in counts if n <= len(rooms) and rooms[n - 1] >= self._tables.whole_bytes]
        if not hopeful:
            return None
        largest_first = self._tables.feasible_counts(range(hopeful[-1]))
        return next((count for count in hopeful if largest_first[count - 1] or self._fits(count)), None)

    def _fits(self, count: int) -> bool:
        orders = self._all_orders(count) if self._is_exhaustive(count) else self._starts(count, None)
        return any(self.cost_us(order) < NEVER for order in orders)

    def _is_exhaustive(self, count: int) -> bool:
        return perm(len(self._considered.peers), count) <= self._policy.most_exhaustive_orders

    def _all_orders(self, count: int) -> Iterator[Order]:
        return permutations(range(len(self._considered.peers)), count)

    # --- which
    def orders(self, count: int) -> dict[Order, int]:
        """Orders of ``count`` peers that fit, with their steps; the best among them as far as it was found."""
        if self._is_exhaustive(count):
            for order in self._all_orders(count):
                self.cost_us(order)
        else:
            self._climb_from(self._starts(count, None), fixed=0)
            if self._considered.coordinator is not None:
                self._climb_from(self._starts(count, self._considered.coordinator), fixed=1)
        return {order: cost for order, cost in self._found.items() if len(order) == count and cost < NEVER}

    def _starts(self, count: int, coordinator: int | None) -> tuple[Order, ...]:
        """Orders to begin with; with a ``coordinator``, that first."""
        seats = self._considered.seats
        head = () if coordinator is None else (coordinator,)
        rest = [place for place in range(len(seats)) if place not in head]
        wanted = count - len(head)
        largest = rest[:wanted]
        fastest = sorted(rest, key=lambda place: (-seats[place].bytes_per_s, place))[:wanted]
        starts = [largest, largest[::-1], fastest, sorted(fastest)]
        for first in rest[:_NEAREST_STARTS] if coordinator is None else (coordinator,):
            starts.append(self._hops.nearest_ring(first, count)[len(head) :])
        return tuple(dict.fromkeys((*head, *start) for start in starts if len(start) == wanted))

    def _climb_from(self, starts: Sequence[Order], fixed: int) -> None:
        self._evaluated_stages = self._looked_at = 0
        for cost, start in sorted((self.cost_us(start), start) for start in starts):
            if cost < NEVER:
                self._climb(start, fixed)

    def _climb(self, start: Order, fixed: int) -> None:
        """A shorter neighbour, again and again, the likeliest first, until there is none or enough was tried."""
        order: Order | None = start
        while order is not None and self._looked_at < self._policy.most_neighbours:
            order = self._shorter(order, fixed)

    def _shorter(self, order: Order, fixed: int) -> Order | None:
        cost = self.cost_us(order)
        for _, change in sorted(self._hopeful(order, cost, fixed)):
            if self._evaluated_stages >= self._policy.most_evaluated_stages:
                return None
            other = _changed(order, change)
            if self.cost_us(other) < cost:
                return other
        return None

    def _hopeful(self, order: Order, cost: int, fixed: int) -> Iterator[tuple[int, Change]]:
        """Neighbours that may be shorter, each with the step that it is likely to take."""
        seats = self._considered.seats
        ring_us = self.ring_us(order)
        usable = sum(seats[place].usable_bytes for place in order)
        slowness = sum(seats[place].usable_bytes / seats[place].bytes_per_s for place in order)
        reads_us = self._tables.whole_reads * MICROS_PER_SECOND
        least_us = reads_us // max(seat.bytes_per_s for seat in seats)
        for change in self._changes(order, fixed):
            self._looked_at += 1
            ring = ring_us + self._hops.difference_us(order, change)
            offer, slow = usable, slowness
            if change.other >= 0:
                old, new = seats[order[change.at]], seats[change.other]
                offer += new.usable_bytes - old.usable_bytes
                slow += new.usable_bytes / new.bytes_per_s - old.usable_bytes / old.bytes_per_s
            if ring + least_us < cost and offer >= self._tables.whole_bytes:
                yield ring + round(reads_us * slow / offer), change

    def _changes(self, order: Order, fixed: int) -> Iterator[Change]:
        """One peer replaced by another, or two that change places; the first ``fixed`` stay."""
        taken = frozenset(order)
        others = [place for place in range(len(self._considered.peers)) if place not in taken]
        for at in range(fixed, len(order)):
            yield from (Change(at, other) for other in others)
            yield from (Change(at, -1, later) for later in range(at + 1, len(order)))


def pick_order_key(cutting: Cutting, fetchers: int, ring_us: int, ids: tuple[PeerId, ...]) -> tuple[object, ...]:
    """What decides between orders that are equally fast: less to fetch, emptier, faster, and then the peer ids."""
    return (fetchers, cutting.fullest, ring_us + cutting.compute_us, ids)
