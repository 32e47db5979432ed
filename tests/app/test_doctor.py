"""Facts of this machine's network: with a node's word, without one, and whom nobody may be asked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio

from p2pmesh.adapters.interfaces import SystemInterfaces
from p2pmesh.app.config import Discovery
from p2pmesh.app.doctor import DoctorOptions, _ask_date, check_network
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.cli.doctor import describe
from p2pmesh.cli.main import main
from p2pmesh.core.addresses import InterfaceAddress
from p2pmesh.core.network_doctor import Level, Topic
from tests.adapters.nostr.real_relays import local_relay


def options(tmp_path: Path, **changes: Any) -> DoctorOptions:
    return replace(DoctorOptions(tmp_path, None, Discovery.NONE, (), (), (), False), **changes)


def no_node(home: Path) -> dict[str, Any]:
    raise ConfigError(ErrorCode.NODE_NOT_RUNNING, "none runs")


class _HttpServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)  # with its Date, which is of now
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def http_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _HttpServer) as server:
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


async def test_relays_are_asked_as_discover_and_up_ask_them(tmp_path: Path) -> None:
    async with local_relay() as url:  # it answers WebSockets, and no plain HTTP
        asked = options(tmp_path, discovery=Discovery.NOSTR, relays=(url, "ws://127.0.0.1:9"), is_pool_wanted=True)
        checkup = await trio.to_thread.run_sync(check_network, asked, no_node)
    first, second = checkup.facts["nostr_relays"]
    assert (first["name"], first["detail"]) == (url, "")
    assert first["took_ms"] is not None
    assert second["took_ms"] is None
    assert "connection refused" in second["detail"].lower()
    assert Level.PROBLEM not in {one.level for one in checkup.findings if one.topic is Topic.NOSTR}


def test_whoever_speaks_http_alone_is_no_relay_but_its_head_tells_the_time(tmp_path: Path) -> None:
    with http_server() as url:
        asked = options(tmp_path, discovery=Discovery.NOSTR, relays=(url,), is_pool_wanted=True)
        checkup = check_network(asked, no_node)
        ahead_ms = _ask_date(url)
    assert [one["took_ms"] for one in checkup.facts["nostr_relays"]] == [None]
    assert Level.PROBLEM in {one.level for one in checkup.findings if one.topic is Topic.NOSTR}
    assert ahead_ms is not None
    assert abs(ahead_ms) < 5_000
    assert _ask_date("ws://127.0.0.1:9") is None


NODES_RELAY, FILES_RELAY, TYPED_RELAY = (f"ws://127.0.0.{number}:9" for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("is_running", "typed", "asked"),
    [(False, (), FILES_RELAY), (True, (), NODES_RELAY), (True, (TYPED_RELAY,), TYPED_RELAY)],
)
def test_typed_relays_count_before_the_nodes_and_these_before_the_files(
    tmp_path: Path, is_running: bool, typed: tuple[str, ...], asked: str
) -> None:
    def status(home: Path) -> dict[str, Any]:
        return {"discovery": "nostr", "pool": {"relays": [{"url": NODES_RELAY}]}} if is_running else no_node(home)

    given = options(tmp_path, configured_discovery=Discovery.NOSTR, relays=(FILES_RELAY,), typed_relays=typed)
    assert [one["name"] for one in check_network(given, status).facts["nostr_relays"]] == [asked]


def test_a_typed_relay_is_asked_whatever_the_discovery_and_refused_where_it_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="--nostr-relay 'http://x'"):
        check_network(options(tmp_path, typed_relays=("http://x",)), no_node)
    assert main(["doctor", "network", "--home", str(tmp_path), "--nostr-relay", "http://x"]) != 2
    assert "write for example wss://" in capsys.readouterr().err


def test_the_table_tells_what_peers_are_told_and_not_what_they_might_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = (InterfaceAddress("eth0", "192.168.1.2", 24), InterfaceAddress("lo", "127.0.0.1", 8))
    monkeypatch.setattr(SystemInterfaces, "survey", lambda self: here)

    def status(home: Path) -> dict[str, Any]:
        return {"discovery": "none", "addresses": ["/ip4/127.0.0.1/tcp/9/p2p/X"]}

    checkup = check_network(options(tmp_path), status)
    assert [one["left_out"] for one in checkup.facts["interfaces"]] == ["not_chosen", None]
    rows = [line.split() for line in describe(checkup)]
    assert ["eth0", "192.168.1.2/24", "no,", "not-chosen"] in rows
    assert ["lo", "127.0.0.1/8", "yes"] in rows
    [finding] = [one for one in checkup.findings if one.topic is Topic.INTERFACES]
    assert "/ip4/127.0.0.1 alone" in finding.text
    assert "Leave that option away" in finding.advice


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
