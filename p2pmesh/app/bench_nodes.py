"""Node processes for the benchmarks: started in homes of their own, followed by their events, ended whatever happens.

What is measured of them stays with each benchmark.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.node.failures import unwrapped

Event = Mapping[str, Any]

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0
MAX_EVENTS = 1000
"""Of one node; the oldest are forgotten."""
MAX_LINE_BYTES = 1 << 20

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class NodeProcess:
    """One node and what it told."""

    def __init__(self, name: str, process: trio.Process) -> None:
        self.name = name
        self.process = process
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._has_ended = False
        self._changed = trio.Event()

    async def follow(self, keeps: Callable[[Event], bool]) -> None:
        """Reads events until the output ends, and keeps those that ``keeps``."""
        assert self.process.stdout is not None
        rest = b""
        async for data in self.process.stdout:
            *lines, rest = (rest + bytes(data)).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                break
            for event in map(json.loads, lines):
                if keeps(event):
                    self.events.append(event)
                    self._wake()
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_for(self, name: str) -> Event:
        """The first event of a name; ``Refused`` if the node fails, ends or is too slow."""
        with trio.move_on_after(START_TIMEOUT_S):
            while True:
                found = self._find(name)
                if found is not None:
                    return found
                if self._has_ended or self._find("error") is not None:
                    break
                await self._changed.wait()
        failure = self._find("error")
        if failure is None:
            raise Refused(ErrorCode.INTERNAL, f"{self.name} gave no {name} event: see its output above")
        code = next((code for code in ErrorCode if code == failure.get("code")), ErrorCode.INTERNAL)
        raise Refused(code, f"{self.name} gave no {name} event: {failure.get('message')}")

    def _find(self, name: str) -> Event | None:
        return next((event for event in self.events if event["event"] == name), None)

    def usage(self) -> tuple[float, int] | None:
        """CPU seconds so far and resident bytes; None when it is gone."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            resident = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES
        except OSError:
            return None
        return (int(stat[11]) + int(stat[12])) / _TICKS_PER_S, resident


class BenchNodes:
    """The nodes of one benchmark, by name; made by ``open_nodes``."""

    def __init__(self, nursery: trio.Nursery, scratch: Path, engine_cache: Path | None) -> None:
        self._nursery = nursery
        self._scratch = scratch
        self._engine_cache = engine_cache
        self.by_name: dict[str, NodeProcess] = {}

    def home_of(self, name: str) -> Path:
        """Where a node of that name keeps its files."""
        return self._scratch / name

    async def start(
        self,
        name: str,
        *arguments: str,
        keeps: Callable[[Event], bool] = lambda _: True,
        listen: str = "/ip4/127.0.0.1/tcp/0",
        program: str = "p2pmesh",
        stdin: int = subprocess.DEVNULL,
    ) -> NodeProcess:
        """Starts a node in the home of that name; under a name that was there before, the node comes back.

        ``program`` is a module that takes the command line of ``p2pmesh``.
        """
        home = self.home_of(name)
        if self._engine_cache is not None:
            await trio.to_thread.run_sync(_copy_once, self._engine_cache, home / "cache" / "engine")
        command = [
            sys.executable, "-m", program, "up", "--home", str(home), "--name", name, "--port", "0",
            "--console-port", "0", "--listen", listen, "--log-format", "json", *arguments,
        ]  # fmt: skip
        process = await trio.lowlevel.open_process(command, stdin=stdin, stdout=subprocess.PIPE)
        node = self.by_name[name] = NodeProcess(name, process)
        self._nursery.start_soon(node.follow, keeps)
        return node

    async def stop_all(self) -> None:
        """Ends every node, gently first."""
        for node in self.by_name.values():
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_TIMEOUT_S):
            for node in self.by_name.values():
                await node.process.wait()
        for node in self.by_name.values():
            if node.process.poll() is None:
                node.process.kill()
                await node.process.wait()


@asynccontextmanager
async def open_nodes(scratch: Path, engine_cache: Path | None = None) -> AsyncIterator[BenchNodes]:
    """Nodes with homes below ``scratch``, none of which outlives the scope.

    What ``engine_cache`` says of this machine is copied into each home.
    """
    async with ended_by_signals() as nursery:
        nodes = BenchNodes(nursery, scratch, engine_cache)
        try:
            yield nodes
        finally:
            with trio.CancelScope(shield=True):
                await nodes.stop_all()


@asynccontextmanager
async def ended_by_signals() -> AsyncIterator[trio.Nursery]:
    """A scope of a benchmark with its nursery, which ends by Ctrl-C and by SIGTERM, and says so in one line."""
    try:
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_at_signal)
                yield nursery
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        raise KeyboardInterrupt from None


async def _end_at_signal() -> None:
    """A benchmark that is told to stop leaves no node behind either."""
    with trio.open_signal_receiver(signal.SIGTERM) as received:
        async for _ in received:
            raise Refused(ErrorCode.CANCELLED, "the benchmark was told to stop; its nodes have ended")


def _copy_once(cache: Path, place: Path) -> None:
    """What was measured about this machine stays true."""
    if cache.is_dir() and not place.exists():
        shutil.copytree(cache, place)
