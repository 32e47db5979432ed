"""llama.cpp's own server as a process beside our nodes, for ``p2pmesh bench streams --llama-server``.

It is started as its users start it, with what must be equal given: file, slots, context of each, threads. What is asked
of it and measured stays with ``bench_streams``.
"""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import trio

from p2pmesh.base.errors import ErrorCode, Refused

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
_LOOK_EVERY_S = 0.2
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """Where it listens, and its process."""

    url: str
    pid: int


@asynccontextmanager
async def open_llama_server(
    program: Path, model: str, *, slots: int, context_tokens: int, threads: int, scratch: Path
) -> AsyncIterator[LlamaServer]:
    """A server with ``slots`` of ``context_tokens`` each that has loaded its model; it ends with the scope.

    ``Refused`` if it cannot be started or is not ready within ``START_TIMEOUT_S``.
    """
    port = await _free_port()
    command = [
        str(program), "--model", model, "--host", _LOOPBACK, "--port", str(port), "--parallel", str(slots),
        "--ctx-size", str(slots * context_tokens), "--threads", str(threads), "--flash-attn", "on",
    ]  # fmt: skip
    log = scratch / "llama-server.log"
    try:
        with log.open("wb") as out:
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
    except OSError as error:
        raise Refused(ErrorCode.CONFIG_INVALID, f"{program} cannot be started: {error.strerror}") from error
    try:
        server = LlamaServer(f"http://{_LOOPBACK}:{port}", process.pid)
        await _wait_until_ready(server, process, log)
        yield server
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)


async def _free_port() -> int:
    """One that nobody listens on now: the server takes no port 0."""
    with trio.socket.socket() as probe:
        await probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


async def _wait_until_ready(server: LlamaServer, process: trio.Process, log: Path) -> None:
    with trio.move_on_after(START_TIMEOUT_S):
        async with httpx.AsyncClient(trust_env=False) as asker:
            while process.poll() is None:
                try:
                    if (await asker.get(f"{server.url}/health")).status_code == httpx.codes.OK:
                        return
                except httpx.HTTPError:
                    pass
                await trio.sleep(_LOOK_EVERY_S)
    last = (await trio.to_thread.run_sync(log.read_bytes)).decode("utf-8", "replace").splitlines()[-1:]
    raise Refused(ErrorCode.INTERNAL, f"llama.cpp's server was not ready: {''.join(last)[:200]}")


async def _end(process: trio.Process) -> None:
    if process.poll() is None:
        process.terminate()
    with trio.move_on_after(STOP_TIMEOUT_S):
        await process.wait()
    if process.poll() is None:
        process.kill()
        await process.wait()


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """What these processes, and those that they started and that live, have used so far."""
    total = 0.0
    for pid in pids:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            times = member.cpu_times()
            total += times.user + times.system
    return total
