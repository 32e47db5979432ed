"""What facts of the network mean, and that each comes with what to do."""

from dataclasses import replace
from itertools import product

import pytest

from p2pmesh.core.addresses import AddressChoice, LeftOut, Untold
from p2pmesh.core.network_doctor import (
    Contact,
    Finding,
    Level,
    NetworkFacts,
    ReachFacts,
    Topic,
    diagnose,
    has_problem,
)

TOLD = AddressChoice(("/ip4/192.168.1.20/tcp/4001",))
PUBLIC = ReachFacts("public", "none", (), ("/ip4/8.8.4.4/tcp/4001",), 0, 3, 0)
GOOD = NetworkFacts(
    TOLD, "nostr", (Contact("/ip4/192.168.1.20/tcp/4001", 1),), "", PUBLIC, "member", 3,
    nostr=(Contact("wss://relay.example", 80),), clock_offset_ms=120, clock_source="3 of its peers",
)  # fmt: skip


def find(topic: Topic, facts: NetworkFacts) -> Finding:
    [finding] = [one for one in diagnose(facts) if one.topic is topic]
    return finding


def test_where_all_is_well_nothing_is_to_be_done() -> None:
    findings = diagnose(GOOD)
    assert {one.level for one in findings} == {Level.OK}
    assert {one.topic for one in findings} == set(Topic) - {Topic.RELAYS}
    assert not has_problem(findings)


@pytest.mark.parametrize(
    ("topic", "changes", "level", "text", "advice"),
    [
        (Topic.INTERFACES, {"addresses": AddressChoice(())}, Level.PROBLEM, "no address", "--listen"),
        (Topic.INTERFACES, {"addresses": AddressChoice(("/ip6/::1/tcp/1",))}, Level.PROBLEM, "no", "--listen"),
        (Topic.LISTENING, {"own": (Contact("/ip4/10.0.0.1/tcp/1", None, "refused"),)}, Level.PROBLEM, "refused",
         "firewall"),
        (Topic.UDP, {"multicast_failure": "in use"}, Level.OK, "in use", "Nothing"),
        (Topic.UDP, {"multicast_failure": "in use", "discovery": "mdns"}, Level.PROBLEM, "in use", "5353"),
        (Topic.TCP, {"reach": None}, Level.ADVICE, "none runs here", "p2pmesh up"),
        (Topic.TCP, {"reach": replace(PUBLIC, reachability="unknown")}, Level.ADVICE, "No peers", "Ask again"),
        (Topic.TCP, {"reach": replace(PUBLIC, reachability="private", observed_hosts=("8.8.8.8",))}, Level.PROBLEM,
         "could not", "8.8.8.8"),
        (Topic.TCP, {"reach": replace(PUBLIC, reachability="private", reservations=2)}, Level.ADVICE, "could not",
         "Forward"),
        (Topic.RELAYS, {"reach": replace(PUBLIC, reachability="private", reservations=2)}, Level.OK, "2 relays", ""),
        (Topic.RELAYS, {"reach": replace(PUBLIC, reachability="private")}, Level.PROBLEM, "No peer relays", "Join"),
        (Topic.NAT, {"reach": replace(PUBLIC, nat="symmetric")}, Level.ADVICE, "another port", "Forward"),
        (Topic.PEERS, {"peers": 0}, Level.PROBLEM, "No member", "invite"),
        (Topic.PEERS, {"peers": 0, "standing": "founder"}, Level.ADVICE, "Nobody has joined", "invite"),
        (Topic.PEERS, {"reach": None, "known": (Contact("/ip4/10.0.0.9/tcp/1", None, "timed out"),)}, Level.ADVICE,
         "timed out", "runs"),
        (Topic.NOSTR, {"nostr": (Contact("wss://a.example", None, "refused"),)}, Level.ADVICE, "No relay", "443"),
        (Topic.NOSTR, {"nostr": (Contact("wss://a.example", None, "refused"),), "is_nostr_used": True}, Level.PROBLEM,
         "No relay", "443"),
        (Topic.CLOCK, {"clock_offset_ms": -6000}, Level.ADVICE, "6.0 s behind", "timedatectl"),
        (Topic.CLOCK, {"clock_offset_ms": 31_000}, Level.PROBLEM, "31.0 s ahead of", "timedatectl"),
        (Topic.CLOCK, {"clock_offset_ms": None, "reach": None, "discovery": "none"}, Level.OK, "Nobody was asked",
         "Start"),
    ],
)  # fmt: skip
def test_each_fault_is_found_and_comes_with_a_remedy(
    topic: Topic, changes: dict[str, object], level: Level, text: str, advice: str
) -> None:
    finding = find(topic, replace(GOOD, **changes))  # type: ignore[arg-type]
    assert finding.level is level
    assert text in finding.text
    assert advice in finding.advice


def test_bridges_and_interfaces_that_are_down_are_named() -> None:
    left_out = (
        Untold("/ip4/172.17.0.1/tcp/1", "docker0", LeftOut.INNER),
        Untold("/ip4/192.168.9.1/tcp/1", "wlan0", LeftOut.DOWN),
    )
    texts = [one.text for one in diagnose(replace(GOOD, addresses=replace(TOLD, left_out=left_out)))]
    assert any("docker0" in text for text in texts)
    assert any("wlan0" in text for text in texts)


def test_linux_under_windows_behind_its_translator_is_told() -> None:
    assert any("mirrored" in one.advice for one in diagnose(replace(GOOD, is_wsl_nat=True)))


def test_every_finding_is_a_sentence_with_one_of_what_to_do() -> None:
    reaches = [None, *(ReachFacts(a, b) for a, b in product(("unknown", "public", "private"), ("none", "cone")))]
    for reach, offset, contacts in product(reaches, (None, 0, 99_000), ((), (Contact("wss://a.example", None, "no"),))):
        for one in diagnose(replace(GOOD, reach=reach, clock_offset_ms=offset, nostr=contacts, peers=0)):
            assert one.text.endswith(".")
            assert one.advice.endswith(".")
            assert "\n" not in one.text + one.advice
