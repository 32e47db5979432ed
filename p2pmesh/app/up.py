"""``p2pmesh up``: takes what a node needs of the machine, runs one node after another in its mesh, and drains the last.

The order is: what was typed is checked, ports and home are taken, both HTTP ports answer, then the overlay, then
models. A failure before the node is up ends the command with its own exit code; nothing is left behind. How a node is
built is ``app.node_building``', how it comes into its mesh ``app.entering``'s.
"""

import gc
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from p2pmesh.adapters.clock import TrioClock
from p2pmesh.adapters.home_lock import hold_home, hold_records
from p2pmesh.adapters.identity import load_or_create_identity
from p2pmesh.adapters.interfaces import SystemInterfaces
from p2pmesh.adapters.llama.devices import list_devices
from p2pmesh.adapters.private_files import remove_drafts
from p2pmesh.api.server import DEFAULT_HOST, bind_port
from p2pmesh.app import events
from p2pmesh.app.address_watch import tell_addresses
from p2pmesh.app.backend import NodeBackend
from p2pmesh.app.claims import OwnerFiles, now_unix_ms
from p2pmesh.app.config import Discovery, UpOptions
from p2pmesh.app.config_file import SettingsFile
from p2pmesh.app.device_choice import choose
from p2pmesh.app.entering import join, join_pool, keep_inviting
from p2pmesh.app.events import Emit, Event, EventName
from p2pmesh.app.http_ports import HttpPorts, HttpSockets
from p2pmesh.app.joining import Standing, choose_standing, read_invite
from p2pmesh.app.live_settings import LIVE_FIELDS, LiveSettings
from p2pmesh.app.machine_memory import offered_memory_bytes
from p2pmesh.app.model_access import open_access
from p2pmesh.app.model_shelf import OwnersModels, tell_unusable
from p2pmesh.app.named_models import NamedModels, references_of
from p2pmesh.app.node_building import AlterNetwork, BuiltNode, HomeParts, NodeBuilder
from p2pmesh.app.node_events import NodeEvents
from p2pmesh.app.open_files import AcceptFailures
from p2pmesh.app.ownership import OwnershipOptions, OwnershipWatch, check_owner_key, passphrase_sources
from p2pmesh.app.pool_options import PoolChoice
from p2pmesh.app.pools import Pools, check_relays
from p2pmesh.app.run_file import RunFile, remove_run_file, write_run_file
from p2pmesh.app.signals import SignalOrders, obey_signals
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.node.node import HAND_OVER_S, Node
from p2pmesh.node.pool import SEARCH_FIRST_S
from p2pmesh.node.pool_finder import FoundPool

if TYPE_CHECKING:
    from p2pmesh.adapters.mdns.lan import MdnsLan

Beside = Callable[[Node], Awaitable[None]]

DRAIN_S = 8.0
"""For requests that still run once the stages here are handed over."""
HTTP_DRAIN_S = HAND_OVER_S + 2 * DRAIN_S
"""Longer than a node's drain, at the end of which clients' answers that are not whole are ended."""


def run_up(
    options: UpOptions,
    emit: Emit,
    alter: AlterNetwork | None = None,
    beside: Beside | None = None,
    file: SettingsFile | None = None,
) -> int:
    """Runs a node until it is told to stop; 0 after a drain, ``P2PMeshError`` when it could not start or go on.

    ``alter`` stands between the node and its network, in tests of what others bear; ``beside`` runs with it, in
    benchmarks of what it costs. ``file`` is where ``options`` come from as far as they were not typed, and is read
    again when it changes.
    """
    if options.invite is not None:
        read_invite(options.invite)  # before a home is made for it
    check_relays(options)
    devices = choose(options.devices, options.gpu_layers, list_devices, lambda error: emit(events.error(error)))
    with hold_home(options.home) as home:
        models = open_access(home, options.hub_endpoint, options.is_offline, options.cache_quota_bytes)
        models.check(references_of(options))
        owned = _ownership_options(options)
        check_owner_key(owned, emit, is_key_named=options.owner_key is not None)
        _remove_drafts(home)
        with ExitStack() as sockets:  # before a mesh is founded: a failing command leaves none behind
            api_socket = sockets.enter_context(bind_port(options.host, options.port, "--port"))
            console_socket = sockets.enter_context(bind_port(DEFAULT_HOST, options.console_port, "--console-port"))
            identity = load_or_create_identity(home)
            ownership = OwnershipWatch(owned, identity.peer_id, emit)
            standing = choose_standing(options, identity, ownership.claim, now_unix_ms())
            sockets.callback(remove_run_file, home, os.getpid())
            _calm_garbage_collection()
            logging.getLogger("trio.serve_listeners").addFilter(AcceptFailures(time.monotonic))
            shelf = OwnersModels(models.store, options.excluded_models)
            parts = HomeParts(identity, ownership, models, shelf, devices, offered_memory_bytes(None, devices))
            start = _Start(parts, standing, alter, beside, _live_settings(file, emit))
            return trio.run(_Command(options, start, (api_socket, console_socket), emit).run)


