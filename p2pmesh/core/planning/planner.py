"""The decision: a placement of all that was asked for, or why there is none.

In this order: the fewest peers that fit, so that what fits on one is never split; the coordinator drives, unless
that makes the step far longer; the shortest predicted step; the longest context; the most lanes; the least to fetch;
the fullest peer least full; peer ids. Peers of rank 0 hold the model alone if they can. Stages that a sticky family has
up stay with their owners if the rest can be placed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from p2pmesh.base.limits import MAX_STAGES
from p2pmesh.core.planning.cutting import FULL, NEVER, CutTables, Cutting
from p2pmesh.core.planning.kept import plan_kept
from p2pmesh.core.planning.outcome import (
    Placement,
    PlacementRefusal,
    PlannedStage,
    RunnerUp,
    WhyNot,
)
from p2pmesh.core.planning.pricing import Prices
from p2pmesh.core.planning.refusing import explain_shortage, refuse_at_once, refuse_wire, unused_peers
from p2pmesh.core.planning.request import PlanRequest, ShapeBytes
from p2pmesh.core.planning.search import Order, OrderSearch, consider_peers, pick_order_key


def plan_placement(request: PlanRequest) -> Placement | PlacementRefusal:
    """The placement, or why there is none. The order of the peers does not matter.

    A wire dtype that is not certified at a cut leaves it out. It is the reason of a refusal where every cut would give
    a placement, or a hope of one.
    """
    request, model = _without_doubles(request), request.model
    if model.wire_cuts is None:
        return _plan_by_rank(request)
    cuts = tuple(cut for cut in model.cuts if cut in model.wire_cuts)
    planned = _plan_by_rank(replace(request, model=replace(model, cuts=cuts)))
    if isinstance(planned, Placement):
        return planned
    otherwise = _plan_by_rank(request)
    if isinstance(otherwise, Placement) or (otherwise.could_peers_help and not planned.could_peers_help):
        return refuse_wire(request, planned)
    return planned


def _without_doubles(request: PlanRequest) -> PlanRequest:
    """Each peer once, as it is said to offer least."""
    ordered = sorted(request.peers, key=lambda peer: (peer.peer_id, -peer.offered_bytes, -peer.decode_bytes_per_s))
    by_id = {peer.peer_id: peer for peer in ordered}
    return replace(request, peers=tuple(by_id.values()))


def _plan_by_rank(request: PlanRequest) -> Placement | PlacementRefusal:
    """Peers of rank 0 that need not be spared, then all of rank 0, then all: where the first do not suffice, the others
    are not ranked among themselves, since a small one could stand in the way of larger ones. Before that, stages of a
    sticky family that are up, whoever has them.
    """
    if request.model.is_sticky and request.kept:
        kept = plan_kept(request)
        if isinstance(kept, Placement):
            return kept
    trusted = tuple(peer for peer in request.peers if peer.rank == 0)
    at_hand = tuple(peer for peer in trusted if not peer.is_spared)
    count = len(request.peers)
    for preferred in dict.fromkeys((at_hand, trusted)):
        if len(preferred) < count:
            planned = _Plan(replace(request, peers=preferred)).decide()
            if isinstance(planned, Placement):
                return replace(planned, unused=unused_peers(request, planned.stages))
    return _Plan(request).decide()


@dataclass(frozen=True, slots=True)
class _Choice:
    """An order, its cuts, and the shape that it has room for."""

    order: Order
    cutting: Cutting
    shape: ShapeBytes


class _Plan:
    """One decision over peers of equal rank."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._prices = Prices(request)
        self._considered = consider_peers(request, self._prices)
        self._tables: dict[ShapeBytes, CutTables] = {}
        self._least = self._tables_of(request.model.least)
        self._search = OrderSearch(request, self._considered, self._least, self._prices)

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        """Numbers of stages that the layers, the cuts and the protocol allow, or the one that was asked for."""
        model = self._request.model
        if self._request.stage_count is not None:
            return (self._request.stage_count,)
        return tuple(range(1, min(model.layer_count, len(model.cuts) + 1, MAX_STAGES) + 1))

    def decide(self) -> Placement | PlacementRefusal:
        refusal = refuse_at_once(self._request, self._considered)
        if refusal is not None:
            return refusal
        count = self._search.fewest(self._counts)
        if count is None:
            return explain_shortage(self._request, self._considered, self._least, self._counts)
        orders = self._search.orders(count)
        rivals = self._driven_by_coordinator(orders) or orders
        choice = self._choose(rivals)
        stages = self._stages(choice)
        return Placement(
            stages,
            choice.shape.context_tokens,
            choice.shape.lanes,
            self._prices.estimate(stages),
            tuple(self._runner_ups(choice, orders)),
            unused_peers(self._request, stages),
        )

    # --- among orders of the fewest peers
    def _driven_by_coordinator(self, orders: dict[Order, int]) -> dict[Order, int]:
        """Orders that begin at the coordinator, unless even the fastest of them is too slow."""
        own = {order: cost for order, cost in orders.items() if order[0] == self._considered.coordinator}
        is_near = min(own.values(), default=NEVER) <= self._request.policy.coordinator_factor * min(orders.values())
        return own if is_near else {}

    def _choose(self, orders: dict[Order, int]) -> _Choice:
        """The best shape that some equally fast order has room for, and the best of these orders."""
        budget_us = self._budget_us(min(orders.values()))
        tied = sorted(order for order, cost in orders.items() if cost <= budget_us)
        most = self._request.policy.most_tied_stages // len(tied[0])
        tied = sorted(tied, key=lambda order: orders[order])[: max(1, most)]
        found = (self._choose_in(shape, tied, budget_us) for shape in self._request.model.shapes)
        choice = next((choice for choice in found if choice is not None), None)
        assert choice is not None  # the last shape is the one that these orders were found with
        return choice

    def _budget_us(self, best_us: int) -> int:
        policy = self._request.policy
        return best_us + max(policy.tolerance_us, best_us * policy.tolerance_percent // 100)

    def _choose_in(self, shape: ShapeBytes, tied: Sequence[Order], budget_us: int) -> _Choice | None:
        tables = self._tables_of(shape)
        best: _Choice | None = None
        best_key: tuple[object, ...] = ()
        for order in tied:
            fetchers = self._fetchers(order)
            if best is not None and fetchers > self._fetchers(best.order):
                continue
            is_rival = best is not None and fetchers == self._fetchers(best.order)
            at_most = best.cutting.fullest if best is not None and is_rival else FULL
            ring_us = self._search.ring_us(order)
            cutting = tables.emptiest(order, budget_us - ring_us, at_most)
            if cutting is None:
                continue
            key = pick_order_key(cutting, fetchers, ring_us, self._considered.ids(order))
            if best is None or key < best_key:
                best, best_key = _Choice(order, cutting, shape), key
        return best

    def _fetchers(self, order: Order) -> int:
        """Stages whose peers must fetch them."""
        return sum(not self._considered.peers[place].has_model for place in order)

    def _tables_of(self, shape: ShapeBytes) -> CutTables:
        if shape not in self._tables:
            self._tables[shape] = CutTables(self._request.model, shape, self._considered.seats)
        return self._tables[shape]

    def _stages(self, choice: _Choice) -> tuple[PlannedStage, ...]:
        peers = (self._considered.peers[place] for place in choice.order)
        return tuple(
            PlannedStage(peer.peer_id, layers, choice.shape.bytes_of(layers), peer.offered_bytes)
            for peer, layers in zip(peers, choice.cutting.ranges(), strict=True)
        )

    # --- what else there was
    def _runner_ups(self, chosen: _Choice, orders: dict[Order, int]) -> Iterator[RunnerUp]:
        """The fastest other choices of peers, and the best with one peer more; each once."""
        seen = {frozenset(chosen.order)}
        ranked = sorted(orders, key=lambda order: (orders[order], self._considered.ids(order)))
        told = 0
        for order in ranked:
            if told + 1 >= self._request.policy.runner_ups:
                break
            if frozenset(order) not in seen:
                seen.add(frozenset(order))
                told += 1
                yield self._runner_up(order, chosen)
        more = self._one_more(chosen)
        if more is not None:
            yield self._runner_up(more, chosen)

    def _one_more(self, chosen: _Choice) -> Order | None:
        """The chosen order with the one more peer that makes the shortest step."""
        count = len(chosen.order) + 1
        if self._request.stage_count is not None or count > len(self._counts):
            return None
        others = [place for place in range(len(self._considered.peers)) if place not in chosen.order]
        first = 1 if chosen.order[0] == self._considered.coordinator else 0
        longer = [(*chosen.order[:at], other, *chosen.order[at:]) for other in others for at in range(first, count)]
        near = sorted(longer, key=lambda order: (self._search.ring_us(order), order))
        near = near[: max(1, self._request.policy.most_tied_stages // count)]
        cost, order = min(((self._search.cost_us(order), order) for order in near), default=(NEVER, ()))
        return order if cost < NEVER else None

    def _runner_up(self, order: Order, chosen: _Choice) -> RunnerUp:
        ring_us = self._search.ring_us(order)
        budget_us = self._budget_us(self._search.cost_us(order))
        cutting = self._least.emptiest(order, budget_us - ring_us)
        assert cutting is not None
        choice = _Choice(order, cutting, self._request.model.least)
        stages = self._stages(choice)
        return RunnerUp(stages, self._prices.estimate(stages), self._why_not(choice, chosen))

    def _why_not(self, other: _Choice, chosen: _Choice) -> WhyNot:
        if len(other.order) > len(chosen.order):
            return WhyNot.MORE_PEERS
        coordinator = self._considered.coordinator
        if chosen.order[0] == coordinator != other.order[0]:
            return WhyNot.ANOTHER_DRIVER
        budget_us = self._budget_us(self._search.cost_us(chosen.order))
        if self._search.cost_us(other.order) > budget_us:
            return WhyNot.SLOWER
        if chosen.shape is not self._request.model.least:
            ring_us = self._search.ring_us(other.order)
            if self._tables_of(chosen.shape).emptiest(other.order, budget_us - ring_us) is None:
                return WhyNot.SMALLER_CONTEXT
        if self._fetchers(other.order) > self._fetchers(chosen.order):
            return WhyNot.MORE_TO_FETCH
        return WhyNot.FULLER
