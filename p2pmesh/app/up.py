"""``p2pmesh up``: builds a node from concrete parts, runs it, drains it.

The order is: what was typed is checked, ports and home are taken, both HTTP ports answer, then the overlay, then
models. A failure before the node is up ends the command with its own exit code; nothing is left behind.
"""

import gc
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import trio

from p2pmesh import __version__
from p2pmesh.adapters.cgroups import processor_quota
from p2pmesh.adapters.clock import SystemEntropy, TrioClock
from p2pmesh.adapters.credential_files import HomeCredentials
from p2pmesh.adapters.grant_file import HomeGrants
from p2pmesh.adapters.home_lock import hold_home, hold_records
from p2pmesh.adapters.hub import TransferProgress
from p2pmesh.adapters.identity import Ed25519Verifier, NodeIdentity, load_or_create_identity
from p2pmesh.adapters.interfaces import SystemInterfaces
from p2pmesh.adapters.listen_port_file import keep_port, kept_port
from p2pmesh.adapters.llama.devices import list_devices
from p2pmesh.adapters.llama.launcher import LauncherOptions, LlamaEngineLauncher
from p2pmesh.adapters.llama.speed_file import SpeedFile
from p2pmesh.adapters.machine import ThisMachine
from p2pmesh.adapters.model_packages import DEMO_MODEL
from p2pmesh.adapters.owner import ThisOwner
from p2pmesh.adapters.p2p.addresses import every_interface
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.adapters.private_files import remove_drafts
from p2pmesh.adapters.processors import usable_threads
from p2pmesh.adapters.usage_file import HomeUsage
from p2pmesh.api.access import LOOPBACK_NAMES
from p2pmesh.api.console import console_app
from p2pmesh.api.openai.app import AccessRules, openai_app
from p2pmesh.api.server import DEFAULT_HOST, LAST_EVENTS_S, bind_port, serve_app, url_of
from p2pmesh.app import events
from p2pmesh.app.address_watch import tell_addresses
from p2pmesh.app.api_keys import HomeKeys
from p2pmesh.app.backend import NodeBackend
from p2pmesh.app.claims import OwnerFiles, now_unix_ms
from p2pmesh.app.config import Discovery, UpOptions
from p2pmesh.app.config_file import SettingsFile
from p2pmesh.app.device_choice import choose
from p2pmesh.app.event_folding import EventFolding
from p2pmesh.app.events import Event, EventName
from p2pmesh.app.joining import Standing, choose_standing, read_invite
from p2pmesh.app.live_settings import LIVE_FIELDS, LiveSettings
from p2pmesh.app.machine_memory import available_memory_bytes, offered_memory_bytes, offered_of_bytes
from p2pmesh.app.model_access import ModelAccess, describe_progress, open_access
from p2pmesh.app.model_shelf import OwnersModels, tell_unusable
from p2pmesh.app.open_files import AcceptFailures, http_connections_per_server, raise_open_files_limit
from p2pmesh.app.ownership import OwnershipOptions, OwnershipWatch, check_owner_key, passphrase_sources
from p2pmesh.app.pool_options import PoolChoice
from p2pmesh.app.pools import JOIN_S, Pools, check_relays, joined_event
from p2pmesh.app.run_file import RunFile, remove_run_file, write_run_file
from p2pmesh.app.signals import SignalOrders, obey_signals
from p2pmesh.app.wire_clearance import with_clearance
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, Refused
from p2pmesh.base.limits import MAX_NAME_BYTES
from p2pmesh.base.quantities import format_size, micros
from p2pmesh.core.artifact_policy import default_transfer
from p2pmesh.core.devices import DeviceChoice
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.giving import OwnersMachine
from p2pmesh.node.gossip_trace import TracedNetwork
from p2pmesh.node.node import HAND_OVER_S, Node, NodeParts
from p2pmesh.node.on_demand import LoadableModels, OnDemandOptions
from p2pmesh.node.overlay import REJOIN_FIRST_S, OverlaySettings
from p2pmesh.node.pool import SEARCH_FIRST_S
from p2pmesh.node.pool_finder import FoundPool
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.dtype import WireDtype
from p2pmesh.wire.invite import LIFE_MS as INVITE_LIFE_MS

Emit = Callable[[Event], None]
AlterNetwork = Callable[[Libp2pNetwork], Any]
Beside = Callable[[Node], Awaitable[None]]

