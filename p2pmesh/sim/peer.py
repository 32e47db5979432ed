"""A simulated peer: the very admission and membership machines, and what ``node`` does around them, in short.

Signatures and invites are outcomes here (a peer is honest, foreign or silent), not bytes.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import MeshId, PeerId
from p2pmesh.base.limits import MAX_PEERS
from p2pmesh.base.quantities import Micros
from p2pmesh.core import admission, membership
from p2pmesh.sim.journal import Journal
from p2pmesh.sim.network import SimNetwork
from p2pmesh.sim.runner import MachineRunner
from p2pmesh.sim.scheduler import Scheduler
from p2pmesh.wire.announcement import LIFE_MS, SHORTEST_INTERVAL_MS, Announcement, ServedModel

LIFE_US = LIFE_MS * 1000
REPEAT_US = SHORTEST_INTERVAL_MS * 1000
MESH_ID = MeshId("5" * 32)
_LETTERS = "abcdefghij"


def peer_id_of(number: int) -> PeerId:
    """A peer id by its number, in the shape of a real one, ordered as the numbers are."""
    return PeerId("12D3KooWSimuLatedPeerNumber" + "".join(_LETTERS[int(digit)] for digit in f"{number:06d}"))


def number_of(peer_id: str) -> int:
    """The inverse of ``peer_id_of``."""
    return int("".join(str(_LETTERS.index(letter)) for letter in peer_id[-6:]))


class Character(StrEnum):
    """How a peer behaves."""

    HONEST = "honest"
    FOREIGN = "foreign"
    SILENT = "silent"
    LYING = "lying"


@dataclass(frozen=True, slots=True)
class PeerTraits:
    """What stays with a peer over restarts."""

    number: int
    character: Character
    dials: tuple[int, ...]
    free_bytes: int
    slowness: int
    redial_us: int


class Surroundings(Protocol):
    """What a peer needs of the world around it."""

    @property
    def scheduler(self) -> Scheduler:
        """Simulated time."""

    @property
    def network(self) -> SimNetwork:
        """Links and connections."""

    @property
    def journal(self) -> Journal:
        """The log."""

    def peer(self, number: int) -> "SimPeer | None":
        """A peer that runs."""

    def gossip(self, sender: int, announcement: Announcement) -> None:
        """Spreads an announcement."""

    def on_lost(self, peer: "SimPeer", other: int) -> None:
        """``peer`` has lost the admitted peer ``other``."""


class SimPeer:
    """One run of a peer, from its start to its crash."""

    def __init__(self, traits: PeerTraits, incarnation: int, world: Surroundings) -> None:
        self.traits = traits
        self.models: tuple[ServedModel, ...] = ()
        self.admission = admission.AdmissionMachine()
        self.membership = membership.MembershipMachine[Announcement](
            peer_id_of(traits.number), membership.MembershipPolicy(capacity=MAX_PEERS), traits.number
        )
        self._incarnation = incarnation
        self._sequence = 0
        self._world = world
        self._is_stopped = False
        self._admission_runner = MachineRunner[admission.Event, admission.Effect](
            world.scheduler, self.admission, admission.DeadlinePassed(), self._perform,
            partial(self._note, "admission"),
        )  # fmt: skip
        self._membership_runner = MachineRunner[membership.Event, membership.Effect](
            world.scheduler, self.membership, membership.DeadlinePassed(), self._perform_membership,
            partial(self._note, "membership"),
        )  # fmt: skip

    @property
    def number(self) -> int:
        """The peer's number."""
        return self.traits.number

    def start(self) -> None:
        """Dials and announces from now on."""
        for other in self.traits.dials:
            self._keep_dialled(other)
        if self.traits.character in (Character.HONEST, Character.LYING):
            self._repeat()

    def stop(self) -> None:
        """The peer has crashed."""
        self._is_stopped = True
        self._admission_runner.stop()
        self._membership_runner.stop()

    def announce(self) -> None:
        """Gossips the peer's present state."""
        self._world.gossip(self.number, self._announcement())

    # --- from the network -----------------------------------------------------
    def on_connected(self, other: int) -> None:
        """Quarantine starts; both ends say hello."""
        self._admission_runner.post(admission.Connected(peer_id_of(other)))
        if self.traits.character is not Character.SILENT:
            is_valid = self.traits.character is not Character.FOREIGN
            hello = partial(self._say_hello, other, is_valid, self._announcement())
            self._world.network.send(self.number, other, hello)

    def on_disconnected(self, other: int) -> None:
        """The connection is gone; one that this peer dialled is dialled again."""
        self._admission_runner.post(admission.Disconnected(peer_id_of(other)))
        if other in self.traits.dials and self.traits.character in (Character.HONEST, Character.LYING):
            self._world.scheduler.after(self.traits.redial_us, partial(self._keep_dialled, other))

    def on_hello(self, other: int, is_valid: bool, announcement: Announcement) -> None:
        """A hello whose proof has been checked."""
        peer = peer_id_of(other)
        if not is_valid:
            self._admission_runner.post(admission.HelloRefused(peer, ErrorCode.INVITE_FOREIGN))
            return
        self._admission_runner.post(admission.HelloAccepted(peer))
        if self.admission.is_admitted(peer):
            self._membership_runner.post(membership.ConnectionOpened(peer))
            self.on_announcement(announcement, LIFE_US)

    def on_announcement(self, announcement: Announcement, lives_us: int) -> None:
        """An announcement whose signature has been checked."""
        self._membership_runner.post(membership.AnnouncementReceived(announcement, lives_us))

    # --- inside ---------------------------------------------------------------
    def _say_hello(self, other: int, is_valid: bool, announcement: Announcement) -> None:
        receiver = self._world.peer(other)
        if receiver is not None and self._world.network.believes_connected(other, self.number):
            receiver.on_hello(self.number, is_valid, announcement)

    def _perform(self, effect: admission.Effect) -> None:
        match effect:
            case admission.Drop(peer):
                self._world.network.close(self.number, number_of(peer))
            case admission.Lose(peer):
                self._membership_runner.post(membership.ConnectionLost(peer))
                self._world.on_lost(self, number_of(peer))
            case admission.Admit():
                pass

    def _perform_membership(self, effect: membership.Effect) -> None:
        if isinstance(effect, membership.SendProbe):
            is_running = self._world.peer(number_of(effect.peer)) is not None
            answer: membership.Event = membership.ProbeUnanswered(effect.peer, effect.ticket)
            if is_running:
                answer = membership.ProbeAnswered(effect.peer, effect.ticket, 0)
            self._membership_runner.post(answer)

    def _keep_dialled(self, other: int) -> None:
        if self._is_stopped or self._world.network.believes_connected(self.number, other):
            return
        self._world.network.dial(self.number, other)
        if self.traits.character in (Character.HONEST, Character.LYING):
            self._world.scheduler.after(self.traits.redial_us, partial(self._keep_dialled, other))

    def _repeat(self) -> None:
        if self._is_stopped:
            return
        self.announce()
        self._world.scheduler.after(REPEAT_US, self._repeat)

    def _announcement(self) -> Announcement:
        self._sequence += 1
        return Announcement(
            peer_id_of(self.number), MESH_ID, f"peer {self.number}", "sim", self._incarnation, self._sequence, 0,
            (), self.traits.free_bytes, self.traits.free_bytes, self.models,
        )  # fmt: skip

    def _note(self, machine: str, now: Micros, event: object, effects: tuple[object, ...]) -> None:
        self._world.journal.note(now, f"{self.number} {machine}", event, effects)
