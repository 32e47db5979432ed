"""Facts of this machine's network: with a node's word, without one, and whom nobody may be asked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from p2pmesh.app.config import Discovery
from p2pmesh.app.doctor import DoctorOptions, check_network
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.cli.doctor import describe
from p2pmesh.core.network_doctor import Level, Topic


def options(tmp_path: Path, **changes: Any) -> DoctorOptions:
    return replace(DoctorOptions(tmp_path, None, Discovery.NONE, (), (), (), False), **changes)


def no_node(home: Path) -> dict[str, Any]:
    raise ConfigError(ErrorCode.NODE_NOT_RUNNING, "none runs")


class _Relay(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)  # with its Date, which is of now
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def relay() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Relay) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_without_a_node_interfaces_are_told_and_nobody_is_asked(tmp_path: Path) -> None:
    checkup = check_network(options(tmp_path, relays=("ws://127.0.0.1:9",)), no_node)
    facts = checkup.facts
    assert (facts["is_running"], facts["discovery"]) == (False, "none")
    assert (facts["own"], facts["known_members"], facts["nostr_relays"]) == ([], [], [])
    assert facts["clock"] == {"ahead_ms": None, "source": ""}
    assert {"127.0.0.1"} <= {one["address"] for one in facts["interfaces"]}
    assert set(facts["steps_ms"]) == {"interfaces", "node", "contacts"}


def test_relays_are_timed_and_tell_the_time_where_they_may_be_asked(tmp_path: Path) -> None:
    with relay() as url:
        asked = options(tmp_path, discovery=Discovery.NOSTR, relays=(url, "ws://127.0.0.1:9"), is_pool_wanted=True)
        checkup = check_network(asked, no_node)
    first, second = checkup.facts["nostr_relays"]
    assert first["took_ms"] is not None
    assert (second["took_ms"], second["detail"]) == (None, "connection refused")
    assert checkup.facts["clock"]["source"] == "relays"
    assert abs(checkup.facts["clock"]["ahead_ms"]) < 5_000
    assert Level.PROBLEM not in {one.level for one in checkup.findings if one.topic is Topic.NOSTR}


def test_a_node_that_runs_is_believed(tmp_path: Path) -> None:
    def status(home: Path) -> dict[str, Any]:
        return {
            "discovery": "none",
            "addresses": ["/ip4/127.0.0.1/tcp/9/p2p/X", "/ip4/8.8.8.8/tcp/1/p2p/R/p2p-circuit/p2p/X"],
            "admission": {"standing": "member"},
            "peers": [{"is_admitted": True}, {"is_admitted": False}],
            "clock": {"peers": 1, "ahead_ms": 40_000},
            "reach": {"reachability": "private", "nat": "symmetric", "reservations": [{}], "paths": {"direct": 1}},
            "lan": None,
            "pool": None,
        }

    checkup = check_network(
        options(tmp_path, configured_discovery=Discovery.NOSTR, relays=("ws://127.0.0.1:9",)), status
    )
    facts = checkup.facts
    assert (facts["is_running"], facts["discovery"], facts["nostr_relays"], facts["peers"]) == (True, "none", [], 1)
    assert [(one["name"], one["detail"]) for one in facts["own"]] == [("/ip4/127.0.0.1/tcp/9", "connection refused")]
    levels = {one.topic: one.level for one in checkup.findings}
    assert (levels[Topic.CLOCK], levels[Topic.LISTENING], levels[Topic.NAT]) == (
        Level.PROBLEM,
        Level.PROBLEM,
        Level.ADVICE,
    )
    lines = list(describe(checkup))
    assert any(line.startswith("PROBLEM  clock") for line in lines)