MAX_ENGINE_BYTES = 64
DRAIN_S = 8.0
"""For requests that still run once the stages here are handed over."""
HTTP_DRAIN_S = HAND_OVER_S + 2 * DRAIN_S
"""Longer than a node's drain, at the end of which clients' answers that are not whole are ended."""
HTTP_END_S = LAST_EVENTS_S + 1.0
FETCH_TOLD_EVERY_S = 1.0
FOLDED_TOLD_EVERY_S = 10.0
HUB_RETRY_FIRST_S = 30.0
HUB_RETRY_LONGEST_S = 600.0


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
    choice = choose(options.devices, options.gpu_layers, list_devices, lambda error: emit(events.error(error)))
    with hold_home(options.home) as home:
        models = open_access(home, options.hub_endpoint, options.is_offline, options.cache_quota_bytes)
        models.check(_references(options))
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
            return trio.run(
                _Command(
                    options,
                    _Start(identity, ownership, standing, models, choice, alter, beside, _live_settings(file, emit)),
                    (api_socket, console_socket),
                    emit,
                ).run
            )


def _live_settings(file: SettingsFile | None, emit: Emit) -> LiveSettings | None:
    return None if file is None else LiveSettings(file, file.read(), emit)


def _remove_drafts(home: Path) -> None:
    """Whoever writes such files holds one of the two locks; while a command changes records, the next start cleans."""
    with suppress(ConfigError), hold_records(home):
        remove_drafts(home)


@dataclass(frozen=True, slots=True)
class _Start:
    """What the home says before anything runs."""

    identity: NodeIdentity
    ownership: OwnershipWatch
    standing: Standing
    models: ModelAccess
    devices: DeviceChoice
    alter: AlterNetwork | None
    beside: Beside | None
    settings: LiveSettings | None


