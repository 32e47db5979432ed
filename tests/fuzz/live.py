"""Mutated frames over real libp2p to a running node: ``python -m tests.fuzz.live [--frames N] [--seed S]``.

The node is a process of its own. Its attackers come as members, whose garbage reaches everything that is served, and
are banned soon; each ban brings a new identity. Afterwards the node must live, admit an honest peer, have told of no
traceback, and have grown by no more than its bounds.
"""

import argparse
import json
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.identity import identity_of_seed
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.base.errors import P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import CONTROL_PROTOCOL, STAGE_PROTOCOL
from p2pmesh.node.channels import MessageStream
from p2pmesh.wire.messages.answers import Refusal
from tests.e2e.hello import say_hello
from tests.e2e.peers import NodeProcess, Peers, resident_bytes
from tests.fuzz.run import Fuzzer

PROTOCOLS = {"varint": CONTROL_PROTOCOL, "frame": STAGE_PROTOCOL}
ANSWER_TIMEOUT_S = 0.25
STREAMS_AT_ONCE = 8
LISTEN = ("/ip4/127.0.0.1/tcp/0",)


@dataclass(slots=True)
class LiveReport:
    """What came of it."""

    frames: int = 0
    identities: int = 0
    seconds: float = 0.0
    answers: dict[str, int] = field(default_factory=dict)
    bans: int = 0
    tracebacks: int = 0
    is_alive: bool = False
    admits_honest_peers: bool = False
    rss_start_bytes: int = 0
    rss_end_bytes: int = 0


class Attack:
    """Mutated frames until enough are sent."""

    def __init__(self, node: NodeProcess, frames: int, seed: int) -> None:
        self._peer = PeerId(node.peer_id)
        self._invite = node.invite
        self._addresses = tuple(node.status()["addresses"])
        self._mesh_id = str(node.status()["mesh_id"])
        self._fuzzer = Fuzzer(seed)
        self._samples = [sample for sample in self._fuzzer.samples if sample.prefix in PROTOCOLS]
        self._seed = seed
        self._frames = frames
        self._next = 0
        self.report = LiveReport()

    async def run(self) -> None:
        """One identity after another."""
        began = trio.current_time()
        while self.report.frames < self._frames:
            self.report.identities += 1
            identity = identity_of_seed((self._seed * 1_000_003 + self.report.identities).to_bytes(32, "big"))
            async with open_network(identity, LISTEN) as network:
                with suppress(P2PMeshError):
                    await network.dial(self._peer, self._addresses, 10)
                    await say_hello(network, identity, self._peer, self._mesh_id, self._invite)
                    await self._flood(network)
        self.report.seconds = trio.current_time() - began

    async def _flood(self, network: Libp2pNetwork) -> None:
        """Until it is cut off."""
        async with trio.open_nursery() as nursery:
            for _ in range(STREAMS_AT_ONCE):
                nursery.start_soon(self._send_frames, network)

    async def _send_frames(self, network: Libp2pNetwork) -> None:
        while self.report.frames < self._frames and self._peer in network.connected_peers():
            sample = self._samples[self._next % len(self._samples)]
            self._next += 1
            try:
                stream = await network.open_stream(self._peer, PROTOCOLS[sample.prefix], 5)
            except PeerUnavailable:
                return
            self.report.frames += 1
            await self._exchange(stream, self._fuzzer.mutate(sample))

    async def _exchange(self, stream: Any, data: bytes) -> None:
        answer = "none"
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            try:
                await stream.send(data)
                await stream.finish()
                said = await MessageStream(stream).receive(ANSWER_TIMEOUT_S)
                answer = said.code if isinstance(said, Refusal) else type(said).__name__
            except PeerUnavailable:
                answer = "reset"
            except P2PMeshError as error:
                answer = f"unreadable ({error.code.value})"
        self.report.answers[answer] = self.report.answers.get(answer, 0) + 1
        await stream.reset()


def attack_node(folder: Path, frames: int, seed: int) -> LiveReport:
    """Starts a node, attacks it, and sees how it is."""
    peers = Peers(folder)
    try:
        node = peers.found("node")
        attack = Attack(node, frames, seed)
        start = resident_bytes(node.process.pid)
        trio.run(attack.run)
        report = attack.report
        report.rss_start_bytes, report.rss_end_bytes = start, resident_bytes(node.process.pid)
        report.is_alive = node.process.poll() is None
        report.bans = sum(event["event"] == "peer_banned" for event in node.events)
        report.tracebacks = sum("Traceback" in line for line in node.errors)
        peers.join("honest", node.invite).wait_for("joined", timeout_s=30)
        report.admits_honest_peers = True
        return report
    finally:
        peers.stop_all()
        peers.clean_up()


def main() -> int:
    """Runs and prints; exit code 1 if the node took harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.live", description=__doc__)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p2pmesh-fuzz-") as folder:
        report = attack_node(Path(folder), args.frames, args.seed)
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    return 0 if report.is_alive and report.admits_honest_peers and not report.tracebacks else 1


if __name__ == "__main__":
    sys.exit(main())
