"""What signals mean to a running node: stop, end at once, read the settings again.

Owns which signal is which; what stopping takes is ``app.up``'s.
"""

import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

_STOP = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class SignalOrders:
    """``stop`` is called once, ``end`` at the next signal to stop; ``reload`` None where nothing can be read again."""

    stop: Callable[[], None]
    end: Callable[[], None]
    reload: Callable[[], Awaitable[None]] | None


async def obey_signals(orders: SignalOrders, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    """Until it is cancelled. A hangup stops a node whose terminal is gone, and is about settings without one.

    One that is to be ignored (``nohup``) stays so. A terminal that closes may send it twice, from the system and from
    the shell, so it never ends a drain.
    """
    hang_up = _hang_up()
    has_terminal = sys.stdout.isatty()
    is_stopping = False
    with trio.open_signal_receiver(*_STOP, *hang_up) as received:
        task_status.started()
        async for number in received:
            if number in hang_up and orders.reload is not None and not has_terminal:
                await orders.reload()
            elif not is_stopping:
                is_stopping = True
                orders.stop()
            elif number in _STOP:
                orders.end()


def _hang_up() -> tuple[signal.Signals, ...]:
    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return ()
    return (signal.SIGHUP,)
