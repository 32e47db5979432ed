"""Real nodes on machines of their own, on one link: what they tell, how they find each other, and who keeps silent."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from p2pmesh.adapters.credential_files import load_requirements
from p2pmesh.adapters.identity import load_or_create_identity
from p2pmesh.app.claims import now_unix_ms
from p2pmesh.wire.invite import Invite, encode_invite
from tests.e2e.namespaces import Machine, clean_up, open_machines, require_namespaces
from tests.e2e.peers import NodeProcess

EVERYWHERE = "172.17.0.1"
"""What every machine with a container engine has."""
SILENT_S = 8.0


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Machine]]:
    require_namespaces()
    with open_machines(3) as made:
        made[0].address("10.77.0.1/24", "fd77::1/64")
        made[1].address("fd77::2/64")
        made[2].address("10.77.0.3/24")
        for machine in made:
            machine.add_bridge("docker0", f"{EVERYWHERE}/16")
        yield made


@pytest.fixture(scope="module")
def founder(machines: list[Machine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = machines[0].start(tmp_path_factory.mktemp("lan"), "--max-memory", "0", "--discovery", "mdns")
    try:
        node.wait_for("invite")
        yield node
        node.stop()
    finally:
        clean_up(node)


def test_an_invite_without_an_address_is_enough_over_ipv6_alone(
    machines: list[Machine], founder: NodeProcess, tmp_path: Path
) -> None:
    told = founder.wait_for("addresses")
    assert sorted(text.split("/")[2] for text in told["announced"]) == ["10.77.0.1", "fd77::1"]
    left_out = {one["address"].split("/")[2]: one["reason"] for one in told["left_out"]}
    assert left_out[EVERYWHERE] == "inner"
    identity, requirements = load_or_create_identity(founder.home), load_requirements(founder.home)
    assert requirements is not None
    now = now_unix_ms()
    nowhere = Invite(bytes(range(16)), requirements, now, now + 3_600_000)
    line = encode_invite(replace(nowhere, addresses=()), identity.public_key, identity.sign)
    member = machines[1].start(tmp_path, "--join", line, "--max-memory", "0", "--discovery", "mdns")
    try:
        member.wait_for("joined")
        assert member.wait_for("lan_peer_met")["peer_id"] == founder.peer_id
        assert [text.split("/")[2] for text in member.wait_for("addresses")["announced"]] == ["fd77::2"]
        member.stop()
    finally:
        clean_up(member)


@pytest.mark.slow
def test_the_open_pool_of_a_link_is_joined_without_any_relay(machines: list[Machine], tmp_path: Path) -> None:
    named = ("--discovery", "mdns", "--max-memory", "0")
    pool = machines[0].start(tmp_path / "pool", "--publish", *named)
    joiner = None
    try:
        pool.wait_for("pool_listed")
        with machines[2].counting() as sent:
            joiner = machines[2].start(tmp_path / "joiner", "--auto", *named)
            joiner.wait_for("pool_joined")
            pool.wait_for("peer_joined", where=lambda event: event["peer_id"] == joiner.peer_id)
            joiner.stop()
        pool.stop()
    finally:
        for node in (pool, joiner):
            if node is not None:
                clean_up(node)
    allowed = {("ip4", "10.77.0.1"), ("arp", "10.77.0.1"), ("ip4", "224.0.0.251"), ("ip4", "224.0.0.22")}
    assert {(kind, destination) for kind, destination, _ in sent} <= allowed


def test_the_doctor_asks_the_node_that_runs(machines: list[Machine], founder: NodeProcess) -> None:
    command = (sys.executable, "-m", "p2pmesh", "doctor", "network", "--json", "--home", str(founder.home))
    told = json.loads(machines[0].run(*command).stdout)
    assert (told["is_running"], told["discovery"], told["nostr_relays"]) == (True, "mdns", [])
    assert {one["name"].split("/")[2] for one in told["own"] if one["took_ms"] is not None} == {"10.77.0.1", "fd77::1"}
    assert "inner" in {one["reason"] for one in told["left_out"] if one["interface"] == "docker0"}
    assert told["lan"] is not None
    assert not [one for one in told["findings"] if one["level"] == "problem"]


def test_a_silent_node_sends_nothing_but_to_the_peer_that_invited_it(
    machines: list[Machine], founder: NodeProcess, tmp_path: Path
) -> None:
    with machines[2].counting() as sent:
        node = machines[2].start(tmp_path, "--join", founder.invite, "--discovery", "none")
        try:
            node.wait_for("joined")
            founder.wait_for("peer_joined", where=lambda event: event["peer_id"] == node.peer_id)
            mark = node.mark()
            with pytest.raises(AssertionError):
                node.wait_for("error", after=mark, timeout_s=SILENT_S)  # nothing happens, for a while
            node.stop()
        finally:
            clean_up(node)
    assert ("ip4", "10.77.0.1", 6) in sent
    assert {(kind, destination) for kind, destination, _ in sent} <= {("ip4", "10.77.0.1"), ("arp", "10.77.0.1")}
    assert {protocol for kind, _, protocol in sent if kind == "ip4"} == {6}
