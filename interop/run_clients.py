"""Unmodified clients of the HTTP API against a model that is split over two peers, asked at a third without a stage.

One overlay serves all clients, one after the other. What a client does stands in its program; here nodes are started,
reports are held against what ``clients.toml`` demands, and the peers are looked at afterwards: no request may leave a
sequence open on a stage. The contract is in README.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import trio

from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.app.api_keys import create_api_key
from p2pmesh.app.bench_nodes import BenchNodes, open_nodes
from p2pmesh.base.errors import P2PMeshError

HERE = Path(__file__).parent
VENV = HERE.parent / ".venv-clients"
INSTALL_TIMEOUT_S = 600.0
CLIENT_TIMEOUT_S = 300.0
FREE_TIMEOUT_S = 10.0
"""Within which every stage must be free again after a client has gone."""
POLL_S = 0.1


class CannotRun(Exception):
    """The runner's own failure, in one line; not a verdict on a client."""


@dataclass(frozen=True, slots=True)
class Client:
    """A foreign client: ``command`` runs in ``directory`` and must report each of ``checks``."""

    name: str
    directory: Path
    command: tuple[str, ...]
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check of one client; ``complaint`` is None where it passed."""

    client: str
    check: str
    complaint: str | None


# --- nodes


@dataclass(frozen=True, slots=True)
class Overlay:
    """Two peers with a stage each, and the one that is asked; only that one demands keys."""

    model: str
    asked_url: str
    asked_home: Path
    stage_homes: tuple[Path, ...]


async def start_overlay(nodes: BenchNodes, model: str, cut: int) -> Overlay:
    """Once the model can be asked for at the peer that holds nothing of it."""
    driver = await nodes.start("driver", "--model", model, "--cuts", str(cut), "--replan-after", "0")
    invite = str((await driver.wait_for("invite"))["invite"])
    asked = await nodes.start("asked", "--join", invite, "--max-memory", "0")
    await nodes.start("joiner", "--join", invite, "--max-memory", "1GiB")
    await driver.wait_for("pipeline_ready")
    name = str((await asked.wait_for("ready"))["models"][0])
    url = str((await asked.wait_for("listening"))["api_url"])
    return Overlay(name, url, nodes.home_of("asked"), (nodes.home_of("driver"), nodes.home_of("joiner")))


def open_sequences(home: Path) -> list[int]:
    """Of each stage of a node, by its own status."""
    run = json.loads((home / "run.json").read_text())
    headers = {"authorization": f"Bearer {run['console_token']}"}
    answer = httpx.get(run["console_url"] + "/api/status", headers=headers, timeout=10, trust_env=False)
    answer.raise_for_status()
    return [int(stage["open_sequences"]) for stage in answer.json()["stages"]]


async def is_free(overlay: Overlay) -> bool:
    """Whether both stages are left with no sequence, within the time that is allowed."""
    with trio.move_on_after(FREE_TIMEOUT_S):
        while True:
            counts = [await trio.to_thread.run_sync(open_sequences, home) for home in overlay.stage_homes]
            if counts == [[0], [0]]:
                return True
            await trio.sleep(POLL_S)
    return False


# --- one client


def environment_of(client: Client, overlay: Overlay) -> dict[str, str]:
    """What a client is told. It has keys of its own: one without limits, one that is good for a request a minute."""
    key = create_api_key(overlay.asked_home, client.name, 0, 0)
    once = create_api_key(overlay.asked_home, f"{client.name}, once a minute", 0, 1)
    return {
        **os.environ,
        "CLIENT_BASE_URL": f"{overlay.asked_url}/v1",
        "CLIENT_API_KEY": key["key"],
        "CLIENT_ONCE_A_MINUTE_KEY": once["key"],
        "CLIENT_MODEL": overlay.model,
    }


async def wait_until_known(environment: Mapping[str, str]) -> None:
    """The node looks for new keys once a second."""
    headers = {"authorization": f"Bearer {environment['CLIENT_API_KEY']}"}
    async with httpx.AsyncClient(trust_env=False) as asker:
        with trio.move_on_after(FREE_TIMEOUT_S):
            while True:
                if (await asker.get(f"{environment['CLIENT_BASE_URL']}/models", headers=headers)).status_code == 200:
                    return
                await trio.sleep(POLL_S)
    raise CannotRun("the node does not accept its new API key")


async def run_client(client: Client, overlay: Overlay) -> list[Verdict]:
    """What it reported, and whether it left the stages free."""
    environment = environment_of(client, overlay)
    await wait_until_known(environment)
    try:
        with trio.fail_after(CLIENT_TIMEOUT_S):
            done = await trio.run_process(
                client.command, cwd=client.directory, env=environment, capture_stdout=True, check=False
            )
    except trio.TooSlowError:
        return [Verdict(client.name, "end", f"not within {CLIENT_TIMEOUT_S:g} s")]
    except OSError as error:
        text = f"{client.command[0]} cannot be started: {error.strerror}; run with --install first"
        raise CannotRun(text) from error
    left = None if await is_free(overlay) else "a sequence is still open on a stage"
    return [*judge(client, done.stdout, done.returncode), Verdict(client.name, "stages are free", left)]


def judge(client: Client, output: bytes, exit_code: int) -> list[Verdict]:
    """Each demanded check as reported; one that is missing, or an exit code that says otherwise, has failed."""
    try:
        reports = {item["check"]: item for item in map(json.loads, output.splitlines())}
    except (ValueError, KeyError, TypeError):
        return [Verdict(client.name, "contract", f"other things than reports on stdout, exit code {exit_code}")]
    verdicts = [Verdict(client.name, check, _complaint_of(reports.get(check))) for check in client.checks]
    are_passed = all(verdict.complaint is None for verdict in verdicts)
    if are_passed != (exit_code == 0):
        verdicts.append(Verdict(client.name, "contract", f"exit code {exit_code} and the reports disagree"))
    return verdicts


def _complaint_of(report: Mapping[str, Any] | None) -> str | None:
    if report is None:
        return "not reported"
    return None if report.get("ok") is True else str(report.get("error"))


# --- all of them


def read_clients(only: str | None) -> list[Client]:
    """Those of ``clients.toml``, or the one of that name."""
    try:
        found = tomllib.loads((HERE / "clients.toml").read_text())["client"]
        clients = [
            Client(item["name"], HERE / item["directory"], tuple(item["command"]), tuple(item["checks"]))
            for item in found
            if only in (None, item["name"])
        ]
    except (OSError, KeyError, ValueError) as error:
        raise CannotRun(f"the clients cannot be read: {error!r}") from error
    if not clients:
        raise CannotRun(f"clients.toml names no client {only!r}")
    return clients


def install() -> None:
    """What clients need, apart from what p2pmesh does: a virtual environment and a folder of node's."""
    commands = (
        [sys.executable, "-m", "venv", str(VENV)],
        [str(VENV / "bin" / "pip"), "install", "-q", "-r", str(HERE / "python" / "requirements.txt")],
        ["npm", "ci", "--prefix", str(HERE / "js"), "--no-audit", "--no-fund"],
    )
    for command in commands:
        print(f"installing: {' '.join(command)}", file=sys.stderr)
        try:
            subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S, stdout=sys.stderr)
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotRun(f"what the clients need cannot be installed: {error}") from error


