"""What a loss costs: ``python -m tests.e2e.measure_recovery [spare]``, in the tree that is to be measured.

Real nodes on loopback hold a small real model in three stages; while one request is answered the engine of each stage
in turn is killed, and the time of the stall is told in its parts, by when the coordinator's events arrived here. With
``spare`` a fourth peer keeps engines ready; without, a placement has to load one.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from tests.e2e.conftest import SMOLLM
from tests.e2e.peers import Event, NodeProcess, Peers

PROMPT = "The seven seas are " + "wide and deep and cold and " * 150
TOKENS, STRIKE_AT = 192, 160
ROUNDS = 3
SPARE_S = 20.0
"""Within it spare engines are loaded again."""


def main() -> None:
    """One line a stage, medians in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        peers = Peers(Path(folder))
        try:
            measure(peers)
            peers.stop_all()
        finally:
            peers.clean_up()


def measure(peers: Peers) -> None:
    """Three stages on three peers, a coordinator without memory that is the ingress."""
    coordinator = peers.found("coordinator", "--model", SMOLLM, "--split", "3", "--max-memory", "0")
    has_spare = "spare" in sys.argv[1:]
    for number in range(3 + has_spare):
        peers.join(f"peer-{number}", coordinator.invite, "--max-memory", "1GiB")
    ready = coordinator.wait_for("pipeline_ready")
    coordinator.wait_for("ready")
    calm = answer(coordinator, lambda: None)
    time.sleep(SPARE_S * has_spare)
    print(f"load {os.getloadavg()[0]:.1f}, {len(calm)} tokens; detection, placement, replay, stall in ms")
    for stage in range(3):
        rounds = []
        for _ in range(ROUNDS):
            ready, parts, same = lose(peers, coordinator, ready, stage, calm)
            rounds.append(parts)
            print(f"  stage {stage}: {parts} {'same tokens' if same else 'OTHER TOKENS'}", file=sys.stderr)
            time.sleep(SPARE_S if has_spare else 5)  # a run that served for less is not replaced at once
        print(f"stage {stage} of 3 lost:", *(f"{statistics.median(part):6.0f}" for part in zip(*rounds, strict=True)))


def answer(coordinator: NodeProcess, strike: Callable[[], object]) -> list[int]:
    """Token ids of a whole answer; ``strike`` is called in the middle."""
    tokens: list[int] = []
    body = {"model": SMOLLM, "prompt": PROMPT, "stream": True, "return_token_ids": True, "temperature": 0}
    with coordinator.client(120) as client:
        with client.stream("POST", "/v1/completions", json=body | {"max_tokens": TOKENS}) as got:
            for line in got.iter_lines():
                if line.startswith("data: {"):
                    before = len(tokens)
                    for choice in json.loads(line[6:])["choices"]:
                        tokens += choice.get("token_ids") or []
                    if before < STRIKE_AT <= len(tokens):
                        strike()
    return tokens


def lose(
    peers: Peers, coordinator: NodeProcess, ready: Event, stage: int, calm: list[int]
) -> tuple[Event, tuple[float, ...], bool]:
    """The run after the loss of a stage's engine, what the loss cost, and whether the answer was the same."""
    holder = ready["stages"][stage]["peer_id"]
    victim = next(node for node in peers.nodes if node.peer_id == holder)
    engines = victim.children()
    mark, times, told = coordinator.mark(), {}, {}

    def watch() -> None:
        for name in ("model_withdrawn", "pipeline_ready", "request_recovered"):
            told[name] = coordinator.wait_for(name, after=mark)
            times[name] = time.monotonic()

    watcher = threading.Thread(target=watch)

    def strike() -> None:
        watcher.start()
        times["strike"] = time.monotonic()
        for engine in engines:
            os.kill(engine, signal.SIGKILL)

    tokens = answer(coordinator, strike)
    watcher.join()
    names = ("strike", "model_withdrawn", "pipeline_ready", "request_recovered")
    parts = [1000 * (times[after] - times[before]) for before, after in pairwise(names)]
    return told["pipeline_ready"], (*parts, float(told["request_recovered"]["stall_ms"])), tokens == calm


if __name__ == "__main__":
    main()