def _live_settings(file: SettingsFile | None, emit: Emit) -> LiveSettings | None:
    return None if file is None else LiveSettings(file, file.read(), emit)


def _remove_drafts(home: Path) -> None:
    """Whoever writes such files holds one of the two locks; while a command changes records, the next start cleans."""
    with suppress(ConfigError), hold_records(home):
        remove_drafts(home)


@dataclass(frozen=True, slots=True)
class _Start:
    """What is known before anything runs."""

    home: HomeParts
    standing: Standing
    alter: AlterNetwork | None
    beside: Beside | None
    settings: LiveSettings | None


class _Command:
    """One run of ``up`` under trio."""

    def __init__(self, options: UpOptions, start: _Start, sockets: HttpSockets, emit: Emit) -> None:
        self._options = options
        self._start = start
        self._emit = emit
        self._shutdown = trio.Event()
        self._http = HttpPorts(options, sockets, self._shutdown, HTTP_DRAIN_S)
        self._events = NodeEvents(emit, self._http.api_url)
        self._builder = NodeBuilder(start.home, self._events.report, start.alter)
        self._models = NamedModels(options, start.home.models, emit)
        self._pools: Pools | None = None
        self._lan: MdnsLan | None = None

    async def run(self) -> int:
        """Until a signal; both HTTP ports answer before anything else is tried."""
        backend = NodeBackend()
        async with trio.open_nursery() as nursery:
            settings = self._start.settings
            reload = None if settings is None else settings.reload_and_tell
            await nursery.start(obey_signals, SignalOrders(self._stop, self._end_at_once, reload))
            self._start_http(nursery, backend)
            if self._options.serves_on_demand:
                nursery.start_soon(tell_unusable, self._start.home.models.store, self._emit)
            async with AsyncExitStack() as stack:
                await self._open_lan(stack)
                await self._find_pools()
                while not self._shutdown.is_set():
                    await self._live(backend)
            await self._http.end()
            nursery.cancel_scope.cancel()
        self._emit(Event(EventName.STOPPED))
        return 0

    async def _open_lan(self, stack: AsyncExitStack) -> None:
        """The local network, where it is asked for: before a node, which may be one of a pool that is found there."""
        if self._options.discovery is Discovery.MDNS:
            from p2pmesh.adapters.mdns.lan import open_lan  # here: who does not ask for it should not load it

            self._lan = await stack.enter_async_context(open_lan(SystemInterfaces()))

    async def _find_pools(self) -> None:
        """Before there is a node, which can live in one mesh only; bounded, and over when the command is to end."""
        if not self._options.pool.is_asked_for:
            return
        self._pools = Pools(self._options, self._start.home.identity, self._events.report, self._lan)
        self._pools.warn()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_with, nursery, self._shutdown)
            await self._pools.search()
            nursery.cancel_scope.cancel()

    async def _live(self, backend: NodeBackend) -> None:
        """One node, in one mesh, until the command is to end or the node had better be in another pool."""
        standing, found = self._start.standing, None
        if self._pools is not None:
            standing, found = self._pools.next_standing(standing)
            if found is None and self._options.pool.is_searching:
                text = "no pool could be joined: this node serves alone and looks again"
                self._emit(Event(EventName.POOL_ALONE, {"message": text, "retry_s": SEARCH_FIRST_S}))
        async with self._builder.open(self._options, standing, self._lan) as built:
            if self._pools is not None:
                built.node.pool = self._pools.service(built.node, built.neighbours)
            backend.attach(built.node)
            try:
                await self._serve(built, found)
            finally:
                backend.detach()

    # --- HTTP and signals --------------------------------------------------------
    def _start_http(self, nursery: trio.Nursery, backend: NodeBackend) -> None:
        token, peer = secrets.token_urlsafe(32), self._start.home.identity.peer_id
        api_url, console_url = self._http.api_url, self._http.console_url
        write_run_file(self._options.home, RunFile(os.getpid(), api_url, console_url, token, peer))
        self._http.start(nursery, backend, token, self._reload)
        self._emit(events.listening(api_url, console_url, peer))

    def _stop(self) -> None:
        self._emit(Event(EventName.STOPPING))
        self._shutdown.set()

    def _end_at_once(self) -> None:
        remove_run_file(self._options.home, os.getpid())
        os._exit(130)

    # --- one node ------------------------------------------------------------------
    async def _serve(self, built: BuiltNode, found: FoundPool | None) -> None:
        node = built.node
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            self._start_beside(nursery, built)
            if not await self._come_in(node, found):
                nursery.cancel_scope.cancel()
                return
            if not node.overlay.is_founder:
                nursery.start_soon(node.overlay.stay_joined)
            if node.pool is not None:
                nursery.start_soon(node.pool.run)
            nursery.start_soon(keep_inviting, node, self._emit)
            if node.overlay.is_founder and not self._models.references and not await self._has_shelf():
                message = "this node serves no model: give --model or --demo, put one into HOME/models, or --join"
                self._emit(Event(EventName.SERVES_NOTHING, {"message": message}))
            for reference in self._models.references:
                nursery.start_soon(self._models.serve, node, reference)
            await self._wait_for_end(node)
            await self._leave(node)
            nursery.cancel_scope.cancel()

    def _start_beside(self, nursery: trio.Nursery, built: BuiltNode) -> None:
        """What watches and tells for as long as the node runs."""
        if self._start.beside is not None:
            nursery.start_soon(self._start.beside, built.node)
        nursery.start_soon(self._start.home.ownership.run, built.node, TrioClock())
        nursery.start_soon(self._events.keep_telling)
        nursery.start_soon(tell_addresses, built.network.address_choice, self._emit)
        if self._start.settings is not None:
            nursery.start_soon(self._start.settings.watch, partial(self._apply, built.node))

    async def _come_in(self, node: Node, found: FoundPool | None) -> bool:
        """Whether the node is where it was to be."""
        if found is not None and self._pools is not None:
            return await join_pool(node, self._pools, found, self._emit)
        if not node.overlay.is_founder:
            await join(node, self._emit)
        return True

    async def _wait_for_end(self, node: Node) -> None:
        async with trio.open_nursery() as waiting:
            waiting.start_soon(_end_with, waiting, self._shutdown)
            if node.pool is not None:
                waiting.start_soon(_end_with, waiting, node.pool.has_found)
        if self._pools is not None and node.pool is not None and node.pool.found is not None:
            self._pools.follow(node.pool.found)

    async def _leave(self, node: Node) -> None:
        if node.pool is not None:
            await node.pool.leave()
        if self._shutdown.is_set():
            await node.drain(DRAIN_S, self._http.wait_answered)
            await self._http.end()
        else:
            await node.drain(DRAIN_S)

    async def _has_shelf(self) -> bool:
        return self._options.serves_on_demand and bool(await self._start.home.shelf.survey())

    # --- settings that change ------------------------------------------------------
    async def _reload(self) -> dict[str, Any]:
        if self._start.settings is None:
            raise ConfigError(ErrorCode.CONFIG_INVALID, "this node was started without a file of settings")
        return await self._start.settings.reload()

    async def _apply(self, node: Node, options: UpOptions) -> None:
        """What the owner gives from now on; a node that comes after this one begins with it."""
        home = self._start.home
        self._options = replace(self._options, **{name: getattr(options, name) for name in LIVE_FIELDS})
        home.shelf.excluded = options.excluded_models
        await home.models.store.change_quota(options.cache_quota_bytes)
        await node.giving.change(home.memory_bytes(options), options.wishes, options.sharing)
        await self._change_pool(node, options.pool)

    async def _change_pool(self, node: Node, wanted: PoolChoice) -> None:
        """How the pool is listed; a node that is in none needs a restart to be in one."""
        changed = replace(
            self._options.pool,
            is_publishing=wanted.is_publishing,
            region=wanted.region,
            max_clients=wanted.max_clients,
        )
        if changed == self._options.pool:
            return
        if wanted.is_publishing and (node.pool is None or not node.pool.is_public):
            text = "publish = true founds a public pool, which takes a restart of the node; until then it is as it was"
            self._emit(events.error(ConfigError(ErrorCode.CONFIG_INVALID, text)))
            return
        self._options = replace(self._options, pool=changed)
        if node.pool is not None and node.pool.is_public:
            await node.pool.change(
                is_publishing=changed.is_publishing, max_clients=changed.max_clients, region=changed.region
            )


async def _end_with(nursery: trio.Nursery, event: trio.Event) -> None:
    await event.wait()
    nursery.cancel_scope.cancel()


def _ownership_options(options: UpOptions) -> OwnershipOptions:
    files = OwnerFiles.of(options.home, options.owner_key)
    return OwnershipOptions(files, passphrase_sources(options.passphrase_file), options.trust_policy)


def _calm_garbage_collection() -> None:
    """A token makes some hundred short-lived objects and hardly a cycle: collecting every 700 of them cost a tenth of
    a node's time, which is taken from the engines beside it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
