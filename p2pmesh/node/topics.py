"""The topics that this node announces on and hears: its shard, the shards beside it, models it drives or routes.

Runs ``ShardMachine`` and keeps the subscriptions in step with it. What is announced, and what is made of what is heard,
is ``node.announcements``'.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import trio

from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core import shards
from p2pmesh.core.origin_gate import OriginGate
from p2pmesh.node.changes import Changes
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.network import Network, Subscription
from p2pmesh.wire.announcement import Announcement, model_topic_of, topic_of

REPEATS_AFTER_CHANGE_S = (0.3, 1.0, 2.0, 4.0, 8.0)
"""A gossip mesh that has just formed loses messages; soon after a change an announcement is said again."""
MAX_HEARD_MODELS = 16
HEARD_MODEL_S = 600.0
"""So long after the last request for it, the drivers of a model are listened to."""
FAREWELL_PUBLICATIONS = 3
"""So often a shard that was left is told where we went."""


@dataclass(frozen=True, slots=True)
class Speech:
    """What the topics are there for: our word to send, and others' words to judge and to take in."""

    seal: Callable[[], bytes]
    check: Callable[[bytes], Announcement]
    """Raises ``RemoteProtocolError`` for what nobody must keep or pass on."""
    learn: Callable[[bytes], None]


