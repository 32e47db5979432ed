"""The overlay of ``p2pmesh chaos``: a coordinator without memory that is the ingress, peers with stages, spare ones.

Real node processes whose connections all go through ``app.chaos_links``. What becomes of the runs is heard from all of
them: a peer may take a run over from the coordinator. What is asked of them is ``app.chaos``'.
"""

import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import trio

from p2pmesh.app.bench_nodes import BenchNodes, Event, NodeProcess
from p2pmesh.app.chaos_faults import Victim, engines_of
from p2pmesh.app.chaos_links import Links, free_port
from p2pmesh.app.chaos_options import ChaosOptions
from p2pmesh.app.chaos_report import Tally
from p2pmesh.app.client import ask_console
from p2pmesh.base.errors import P2PMeshError

COORDINATOR = "coordinator"
NODE_PROGRAM = "p2pmesh.cli.chaos_node"
_NETWORK = "127.66.0"
"""Addresses to listen on, a node each: nothing else uses them, and a port there stays free while its node is away."""
_FIRST_HOST = 10
_KEPT = ("listening", "invite", "joined", "pipeline_ready", "ready", "error")


class ChaosOverlay:
    """Starts the nodes, follows who holds which stage, and finds victims."""

    def __init__(
        self,
        options: ChaosOptions,
        nodes: BenchNodes,
        nursery: trio.Nursery,
        tally: Tally,
        show: Callable[[str], None],
    ) -> None:
        self._options = options
        self._nodes = nodes
        self._tally = tally
        self._show = show
        self.links = Links(nursery, self.node_processes)
        self._ways: dict[str, tuple[str, str]] = {}
        self._invite = ""
        self._stages: list[str] = []
        self._peers: dict[str, str] = {}
        self._returning: set[str] = set()
        self.model = ""
        self.runs = 0
        """How many have served."""
        self._run_id = ""
        self._run_of = COORDINATOR
        """Who coordinates the newest run, or did last."""
        self.is_serving = False
        self.is_ending = False
        """From then on nothing counts that becomes of a run."""

    # --- start -----------------------------------------------------------------------------
    async def start(self, model_path: str) -> str:
        """The URL of the ingress, once the model can be asked there."""
        coordinator = await self._start(
            COORDINATOR, "--model", model_path, "--split", str(self._options.stages), "--max-memory", "0"
        )
        self._invite = str((await coordinator.wait_for("invite"))["invite"])
        for number in range(self._options.stages + self._options.spares):
            await self.start_peer(f"peer-{number}")
        await coordinator.wait_for("pipeline_ready")
        await coordinator.wait_for("ready")
        return str((await coordinator.wait_for("listening"))["api_url"])

    async def bring_back(self, victim: Victim) -> None:
        """Starts a peer again that a fault has ended, unless another fault ended it too and has brought it back."""
        is_ended = self._nodes.by_name[victim.name].process is victim.process
        if is_ended and victim.name not in self._returning:
            self._returning.add(victim.name)
            try:
                await self.start_peer(victim.name)
            finally:
                self._returning.discard(victim.name)

    async def start_peer(self, name: str) -> None:
        """A peer that may hold stages; under the name of one that died, that one comes back."""
        await self._start(name, "--join", self._invite, "--max-memory", str(self._options.peer_memory_bytes))

    async def _start(self, name: str, *arguments: str) -> NodeProcess:
        if name not in self._ways:
            host = f"{_NETWORK}.{_FIRST_HOST + len(self._ways)}"
            port = free_port(host)
            front = await self.links.open_front(name, port, host)
            self._ways[name] = (f"/ip4/{host}/tcp/{port}", f"/ip4/127.0.0.1/tcp/{front}")
        listen, told = self._ways[name]
        return await self._nodes.start(
            name, "--announce", told, *arguments, keeps=self._keeper(name), listen=listen,
            program=NODE_PROGRAM, stdin=subprocess.PIPE,
        )  # fmt: skip

    def _keeper(self, name: str) -> Callable[[Event], bool]:
        def keep(event: Event) -> bool:
            if event["event"] == "listening":
                self._peers[event["peer_id"]] = name
            if not self.is_ending:
                self.note(name, event)
            return event["event"] in _KEPT

        return keep

    def note(self, name: str, event: Event) -> None:
        """What a node tells of runs and requests; of a run only its newest coordinator's word counts."""
        match event["event"]:
            case "pipeline_ready":
                self._stages = [stage["peer_id"] for stage in event["stages"]]
                self.model = event["model"]
                self.runs += 1
                self._note_serving(name, event)
            case "run_taken_over" if event["run_id"] == self._run_id:
                self._show(f"  {name} took the run over from {self._peers.get(event['from'], 'another')}")
                self._note_serving(name, event)
            case "model_withdrawn" if (name, event["run_id"]) == (self._run_of, self._run_id):
                self.is_serving = False
                self._tally.note_withdrawn(time.monotonic(), event["code"])
                self._show(f"  withdrawn, stage {event['stage']}, {event['code']}: {event['message']}")
            case "request_recovered":
                self._tally.recovered.append(event)

    def _note_serving(self, name: str, event: Event) -> None:
        self._run_of, self._run_id = name, event["run_id"]
        self.is_serving = True
        self._tally.note_serving(time.monotonic())

    async def are_spares_ready(self) -> bool:
        """Whether an engine is ready for every stage of the run that serves, where spares were given."""
        if not self._options.spares:
            return True
        home = self._nodes.home_of(self._run_of)
        with suppress(P2PMeshError):  # a busy coordinator answers the next time
            status = await trio.to_thread.run_sync(ask_console, home, "GET", "/api/status")
            return any(_has_spares(placement) for placement in status["placements"])
        return False

    # --- who is who ------------------------------------------------------------------------
    def victim(self, stage: int) -> Victim | None:
        """Who holds a stage of the newest run, if it lives."""
        holder = self._holder(stage)
        if holder is None:
            return None
        beside = self._holder(stage + 1 if stage + 1 < len(self._stages) else stage - 1) if stage else self._holder(1)
        others = tuple(name for name in self._nodes.by_name if name != holder.name)
        return Victim(holder.name, holder.process, "" if beside is None else beside.name, others)

    def _holder(self, stage: int) -> NodeProcess | None:
        if not 0 <= stage < len(self._stages):
            return None
        node = self._nodes.by_name.get(self._peers.get(self._stages[stage], ""))
        return node if node is not None and node.process.poll() is None else None

    def node_processes(self) -> Mapping[int, str]:
        """Names of the nodes that live, by process id."""
        return {node.process.pid: name for name, node in self._nodes.by_name.items() if node.process.poll() is None}

    def processes(self) -> Mapping[int, str]:
        """Those, and their engines."""
        found = dict(self.node_processes())
        for pid, name in tuple(found.items()):
            found.update((engine, f"{name} engine") for engine in engines_of(pid))
        return found


def _has_spares(placement: Mapping[str, Any]) -> bool:
    waiting = {tuple(standby["layers"]) for standby in placement["standbys"]}
    return placement["phase"] == "serving" and {tuple(stage["layers"]) for stage in placement["stages"]} <= waiting
