"""Records what the membership machine of one simulated peer is told, for a bug report, and runs such a recording.

The recording holds the events of the peer's last run, deadlines included; ``sim.replay`` owns its form.
"""

from typing import Any

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.admission import AdmissionMachine
from p2pmesh.core.membership import AnnouncementReceived, Effect, Event, MembershipMachine
from p2pmesh.sim.member import Member, Said, says_something_new
from p2pmesh.sim.peer import MESH_ID
from p2pmesh.sim.replay import Recorded, decode_recording, encode_recording, recorded_setup, replay
from p2pmesh.wire.announcement import Announcement, ServedModel

MAX_RECORDED = 1_000_000


class Recorder:
    """Stands between the world and the machine of one peer."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._setup: dict[str, Any] = {}
        self._events: list[Recorded] = []

    def attach(self, member: Member) -> None:
        """A run begins; what was recorded of the one before is given up."""
        self._setup = {"own_peer": member.peer_id, "seed": member.seed}
        self._events.clear()
        handle = member.machine.handle

        def handle_and_record(event: Event, now: Micros) -> tuple[Effect, ...]:
            if len(self._events) < MAX_RECORDED:
                self._events.append((now, _plain(event)))
            return handle(event, now)

        member.handle = handle_and_record

    def text(self) -> str:
        """The recording."""
        return encode_recording("membership", self._events, self._setup)


def _plain(event: Event) -> Event:
    if isinstance(event, AnnouncementReceived) and isinstance(event.announcement, Said):
        return AnnouncementReceived(_announcement_of(event.announcement), event.lives_us)
    return event


def _announcement_of(said: Said) -> Announcement:
    models = tuple(ServedModel(f"model {model}", f"{model:064x}", b"0" * 16, 1, 4096) for model in said.models)
    return Announcement(
        said.peer_id, MESH_ID, f"peer {said.number}", "sim", said.incarnation, said.sequence,
        max(0, said.expires_us // 1000), (), 0, 0, models, shard_depth=said.shard_depth,
    )  # fmt: skip


def replay_recording(text: str) -> tuple[str, tuple[tuple[Micros, Any], ...]]:
    """The machine's name, and all effects with the times of their events.

    Machines with a setup of their own (a run, a generation) are replayed by tests, which know it; ``ConfigError`` here.
    """
    machine, events = decode_recording(text)
    setup = recorded_setup(text)
    if machine == "membership":
        return machine, replay(_membership_of(setup), events)
    if machine == "admission":
        return machine, replay(AdmissionMachine(), events)
    raise ConfigError(ErrorCode.CONFIG_INVALID, f"a recording of {machine!r} is replayed in tests, not by this command")


def _membership_of(setup: dict[str, Any]) -> MembershipMachine[Announcement]:
    own_peer, seed = setup.get("own_peer", "me"), setup.get("seed", 0)
    if not isinstance(own_peer, str) or type(seed) is not int:
        raise ConfigError(ErrorCode.CONFIG_INVALID, "line 1 of the recording: own_peer is text, seed a whole number")
    return MembershipMachine(PeerId(own_peer), seed=seed, is_change=says_something_new)
