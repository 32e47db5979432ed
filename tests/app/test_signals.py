import os
import signal
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from p2pmesh.app.signals import SignalOrders, obey_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests were started by nohup
    yield
    signal.signal(signal.SIGHUP, before)


async def told_by(*sent: signal.Signals, has_settings: bool = True) -> list[str]:
    """What a node is told when these signals reach it."""
    told: list[str] = []
    wakes, wake = trio.open_memory_channel[None](10)

    def tell(order: str) -> None:
        told.append(order)
        wakes.send_nowait(None)

    async def reload() -> None:
        tell("reload")

    orders = SignalOrders(lambda: tell("stop"), lambda: tell("end"), reload if has_settings else None)
    async with trio.open_nursery() as nursery:
        await nursery.start(obey_signals, orders)
        for number in sent:
            os.kill(os.getpid(), number)
            await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    assert len(told) == wake.statistics().current_buffer_used
    return told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_stops_and_the_next_ends(number: signal.Signals) -> None:
    assert await told_by(number, number) == ["stop", "end"]


async def test_a_hangup_without_a_terminal_is_about_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert await told_by(signal.SIGHUP, signal.SIGTERM, signal.SIGHUP) == ["reload", "stop", "reload"]
    assert await told_by(signal.SIGHUP, has_settings=False) == ["stop"]


async def test_a_terminal_that_closes_stops_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert await told_by(signal.SIGHUP, signal.SIGHUP, signal.SIGINT) == ["stop", "end"]


async def test_a_hangup_that_is_to_be_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert await told_by(signal.SIGHUP) == []
