"""How the benchmarks wait for their nodes: never for ever. The nodes here are programs that tell what a test says."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from p2pmesh.app.bench_nodes import NodeProcess, ended_by_signals
from p2pmesh.base.errors import EngineError, ErrorCode, Refused

PATIENCE_S = 60


@asynccontextmanager
async def node_that_tells(text: str, *, stays: bool = True) -> AsyncIterator[NodeProcess]:
    """A node that has told ``text``, and stays silent from then on, or ends."""
    program = f"import sys; sys.stdout.write({text!r}); sys.stdout.flush(); {'sys.stdin.read()' if stays else ''}"
    command = [sys.executable, "-c", program]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        async with trio.open_nursery() as nursery:
            node = NodeProcess("peer-1", process)
            nursery.start_soon(node.follow, lambda event: event["event"] != "gossip_delivered")
            yield node
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def test_a_silent_node_is_given_up_also_within_a_line(autojump_clock: MockClock) -> None:
    async with node_that_tells('{"event": "invi') as node:
        with pytest.raises(Refused, match="peer-1 gave no invite event"):
            await node.wait_for("invite")


async def test_a_node_that_fails_is_not_waited_for() -> None:
    with trio.fail_after(PATIENCE_S):
        async with node_that_tells('{"event": "invite"}\n{"event": "error", "message": "no memory"}\n') as node:
            with pytest.raises(Refused, match="no memory"):
                await node.wait_for("joined")
            assert (await node.wait_for("invite"))["event"] == "invite"  # what was told before stays told


async def test_a_node_that_ended_is_not_waited_for() -> None:
    with trio.fail_after(PATIENCE_S):
        async with node_that_tells('{"event": "gossip_delivered"}\n', stays=False) as node:
            with pytest.raises(Refused, match="see its output above"):
                await node.wait_for("joined")
            assert not node.events


async def test_a_benchmark_that_is_told_to_stop_says_so_in_one_error_whatever_breaks_with_it() -> None:
    with trio.fail_after(PATIENCE_S), pytest.raises(Refused, match="told to stop"):
        await be_told_to_stop()


async def be_told_to_stop() -> None:
    async with ended_by_signals() as nursery:
        nursery.start_soon(fail_when_cancelled)
        await wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep_forever()


async def fail_when_cancelled() -> None:
    """As what measures does where its processes are told to stop, too."""
    try:
        await trio.sleep_forever()
    finally:
        raise EngineError(ErrorCode.ENGINE_CRASHED, "the plain loop ended")
