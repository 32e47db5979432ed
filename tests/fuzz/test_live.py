"""Mutated frames over real libp2p: the node lives, bans, grows within bounds, and admits honest peers afterwards."""

from pathlib import Path

import pytest

from tests.fuzz.live import attack_node

FRAMES = 400
GROWTH_BYTES = 96 * 1024 * 1024


@pytest.mark.e2e
def test_a_running_node_survives_members_that_send_garbage(tmp_path: Path) -> None:
    report = attack_node(tmp_path, FRAMES, seed=11)
    assert report.frames >= FRAMES
    assert report.is_alive
    assert report.admits_honest_peers
    assert report.tracebacks == 0
    assert report.bans > 5
    assert report.rss_end_bytes - report.rss_start_bytes < GROWTH_BYTES
