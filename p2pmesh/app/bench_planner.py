"""``p2pmesh bench planner``: how long one placement takes to decide, for overlays and models of one size.

Peers of uneven memory and speed lie on a plane, so that some are near and some far; a tenth of the links is relayed.
What differs between the rows is how much memory the peers have, and with it into how many stages the model must be cut.
"""

import json
import time
from dataclasses import asdict, dataclass
from itertools import combinations
from math import dist
from typing import TextIO

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import GIB, MIB
from p2pmesh.core.draws import Draws
from p2pmesh.core.links import LinkMatrix, PairLink
from p2pmesh.core.planning.outcome import Placement
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import PlanningModel, PlanningPeer, PlanRequest, ShapeBytes

MEAN_OFFERS_GIB = (200, 70, 30, 12, 5, 3)
"""Against a model of about 130 GiB: from one stage to nearly all peers."""
REPEATS = 5
BAR_MS = 200.0
"""No placement over 64 peers of a model of 128 layers takes longer to decide."""
_LAYER_BYTES = GIB
_ACTIVATION_BYTES = 32_768


@dataclass(frozen=True, slots=True)
class PlannerRow:
    """Peers of ``offer_gib`` on average; milliseconds of a plan, the least of some; stages 0 where there is none."""

    offer_gib: int
    stages: int
    plan_ms: float
    predicted_tpot_ms: float


def run_planner(peers: int, layers: int, out: TextIO, *, is_json: bool) -> int:
    """Measures and prints; 0, or 1 where a plan takes longer than the bar."""
    rows = [_measure(peers, layers, offer_gib) for offer_gib in MEAN_OFFERS_GIB]
    worst_ms = max(row.plan_ms for row in rows)
    is_missed = int(worst_ms > BAR_MS)
    if is_json:
        facts = {"peers": peers, "layers": layers, "bar_ms": BAR_MS, "rows": [asdict(row) for row in rows]}
        out.write(json.dumps(facts, indent=2) + "\n")
        return is_missed
    out.write(f"{peers} peers, {layers} layers of 1 GiB\n")
    out.write(f"{'GiB a peer':>10}{'stages':>8}{'plan ms':>9}{'token ms':>10}\n")
    for row in rows:
        out.write(f"{row.offer_gib:10}{row.stages:8}{row.plan_ms:9.1f}{row.predicted_tpot_ms:10.1f}\n")
    out.write(f"the slowest plan took {worst_ms:.1f} ms, the bar is {BAR_MS:.0f} ms\n")
    return is_missed


def _measure(peers: int, layers: int, offer_gib: int) -> PlannerRow:
    request = planner_request(peers, layers, offer_gib)
    times_s = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        plan = plan_placement(request)
        times_s.append(time.perf_counter() - started)
    plan_ms = 1000 * min(times_s)
    if isinstance(plan, Placement):
        return PlannerRow(offer_gib, len(plan.stages), plan_ms, plan.estimate.tpot_us / 1000)
    return PlannerRow(offer_gib, 0, plan_ms, 0.0)


def planner_request(peers: int, layers: int, offer_gib: int) -> PlanRequest:
    """The same question for the same numbers."""
    draws = Draws(peers * 1_000_003 + layers * 1009 + offer_gib)
    names = [PeerId(f"peer-{number:04}") for number in range(peers)]
    offers = [
        PlanningPeer(
            name,
            offer_gib * (600 + draws.below(800)) * MIB * 1024 // 1000,
            decode_bytes_per_s=(5 + draws.below(36)) * 10**9,
        )
        for name in names
    ]
    places = {name: (draws.below(1000), draws.below(1000)) for name in names}
    links = {
        (one, other): PairLink(2_000 + round(200 * dist(places[one], places[other])), 0, draws.below(10) == 0)
        for one, other in combinations(names, 2)
    }
    shape = ShapeBytes((_LAYER_BYTES,) * layers, _LAYER_BYTES, _LAYER_BYTES, _LAYER_BYTES // 4)
    model = PlanningModel((shape,), tuple(range(1, layers)), activation_bytes=_ACTIVATION_BYTES)
    return PlanRequest(model, tuple(offers), names[0] if names else None, None, LinkMatrix(links))
