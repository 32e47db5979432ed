"""A peer that two faults have ended comes back once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from p2pmesh.app.chaos_faults import Victim
from p2pmesh.app.chaos_options import ChaosOptions
from p2pmesh.app.chaos_overlay import ChaosOverlay
from p2pmesh.app.chaos_report import Tally


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
