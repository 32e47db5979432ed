"""``ports.lan.Lan`` by DNS-SD: our record told, those of others browsed and resolved.

zeroconf runs an asyncio loop in a thread of its own. What it calls back there only wakes us (``run_sync_soon``); what
we ask of it blocks, and is done in trio's threads. Whatever it raises costs a pause, never the node.
"""

import contextlib
import logging
import math
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any

import trio
from zeroconf import Error, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_LAN_RECORDS
from p2pmesh.core.addresses import why_left_out
from p2pmesh.ports.interfaces import Interfaces
from p2pmesh.ports.lan import LanState
from p2pmesh.wire.lan_record import SERVICE_TYPE, TTL_S, LanRecord, decode_txt, encode_txt
from p2pmesh.wire.listing import ListingContent

INSTANCE_BYTES = 8
LOOPBACK = "127.0.0.1"
RESOLVE_TIMEOUT_MS = 2000
RESOLVED_AT_ONCE = 4
READ_TIMES = 2
SETTLE_S = 1.5
TRIED_AGAIN_S = 10.0
INTERFACES_LOOKED_AT_S = 30.0
STOP_TIMEOUT_S = 3.0

log = logging.getLogger(__name__)


class MdnsLan:
    """Implements ``ports.lan.Lan``; made by ``open_lan``."""

    def __init__(self, interfaces: Interfaces, service_type: str = SERVICE_TYPE) -> None:
        self._interfaces = interfaces
        self._type = service_type
        self._instance = f"{secrets.token_hex(INSTANCE_BYTES)}.{service_type}"
        self._record: LanRecord | None = None
        self._pool: ListingContent | None = None
        self._wish = trio.Event()
        self._revision = 0
        self._seen: dict[str, LanRecord] = {}
        self._pending: dict[str, int] = {}
        """Names to be read, and how often still."""
        self._has_pending = trio.Event()
        self._changes = 0
        self._changed = trio.Event()
        self._refused = 0
        self._is_listening = False
        self._is_told = False
        self._detail = ""

    # --- the port ----------------------------------------------------------------
    def tell(self, record: LanRecord | None) -> None:
        """What others are told from now on."""
        self._record = record
        self._note_wish()

    def list_pool(self, content: ListingContent | None) -> None:
        """What is told of a pool for everyone, beside the record; None: nothing of it any more."""
        self._pool = content
        self._note_wish()

    def seen(self) -> tuple[LanRecord, ...]:
        """Records of others, by peer id; the last of each peer."""
        newest = {record.peer: record for record in self._seen.values()}
        own = None if self._record is None else self._record.peer
        return tuple(newest[peer] for peer in sorted(newest) if peer != own)

    @property
    def changes(self) -> int:
        """How often ``seen`` changed."""
        return self._changes

    async def wait_changed_beyond(self, changes: int) -> None:
        """Until it changed more often."""
        while self._changes <= changes:
            await self._changed.wait()

    def state(self) -> LanState:
        """How it goes."""
        return LanState(self._is_listening, self._is_told, len(self.seen()), self._refused, self._detail)

    def _note_wish(self) -> None:
        self._wish.set()

    def _note_change(self) -> None:
        self._changes += 1
        self._changed.set()
        self._changed = trio.Event()

    # --- running -----------------------------------------------------------------
    async def run(self) -> None:
        """Until cancelled; says goodbye on the way out. Without any interface, or a port, it tries again."""
        while True:
            addresses = self._told_addresses()
            try:
                await self._run_on(addresses)
            except (OSError, RuntimeError, Error) as error:
                log.debug("multicast DNS failed: %r", error)
                self._detail = f"multicast DNS does not work here: {error or type(error).__name__}"[:300]
            self._is_listening = self._is_told = False
            self._seen.clear()
            self._note_change()
            if self._detail:
                await trio.sleep(TRIED_AGAIN_S)

    async def _run_on(self, addresses: tuple[str, ...]) -> None:
        """Until the interfaces change."""
        failures: list[BaseException] = []
        for address in addresses:
            _check_usable(address)
        zeroconf = await _opened(partial(Zeroconf, interfaces=list(addresses), use_asyncio=False))
        try:
            self._detail, self._is_listening = "", True
            token = trio.lowlevel.current_trio_token()
            browse = partial(ServiceBrowser, zeroconf, self._type, handlers=[partial(self._on_change, token)])
            await _in_thread(browse)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_noting, partial(self._keep_told, zeroconf), failures, nursery.cancel_scope)
                nursery.start_soon(self._resolve_pending, zeroconf)
                while self._told_addresses() == addresses:  # noqa: ASYNC110  no event tells of interfaces
                    await trio.sleep(INTERFACES_LOOKED_AT_S)
                nursery.cancel_scope.cancel()
        finally:
            with contextlib.suppress(Exception), trio.move_on_after(STOP_TIMEOUT_S) as scope:
                scope.shield = True
                await _in_thread(zeroconf.close)  # says goodbye for what is told
        if failures:
            raise failures[0]

    @property
    def is_alone(self) -> bool:
        """Whether this machine is on no network at all, so that only its own nodes can be there."""
        return self._told_addresses() == (LOOPBACK,)

    def _told_addresses(self) -> tuple[str, ...]:
        """Of the interfaces whose addresses are announced; loopback where there is none."""
        survey = self._interfaces.survey()
        told = sorted({one.address for one in survey if why_left_out(one) is None})
        return tuple(told) or (LOOPBACK,)

    # --- telling -------------------------------------------------------------------
    async def _keep_told(self, zeroconf: Zeroconf) -> None:
        registered: ServiceInfo | None = None
        while True:
            self._wish = trio.Event()
            wanted = self._service()
            if wanted is None and registered is not None:
                await _in_thread(partial(zeroconf.unregister_service, registered))
            elif wanted is not None and registered is None:
                await _in_thread(partial(zeroconf.register_service, wanted))
            elif wanted is not None:
                await _in_thread(partial(zeroconf.update_service, wanted))
            registered = wanted
            self._is_told = wanted is not None
            await self._wish.wait()

    def _service(self) -> ServiceInfo | None:
        record = self._record
        if record is None or not record.addresses:
            return None
        self._revision += 1
        hosts = [text.split("/")[2] for text in record.addresses]
        return ServiceInfo(
            self._type,
            self._instance,
            port=int(record.addresses[0].split("/")[4]),
            addresses=[ip_address(host).packed for host in hosts],
            properties=dict(encode_txt(replace(record, listing=self._pool))) | {"rev": str(self._revision)},
            server=f"{self._instance.partition('.')[0]}.local.",
            host_ttl=TTL_S,
            other_ttl=TTL_S,
        )

    # --- hearing -------------------------------------------------------------------
    def _on_change(
        self,
        token: trio.lowlevel.TrioToken,
        zeroconf: Zeroconf,
        service_type: str,
        name: str,
        state_change: ServiceStateChange,
    ) -> None:
        """In zeroconf's thread."""
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(self._note_service, name, state_change is ServiceStateChange.Removed)

    def _note_service(self, name: str, is_removed: bool) -> None:
        if name == self._instance:
            return
        if is_removed:
            self._pending.pop(name, None)
            if self._seen.pop(name, None) is not None:
                self._note_change()
        elif len(self._pending) + len(self._seen) < MAX_LAN_RECORDS or name in self._seen:
            self._pending[name] = READ_TIMES
            self._has_pending.set()

    async def _resolve_pending(self, zeroconf: Zeroconf) -> None:
        """Twice each: within a second of a change the cache may still give what was before it."""
        while True:
            self._has_pending = trio.Event()
            names = list(self._pending)
            limit = trio.CapacityLimiter(RESOLVED_AT_ONCE)
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(self._resolve, zeroconf, name, limit)
            for name in names:
                self._count_down(name)
            with trio.move_on_after(SETTLE_S if self._pending else math.inf):
                await self._has_pending.wait()

    def _count_down(self, name: str) -> None:
        left = self._pending.pop(name, 0) - 1
        if left > 0:
            self._pending[name] = left

    async def _resolve(self, zeroconf: Zeroconf, name: str, limit: trio.CapacityLimiter) -> None:
        async with limit:
            try:
                info = await _in_thread(partial(zeroconf.get_service_info, self._type, name, RESOLVE_TIMEOUT_MS))
                if info is not None and name in self._pending:
                    self._take(name, info)
            except Exception as error:  # noqa: BLE001  whatever a stranger's record makes the library raise
                log.debug("a record of the local network cannot be read: %r", error)
                self._refuse()

    def _refuse(self) -> None:
        self._refused += 1
        self._note_change()

    def _take(self, name: str, info: ServiceInfo) -> None:
        try:
            record = decode_txt(_text_fields(info), takes_loopback=self.is_alone)
        except RemoteProtocolError as error:
            log.debug("%r: %s", name, error.message)
            self._refuse()
            return
        known = self._seen.pop(name, None)
        self._seen[name] = record  # last: of two starts of one peer the one that spoke last counts
        if known != record:
            self._note_change()


