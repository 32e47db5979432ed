"""Why there is no placement, and why a peer holds no stage: a reason, its numbers, what would help."""

from collections.abc import Sequence

from p2pmesh.base.limits import MAX_STAGES
from p2pmesh.base.quantities import MICROS_PER_SECOND, format_size
from p2pmesh.core.planning.cutting import NEVER, CutTables, could_be_cut
from p2pmesh.core.planning.outcome import (
    Numbers,
    PeerReason,
    PeerRefusal,
    PlacementReason,
    PlacementRefusal,
    PlannedStage,
)
from p2pmesh.core.planning.request import PlanningPeer, PlanRequest
from p2pmesh.core.planning.search import Considered


def refuse_at_once(request: PlanRequest, considered: Considered) -> PlacementRefusal | None:
    """Refusals that counting alone gives; those that no peer can mend come first."""
    wanted, model = request.stage_count, request.model
    here = len(considered.peers)
    if wanted is not None and wanted > min(model.layer_count, MAX_STAGES):
        text = f"{wanted} stages of {model.layer_count} layers, of at most {MAX_STAGES} stages; ask for fewer"
        numbers: Numbers = (("wanted_stages", wanted), ("layers", model.layer_count), ("most_stages", MAX_STAGES))
        return _refusal(request, PlacementReason.TOO_FEW_LAYERS, text, numbers, could_peers_help=False)
    if wanted is not None and wanted - 1 > len(model.cuts):
        text = f"{wanted} stages need {wanted - 1} cuts, this family permits {len(model.cuts)}; ask for fewer"
        numbers = (("wanted_stages", wanted), ("permitted_cuts", len(model.cuts)))
        return _refusal(request, PlacementReason.NO_PERMITTED_CUT, text, numbers, could_peers_help=False)
    if not here:
        text = f"no peer offers memory (0 B in all); {_advice(request, 'start one without --max-memory 0')}"
        numbers = (("peers", len(request.peers)), ("offered_bytes", 0))
        return _refusal(request, PlacementReason.NO_MEMORY_OFFERED, text, numbers, could_peers_help=True)
    if wanted is not None and wanted > here:
        present = "1 is" if here == 1 else f"{here} are"
        advice = _advice(request, f"start {wanted - here} more")
        text = f"{wanted} stages need {wanted} peers with memory, {present} here; {advice}"
        numbers = (("wanted_stages", wanted), ("peers_with_memory", here))
        return _refusal(request, PlacementReason.TOO_FEW_PEERS, text, numbers, could_peers_help=True)
    return None


def explain_shortage(
    request: PlanRequest, considered: Considered, tables: CutTables, counts: Sequence[int]
) -> PlacementRefusal:
    """Why no order of the peers fits, as far as more or larger peers could help."""
    model, most = request.model, max(counts)
    if not could_be_cut(model, counts):
        text = f"the family's rules permit no cut into {most} stages of its {model.layer_count} layers"
        numbers: Numbers = (("most_stages", most), ("permitted_cuts", len(model.cuts)), ("layers", model.layer_count))
        return _refusal(request, PlacementReason.NO_PERMITTED_CUT, text, numbers, could_peers_help=False)
    offered = sum(peer.offered_bytes for peer in considered.peers)
    usable = sum(seat.usable_bytes for seat in considered.seats)
    parts = "" if most > 1 else " on one peer"
    capped = sum(peer.most_layers is not None and peer.most_layers < model.layer_count for peer in considered.peers)
    whose = f"{capped} of them with" if len(considered.peers) > 1 else "which has"
    caps = f", {whose} a cap on layers," if capped else ""
    text = (
        f"the model needs {format_size(tables.whole_bytes)}{parts} (context and lanes included), "
        f"{_offerers(len(considered.peers), caps)} {format_size(offered)}, {format_size(usable)} of it within head "
        f"room; {_advice(request, 'add a peer, raise --max-memory, or lower --ctx-size or --lanes')}"
    )
    numbers = (
        ("needed_bytes", tables.whole_bytes),
        ("offered_bytes", offered),
        ("usable_bytes", usable),
        ("peers_with_memory", len(considered.peers)),
        ("peers_with_fewer_layers", capped),
        ("most_stages", most),
    )
    return _refusal(request, PlacementReason.MEMORY_SHORT, text, numbers, could_peers_help=True)


