"""Provider records as one node lives with them: what it provides, whether it serves, and the search for a model.

Runs ``RecordsMachine``. The Kademlia itself is behind ``ports.network``; who is admitted is ``node.overlay``'s, what
a found provider announces is ``node.announcements``'.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import Digest, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core import records
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.overlay import Overlay
from p2pmesh.ports.network import PathKind, Provider
from p2pmesh.wire.records import RecordKey, artifact_key, model_key

PROVIDE_TIMEOUT_S = 20.0
LOOK_EVERY_S = 5.0
"""Held files change without a word; models and admissions are seen at once."""
SEARCH_TIMEOUT_S = 10.0
SEARCH_AGAIN_S = 10.0
"""A model that was not found is not searched again before this long."""
PROVIDERS_MET = 4
MEET_TIMEOUT_S = 5.0
MAX_SEARCHES = 4
MAX_FILE_PROVIDERS = 8
MAX_SERVERS = 64
SERVER_LIFE_S = 1800.0
"""So long a server that was admitted is worth dialling again for a lookup."""
MAX_REMEMBERED = 256


class Records:
    """The provider records of one node; implements ``ports.network.RecordPeers``.

    ``held`` gives the digests of the files that this node gives out now.
    """

    def __init__(self, overlay: Overlay, ports: Neighbours, held: Callable[[], tuple[Digest, ...]]) -> None:
        self._overlay = overlay
        self._ports = ports
        self._held = held
        self._machine = records.RecordsMachine(int.from_bytes(ports.entropy.random_bytes(8), "big"))
        self._is_server = False
        self._searches: dict[str, trio.Event] = {}
        self._missed: dict[str, Micros] = {}
        """Models that were searched in vain, and when."""
        self._servers: dict[PeerId, tuple[Micros, Provider]] = {}
        """Servers that were admitted, when last, and where they are: connections end when they are idle, and with
        those that stand alone no lookup would leave our shard."""

    # --- RecordPeers -----------------------------------------------------------------
    def is_admitted(self, peer: PeerId) -> bool:
        """Whether a peer may ask for records and store them here."""
        return self._overlay.is_admitted(peer)

    def record_servers(self) -> tuple[Provider, ...]:
        """Peers that say they serve records: those that are admitted now, and some that were lately."""
        now = self._ports.clock.now()
        for said in self._overlay.admitted_announcements():
            self._servers.pop(PeerId(said.peer_id), None)
            if said.is_dht_server:
                self._servers[PeerId(said.peer_id)] = (now, Provider(PeerId(said.peer_id), said.addresses))
        oldest = now - SERVER_LIFE_S * MICROS_PER_SECOND
        lately = [peer for peer, (when, _) in self._servers.items() if when < now]
        beyond = set(lately[: max(0, len(self._servers) - MAX_SERVERS)])
        for peer in lately:
            if peer in beyond or self._servers[peer][0] < oldest or self._overlay.board.is_gone(peer):
                del self._servers[peer]
        return tuple(server for _, server in self._servers.values())

    async def ensure_admitted(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Connects and says hello unless both are done; a server that cannot be met is none any more."""
        try:
            await self._overlay.ensure_admitted(peer, addresses)
        except P2PMeshError:
            self._servers.pop(peer, None)
            raise

    # --- running ---------------------------------------------------------------------
    async def run(self) -> None:
        """Provides, and serves once others can dial us, until cancelled."""
        self._ports.network.serve_records(self, is_server=False)
        board = self._overlay.board
        async with trio.open_nursery() as nursery:
            while True:
                seen = board.changes.count
                self._look_whether_dialable()
                self._handle(records.KeysChanged(self._wanted_keys()), nursery)
                with trio.move_on_after(min(LOOK_EVERY_S, self._until_deadline_s())):
                    await board.changes.wait_beyond(seen)

    def _until_deadline_s(self) -> float:
        deadline = self._machine.deadline()
        if deadline is None:
            return LOOK_EVERY_S
        return max(0.01, (deadline - self._ports.clock.now()) / MICROS_PER_SECOND)

    def _wanted_keys(self) -> tuple[RecordKey, ...]:
        """Models before files: a model that nobody finds serves nobody."""
        mesh = self._overlay.mesh_id
        models = [model_key(mesh, model.name) for model in self._overlay.board.own_models]
        return (*models, *(artifact_key(mesh, digest) for digest in self._held()))

    def _handle(self, event: records.Event, nursery: trio.Nursery) -> None:
        for effect in self._machine.handle(event, self._ports.clock.now()):
            match effect:
                case records.Provide(key):
                    nursery.start_soon(self._provide, key, nursery)
                case records.StopProviding(key):
                    self._ports.network.stop_providing(key)

    async def _provide(self, key: RecordKey, nursery: trio.Nursery) -> None:
        taken = await self._ports.network.provide(key, PROVIDE_TIMEOUT_S)
        self._handle(records.Told(key, taken), nursery)

    # --- whether we serve ----------------------------------------------------------------
    def _look_whether_dialable(self) -> None:
        """Once dialled by enough peers, a node serves as long as it runs."""
        if self._is_server:
            return
        admitted = self._overlay.admitted_announcements()
        dialled_by = sum(self._has_dialled_us(PeerId(said.peer_id)) for said in admitted)
        if records.is_dialable(dialled_by, len(admitted)):
            self._is_server = True
            self._ports.network.serve_records(self, is_server=True)
            self._overlay.board.change_own(is_dht_server=True)

    def _has_dialled_us(self, peer: PeerId) -> bool:
        return self._overlay.is_inbound(peer) and self._ports.network.path_of(peer) is PathKind.DIRECT

    # --- searching -----------------------------------------------------------------------
    async def search_file(self, digest: Digest) -> tuple[Provider, ...]:
        """Peers that say they hold the file, bounded in time and number; none of them is met."""
        key = artifact_key(self._overlay.mesh_id, digest)
        found: tuple[Provider, ...] = ()
        with trio.move_on_after(SEARCH_TIMEOUT_S):
            found = await self._ports.network.find_providers(key, MAX_FILE_PROVIDERS, SEARCH_TIMEOUT_S)
        return found  # noqa: RET504 - a return inside the scope reads as the only way out

    async def search_model(self, name: str) -> bool:
        """Looks for drivers of a model outside the view and meets them; whether one announces it now.

        Bounded in time and number; a model searched in vain a moment ago is not searched again.
        """
        running = self._searches.get(name)
        if running is not None:
            await running.wait()
            return self._is_announced(name)
        if len(self._searches) >= MAX_SEARCHES or self._was_missed(name):
            return False
        done = self._searches[name] = trio.Event()
        try:
            with trio.move_on_after(SEARCH_TIMEOUT_S):
                await self._search(name)
        finally:
            del self._searches[name]
            done.set()
        if not self._is_announced(name):
            self._note_missed(name)
            return False
        return True

    async def _search(self, name: str) -> None:
        key = model_key(self._overlay.mesh_id, name)
        found = await self._ports.network.find_providers(key, PROVIDERS_MET, SEARCH_TIMEOUT_S)
        async with trio.open_nursery() as nursery:
            for provider in found:
                nursery.start_soon(partial(self._meet, provider, name, nursery.cancel_scope))

    async def _meet(self, provider: Provider, name: str, others: trio.CancelScope) -> None:
        """Its hello brings its announcement; the first that announces the model ends the search."""
        with suppress(P2PMeshError), trio.move_on_after(MEET_TIMEOUT_S):
            await self._overlay.ensure_admitted(provider.peer, provider.addresses)
        if self._is_announced(name):
            others.cancel()

    def _is_announced(self, name: str) -> bool:
        return any(model.name == name for said in self._overlay.board.others() for model in said.models)

    def _was_missed(self, name: str) -> bool:
        since = self._missed.get(name)
        return since is not None and self._ports.clock.now() - since < SEARCH_AGAIN_S * MICROS_PER_SECOND

    def _note_missed(self, name: str) -> None:
        self._missed.pop(name, None)
        while len(self._missed) >= MAX_REMEMBERED:
            del self._missed[next(iter(self._missed))]
        self._missed[name] = self._ports.clock.now()
