"""How often a network may ask to be dialled."""

import trio
from trio.testing import MockClock

from p2pmesh.adapters.p2p.autonat import BURST, EACH_US, DialBackServer


async def never(*_: object) -> None:
    raise AssertionError("nobody is dialled here")


async def test_whoever_is_refused_is_no_later_served_for_it(autojump_clock: MockClock) -> None:
    server = DialBackServer(never)  # type: ignore[arg-type]
    each_s = EACH_US / 1_000_000
    assert [server._has_allowance("203.0.113.1") for _ in range(BURST + 2)] == [True] * BURST + [False] * 2
    served = 0
    for _ in range(10):
        await trio.sleep(each_s * 0.9)
        served += server._has_allowance("203.0.113.1")
    assert served >= 8
    assert server._has_allowance("198.51.100.1")
