"""What this node says of itself and what it knows of others: sealed, gossiped, learnt, expired.

Holds the ``MembershipMachine``; what that wants done is ``node.liveness``'. Who is admitted is ``node.overlay``'s.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import (
    CLOCK_SKEW_MS,
    MAX_ANNOUNCED_FILES,
    MAX_ANNOUNCED_WISHES,
    MAX_ANNOUNCEMENTS_PER_MESSAGE,
    MAX_CONTROL_MESSAGE_BYTES,
    MAX_KNOWN_PEERS,
)
from p2pmesh.base.quantities import MIB, Micros
from p2pmesh.core import connections, hosts, membership, shards
from p2pmesh.core.membership_events import GONE
from p2pmesh.node.changes import Changes
from p2pmesh.node.topics import Speech, Topics
from p2pmesh.ports.clock import Clock, Entropy
from p2pmesh.ports.credentials import CredentialStore
from p2pmesh.ports.identity import Identity, Verifier
from p2pmesh.ports.network import Network
from p2pmesh.wire.announcement import (
    LONGEST_LIFE_MS,
    Announcement,
    HeldModel,
    Link,
    ModelDemand,
    ServedModel,
    decode_announcement,
    encode_announcement,
    life_ms,
    peer_hash_of,
)

MAX_HANDED_BYTES = 3 * MAX_CONTROL_MESSAGE_BYTES // 4
"""Announcements in one message leave room for what stands beside them."""
MAX_KNOWN_BYTES = 16 * MIB
"""Announcements of peers that are not admitted; a record takes some times its bytes in memory."""
MAX_JUDGED = 64
"""Words that gossip found valid and that are not taken in yet."""

_OF_THE_VIEW = (
    membership.PeerJoined
    | membership.PeerChanged
    | membership.PeerSuspected
    | membership.PeerRecovered
    | membership.PeerFailed
    | membership.PeerLeft
    | membership.PeerForgotten
)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The ports that a node's membership stands on."""

    network: Network
    identity: Identity
    verifier: Verifier
    clock: Clock
    entropy: Entropy
    credentials: CredentialStore


@dataclass(frozen=True, slots=True)
class OwnLoad:
    """What of our announcement changes with each request: read when it is sealed, and no reason for another."""

    lanes: int = 0
    lanes_free: int = 0
    decode_tokens_per_s_milli: int = 0
    decode_bytes_per_s: int = 0


