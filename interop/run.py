"""Runs foreign peers against nodes of ours and prints who got how far; contract and exit codes are in README.md.

Only the standard library and p2pmesh, so that it runs wherever a node does.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pmesh.adapters.identity import Ed25519Verifier, identity_of_seed
from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.limits import PROTOCOL_GENERATION
from p2pmesh.wire.announcement import Announcement, decode_announcement, encode_announcement, topic_of
from p2pmesh.wire.control import decode_control, encode_control
from p2pmesh.wire.invite import decode_invite
from p2pmesh.wire.messages.admission import Hello, Welcome
from p2pmesh.wire.varint import decode_varint

HERE = Path(__file__).parent
START_TIMEOUT_S = 60.0
GRACE_S = 15.0
INSTALL_TIMEOUT_S = 600.0
VERIFIER = Ed25519Verifier()


class CannotRun(Exception):
    """The runner's own failure, in one line; not a verdict on a peer."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A foreign implementation: ``command`` and ``install`` run in ``directory``."""

    name: str
    directory: Path
    install: tuple[str, ...]
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Which node a peer meets, and how long it may take."""

    name: str
    node: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Encounter:
    """What the peer is told, and what the node is known to be."""

    address: str
    seed: str
    hello: str
    topic: str
    echo_bytes: int = 0
    answer: str | None = None
    """Hex of the only right answer to the hello, where there is only one."""

    @property
    def node_peer_id(self) -> str:
        """The peer id that must answer."""
        return self.address.rpartition("/p2p/")[2]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cell of the matrix."""

    peer: str
    scenario: str
    is_passed: bool
    remark: str
    is_known: bool

    @property
    def is_expected(self) -> bool:
        """Passed and not known to fail, or the reverse."""
        return self.is_passed != self.is_known


# --- nodes


