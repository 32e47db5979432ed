"""The process that fetches from the hub is killed at random: what came before is not fetched again.

Counted at the server, by what it gave its kernel: all that a kill can waste. The server is as fast as it can be, which
is the worst case, since its kernel and ours then hold the most that nobody has read.
"""

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from p2pmesh.adapters.child_environment import child_environment
from p2pmesh.adapters.hub import HubSettings
from tests.fakes.hub_server import COMMIT, FakeHub, serving_hub

SIZE_BYTES = 150_000_000
KILLS = 10
DEADLINE_S = 120.0
FILE = "big.gguf"


def start_child(hub: FakeHub, folder: Path, digest: str) -> "subprocess.Popen[bytes]":
    settings = HubSettings(hub.url)
    job = {
        "job": "fetch",
        "repository": "org/big",
        "commit": COMMIT,
        "folder": str(folder),
        "files": [[FILE, SIZE_BYTES, digest]],
        "connections": settings.connections,
        "endpoint": hub.url,
        "attempts": settings.attempts,
        "first_wait_s": 0.01,
        "timeout_s": settings.timeout_s,
    }
    command = [sys.executable, "-m", "p2pmesh.adapters.hub_child"]
    environment = {**child_environment(), "HF_HUB_DISABLE_TELEMETRY": "1"}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
    assert child.stdin is not None
    child.stdin.write(json.dumps(job).encode() + b"\n")
    child.stdin.flush()
    return child


def end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    child.wait(DEADLINE_S)
    assert child.stdin is not None
    child.stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_kills_cost_at_most_a_tenth(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = chance.randbytes(SIZE_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    path = tmp_path / FILE
    with serving_hub() as hub:
        hub.add("org/big", big__gguf=data)
        for point in sorted(chance.sample(range(SIZE_BYTES), KILLS)):
            reached = hub.watch(point)
            child = start_child(hub, tmp_path, digest)
            try:
                assert reached.wait(DEADLINE_S)
            finally:
                end(child)
        child = start_child(hub, tmp_path, digest)
        try:
            assert child.wait(DEADLINE_S) == 0
        finally:
            end(child)
        sent = hub.sent_bytes
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    assert SIZE_BYTES <= sent <= 1.1 * SIZE_BYTES
