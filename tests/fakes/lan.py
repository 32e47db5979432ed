"""A link without a network: records told on it are seen by all others on it at once."""

import trio

from p2pmesh.ports.lan import LanState
from p2pmesh.wire.lan_record import LanRecord, decode_txt, encode_txt


class FakeLink:
    """What is told, by whom; ``forged`` records are there too."""

    def __init__(self) -> None:
        self.lans: list[FakeLan] = []
        self.forged: list[LanRecord] = []

    def open(self) -> "FakeLan":
        """Another machine on the link."""
        lan = FakeLan(self)
        self.lans.append(lan)
        return lan

    def forge(self, record: LanRecord) -> None:
        """Somebody tells a record that is not its own."""
        self.forged.append(record)
        self.mark()

    def mark(self) -> None:
        """Wakes everybody."""
        for lan in self.lans:
            lan.note_change()


class FakeLan:
    """Implements ``ports.lan.Lan``; records go through their TXT form."""

    def __init__(self, link: FakeLink) -> None:
        self._link = link
        self.record: LanRecord | None = None
        self._changes = 0
        self._changed = trio.Event()

    def tell(self, record: LanRecord | None) -> None:
        self.record = None if record is None else decode_txt(dict(encode_txt(record)), takes_loopback=True)
        self._link.mark()

    def seen(self) -> tuple[LanRecord, ...]:
        others = [lan.record for lan in self._link.lans if lan is not self and lan.record is not None]
        return tuple(sorted([*self._link.forged, *others], key=lambda one: one.peer))

    @property
    def changes(self) -> int:
        return self._changes

    async def wait_changed_beyond(self, changes: int) -> None:
        while self._changes <= changes:
            await self._changed.wait()

    def state(self) -> LanState:
        return LanState(True, self.record is not None, len(self.seen()))

    def note_change(self) -> None:
        """``seen`` is another."""
        self._changes += 1
        self._changed.set()
        self._changed = trio.Event()
