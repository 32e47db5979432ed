"""What the overlay benchmark makes of the events of its nodes; the nodes themselves are run by hand."""

import pytest

from p2pmesh.app.bench_options import BenchOverlayOptions
from p2pmesh.app.bench_overlay import GossipLedger, describe_overlay, quantiles, slope_per_minute
from p2pmesh.base.errors import ConfigError

NODES = ("a", "b", "c")


def said(ledger: GossipLedger, node: str, message: str, unix_ms: int, *, is_publishing: bool = False) -> None:
    event = "gossip_published" if is_publishing else "gossip_delivered"
    ledger.add(node, {"event": event, "message_id": message, "unix_ms": unix_ms, "size_bytes": 700, "topic": "t"})


def test_a_message_is_everywhere_when_its_last_reader_has_it() -> None:
    ledger = GossipLedger()
    said(ledger, "a", "m", 1_000, is_publishing=True)
    said(ledger, "b", "m", 1_010)
    said(ledger, "c", "m", 1_400)
    said(ledger, "c", "m", 1_500)  # from another topic: the first counts
    figures = ledger.deliveries(NODES, 0, 2_000)
    assert figures["to_one_peer_ms"] == {"median": 10, "p95": 400, "max": 400}
    assert figures["to_all_peers_ms"] == {"median": 400, "p95": 400, "max": 400}
    assert (figures["messages"], figures["complete_messages"], figures["missing_deliveries"]) == (1, 1, 0)


def test_what_did_not_arrive_is_counted_and_makes_no_message_complete() -> None:
    ledger = GossipLedger()
    said(ledger, "a", "m", 1_000, is_publishing=True)
    said(ledger, "b", "m", 1_010)
    figures = ledger.deliveries(NODES, 0, 2_000)
    assert (figures["complete_messages"], figures["missing_deliveries"]) == (0, 1)
    assert figures["to_all_peers_ms"] is None


def test_only_messages_of_the_time_and_of_these_nodes_count_whatever_the_order_of_the_pipes() -> None:
    ledger = GossipLedger()
    for message, node, unix_ms in (("early", "a", 999), ("late", "a", 2_000), ("other", "x", 1_500)):
        said(ledger, node, message, unix_ms, is_publishing=True)
    said(ledger, "b", "m", 1_600)
    said(ledger, "c", "m", 1_700)
    said(ledger, "a", "m", 1_500, is_publishing=True)
    figures = ledger.deliveries(NODES, 1_000, 2_000)
    assert (figures["messages"], figures["complete_messages"]) == (1, 1)


def test_a_ledger_forgets_the_oldest() -> None:
    ledger = GossipLedger(capacity=2)
    for number in range(4):
        said(ledger, "a", f"m{number}", number, is_publishing=True)
    assert ledger.published_by("a", 0) == ["m2", "m3"]
    assert ledger.first_after(0, lambda node, is_publishing, message: message == "m3") == 3
    assert ledger.first_after(4, lambda node, is_publishing, message: True) is None


def test_quantiles_and_slopes() -> None:
    assert quantiles([]) is None
    assert quantiles([5]) == {"median": 5, "p95": 5, "max": 5}
    assert quantiles(list(range(100, 0, -1))) == {"median": 50, "p95": 96, "max": 100}
    assert slope_per_minute([7.0]) == 0.0
    assert slope_per_minute([1.0, 3.0, 5.0]) == pytest.approx(2.0)


def test_a_report_names_what_was_not_kept() -> None:
    idle = {
        "cpu_share": 0.03, "cpu_share_worst_node": 0.04, "rss_kib_per_minute": [100_000],
        "rss_slope_kib_per_minute": 1.5,
    }  # fmt: skip
    told = {
        "messages": 3, "message_bytes_median": 700, "complete_messages": 2, "missing_deliveries": 1,
        "to_one_peer_ms": None, "to_all_peers_ms": {"median": 1, "p95": 2, "max": 3},
    }  # fmt: skip
    report = {"announcements": told, "idle": {"founder": idle, "joiners": None}, "restart": None}
    lines = describe_overlay(report | {"bars": {"quick": True, "idle": False}})
    assert lines[-2:] == ["kept   quick", "BROKEN idle"]
    assert any("CPU 3.00% of a core" in line and "97.7 MiB" in line for line in lines)


@pytest.mark.parametrize(("peers", "minutes"), [(1, 5), (65, 5), (30, 0)])
def test_options_out_of_their_range_are_refused(peers: int, minutes: int) -> None:
    with pytest.raises(ConfigError):
        BenchOverlayOptions(peers, minutes)
