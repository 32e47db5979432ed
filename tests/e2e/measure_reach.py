"""How fast peers behind NATs are reached: ``python -m tests.e2e.measure_reach``, as root, with iproute2 and nftables.

Real nodes behind real NATs (``nat_lab``): for each pair of NAT kinds the time from joining to a connection between the
two, and from that to a direct path; then the time from the restart of the only relay to a connection again. One line
each.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.nat_lab import RELAY, Nat, host_in, nat_lab, set_nat, why_not
from tests.e2e.peers import NodeProcess, Peers, wait_until

FIRST_PORT = 4001
IDLE = ("--max-memory", "0", "--on-demand", "off", "--discovery", "none")
JOINED_S = 60.0
CONNECTED_S = 30.0
UPGRADED_S = 12.0
RESTART_S = 60.0

_FETCH = """
import json, sys, urllib.request
url, token, body = sys.argv[1:]
headers = {"authorization": token, "content-type": "application/json"}
request = urllib.request.Request(url, body.encode() or None, headers)
opened = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120)
sys.stdout.write(opened.read().decode())
"""


class LabPeers(Peers):
    """Nodes in namespaces of the lab; none of them can be asked from outside."""

    def start_in(self, namespace: str, name: str, *arguments: str, port: int = FIRST_PORT) -> NodeProcess:
        """A node that listens on that port, once it says so."""
        command = [
            *("ip", "netns", "exec", namespace, sys.executable, "-m", "p2pmesh", "up"),
            *("--home", str(self._home_of(name)), "--name", name, "--port", "0", "--console-port", "0"),
            *("--listen", f"/ip4/0.0.0.0/tcp/{port}", "--log-format", "json", *arguments),
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        node = NodeProcess(name, self.folder / name, process)
        self.nodes.append(node)
        node.follow()
        node.wait_for("listening", timeout_s=JOINED_S)
        return node


def fetch(namespace: str, url: str, token: str = "", body: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a node's HTTP surface answers inside its namespace."""
    text = "" if body is None else json.dumps(body)
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", _FETCH, url, token, text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


def status_of(node: NodeProcess, namespace: str) -> dict[str, Any]:
    """``GET /api/status``."""
    run = json.loads((node.home / "run.json").read_text())
    return fetch(namespace, run["console_url"] + "/api/status", f"Bearer {run['console_token']}")


@dataclass(frozen=True)
class Outcome:
    """Seconds from joining to a connection, and from that to a direct path; None where there was none in time."""

    connected_s: float
    upgraded_s: float | None


def connect_pair(peers: LabPeers, relay: NodeProcess, kinds: tuple[Nat, Nat], number: int) -> Outcome:
    """Two fresh nodes behind NATs of these kinds, met and ended again.

    On ports of their own: routers remember for minutes what went through them, and may not keep a port that they know.
    """
    for home, kind in zip("ab", kinds, strict=True):
        set_nat(home, kind)
    port = FIRST_PORT + 1 + number
    a, b = (peers.start_in(host_in(home), f"{home}{number}", "--join", relay.invite, *IDLE, port=port) for home in "ab")
    try:
        a.wait_for("relays_changed", timeout_s=JOINED_S)
        b.wait_for("joined", timeout_s=JOINED_S)
        began = time.monotonic()
        b.wait_for("peer_joined", timeout_s=CONNECTED_S, where=lambda event: event["peer_id"] == a.peer_id)
        connected = time.monotonic()
        is_upgraded = wait_until(lambda: b.find("path_upgraded") is not None, UPGRADED_S)
        upgraded = time.monotonic()
        paths = status_of(b, host_in("b"))["reach"]["paths"]
        assert paths == ({"direct": 2, "relayed": 0} if is_upgraded else {"direct": 1, "relayed": 1}), paths
        return Outcome(connected - began, upgraded - connected if is_upgraded else None)
    finally:
        for node in (a, b):
            node.stop()


def restart_relay(peers: LabPeers, relay: NodeProcess) -> float:
    """Seconds from the start of the only relay, which was killed, to a connection of two that need it."""
    for home in "ab":
        set_nat(home, Nat.SYMMETRIC)
    a, b = (peers.start_in(host_in(home), f"{home}-stays", "--join", relay.invite, *IDLE) for home in "ab")
    met = _meets(b, a)
    wait_until(lambda: met(0) is not None, CONNECTED_S)
    assert met(0) is not None
    marks = b.mark()
    relay.kill()
    b.wait_for("relays_changed", timeout_s=RESTART_S, after=marks, where=lambda event: event["count"] == 0)
    marks = b.mark()
    again = peers.start_in(RELAY, relay.name, *IDLE)
    began = time.monotonic()
    is_back = wait_until(lambda: b.find("relays_changed", marks) is not None and _is_connected(b, a), RESTART_S)
    took_s = time.monotonic() - began
    assert is_back, b.events[-10:]
    for node in (a, b, again):
        node.stop()
    return took_s


def _meets(one: NodeProcess, other: NodeProcess) -> Callable[[int], object]:
    return lambda after: one.find("peer_joined", after, lambda event: event["peer_id"] == other.peer_id)


def _is_connected(one: NodeProcess, other: NodeProcess) -> bool:
    told = status_of(one, host_in("b"))["peers"]
    return any(peer["peer_id"] == other.peer_id and peer["is_admitted"] for peer in told)


def main() -> None:
    """Prints one line a pair."""
    reason = why_not()
    if reason is not None:
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder, nat_lab():
        peers = LabPeers(Path(folder))
        try:
            relay = peers.start_in(RELAY, "relay", *IDLE)
            for number, kinds in enumerate(itertools.combinations_with_replacement(Nat, 2)):
                outcome = connect_pair(peers, relay, kinds, number)
                upgraded = "stays relayed" if outcome.upgraded_s is None else f"direct {outcome.upgraded_s:.1f} s later"
                names = " - ".join(kind.value for kind in kinds)
                print(f"{names:32} connected {outcome.connected_s:4.1f} s after joining, {upgraded}", flush=True)
            print(f"the only relay is back: connected again after {restart_relay(peers, relay):.1f} s", flush=True)
        finally:
            peers.clean_up()


if __name__ == "__main__":
    main()
