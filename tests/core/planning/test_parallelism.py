"""Why stages and not tensor parallelism: what each waits for and sends, a token, by arithmetic that can be read.

Tensor parallelism ends the attention and the feed-forward of each layer with an all-reduce; in a ring of n peers each
sends 2(n - 1)/n of the tensor. A pipeline with direct return makes as many hops as it has stages.
"""

from fractions import Fraction

import pytest

from p2pmesh.base.ids import PeerId
from p2pmesh.core.links import LinkMatrix, PairLink
from p2pmesh.core.planning.planner import plan_placement
from p2pmesh.core.planning.request import PlanningModel, PlanningPeer, PlanRequest, ShapeBytes
from p2pmesh.wire.activation import row_bytes
from p2pmesh.wire.dtype import WireDtype

LAYERS, PEERS, HIDDEN_SIZE = 40, 4, 2048


def collectives(layers: int) -> int:
    return 2 * layers


def ring_bytes(layers: int, peers: int, tensor_bytes: int) -> Fraction:
    """What each peer sends a token."""
    return collectives(layers) * Fraction(2 * (peers - 1), peers) * tensor_bytes


def test_a_pipeline_waits_for_a_twentieth_of_the_exchanges() -> None:
    assert collectives(LAYERS) / PEERS == 20


def test_the_planners_hops_are_those_of_the_pipeline() -> None:
    ids = [PeerId(f"p{number}") for number in range(PEERS)]
    links = LinkMatrix({(a, b): PairLink(20_000, 0, False) for a in ids for b in ids if a < b})
    model = PlanningModel((ShapeBytes((10,) * LAYERS),), tuple(range(1, LAYERS)))
    plan = plan_placement(PlanRequest(model, tuple(PlanningPeer(peer, 120) for peer in ids), None, PEERS, links))
    hop_us = 10_000
    assert collectives(LAYERS) * hop_us == 20 * plan.estimate.network_us  # type: ignore[union-attr]


def test_a_boundary_carries_a_hundred_and_twentieth_of_the_bytes() -> None:
    boundary = row_bytes(WireDtype.F16, HIDDEN_SIZE)
    assert boundary == 4_096
    assert ring_bytes(LAYERS, PEERS, boundary) == 491_520 == 120 * boundary


def test_petals_own_figures_say_that_latency_decides() -> None:
    """BLOOM-176B over three peers, steps/s at 1 Gbit/s and 5 ms, 100 Mbit/s and 5 ms, 100 Mbit/s and 100 ms (Petals,
    table of its paper): a tenth of the bandwidth costs 17.6 ms a token, 95 ms of round trip 210.6 ms.
    """
    wide, narrow, far = (1000 / steps for steps in (1.71, 1.66, 1.23))
    assert narrow - wide == pytest.approx(17.6, abs=0.05)
    assert far - narrow == pytest.approx(210.6, abs=0.05)
    assert (far - narrow) / (100 - 5) == pytest.approx(2.22, abs=0.005)