class AnnouncementBoard:
    """Our own announcement and the freshest of every other peer."""

    def __init__(self, ports: Neighbours, own: Announcement) -> None:
        self._ports = ports
        self._own = own
        self._machine = membership.MembershipMachine[Announcement](
            ports.identity.peer_id,
            membership.MembershipPolicy(capacity=shards.DEFAULT_POLICY.view_capacity),
            int.from_bytes(ports.entropy.random_bytes(8), "big"),
            is_change=_says_something_new,
        )
        self._hosts = hosts.HostBound()
        self._sealed: dict[PeerId, bytes] = {}
        self._sealed_bytes = 0
        self._judged: dict[bytes, Announcement] = {}
        """What gossip has just found valid, by its bytes: it is learnt next, and need not be verified twice."""
        speech = Speech(self.seal_own, self._check_gossip, self.learn)
        self.topics = Topics(ports.identity.peer_id, MeshId(own.mesh_id), ports.network, ports.clock, speech)
        self.topics.on_moved = self._forget_who_is_out_of_earshot
        self.read_load: Callable[[], OwnLoad] = OwnLoad
        self.sealed_own = b""
        """Our latest announcement as it was sealed last."""
        self.handled = Changes()
        """Marked at each event of the membership machine: its deadline may be another."""
        self.on_effect: Callable[[membership.Effect], None] = lambda effect: None
        """Told of all that the machine wants; must neither raise nor tell the machine anything before it returns."""
        self.is_outcast: Callable[[PeerId], bool] = lambda peer: False
        """Whether a peer is put out, so that only its own admission brings it into the view."""
        self.changes = Changes()
        """Marked when we or another peer say something new, and when a peer is forgotten."""
        self.check_speaker: Callable[[Announcement], None] = lambda announcement: None
        """Raises ``RemoteProtocolError`` unless the speaker of a checked announcement proves to be a member."""
        self.on_heard: Callable[[Announcement, bytes], None] = lambda announcement, sealed: None
        """Told of every checked announcement with its bytes, our own id's too, before it is weighed; must not raise."""

    def own(self) -> Announcement:
        """What we say of ourselves now."""
        return replace(self._own, addresses=self._ports.network.addresses())

    @property
    def own_models(self) -> tuple[ServedModel, ...]:
        """What we drive, without the look at every interface that ``own`` takes."""
        return self._own.models

    def others(self) -> tuple[Announcement, ...]:
        """The freshest of each other peer, by peer id."""
        return self._machine.announcements()

    def find(self, peer: PeerId) -> Announcement | None:
        """The freshest of one peer."""
        return self._machine.find(peer)

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Where a peer says it is, also one that failed and says anew that it is there."""
        announcement = self._machine.find(peer) or self._machine.candidate(peer)
        return () if announcement is None else announcement.addresses

    def is_gone(self, peer: PeerId) -> bool:
        """Whether a peer failed, left or is kept out."""
        return self._machine.state_of(peer) in GONE

    def is_suspect(self, peer: PeerId) -> bool:
        """Whether a peer that counts may be gone."""
        return self._machine.state_of(peer) is membership.MemberState.SUSPECT

    def is_muted(self, peer: PeerId) -> bool:
        """Whether a peer reported others falsely of late."""
        return self._machine.is_muted(peer, self._ports.clock.now())

    @property
    def is_large(self) -> bool:
        """Whether the overlay has too many peers for a connection to each."""
        return connections.is_large(self._machine.live_count, self.topics.has_shards)

    def is_near(self, peer: PeerId) -> bool:
        """Whether a peer of the view announces where we listen."""
        announcement = self.find(peer)
        return announcement is not None and self._is_in_earshot(announcement)

    def views(self) -> tuple[membership.MemberView, ...]:
        """What is believed of each peer, by peer id; also of those that failed or left."""
        return self._machine.views()

    def deadline(self) -> Micros | None:
        """When the machine wants to hear that its deadline has passed."""
        return self._machine.deadline()

    def speak_up(self) -> None:
        """Announces at once, and a few times after."""
        self.topics.speak()

    def stop_announcing(self) -> None:
        """We are leaving: nothing that we said counts any more."""
        self.topics.fall_silent()

    def change_own(
        self,
        *,
        models: tuple[ServedModel, ...] | None = None,
        free_bytes: int | None = None,
        ownership: bytes | None = None,
        engine: str | None = None,
        on_disk: tuple[HeldModel, ...] | None = None,
        wanted: tuple[str, ...] | None = None,
        is_dht_server: bool | None = None,
    ) -> None:
        """Changes what we announce; it is gossiped soon. An empty ``ownership`` is no claim."""
        before = self._own
        if engine is not None:
            self._own = replace(self._own, engine=engine)
        if on_disk is not None:
            self._own = replace(self._own, on_disk=on_disk[:MAX_ANNOUNCED_FILES])
        if wanted is not None:
            self._own = replace(self._own, wanted=wanted[:MAX_ANNOUNCED_WISHES])
        if is_dht_server is not None:
            self._own = replace(self._own, is_dht_server=is_dht_server)
        if models is not None:
            self._own = replace(self._own, models=models)
        if free_bytes is not None:
            self._own = replace(self._own, free_bytes=max(0, free_bytes))
        if ownership is not None:
            self._own = replace(self._own, ownership=ownership)
        if self._own != before:
            self.topics.speak()
            self.changes.mark()

    def offer(self, memory_bytes: int, free_bytes: int, max_layers: int) -> None:
        """What our owner gives from now on, 0 ``max_layers`` is any number of them; gossiped soon if that is news."""
        before = self._own
        self._own = replace(self._own, memory_bytes=memory_bytes, free_bytes=max(0, free_bytes), max_layers=max_layers)
        if self._own != before:
            self.topics.speak()
            self.changes.mark()

    def note_machine(self, *, is_on_battery: bool, is_busy: bool) -> None:
        """States of our machine, in which others are asked for stages first; gossiped soon if they changed."""
        before = self._own
        self._own = replace(self._own, is_on_battery=is_on_battery, is_busy=is_busy)
        if self._own != before:
            self.topics.speak()
            self.changes.mark()

    def show_passes(self, passes: tuple[bytes, ...]) -> None:
        """Others believe from now on that we are a member by these; it is gossiped at once if they are new."""
        if passes != self._own.passes:
            self._own = replace(self._own, passes=passes)
            self.topics.speak()

    def share_links(self, links: tuple[Link, ...]) -> None:
        """What we measured; it goes along with the next announcement and is no reason for one."""
        self._own = replace(self._own, links=links)

    def offer_loads(self, loadable: tuple[bytes, ...]) -> None:
        """What we would load for a request."""
        if loadable != self._own.loadable:
            self._own = replace(self._own, loadable=loadable)
            self.topics.speak()
            self.changes.mark()

    def share_demand(self, demand: tuple[ModelDemand, ...], *, is_urgent: bool) -> bool:
        """What our clients ask for. It goes along with the next announcement; that a model is waited for, or no more,
        is said at once where it ``is_urgent``, and kept for later otherwise. Whether it is said at once."""
        is_news = _waited_for(demand) != _waited_for(self._own.demand)
        if is_news and not is_urgent:
            return False
        self._own = replace(self._own, demand=demand)
        if is_news:
            self.topics.speak()
        return is_news

    def note_reach(self, *, is_relay: bool) -> None:
        """Where we are reached may be elsewhere, and we relay for others or do not; gossiped at once."""
        self._own = replace(self._own, is_relay=is_relay)
        self.topics.speak()
        self.changes.mark()

    def raise_incarnation(self, above: int) -> int:
        """Announces a higher incarnation than ``above`` from now on, which others took for our newest; returns it."""
        incarnation = max(above + 1, self._own.incarnation + 1, self._ports.clock.unix_ms())
        self._own = replace(self._own, incarnation=incarnation)
        self.topics.speak()
        return incarnation

    def sealed_of(self, peer: PeerId) -> tuple[bytes, ...]:
        """The freshest of one peer as it came; none or one."""
        return (self._sealed[peer],) if peer in self._sealed else ()

    def seal_own(self) -> bytes:
        """Our announcement, signed, fresher than any before."""
        now, interval_ms, load = self._ports.clock.unix_ms(), self.topics.interval_ms, self.read_load()
        self._own = replace(
            self._own,
            sequence=self._own.sequence + 1,
            issued_unix_ms=now,
            expires_unix_ms=now + life_ms(interval_ms),
            interval_ms=interval_ms,
            shard_depth=self.topics.depth,
            lanes=load.lanes,
            lanes_free=load.lanes_free,
            decode_tokens_per_s_milli=load.decode_tokens_per_s_milli,
            decode_bytes_per_s=load.decode_bytes_per_s,
        )
        own = self.own()
        said = replace(own, addresses=tuple(address.removesuffix(f"/p2p/{own.peer_id}") for address in own.addresses))
        self.sealed_own = self._seal_what_fits(said)
        return self.sealed_own

    def _seal_what_fits(self, said: Announcement) -> bytes:
        """All of it, or without what matters least; what is left out is found by other ways."""
        identity = self._ports.identity
        while True:
            try:
                return encode_announcement(said, identity.public_key, identity.sign)
            except LocalProtocolError as error:
                smaller = _without_the_least(said)
                if error.code is not ErrorCode.MESSAGE_TOO_LARGE or smaller == said:
                    raise
                said = smaller

    def known_hashes(self) -> tuple[bytes, ...]:
        """What a hello says that we hold already."""
        return tuple(peer_hash_of(peer) for peer in list(self._sealed)[:MAX_KNOWN_PEERS])

    def sealed_others(self, besides: PeerId, knows: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
        """Signed announcements for a peer that has just come: its nearest by shard, as many as a message holds, but for
        those that it ``knows``, by their hashes.

        Nobody who may be gone: reports of that do not reach the newcomer, and it would believe for long.
        """
        chosen: list[bytes] = []
        size_bytes = 0
        held = frozenset(knows)
        for peer in sorted(self._sealed, key=lambda peer: (-shards.shared_bits(peer, besides), peer)):
            if peer == besides or self._machine.is_in_doubt(peer) or peer_hash_of(peer) in held:
                continue
            size_bytes += len(self._sealed[peer])
            if len(chosen) >= MAX_ANNOUNCEMENTS_PER_MESSAGE or size_bytes > MAX_HANDED_BYTES:
                break
            chosen.append(self._sealed[peer])
        return tuple(chosen)

    def decode(self, data: bytes) -> Announcement:
        """An announcement of our mesh, signed by its speaker, who may be anybody; raises ``RemoteProtocolError``."""
        judged = self._judged.pop(data, None)
        if judged is not None:
            return judged
        verifier = self._ports.verifier
        announcement = decode_announcement(data, verifier.is_signature_of, verifier.peer_id_of)
        if announcement.mesh_id != self._own.mesh_id:
            raise RemoteProtocolError(ErrorCode.INVITE_FOREIGN, "an announcement of another mesh")
        return announcement

    def learn(self, data: bytes, *, is_admitted: bool = False) -> None:
        """Takes a record in if it is valid and fresh; a bad one from a third peer is nobody's failure here.

        A peer that is admitted has proved its membership already; of any other the record must prove it. What only
        gossip tells has a bound in bytes and in peers of one host: anyone inside can let made-up peers in. A peer that
        is admitted always finds a place in the view.
        """
        announcement = self._decode_or_none(data, is_proven=is_admitted)
        if announcement is not None:
            self._take(announcement, data, is_admitted=is_admitted)

    def learn_handed(self, records: tuple[bytes, ...]) -> None:
        """Takes in what a welcome hands over. A newcomer first takes its depth from it, then the peers of its shards:
        the other way round it would hear its shard as one of many, and forget all of them as it moves.
        """
        handed = [(found, data) for data in records if (found := self._decode_or_none(data)) is not None]
        living = [said for said, _ in handed if self._lives_ms(said) > 0]
        self.topics.take_depth([(PeerId(said.peer_id), said.shard_depth) for said in living])
        for announcement, data in handed:
            self._take(announcement, data, is_admitted=False)

    def _decode_or_none(self, data: bytes, *, is_proven: bool = False) -> Announcement | None:
        try:
            announcement = self.decode(data)
            if not is_proven:
                self.check_speaker(announcement)
        except RemoteProtocolError:
            return None
        return announcement

    def _take(self, announcement: Announcement, data: bytes, *, is_admitted: bool) -> None:
        peer = PeerId(announcement.peer_id)
        self.on_heard(announcement, data)
        found = hosts.hosts_of(announcement.addresses)
        if not is_admitted and self.is_outcast(peer):
            return
        if not is_admitted and (self._is_crowded(peer, len(data)) or not self._hosts.admits(peer, found)):
            return
        if is_admitted:
            self.tell(membership.ConnectionOpened(peer))
        self.tell(membership.AnnouncementReceived(announcement, self._lives_ms(announcement) * 1000))
        if self.find(peer) is announcement:
            self._hosts.note(peer, found)
            self._sealed_bytes += len(data) - len(self._sealed.get(peer, b""))
            self._sealed[peer] = data

    def _is_crowded(self, peer: PeerId, size_bytes: int) -> bool:
        return self._sealed_bytes + size_bytes - len(self._sealed.get(peer, b"")) > MAX_KNOWN_BYTES

    def note_parted(self, peer: PeerId) -> None:
        """Both ends agreed to end their connection: the peer lives, and stays in view if we hear of its end."""
        self.tell(membership.ConnectionParted(peer))
        self._place(peer)

    def note_lost(self, peer: PeerId) -> None:
        """The connection to an admitted peer broke; whether the peer is gone is found out now."""
        self.tell(membership.ConnectionLost(peer))

    def exclude(self, peer: PeerId) -> None:
        """The peer is banned or put out: it counts no more, whoever speaks of it."""
        self.tell(membership.PeerExcluded(peer))

    def exclude_who(self, is_out: Callable[[Announcement], bool]) -> None:
        """Keeps out everyone whose word no longer holds, whether connected, only heard of, or being asked."""
        for view in self._machine.views():
            said = self._machine.find(view.peer) or self._machine.candidate(view.peer)
            if said is not None and is_out(said):
                self.exclude(view.peer)

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Gossips and listens until cancelled; started once the topic is joined."""
        await self.topics.run(lambda: [model.digest for model in self._own.models], task_status=task_status)

    def _check_gossip(self, data: bytes) -> Announcement:
        """An announcement worth keeping and passing on: signed, of a member of our mesh, not expired."""
        said = self.decode(data)
        if self._lives_ms(said) <= 0:
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, "an announcement that has expired")
        self.check_speaker(said)
        while len(self._judged) >= MAX_JUDGED:
            del self._judged[next(iter(self._judged))]
        self._judged[data] = said
        return said

    def _lives_ms(self, announcement: Announcement) -> int:
        return min(LONGEST_LIFE_MS, announcement.expires_unix_ms + CLOCK_SKEW_MS - self._ports.clock.unix_ms())

    def tell(self, event: membership.Event) -> None:
        """Something that the membership machine must hear."""
        for effect in self._machine.handle(event, self._ports.clock.now()):
            if isinstance(effect, membership.PeerForgotten | membership.PeerFailed | membership.PeerLeft):
                self._sealed_bytes -= len(self._sealed.pop(effect.peer, b""))
                self._hosts.forget(effect.peer)
                self.topics.note_gone(effect.peer)
            if isinstance(effect, membership.PeerJoined | membership.PeerChanged | membership.PeerRecovered):
                self._place(effect.peer)
            if isinstance(effect, _OF_THE_VIEW):
                self.changes.mark()
            self.on_effect(effect)
        self.handled.mark()

    def _place(self, peer: PeerId) -> None:
        """Counts a peer among the shards, or forgets it where we would not hear of its end."""
        announcement = self.find(peer)
        if announcement is None:
            return
        if self._is_in_earshot(announcement):
            self.topics.note_peer(peer, announcement.shard_depth)
        else:
            self.topics.note_elsewhere(peer, announcement.shard_depth)
            self.tell(membership.OutOfEarshot(peer))

    def _is_in_earshot(self, announcement: Announcement) -> bool:
        digests = (model.digest for model in announcement.models)
        return self.topics.hears(PeerId(announcement.peer_id), announcement.shard_depth, digests)

    def _forget_who_is_out_of_earshot(self) -> None:
        """After a move, and once a model's drivers are not listened to any more."""
        for announcement in self.others():
            self._place(PeerId(announcement.peer_id))


def _without_the_least(said: Announcement) -> Announcement:
    """A shorter announcement: half of the first list that is not empty yet, in the order of the document."""
    for name in ("on_disk", "links", "wanted", "models"):
        listed = getattr(said, name)
        if listed:
            return replace(said, **{name: listed[: len(listed) // 2]})
    return replace(said, addresses=said.addresses[: len(said.addresses) // 2])


def _says_something_new(before: Announcement, after: Announcement) -> bool:
    """Whether a fresher announcement differs in what others here act on."""
    return _acted_on(before) != _acted_on(after)


def _acted_on(said: Announcement) -> tuple[object, ...]:
    return (
        said.models,
        said.free_bytes,
        said.memory_bytes,
        said.addresses,
        said.ownership,
        said.shard_depth,
        said.max_layers,
        said.is_on_battery or said.is_busy,
        said.is_relay,
        said.wanted,
        said.loadable,
        _waited_for(said.demand),
    )


def _waited_for(demand: tuple[ModelDemand, ...]) -> frozenset[bytes]:
    return frozenset(row.model for row in demand if row.waiting)