class _Command:
    """One run of ``up`` under trio."""

    def __init__(
        self,
        options: UpOptions,
        start: _Start,
        sockets: tuple[socket.socket, socket.socket],
        emit: Emit,
    ) -> None:
        self._options = options
        self._identity = start.identity
        self._ownership = start.ownership
        self._standing = start.standing
        self._models = start.models
        self._devices = start.devices
        self._alter = start.alter
        self._beside = start.beside
        self._settings = start.settings
        self._offer_at_start_bytes = offered_memory_bytes(None, start.devices)
        self._shelf = OwnersModels(start.models.store, options.excluded_models)
        self._api_socket, self._console_socket = sockets
        self._emit = emit
        self._shutdown = trio.Event()
        self._drained = trio.Event()
        self._network: Libp2pNetwork
        self._pools: Pools | None = None
        self._lan: Any = None
        self._folding = EventFolding()
        self._http_servers = 0
        self._http_ended = trio.Event()
        self._api_url = url_of(self._api_socket)
        self._connections_per_server = http_connections_per_server(raise_open_files_limit())

    async def run(self) -> int:
        """Until a signal; both HTTP ports answer before anything else is tried."""
        backend = NodeBackend()
        async with trio.open_nursery() as nursery:
            reload = None if self._settings is None else self._settings.reload_and_tell
            await nursery.start(obey_signals, SignalOrders(self._stop, self._end_at_once, reload))
            self._start_http(nursery, backend)
            if self._options.serves_on_demand:
                nursery.start_soon(tell_unusable, self._models.store, self._emit)
            async with AsyncExitStack() as stack:
                await self._open_lan(stack)
                await self._find_pools()
                while not self._shutdown.is_set():
                    await self._live(backend)
            await self._end_http()
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
        self._pools = Pools(self._options, self._identity, self._report, self._lan)
        self._pools.warn()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_with, nursery, self._shutdown)
            await self._pools.search()
            nursery.cancel_scope.cancel()

    async def _live(self, backend: NodeBackend) -> None:
        """One node, in one mesh, until the command is to end or the node had better be in another pool."""
        standing, found = self._standing, None
        if self._pools is not None:
            standing, found = self._pools.next_standing(self._standing)
            if found is None and self._options.pool.is_searching:
                text = "no pool could be joined: this node serves alone and looks again"
                self._emit(Event(EventName.POOL_ALONE, {"message": text, "retry_s": SEARCH_FIRST_S}))
        async with AsyncExitStack() as stack:
            node = await self._open_node(stack, standing)
            backend.attach(node)
            stack.callback(backend.detach)
            await self._serve(node, found)

    def _start_http(self, nursery: trio.Nursery, backend: NodeBackend) -> None:
        options, token = self._options, secrets.token_urlsafe(32)
        console_url = url_of(self._console_socket)
        run_file = RunFile(os.getpid(), self._api_url, console_url, token, self._identity.peer_id)
        write_run_file(self._options.home, run_file)
        for app, sock in (
            (openai_app(backend, self._access(token), options.mixture, options.guardrails), self._api_socket),
            (console_app(backend, token, backend, reload=self._reload), self._console_socket),
        ):
            self._http_servers += 1
            nursery.start_soon(self._serve_http_app, app, sock)
        self._emit(events.listening(self._api_url, console_url, self._identity.peer_id))

    def _access(self, token: str) -> AccessRules:
        """Names are checked on loopback, where nothing else keeps a foreign page out, and where names are given."""
        options = self._options
        is_open = options.host not in LOOPBACK_NAMES and not options.allowed_hosts
        names = None if is_open else LOOPBACK_NAMES | {options.host, *map(str.lower, options.allowed_hosts)}
        return AccessRules(HomeKeys(options.home, token), names, options.cors_origins)

    async def _serve_http_app(self, app: Any, sock: socket.socket) -> None:
        try:
            await serve_app(
                app, sock, shutdown=self._shutdown, drain_s=HTTP_DRAIN_S, drained=self._drained,
                max_connections=self._connections_per_server,
            )  # fmt: skip
        finally:
            self._http_servers -= 1
            if not self._http_servers:
                self._http_ended.set()

    async def _end_http(self) -> None:
        """While there is a node yet, which tells those that generate for our clients that nobody listens any more."""
        self._drained.set()
        with trio.move_on_after(HTTP_END_S):
            await self._http_ended.wait()

    def _stop(self) -> None:
        self._emit(Event(EventName.STOPPING))
        self._shutdown.set()

    def _end_at_once(self) -> None:
        remove_run_file(self._options.home, os.getpid())
        os._exit(130)

    async def _open_node(self, stack: AsyncExitStack, standing: Standing) -> Node:
        listen, told = self._options.listen or every_interface(kept_port(self._options.home)), self._options.announce
        network = await stack.enter_async_context(open_network(self._identity, listen, announce=told))
        self._network = network
        if not self._options.listen:
            keep_port(self._options.home, int(listen[0].split("/")[4]))
        clock = TrioClock()
        if self._options.is_tracing_gossip:
            network = cast(Libp2pNetwork, TracedNetwork(network, clock, self._report))
        kept = HomeCredentials(self._options.home, standing.is_public)
        if self._alter is not None:
            network = cast(Libp2pNetwork, self._alter(network))
        neighbours = Neighbours(network, self._identity, Ed25519Verifier(), clock, SystemEntropy(), kept)
        engines = LlamaEngineLauncher(
            LauncherOptions(
                str(self._options.home / "cache" / "engine"), self._devices, niceness=self._options.niceness
            )
        )
        parts = NodeParts(
            neighbours, self._models.store, engines, HomeGrants(self._options.home), self._owners_machine(),
            LoadableModels(self._shelf, available_memory_bytes, _on_demand(self._options)), self._lan,
            self._options.reach, self._options.discovery.value,
        )  # fmt: skip
        settings = OverlaySettings(
            name=self._options.name or socket.gethostname()[:200],
            version=__version__,
            memory_bytes=self._memory_bytes(self._options),
            invite_text=standing.invite_text,
            trust=self._ownership.trust,
            ownership=self._ownership.claim,
            membership=standing.membership,
            founding=standing.founding,
            ways_in=standing.ways_in,
            engine=_engine_kind(self._devices),
            wishes=self._options.wishes,
            sharing=self._options.sharing,
            artifact_transfer=self._options.artifact_transfer or default_transfer(is_public=standing.is_public),
        )
        node = Node(parts, settings, self._report)
        if self._pools is not None:
            node.pool = self._pools.service(node, neighbours)
        return node

    def _owners_machine(self) -> OwnersMachine:
        memory_bytes, threads = offered_of_bytes(self._devices), usable_threads()
        folder = self._options.home / "cache" / "speeds"
        machine = ThisMachine(folder, self._devices, threads, processor_quota(), memory_bytes)
        speeds = SpeedFile(folder, threads, self._devices)
        return OwnersMachine(machine, ThisOwner(), speeds, HomeUsage(self._options.home))

    async def _serve(self, node: Node, found: FoundPool | None) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            if self._beside is not None:
                nursery.start_soon(self._beside, node)
            nursery.start_soon(self._ownership.run, node, TrioClock())
            nursery.start_soon(self._tell_folded)
            nursery.start_soon(tell_addresses, self._network.address_choice, self._emit)
            if self._settings is not None:
                nursery.start_soon(self._settings.watch, partial(self._apply, node))
            if not await self._come_in(node, found):
                nursery.cancel_scope.cancel()
                return
            if not node.overlay.is_founder:
                nursery.start_soon(node.overlay.stay_joined)
            if node.pool is not None:
                nursery.start_soon(node.pool.run)
            nursery.start_soon(self._keep_inviting, node)
            if node.overlay.is_founder and not _references(self._options) and not await self._has_shelf():
                message = "this node serves no model: give --model or --demo, put one into HOME/models, or --join"
                self._emit(Event(EventName.SERVES_NOTHING, {"message": message}))
            for reference in _references(self._options):
                nursery.start_soon(self._serve_model, node, reference)
            await self._wait_for_end(node)
            if node.pool is not None:
                await node.pool.leave()
            if self._shutdown.is_set():
                await node.drain(DRAIN_S, self._http_ended.wait)
                await self._end_http()
            else:
                await node.drain(DRAIN_S)
            nursery.cancel_scope.cancel()

    async def _wait_for_end(self, node: Node) -> None:
        async with trio.open_nursery() as waiting:
            waiting.start_soon(_end_with, waiting, self._shutdown)
            if node.pool is not None:
                waiting.start_soon(_end_with, waiting, node.pool.has_found)
        if self._pools is not None and node.pool is not None and node.pool.found is not None:
            self._pools.follow(node.pool.found)

    async def _come_in(self, node: Node, found: FoundPool | None) -> bool:
        """Whether the node is where it was to be; a pool that was found and does not let it in is given up."""
        if found is None:
            if not node.overlay.is_founder:
                await self._join(node)
            return True
        assert self._pools is not None
        failure: P2PMeshError | None = None
        with trio.move_on_after(JOIN_S) as scope:
            try:
                await self._pools.come_in(node, found)
            except P2PMeshError as error:
                failure = error
        if failure is None and not scope.cancelled_caught:
            self._emit(Event(EventName.JOINED, {"mesh_id": node.overlay.mesh_id}))
            self._emit(joined_event(found))
            return True
        self._pools.avoid(found.mesh_id, found.listing.addresses)
        code = failure.code if failure else ErrorCode.DEADLINE_EXCEEDED
        message = failure.message if failure else f"the pool did not let this node in within {JOIN_S:g} s"
        self._emit(Event(EventName.JOIN_FAILED, {"code": code.value, "message": message, "retry_s": 0.0}))
        return node.overlay.is_founder

    async def _apply(self, node: Node, options: UpOptions) -> None:
        """What the owner gives from now on; a node that comes after this one begins with it."""
        self._options = replace(self._options, **{name: getattr(options, name) for name in LIVE_FIELDS})
        self._shelf.excluded = options.excluded_models
        await self._models.store.change_quota(options.cache_quota_bytes)
        await node.giving.change(self._memory_bytes(options), options.wishes, options.sharing)
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

    def _memory_bytes(self, options: UpOptions) -> int:
        given = options.max_memory_bytes
        return self._offer_at_start_bytes if given is None else given

    async def _reload(self) -> dict[str, Any]:
        if self._settings is None:
            raise ConfigError(ErrorCode.CONFIG_INVALID, "this node was started without a file of settings")
        return await self._settings.reload()

    async def _has_shelf(self) -> bool:
        return self._options.serves_on_demand and bool(await self._shelf.survey())

    async def _join(self, node: Node) -> None:
        """The first joining ends the command where it fails; a member of old waits for the others, or the founder."""
        try:
            await node.overlay.join()
        except P2PMeshError as error:
            if not node.overlay.is_worth_waiting(error):
                raise
            if node.overlay.shut_out is not None:
                return  # that was told
            facts = {"code": error.code.value, "message": error.message, "retry_s": REJOIN_FIRST_S}
            self._emit(Event(EventName.JOIN_FAILED, facts))
        else:
            self._emit(Event(EventName.JOINED, {"mesh_id": node.overlay.mesh_id}))

    async def _keep_inviting(self, node: Node) -> None:
        """An invite lives a day; the founder makes a fresh one before the last is over, or when it was revoked.

        A member hands on the one that it came by, while others may use it.
        """
        credentials = node.overlay.credentials
        if credentials.desk is None:
            handed_on = credentials.handed_on()
            if handed_on is not None:
                self._emit(events.invite(handed_on))
            return
        shown = ""
        while True:
            seen = credentials.desk.revoked.count
            line = await credentials.desk.stand()
            if line != shown:
                self._emit(events.invite(line))
            shown = line
            with trio.move_on_after(INVITE_LIFE_MS / 2000):
                await credentials.desk.revoked.wait_beyond(seen)

    async def _serve_model(self, node: Node, reference: str) -> None:
        options = ServingOptions(
            self._options.split or (len(self._options.cuts) + 1 if self._options.cuts else None),
            self._options.context_tokens,
            self._options.lanes,
            self._options.wire_dtype,
            self._options.cuts,
            replan_after_s=self._options.replan_after_s,
        )
        model = await self._obtain(node, reference)
        await self._models.store.keep(model)
        try:
            await node.coordinators.serve_model(model, with_clearance(options, model, reference, self._options.home))
        finally:
            self._models.store.release(model.digest)

    async def _obtain(self, node: Node, reference: str) -> ModelFile:
        """The model; while the hub is away, the node goes on with what else it does, and asks again."""
        told = _FetchTold(node, self._emit)
        wait_s = HUB_RETRY_FIRST_S
        while True:
            try:
                model = await self._models.obtain(reference, told.tell)
            except Refused as refusal:
                if refusal.code is not ErrorCode.HUB_UNREACHABLE:
                    raise
                text = f"{refusal.message}; asked again in {wait_s:.0f} s"
                self._emit(events.error(Refused(refusal.code, text)))
                await trio.sleep(wait_s)
                wait_s = min(2 * wait_s, HUB_RETRY_LONGEST_S)
            else:
                told.end(model)
                return model

    def _report(self, name: str, fields: dict[str, Any]) -> None:
        """Events of the node's services, on their way to the operator."""
        if name == EventName.READY.value:
            fields = {"api_url": self._api_url, **fields}
        for event in self._folding.take(EventName(name), fields, micros(trio.current_time())):
            self._emit(event)

    async def _tell_folded(self) -> None:
        """A peer may stop before the count of what it did is told."""
        while True:
            await trio.sleep(FOLDED_TOLD_EVERY_S)
            for event in self._folding.take_due(micros(trio.current_time())):
                self._emit(event)


