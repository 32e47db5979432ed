"""How far our clock is from those of peers."""

import trio

from p2pmesh.base.ids import PeerId
from p2pmesh.node.clock_offsets import MAX_PEERS, ClockOffsets
from tests.fakes.mesh import open_mesh


def test_the_median_counts_and_the_last_word_of_each() -> None:
    offsets = ClockOffsets()
    assert offsets.describe() == {"peers": 0, "ahead_ms": None}
    for name, said in (("a", 1000), ("b", 990), ("c", 900_000), ("a", 1100), ("d", 0)):
        offsets.note(PeerId(name), said, 1000)
    assert offsets.describe() == {"peers": 3, "ahead_ms": -100}


def test_no_more_peers_are_remembered_than_so_many() -> None:
    offsets = ClockOffsets()
    for number in range(2 * MAX_PEERS):
        offsets.note(PeerId(str(number)), 1, 1)
    assert offsets.describe()["peers"] == MAX_PEERS


async def test_a_wrong_clock_is_seen_at_the_hello(autojump_clock: trio.abc.Clock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder")
        late = await mesh.join("late", founder, wall_offset_ms=-20_000)
        assert late.node.status()["clock"] == {"peers": 1, "ahead_ms": -20_000}
        assert founder.node.status()["clock"] == {"peers": 1, "ahead_ms": 20_000}
