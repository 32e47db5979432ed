"""A peer that two faults have ended comes back once; what becomes of a run is heard from whoever coordinates it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from p2pmesh.app.chaos_faults import Fault, FaultKind, Victim
from p2pmesh.app.chaos_options import ChaosOptions
from p2pmesh.app.chaos_overlay import COORDINATOR, ChaosOverlay
from p2pmesh.app.chaos_report import Struck, Tally


@dataclass(frozen=True)
class Node:
    process: Any


@dataclass
class Nodes:
    """As much of ``BenchNodes`` as is asked for."""

    by_name: dict[str, Node] = field(default_factory=dict)


class Overlay(ChaosOverlay):
    """Starting a peer takes a moment, and is counted."""

    started: tuple[str, ...] = ()

    async def start_peer(self, name: str) -> None:
        await trio.sleep(1)
        self.started += (name,)
        self._nodes.by_name[name] = Node(object())  # type: ignore[assignment]


async def test_a_peer_that_two_faults_end_is_started_once(autojump_clock: trio.testing.MockClock) -> None:
    nodes = Nodes({name: Node(object()) for name in ("a", "b")})
    async with trio.open_nursery() as nursery:
        overlay = Overlay(ChaosOptions(Path("/nowhere")), nodes, nursery, Tally(), print)  # type: ignore[arg-type]
        ended = {name: Victim(name, node.process, "", ()) for name, node in nodes.by_name.items()}
        async with trio.open_nursery() as faults:
            for name in ("a", "a", "b"):
                faults.start_soon(overlay.bring_back, ended[name])
        await overlay.bring_back(ended["a"])  # a slow fault's end, after the peer is back
        assert sorted(overlay.started) == ["a", "b"]
        again = Victim("a", nodes.by_name["a"].process, "", ())
        await overlay.bring_back(again)
        assert sorted(overlay.started) == ["a", "a", "b"]
        nursery.cancel_scope.cancel()


def told(event: str, run_id: str = "a", **fields: object) -> dict[str, Any]:
    """As a node would; of a stage and a code where it withdraws a run."""
    given = {"event": event, "run_id": run_id, "model": "m", "stage": 0, "code": "peer_lost", "message": "gone"}
    return given | {"stages": [{"peer_id": "p"}], "from": "c", "is_exact": True, "stall_ms": 1} | fields


async def overlay_told(*events: tuple[str, dict[str, Any]]) -> tuple[ChaosOverlay, Tally]:
    tally = Tally(struck=[Struck(Fault(0.0, FaultKind.PARTITION, 0), "peer-0", 0.0)])
    async with trio.open_nursery() as nursery:
        overlay = ChaosOverlay(ChaosOptions(Path("/nowhere")), Nodes(), nursery, tally, print)  # type: ignore[arg-type]
        for name, event in events:
            overlay.note(name, event)
        nursery.cancel_scope.cancel()
    return overlay, tally


async def test_a_run_that_a_peer_took_over_is_followed_at_that_peer() -> None:
    overlay, tally = await overlay_told(
        (COORDINATOR, told("pipeline_ready")),
        ("peer-1", told("run_taken_over")),
        (COORDINATOR, told("model_withdrawn", code="quorum_lost")),  # it goes on, and is another's by now
    )
    assert (overlay.is_serving, tally.struck[0].withdrawn_s, tally.unprovoked) == (True, None, 0)
    overlay.note("peer-1", told("model_withdrawn"))
    assert (overlay.is_serving, tally.struck[0].code) == (False, "peer_lost")
    overlay.note("peer-1", told("pipeline_ready", "b"))
    overlay.note("peer-2", told("request_recovered"))
    assert (overlay.is_serving, overlay.runs, len(tally.recovered)) == (True, 2, 1)
    assert tally.struck[0].serving_s is not None


async def test_a_run_that_was_given_up_before_it_was_taken_over_serves_again() -> None:
    overlay, tally = await overlay_told(
        (COORDINATOR, told("pipeline_ready")),
        (COORDINATOR, told("model_withdrawn", code="quorum_lost")),
        ("peer-1", told("run_taken_over")),
    )
    assert (overlay.is_serving, tally.struck[0].code) == (True, "quorum_lost")
    assert tally.struck[0].serving_s is not None
    overlay.note("peer-2", told("run_taken_over", "of long ago"))
    overlay.note(COORDINATOR, told("model_withdrawn"))
    assert overlay.is_serving
