"""Work that must be done although its task is cancelled, for a bounded time."""

import trio


def shielded_for(seconds: float) -> trio.CancelScope:
    """A scope that cancellation from outside does not enter, and that ends by itself after ``seconds``."""
    return trio.CancelScope(shield=True, deadline=trio.current_time() + seconds)