@dataclass(slots=True)
class _Heard:
    """A topic that we are subscribed to."""

    subscription: Subscription
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Topics:
    """Where one node speaks and listens."""

    def __init__(self, own_peer: PeerId, mesh_id: MeshId, network: Network, clock: Clock, speech: Speech) -> None:
        self._mesh_id = mesh_id
        self._network = network
        self._clock = clock
        self._speech = speech
        self._machine = shards.ShardMachine(own_peer)
        self._heard: dict[str, _Heard] = {}
        self._models: dict[str, Micros] = {}
        """Digests of models that we route, and until when their drivers are listened to."""
        self._left: dict[str, int] = {}
        """Topics of shards that we left, and how often they are still told so."""
        self._wishes = Changes()
        self._speech_changes = Changes()
        self._is_silent = False
        self.moved = Changes()
        """Marked when ``heard`` is another than before."""
        self.on_moved: Callable[[], None] = lambda: None
        """Told when we listen to other shards or fewer models than before; must not raise."""

    # --- what others here ask and say ------------------------------------------------
    @property
    def depth(self) -> int:
        """Bits of our shard."""
        return self._machine.depth

    @property
    def heard(self) -> tuple[str, ...]:
        """Topics on which we listen to announcements now."""
        return tuple(self._heard)

    @property
    def has_shards(self) -> bool:
        """Whether the overlay is cut, here or next door."""
        return self._machine.has_shards

    @property
    def interval_ms(self) -> int:
        """How long our announcement stands without a change."""
        return self._machine.interval_us // 1000

    def note_peer(self, peer: PeerId, depth: int) -> None:
        """A peer of the view, and the depth that it announces at."""
        self._tell(shards.PeerHeard(peer, depth))

    def note_elsewhere(self, peer: PeerId, depth: int) -> None:
        """A peer announces at a depth where we do not listen; that it does counts for a while."""
        self._tell(shards.PeerElsewhere(peer, depth))

    def note_gone(self, peer: PeerId) -> None:
        """A peer is not in the view any more."""
        self._tell(shards.PeerGone(peer))

    def take_depth(self, handed: list[tuple[PeerId, int]]) -> None:
        """A newcomer takes the depth of those that it is handed; that puts none of them into its view."""
        if not self._machine.is_new:
            return
        for peer, depth in handed:
            self._tell(shards.PeerHeard(peer, depth))
        for peer, _ in handed:
            self._tell(shards.PeerGone(peer))

    def hears(self, peer: PeerId, depth: int, digests: Iterable[str]) -> bool:
        """Whether we listen where a peer announces: in its shard at that depth, or as a driver of one of the models."""
        bits = shards.shard_bits_of(peer, depth)
        return bits in self._machine.listen_bits or any(digest in self._models for digest in digests)

    def hear_model(self, digest: str) -> None:
        """We route a model: in an overlay with shards its drivers are listened to for a while."""
        if not self._machine.has_shards:
            return
        is_new = self._models.pop(digest, None) is None
        while len(self._models) >= MAX_HEARD_MODELS:
            del self._models[next(iter(self._models))]
        self._models[digest] = Micros(self._clock.now() + round(HEARD_MODEL_S * MICROS_PER_SECOND))
        if is_new:
            self._wishes.mark()

    def speak(self) -> None:
        """Announces at once, and a few times after."""
        self._speech_changes.mark()

    def fall_silent(self) -> None:
        """Announces nothing any more."""
        self._is_silent = True
        self._speech_changes.mark()

    def _tell(self, event: shards.Event) -> None:
        before = self._machine.deadline()
        has_moved = False
        for effect in self._machine.handle(event, self._clock.now()):
            if isinstance(effect, shards.Moved):
                has_moved = True
                self._left[topic_of(self._mesh_id, effect.left_bits)] = FAREWELL_PUBLICATIONS
                self._speech_changes.mark()
            self._wishes.mark()
        if self._machine.deadline() != before:
            self._wishes.mark()
        if has_moved:
            self.on_moved()

    # --- listening ---------------------------------------------------------------------
    async def run(self, driven: Callable[[], Iterable[str]], *, task_status: Any) -> None:
        """Speaks and listens until cancelled; started once the first topics are joined.

        ``driven`` gives the digests of the models that we drive now.
        """
        async with trio.open_nursery() as nursery:
            await self._join_and_leave(nursery)
            nursery.start_soon(self._keep_topics, nursery)
            nursery.start_soon(self._announce, driven)
            task_status.started()

    async def _keep_topics(self, nursery: trio.Nursery) -> None:
        while True:
            seen = self._wishes.count
            await self._join_and_leave(nursery)
            dues = [due for due in (self._machine.deadline(), *self._models.values()) if due is not None]
            wait_us = min(dues) - self._clock.now() if dues else float("inf")
            with trio.move_on_after(max(0.0, wait_us / MICROS_PER_SECOND)):
                await self._wishes.wait_beyond(seen)
            now = self._clock.now()
            count = len(self._models)
            self._models = {digest: due for digest, due in self._models.items() if due > now}
            if len(self._models) < count:
                self.on_moved()
            deadline = self._machine.deadline()
            if deadline is not None and deadline <= now:
                self._tell(shards.DeadlinePassed())

    async def _join_and_leave(self, nursery: trio.Nursery) -> None:
        wanted = {topic_of(self._mesh_id, bits): bits for bits in self._machine.listen_bits}
        wanted |= {model_topic_of(self._mesh_id, digest): "" for digest in self._models}
        has_moved = self._heard.keys() != wanted.keys()
        for topic in [topic for topic in self._heard if topic not in wanted]:
            heard = self._heard.pop(topic)
            heard.scope.cancel()
            await heard.subscription.close()
        for topic, bits in wanted.items():
            if topic not in self._heard:
                subscription = await self._network.subscribe(topic, self._validator(bits))
                heard = self._heard[topic] = _Heard(subscription)
                nursery.start_soon(self._follow, heard)
        if has_moved:
            self.moved.mark()

    def _validator(self, bits: str) -> Callable[[bytes], bool]:
        """Valid on a topic is a true word of a peer that belongs there, fresher than its last, within its rate."""
        gate = OriginGate()

        def is_valid(data: bytes) -> bool:
            try:
                said = self._speech.check(data)
            except RemoteProtocolError:
                return False
            peer = PeerId(said.peer_id)
            belongs = shards.shard_bits_of(peer, len(bits)) == bits
            return belongs and gate.admit(peer, said.freshness, self._clock.now())

        return is_valid

    async def _follow(self, heard: _Heard) -> None:
        with heard.scope:
            while True:
                _, data = await heard.subscription.receive()
                self._speech.learn(data)

    # --- speaking ----------------------------------------------------------------------
    async def _announce(self, driven: Callable[[], Iterable[str]]) -> None:
        """At each change, a few times soon after it, and then in a steady rhythm."""
        waits: list[float] = []
        while not self._is_silent:
            seen = self._speech_changes.count
            for topic in self._spoken(driven()):
                await self._network.publish(topic, self._speech.seal())
            wait_s = waits.pop() if waits else self.interval_ms / 1000
            with trio.move_on_after(wait_s):
                await self._speech_changes.wait_beyond(seen)
                waits = list(reversed(REPEATS_AFTER_CHANGE_S))

    def _spoken(self, driven: Iterable[str]) -> list[str]:
        """Topics to announce on now, each with a sequence number of its own: the order must not matter to hearers."""
        topics = dict.fromkeys(topic_of(self._mesh_id, bits) for bits in self._machine.next_publish_bits())
        if self._machine.has_shards:
            topics |= dict.fromkeys(model_topic_of(self._mesh_id, digest) for digest in driven)
        for topic in list(self._left):
            topics[topic] = None
            self._left[topic] -= 1
            if not self._left[topic]:
                del self._left[topic]
        return list(topics)