def _text_fields(info: ServiceInfo) -> dict[str, str]:
    """TXT as text; the first of a key that stands twice counts (RFC 6763 6.4), which zeroconf sees to."""
    try:
        return {key.decode(): (value or b"").decode() for key, value in info.properties.items()}
    except UnicodeDecodeError:
        raise RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, "a TXT field is no text") from None


def _check_usable(address: str) -> None:
    """Raises ``OSError`` for an address that has just gone: zeroconf would leave its sockets open."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Blocks a thread, not the node; abandoned on cancellation, for each call ends by itself."""
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)  # type: ignore[call-arg]


async def _opened(make: Callable[[], Zeroconf]) -> Zeroconf:
    """One that runs. Cancelled before it does, the thread closes it: nobody else knows of it."""
    is_given_up = threading.Event()
    made: list[Zeroconf] = []

    def make_or_close() -> None:
        made.append(make())
        if is_given_up.is_set():
            made[0].close()

    try:
        await _in_thread(make_or_close)
    except trio.Cancelled:
        is_given_up.set()
        for one in made:  # at the very moment; to close twice does no harm
            with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT_S):
                await _in_thread(one.close)
        raise
    return made[0]


async def _noting(task: Callable[[], Any], failures: list[BaseException], scope: trio.CancelScope) -> None:
    """Runs a task; its failure ends the others and is passed on as it is, not in a group."""
    try:
        await task()
    except Exception as error:  # noqa: BLE001  passed on by the caller
        failures.append(error)
        scope.cancel()


@asynccontextmanager
async def open_lan(interfaces: Interfaces, service_type: str = SERVICE_TYPE) -> AsyncIterator[MdnsLan]:
    """Multicast DNS on the interfaces whose addresses are announced. Leaving the scope says goodbye.

    ``service_type`` is another in tests, for a link is shared with whatever else runs on it.
    """
    lan = MdnsLan(interfaces, service_type)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lan.run)
        try:
            yield lan
        except Exception as error:  # noqa: BLE001  passed on below, not wrapped in this nursery's group
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