def _advice(request: PlanRequest, otherwise: str) -> str:
    """More peers are no help where there are enough of them, that serve the model already."""
    out = request.left_out
    if not out.peers:
        return otherwise
    which = "1 more peer holds" if out.peers == 1 else f"{out.peers} more peers hold"
    them = "it is" if out.peers == 1 else "they are"
    wait_s = -(-out.for_us // MICROS_PER_SECOND)
    left_out = f"and {them} left out for {wait_s} s at most, then asked again"
    return f"{which} the model for a run of another coordinator, {left_out}"


def _offerers(count: int, caps: str) -> str:
    return f"1 peer{caps} offers" if count == 1 else f"{count} peers{caps} offer"


def refuse_wire(request: PlanRequest, planned: PlacementRefusal) -> PlacementRefusal:
    """Why nothing fits at the certified cuts alone, as ``planned`` tells, though it might at others."""
    model = request.model
    certified = sum(cut in (model.wire_cuts or ()) for cut in model.cuts)
    text = f"{model.wire_reason} ({certified} of {len(model.cuts)} permitted cuts are certified)"
    numbers: Numbers = (("certified_cuts", certified), ("permitted_cuts", len(model.cuts)))
    return PlacementRefusal(PlacementReason.WIRE_DTYPE_UNCERTIFIED, text, False, planned.peers, numbers)


def _refusal(
    request: PlanRequest, reason: PlacementReason, text: str, numbers: Numbers, *, could_peers_help: bool
) -> PlacementRefusal:
    out = request.left_out
    numbers += (("peers_left_out", out.peers),) if out.peers else ()
    return PlacementRefusal(reason, text, could_peers_help, unused_peers(request, ()), numbers)


def unused_peers(request: PlanRequest, stages: Sequence[PlannedStage]) -> tuple[PeerRefusal, ...]:
    """The peers without a stage and why, by peer id."""
    peers = {peer.peer_id: peer for peer in request.peers}
    used = tuple(peers[peer] for peer in dict.fromkeys(stage.peer_id for stage in stages) if peer in peers)
    least = CutTables(request.model, request.model.least, ()).least_needed
    left = sorted(peers.keys() - {stage.peer_id for stage in stages})
    return tuple(_why_unused(request, peers[peer], least, used) for peer in left)


def _why_unused(request: PlanRequest, peer: PlanningPeer, least: int, used: Sequence[PlanningPeer]) -> PeerRefusal:
    """``used`` are the peers that hold the stages, none where there is no placement."""
    usable = request.usable_bytes(peer)
    if peer.offered_bytes == 0:
        return _refuse_offer(peer)
    numbers: Numbers = (("offered_bytes", peer.offered_bytes), ("usable_bytes", usable))
    within = f"{format_size(usable)} within its head room"
    if usable < least < NEVER:
        text = f"{within}, the smallest stage needs {format_size(least)}"
        return PeerRefusal(peer.peer_id, PeerReason.TOO_SMALL, text, (*numbers, ("smallest_stage_bytes", least)))
    numbers += (("peers_used", len(used)),) if used else ()
    if used and peer.rank and not any(other.rank for other in used):
        text = f"it is of rank {peer.rank}, and {len(used)} of rank 0 suffice; {within}"
        return PeerRefusal(peer.peer_id, PeerReason.UNTRUSTED, text, (*numbers, ("rank", peer.rank)))
    if used and peer.is_spared and not any(other.is_spared for other in used):
        others = "1 other suffices" if len(used) == 1 else f"{len(used)} others suffice"
        text = f"it runs on battery or its owner uses it, and {others}; {within}"
        return PeerRefusal(peer.peer_id, PeerReason.SPARED, text, numbers)
    reason = PeerReason.NOT_NEEDED if used else PeerReason.NOT_ENOUGH
    return PeerRefusal(peer.peer_id, reason, within, numbers)


def _refuse_offer(peer: PlanningPeer) -> PeerRefusal:
    """Of a peer that offers nothing: by its owner's wish, or because nothing is free."""
    free: Numbers = (("free_bytes", max(0, peer.free_bytes)),)
    has_free = f"{format_size(max(0, peer.free_bytes))} free"
    if peer.is_excluded:
        return PeerRefusal(peer.peer_id, PeerReason.EXCLUDED, f"its owner wants no stage there, with {has_free}", free)
    if peer.most_layers == 0:
        text = f"its owner allows 0 layers there, with {has_free}"
        return PeerRefusal(peer.peer_id, PeerReason.EXCLUDED, text, (*free, ("most_layers", 0)))
    if peer.most_bytes is None or peer.free_bytes <= 0:
        return PeerRefusal(peer.peer_id, PeerReason.NO_MEMORY, "it offers 0 B", (*free, ("offered_bytes", 0)))
    text = f"its owner allows 0 B, with {has_free}"
    return PeerRefusal(peer.peer_id, PeerReason.NO_MEMORY, text, (*free, ("offered_bytes", 0)))