async def run_all(clients: list[Client], model: str, cut: int, scratch: Path) -> list[Verdict]:
    """One client after the other, at one overlay."""
    verdicts: list[Verdict] = []
    async with open_nodes(scratch) as nodes:
        overlay = await start_overlay(nodes, model, cut)
        for client in clients:
            began = trio.current_time()
            told = await run_client(client, overlay)
            show(told, trio.current_time() - began)
            verdicts += told
    return verdicts


def show(verdicts: list[Verdict], seconds: float) -> None:
    """One line for each check of a client."""
    for verdict in verdicts:
        result = "pass" if verdict.complaint is None else f"FAIL  {verdict.complaint}"
        print(f"{verdict.client:<16}  {verdict.check:<30}  {result}")
    print(f"{verdicts[0].client:<16}  {seconds:.0f} s", flush=True)


def main() -> int:
    """The exit code: 0, 1 where a check failed, 2 where the runner could not do its work."""
    parser = argparse.ArgumentParser(description="Unmodified clients against a split model, at a peer without a stage.")
    parser.add_argument("--install", action="store_true", help="install what the clients need, first")
    parser.add_argument("--only-install", action="store_true", help="install it, and run nothing")
    parser.add_argument("--client", help="only this client")
    parser.add_argument("--model", metavar="REF", default=DEMO_MODEL, help="default: the demo model")
    parser.add_argument("--cut", metavar="LAYER", type=int, default=15, help="first layer of the second peer (15)")
    options = parser.parse_args()
    try:
        clients = read_clients(options.client)
        if options.install or options.only_install:
            install()
        if options.only_install:
            return 0
        with tempfile.TemporaryDirectory(prefix="p2pmesh-clients-") as scratch:
            verdicts = trio.run(run_all, clients, options.model, options.cut, Path(scratch))
    except (CannotRun, P2PMeshError) as error:
        print(f"interop: {error}", file=sys.stderr)
        return 2
    return 0 if all(verdict.complaint is None for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
