"""What is held goes together and in order, and nothing stays behind."""

from collections.abc import Sequence

import pytest

from p2pmesh.base.errors import ErrorCode, PeerUnavailable
from p2pmesh.node.outlet import Outlet
from p2pmesh.wire.stage import FrameKind, StageFrame


def frame(position: int) -> StageFrame:
    return StageFrame(FrameKind.TOKEN, bytes(16), bytes(16), 0, position, (1,))


class Place:
    """Where frames go; counts what comes at once."""

    def __init__(self) -> None:
        self.taken: list[list[int]] = []
        self.is_gone = False

    async def take(self, frames: Sequence[StageFrame]) -> None:
        if self.is_gone:
            raise PeerUnavailable(ErrorCode.PEER_LOST, "gone")
        self.taken.append([one.position for one in frames])


async def test_what_nobody_holds_goes_at_once() -> None:
    place = Place()
    outlet = Outlet(place.take)
    await outlet.send(frame(1))
    await outlet.send(frame(2))
    assert place.taken == [[1], [2]]


async def test_what_is_held_goes_together_once_all_have_let_go() -> None:
    place = Place()
    outlet = Outlet(place.take)
    outlet.hold()
    outlet.hold()
    await outlet.send(frame(1))
    outlet.let_go()
    await outlet.send(frame(2))
    assert place.taken == []
    outlet.let_go()
    await outlet.flush()
    await outlet.flush()
    assert place.taken == [[1, 2]]


async def test_what_was_kept_goes_before_what_comes_later() -> None:
    place = Place()
    outlet = Outlet(place.take)
    outlet.hold()
    await outlet.send(frame(1))
    outlet.let_go()
    await outlet.send(frame(2))
    assert place.taken == [[1, 2]]


async def test_whoever_flushes_hears_why_nothing_goes() -> None:
    place = Place()
    outlet = Outlet(place.take)
    outlet.hold()
    await outlet.send(frame(1))
    outlet.let_go()
    place.is_gone = True
    with pytest.raises(PeerUnavailable):
        await outlet.flush()
