"""The local network, as far as nodes make themselves known on it."""

from dataclasses import dataclass
from typing import Protocol

from p2pmesh.wire.lan_record import LanRecord


@dataclass(frozen=True, slots=True)
class LanState:
    """What a status page or ``doctor`` shows. ``detail`` is a line for a person, where something is wrong."""

    is_listening: bool
    is_told: bool
    """Whether our own record is out."""
    seen: int
    refused: int = 0
    """Records that were left out."""
    detail: str = ""


class Lan(Protocol):
    """Records of nodes on the links of this machine. A node without this port sends nothing to any of them."""

    def tell(self, record: LanRecord | None) -> None:
        """What others on the local network are told of us from now on; None: nothing. Never raises, never waits."""

    def seen(self) -> tuple[LanRecord, ...]:
        """The records of others that are in force, at most ``MAX_LAN_RECORDS``, ours left out."""

    @property
    def changes(self) -> int:
        """How often ``seen``, or what was refused, changed."""

    async def wait_changed_beyond(self, changes: int) -> None:
        """Until ``changes`` is more than that."""

    def state(self) -> LanState:
        """How it goes."""