async def _end_with(nursery: trio.Nursery, event: trio.Event) -> None:
    await event.wait()
    nursery.cancel_scope.cancel()


def _references(options: UpOptions) -> tuple[str, ...]:
    demo = (DEMO_MODEL,) if options.is_demo else ()
    return tuple(dict.fromkeys((*demo, *options.models)))


def _on_demand(options: UpOptions) -> OnDemandOptions:
    """Models that nobody named are served whole or cut where the family permits, with what costs no bits."""
    replan_after_s = options.replan_after_s
    serving = ServingOptions(None, options.context_tokens, options.lanes, WireDtype.F32, replan_after_s=replan_after_s)
    return OnDemandOptions(serving if options.serves_on_demand else None, options.idle_unload_s, replan_after_s)


def _engine_kind(devices: DeviceChoice) -> str:
    """What peers are told that stages run on."""
    return f"llama.cpp {'+'.join(devices.backends).lower()}"[:MAX_ENGINE_BYTES]


def _ownership_options(options: UpOptions) -> OwnershipOptions:
    files = OwnerFiles.of(options.home, options.owner_key)
    return OwnershipOptions(files, passphrase_sources(options.passphrase_file), options.trust_policy)


def _calm_garbage_collection() -> None:
    """A token makes some hundred short-lived objects and hardly a cycle: collecting every 700 of them cost a tenth of
    a node's time, which is taken from the engines beside it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


class _FetchTold:
    """Tells the operator, and the clients that ask for the model, how far a fetch is."""

    def __init__(self, node: Node, emit: Emit) -> None:
        self._node = node
        self._emit = emit
        self._told_at = float("-inf")

    def tell(self, progress: TransferProgress) -> None:
        """At most once a second."""
        now = trio.current_time()
        if now - self._told_at < FETCH_TOLD_EVERY_S:
            return
        self._told_at = now
        done, total = format_size(progress.done_bytes), format_size(progress.total_bytes)
        left = "" if progress.left_s is None else f", about {progress.left_s} s left"
        if len(progress.model.encode()) <= MAX_NAME_BYTES:
            self._node.router.expect(progress.model, f"{done} of {total} are fetched{left}")
        self._emit(Event(EventName.MODEL_FETCHING, describe_progress(progress)))

    def end(self, model: ModelFile) -> None:
        """The model is here, whole and checked; nothing is told where nothing was fetched."""
        if self._told_at > float("-inf"):
            facts = {"model": model.name, "source": model.source, "path": model.path, "bytes": model.size_bytes}
            self._emit(Event(EventName.MODEL_FETCHED, facts))