@contextmanager
def running(command: list[str]) -> Iterator[Iterator[dict[str, Any]]]:
    """A process of ours, as the JSON objects that it writes, one a line; killed at the end, or when it is late."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
    late = threading.Timer(START_TIMEOUT_S, process.kill)
    late.start()

    def lines() -> Iterator[dict[str, Any]]:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
        raise CannotRun(f"{command[-1]} ended, or was not ready within {START_TIMEOUT_S:g} s")

    try:
        yield lines()
    finally:
        late.cancel()
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def vector_node() -> Iterator[Encounter]:
    """The node that knows only the vectors."""
    with running([sys.executable, str(HERE / "vector_node.py")]) as lines:
        yield Encounter(**next(lines))


@contextmanager
def p2pmesh_up() -> Iterator[Encounter]:
    """The whole node, founder of an overlay of its own, without a model."""
    with tempfile.TemporaryDirectory(prefix="p2pmesh-interop-") as home:
        options = ["--home", home, "--log-format", "json", "--port", "0", "--console-port", "0", "--max-memory", "0"]
        command = [sys.executable, "-m", "p2pmesh", "up", *options, "--listen", "/ip4/127.0.0.1/tcp/0"]
        with running(command) as lines:
            yield encounter_by_invite(next(event["invite"] for event in lines if event.get("event") == "invite"))


def encounter_by_invite(text: str) -> Encounter:
    """A fresh key, and the hello that an invite lets it say."""
    invite = decode_invite(text, VERIFIER.is_signature_of)
    seed = secrets.token_bytes(32)
    identity = identity_of_seed(seed)
    now = time.time_ns() // 1_000_000
    announcement = Announcement(
        peer_id=identity.peer_id,
        mesh_id=invite.mesh_id,
        name="interop",
        version="interop",
        incarnation=now,
        sequence=1,
        expires_unix_ms=now + 90_000,
        addresses=(),
        memory_bytes=0,
        free_bytes=0,
        models=(),
    )
    sealed = encode_announcement(announcement, identity.public_key, identity.sign)
    hello = encode_control(Hello(PROTOCOL_GENERATION, invite.mesh_id, text, (), sealed))
    founder = VERIFIER.peer_id_of(invite.requirements.founder_key)
    return Encounter(f"{invite.addresses[0]}/p2p/{founder}", seed.hex(), hello.hex(), topic_of(invite.mesh_id))


NODES = {"vector_node": vector_node, "p2pmesh_up": p2pmesh_up}


# --- one pair


def meet(peer: Peer, scenario: Scenario) -> tuple[bool, str]:
    """Whether the pair passes, and a remark for the table."""
    with NODES[scenario.node]() as encounter:
        told = run_peer(peer, scenario, encounter)
    if told is None:
        return False, f"no answer within {scenario.timeout_s + GRACE_S:g} s"
    if not told.get("ok"):
        return False, f"{told.get('step')}: {told.get('error')}"
    complaint = find_fault(told, encounter)
    remark = f"{told['implementation']} on {told['runtime']}, ping {told['ping_ms']} ms"
    return complaint is None, complaint or remark


def run_peer(peer: Peer, scenario: Scenario, encounter: Encounter) -> dict[str, Any] | None:
    """What the peer wrote to stdout; None if it did not end in time."""
    environment = {
        **os.environ,
        "INTEROP_ADDRESS": encounter.address,
        "INTEROP_SEED": encounter.seed,
        "INTEROP_HELLO": encounter.hello,
        "INTEROP_TOPIC": encounter.topic,
        "INTEROP_TIMEOUT_S": f"{scenario.timeout_s:g}",
    }
    if encounter.echo_bytes:
        environment["INTEROP_ECHO_BYTES"] = str(encounter.echo_bytes)
    try:
        done = subprocess.run(
            peer.command,
            cwd=peer.directory,
            env=environment,
            stdout=subprocess.PIPE,
            timeout=scenario.timeout_s + GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        raise CannotRun(f"{peer.command[0]} cannot be started: {error.strerror}; install it first") from error
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return {"ok": False, "step": "contract", "error": f"no JSON object on stdout, exit code {done.returncode}"}
    if not isinstance(told, dict) or bool(told.get("ok")) != (done.returncode == 0):
        return {"ok": False, "step": "contract", "error": f"exit code {done.returncode} and `ok` disagree"}
    return told


def find_fault(told: dict[str, Any], encounter: Encounter) -> str | None:
    """What is wrong with what the peer reports, by our own codecs; None if nothing is."""
    if told["remote_peer"] != encounter.node_peer_id:
        return f"it met {told['remote_peer']}"
    if told["peer_id"] != identity_of_seed(bytes.fromhex(encounter.seed)).peer_id:
        return "it did not take the identity it was given"
    if not str(told["agent_version"]).startswith("p2pmesh/"):
        return f"identify says {told['agent_version']!r}"
    if int(told.get("echo_bytes", 0)) != encounter.echo_bytes:
        return "not all bytes were echoed"
    if encounter.answer not in (None, told["answer"]):
        return "the answer to the hello changed on its way"
    try:
        welcome = decode_answer(bytes.fromhex(told["answer"]))
        if welcome is None:
            return "the answer to the hello is no welcome"
        for data in (welcome.announcement, bytes.fromhex(told["gossip"]["data"])):
            speaker = decode_announcement(data, VERIFIER.is_signature_of, VERIFIER.peer_id_of)
            if speaker.peer_id != encounter.node_peer_id:
                return f"an announcement of {speaker.peer_id}"
    except P2PMeshError as error:
        return f"what it received does not decode: {error}"
    return None


def decode_answer(message: bytes) -> Welcome | None:
    """The welcome of a framed control message; None if it is something else."""
    for size in range(1, 5):
        length = decode_varint(message[:size], len(message))
        if length is not None:
            answer = decode_control(message[size:])
            return answer if length == len(message) - size and isinstance(answer, Welcome) else None
    return None


# --- the matrix


def read_matrix() -> tuple[list[Peer], list[Scenario], set[tuple[str, str]]]:
    """Peers, scenarios, and the pairs that are known to fail."""
    try:
        matrix = tomllib.loads((HERE / "matrix.toml").read_text())
        known = tomllib.loads((HERE / "known_failures.toml").read_text())
        peers = [
            Peer(item["name"], HERE / item["directory"], tuple(item["install"]), tuple(item["command"]))
            for item in matrix["peer"]
        ]
        scenarios = [Scenario(item["name"], item["node"], float(item["timeout_s"])) for item in matrix["scenario"]]
        failures = {(item["peer"], item["scenario"]) for item in known.get("failure", [])}
    except (OSError, KeyError, ValueError) as error:
        raise CannotRun(f"the matrix cannot be read: {error!r}") from error
    unknown = {scenario.node for scenario in scenarios} - set(NODES)
    if unknown:
        raise CannotRun(f"the matrix names nodes that nobody can start: {', '.join(sorted(unknown))}")
    return peers, scenarios, failures


def install(peer: Peer) -> None:
    """Runs the peer's install command."""
    print(f"installing {peer.name}: {' '.join(peer.install)}", file=sys.stderr)
    try:
        subprocess.run(peer.install, cwd=peer.directory, check=True, timeout=INSTALL_TIMEOUT_S, stdout=sys.stderr)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotRun(f"{peer.name} cannot be installed: {error}") from error


def print_table(verdicts: list[Verdict]) -> None:
    """One line for each pair."""
    rows = [("peer", "scenario", "result", "remark")]
    for verdict in verdicts:
        result = ("pass" if verdict.is_passed else "FAIL") + (" (known to fail)" if verdict.is_known else "")
        rows.append((verdict.peer, verdict.scenario, result, verdict.remark))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip())


def run_matrix(options: argparse.Namespace) -> list[Verdict]:
    """All pairs that the options leave, one after the other."""
    peers, scenarios, failures = read_matrix()
    peers = [peer for peer in peers if options.peer in (None, peer.name)]
    scenarios = [scenario for scenario in scenarios if options.scenario in (None, scenario.name)]
    if not peers or not scenarios:
        raise CannotRun("no pair of the matrix has these names")
    if options.install:
        for peer in peers:
            install(peer)
    return [
        Verdict(peer.name, scenario.name, *meet(peer, scenario), (peer.name, scenario.name) in failures)
        for peer in peers
        for scenario in scenarios
    ]


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Foreign libp2p peers against p2pmesh nodes.")
    parser.add_argument("--install", action="store_true", help="install what the peers need, first")
    parser.add_argument("--peer", help="only this peer")
    parser.add_argument("--scenario", help="only this scenario")
    try:
        verdicts = run_matrix(parser.parse_args())
    except CannotRun as error:
        print(f"interop: {error}", file=sys.stderr)
        return 2
    print_table(verdicts)
    return 0 if all(verdict.is_expected for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
