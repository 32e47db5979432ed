"""Why there is no placement, and why a peer holds no stage: a reason, its numbers, what would help."""

from collections.abc import Sequence

from p2pmesh.base.limits import MAX_STAGES
from p2pmesh.base.quantities import MICROS_PER_SECOND, format_size
from p2pmesh.core.planning.cutting import NEVER, CutTables, could_be_cut
from p2pmesh.core.planning.outcome import (
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
        return _refusal(request, PlacementReason.TOO_FEW_LAYERS, text, could_peers_help=False)
    if wanted is not None and wanted - 1 > len(model.cuts):
        text = f"{wanted} stages need {wanted - 1} cuts, this family permits {len(model.cuts)}; ask for fewer"
        return _refusal(request, PlacementReason.NO_PERMITTED_CUT, text, could_peers_help=False)
    if not here:
        text = f"no peer offers memory (0 B in all); {_advice(request, 'start one without --max-memory 0')}"
        return _refusal(request, PlacementReason.NO_MEMORY_OFFERED, text, could_peers_help=True)
    if wanted is not None and wanted > here:
        present = "1 is" if here == 1 else f"{here} are"
        advice = _advice(request, f"start {wanted - here} more")
        text = f"{wanted} stages need {wanted} peers with memory, {present} here; {advice}"
        return _refusal(request, PlacementReason.TOO_FEW_PEERS, text, could_peers_help=True)
    return None


def explain_shortage(
    request: PlanRequest, considered: Considered, tables: CutTables, counts: Sequence[int]
) -> PlacementRefusal:
    """Why no order of the peers fits, as far as more or larger peers could help."""
    model, most = request.model, max(counts)
    if not could_be_cut(model, counts):
        text = f"the family's rules permit no cut into {most} stages of its {model.layer_count} layers"
        return _refusal(request, PlacementReason.NO_PERMITTED_CUT, text, could_peers_help=False)
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
    return _refusal(request, PlacementReason.MEMORY_SHORT, text, could_peers_help=True)


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


def _refusal(request: PlanRequest, reason: PlacementReason, text: str, *, could_peers_help: bool) -> PlacementRefusal:
    return PlacementRefusal(reason, text, could_peers_help, unused_peers(request, ()))


def unused_peers(request: PlanRequest, stages: Sequence[PlannedStage]) -> tuple[PeerRefusal, ...]:
    """The peers without a stage and why, by peer id."""
    used = {stage.peer_id for stage in stages}
    least = CutTables(request.model, request.model.least, ()).least_needed
    left = {peer.peer_id: peer for peer in request.peers if peer.peer_id not in used}
    return tuple(_why_unused(request, left[peer], least, bool(stages)) for peer in sorted(left))


def _why_unused(request: PlanRequest, peer: PlanningPeer, least: int, is_placed: bool) -> PeerRefusal:
    usable = request.usable_bytes(peer)
    if peer.is_excluded or peer.most_layers == 0:
        return PeerRefusal(peer.peer_id, PeerReason.EXCLUDED, "its owner wants no stage there")
    if peer.offered_bytes == 0:
        return PeerRefusal(peer.peer_id, PeerReason.NO_MEMORY, "it offers 0 B")
    if usable < least < NEVER:
        text = f"{format_size(usable)} within its head room, the smallest stage needs {format_size(least)}"
        return PeerRefusal(peer.peer_id, PeerReason.TOO_SMALL, text)
    if peer.rank and is_placed:
        return PeerRefusal(peer.peer_id, PeerReason.UNTRUSTED, "peers of trusted owners suffice")
    if peer.is_spared and is_placed:
        text = "it runs on battery or its owner uses it, and others suffice"
        return PeerRefusal(peer.peer_id, PeerReason.SPARED, text)
    reason = PeerReason.NOT_NEEDED if is_placed else PeerReason.NOT_ENOUGH
    return PeerRefusal(peer.peer_id, reason, f"{format_size(usable)} within its head room")
