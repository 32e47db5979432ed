"""Useless connections of every kind leave the admitted peers undisturbed (a thousand: run ``garbage`` as a module)."""

from tests.adapters.p2p.garbage import ATTACKS, measure

CONNECTIONS = 40 * len(ATTACKS)
GROWTH_BYTES = 64 * 1024 * 1024


async def test_admitted_peers_go_on_undisturbed_and_nothing_is_left_behind() -> None:
    figures = await measure(CONNECTIONS, calm_s=0.5)
    assert figures.connections == CONNECTIONS
    assert set(figures.by_kind.values()) == {40}
    assert figures.failed_exchanges == 0
    assert figures.exchanges_during > 0
    assert figures.are_connections_the_same
    assert figures.left_over_connections == 0
    assert figures.grown_file_descriptors <= 2
    assert figures.grown_bytes < GROWTH_BYTES
    assert figures.most_handshakes <= 128
    assert figures.most_strangers <= 64
    assert figures.banned == 0
