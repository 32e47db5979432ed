"""Settings that change while a node runs: its file is read again, and what can count at once does.

Owns when the file is read, and which keys need a restart. What a file may say is ``cli.settings``', how a setting
takes effect the node's. A file with any mistake changes nothing.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from p2pmesh.app import events
from p2pmesh.app.config import UpOptions
from p2pmesh.app.config_file import Reading, SettingsFile
from p2pmesh.app.events import Emit, Event, EventName
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError

LOOK_AGAIN_S = 5.0
_LIVE = {
    "share_hours": "share_hours",
    "idle_only": "is_only_idle",
    "idle_after": "idle_after_s",
    "leave_within": "leave_within_s",
    "max_memory": "max_memory_bytes",
    "max_layers": "max_layers",
    "exclude_model": "excluded_models",
    "upload_limit": "upload_bytes_per_s",
    "download_limit": "download_bytes_per_s",
    "cache_quota": "cache_quota_bytes",
}
POOL_KEYS = frozenset({"publish", "region", "max_clients"})
"""Of the listing of the node's public pool; which pool the node is in needs a restart."""
LIVE_KEYS = frozenset(_LIVE) | POOL_KEYS
"""What takes effect at once; every other key needs a restart."""
LIVE_FIELDS = tuple(_LIVE.values())
"""The same, as ``UpOptions`` has them."""
Apply = Callable[[UpOptions], Awaitable[None]]


class LiveSettings:
    """Of one running node."""

    def __init__(self, file: SettingsFile, running: Reading, emit: Emit) -> None:
        self._file = file
        self._running = dict(running.keys)
        self._emit = emit
        self._apply: Apply | None = None
        self._turn = trio.Lock()
        self._seen = self._stamp()

    async def watch(self, apply: Apply) -> None:
        """Reads the file again whenever it changes, until cancelled."""
        self._apply = apply
        while True:
            await trio.sleep(LOOK_AGAIN_S)
            if self._stamp() != self._seen:
                await self.reload_and_tell()

    async def reload_and_tell(self) -> None:
        """For whoever waits for no answer: what is wrong becomes an event."""
        try:
            await self.reload()
        except P2PMeshError as error:
            self._emit(events.error(error))

    async def reload(self) -> dict[str, Any]:
        """Reads the file again and applies what can be; raises ``ConfigError`` and changes nothing if it is broken."""
        if self._apply is None:
            raise ConfigError(ErrorCode.CONFIG_INVALID, "the node is starting; try again in a moment")
        async with self._turn:
            self._seen = self._stamp()
            reading = await trio.to_thread.run_sync(self._file.read)
            changed = sorted(key for key, value in reading.keys.items() if value != self._running.get(key))
            applied = [key for key in changed if key in LIVE_KEYS]
            if applied:
                await self._apply(reading.options)
            self._running |= {key: reading.keys[key] for key in applied}
        facts = {
            "path": str(self._file.path),
            "applied": applied,
            "needs_restart": [key for key in changed if key not in LIVE_KEYS],
        }
        if changed:
            self._emit(Event(EventName.CONFIG_RELOADED, facts))
        return facts

    def _stamp(self) -> tuple[int, int]:
        try:
            found = self._file.path.stat()
        except OSError:
            return (0, 0)
        return found.st_mtime_ns, found.st_size
