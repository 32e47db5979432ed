"""Whether peers still answer while a request waits for them, in about a second, and never by how long a step takes.

Membership (``node.liveness``) is in no hurry and asks others before it gives a peer up. A client that waits cannot be:
whoever holds a stage of its request, or drives it, is asked as soon as nothing has come for ``SILENCE_S``, and is lost
to that request if its node does not answer in time: half a second where it has always answered at once, longer where it
lately took long (``core.patience``). A node answers beside its engine, however long that takes for a step; a frozen
engine is found by its own node, by missed beats.

Who waits for one of a run's peers in vain has those who watch all of them ask at once: the driver answers its ingress
also while a stage behind it is frozen, and the run's coordinator is often the same node.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import ID_BYTES, PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.patience import STRANGER_US, Patience
from p2pmesh.node.overlay import Overlay
from p2pmesh.ports.clock import Clock, Entropy
from p2pmesh.wire.messages.liveness import Probe

SILENCE_S = 0.3
ANSWER_S = STRANGER_US / MICROS_PER_SECOND
AGAIN_S = 1.0
"""After all have answered: the step is long, and they are asked again."""
STEP_S = 0.05
"""The wait is counted in steps: where ours end too late this machine is busy, and whoever shares it may be as well."""
MAX_LAG = 5
"""So many times as long is waited at most: a machine that is always late, or was asleep, cannot tell who is silent."""
ROUND_TRIPS = 4
"""Of the way to a peer, beside ``ANSWER_S``: a stream is opened and asked on, and some may be sent twice."""
FRESH_S = 0.5
"""A peer that did not answer is not asked again so soon: whoever follows up on a loss would wait for it once more."""
MAX_WAY_S = 2.0
"""More is no way, but a peer whose ping waited, or that has others wait."""


def unreachable(error: P2PMeshError) -> PeerUnavailable:
    """What a stage says of another that does not answer it: others may reach both."""
    return PeerUnavailable(ErrorCode.PEER_UNREACHABLE, error.message)


Lost = Callable[[PeerId, P2PMeshError], None]
"""Told of the peer that does not answer."""


@dataclass(slots=True, eq=False)
class Watch:
    """Somebody waits for these peers, and says when they were heard."""

    peers: tuple[tuple[PeerId, tuple[str, ...]], ...]
    lost: Lost
    clock: Clock
    heard_at: Micros
    again_s: float = AGAIN_S
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    resting: trio.CancelScope = field(default_factory=trio.CancelScope)

    def hear(self) -> None:
        """All of them had a part in what has just come."""
        self.heard_at = self.clock.now()

    def end(self) -> None:
        """Nobody waits any more."""
        self.scope.cancel()

    def is_roused_by(self, hasty: "Watch") -> bool:
        """Whether another, which asks more often, has one of these peers asked now; so no two rouse each other."""
        return self.again_s > hasty.again_s and not {peer for peer, _ in self.peers}.isdisjoint(dict(hasty.peers))

    async def rest(self) -> None:
        """Until the next question is due."""
        with trio.CancelScope() as self.resting:
            await trio.sleep(self.again_s)


@dataclass(slots=True, eq=False)
class _Question:
    """Whether a peer is there, as it is being asked."""

    peer: PeerId
    started_at: Micros
    is_over: trio.Event = field(default_factory=trio.Event)
    is_answered: bool = False
    waited_s: float = 0.0


class Pings(Protocol):
    """What a network measures of the way to a peer, in seconds; ``ports.network``."""

    def round_trip_s(self, peer: PeerId) -> float | None:
        """The newest."""

    def slowest_round_trip_s(self, peer: PeerId) -> float | None:
        """Of some."""


class Vigils:
    """Asks the peers that somebody waits for."""

    def __init__(self, overlay: Overlay, clock: Clock, entropy: Entropy, pings: Pings) -> None:
        self._overlay = overlay
        self._pings = pings
        self._clock = clock
        self._entropy = entropy
        self._nursery: trio.Nursery | None = None
        self._open: dict[PeerId, _Question] = {}
        self._patience = Patience()
        self._watches: list[Watch] = []
        """Those that rest between questions longer than others do."""
        self._silent: dict[PeerId, tuple[Micros, _Question]] = {}
        """Those that were not answered, and until when that counts."""

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps watches until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def watch(
        self,
        peers: Iterable[tuple[PeerId, tuple[str, ...]]],
        lost: Lost,
        again_s: float = AGAIN_S,
    ) -> Watch | None:
        """Starts a watch over all of ``peers`` but ourselves; ``lost`` is told once. None where nobody is left.

        Who is heard of no more is asked every ``again_s``.
        """
        others = tuple(dict(peer for peer in peers if peer[0] != self._overlay.own_peer).items())
        if not others or self._nursery is None:
            return None
        watch = Watch(others, lost, self._clock, self._clock.now(), again_s)
        self._nursery.start_soon(self._keep, watch)
        return watch

    async def _keep(self, watch: Watch) -> None:
        self._watches += [watch] if watch.again_s > AGAIN_S else []
        try:
            with watch.scope:
                while await self._are_all_there(watch):
                    await watch.rest()
        finally:
            if watch in self._watches:
                self._watches.remove(watch)

    async def _are_all_there(self, watch: Watch) -> bool:
        """Once nothing came for a while; whoever is not is lost."""
        await self._wait_for_silence(watch)
        for other in self._watches:
            if other.is_roused_by(watch):
                other.resting.cancel()
        questions = await self._ask_all(watch.peers)
        # what came since a question was put came through all of them
        silent = [q for q in questions if not q.is_answered and watch.heard_at <= q.started_at]
        if silent:
            text = f"peer {silent[0].peer} does not answer, was asked {silent[0].waited_s:.2f} s ago"
            watch.lost(silent[0].peer, PeerUnavailable(ErrorCode.PEER_LOST, text))
        return not silent

    async def _wait_for_silence(self, watch: Watch) -> None:
        while True:
            quiet_s = SILENCE_S - (self._clock.now() - watch.heard_at) / MICROS_PER_SECOND
            if quiet_s <= 0:
                return
            await trio.sleep(quiet_s)

    async def find_silent(self, peers: Iterable[tuple[PeerId, tuple[str, ...]]]) -> tuple[PeerId, ...]:
        """Those of ``peers`` that do not answer in time, in their order; all are asked at once."""
        return tuple(question.peer for question in await self._ask_all(peers) if not question.is_answered)

    async def _ask_all(self, peers: Iterable[tuple[PeerId, tuple[str, ...]]]) -> tuple[_Question, ...]:
        """One question a peer is on its way, however many want to know: each is a stream, of which a peer has few."""
        asked = [self._question(peer, addresses) for peer, addresses in peers if peer != self._overlay.own_peer]
        questions = tuple(question for question in asked if question is not None)
        for question in questions:
            await question.is_over.wait()
        return questions

    def _question(self, peer: PeerId, addresses: tuple[str, ...]) -> _Question | None:
        question = self._open.get(peer) or self._fresh_silence(peer)
        if question is None and self._nursery is not None:
            question = self._open[peer] = _Question(peer, self._clock.now())
            self._nursery.start_soon(self._put, question, addresses)
        return question

    def _fresh_silence(self, peer: PeerId) -> _Question | None:
        now = self._clock.now()
        self._silent = {asked: told for asked, told in self._silent.items() if told[0] > now}
        return self._silent[peer][1] if peer in self._silent else None

    async def _put(self, question: _Question, addresses: tuple[str, ...]) -> None:
        answer_s = self._answer_s(question.peer)
        asked_at = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._limit, question, answer_s, nursery.cancel_scope)
                with suppress(P2PMeshError):
                    await self._ask(question.peer, addresses, MAX_LAG * answer_s)
                    question.is_answered = True
                    took_us = int((trio.current_time() - asked_at) * MICROS_PER_SECOND)
                    self._patience.note_answer(question.peer, took_us)
                nursery.cancel_scope.cancel()
        finally:
            del self._open[question.peer]
            question.waited_s = trio.current_time() - asked_at
            if not question.is_answered:
                self._patience.note_silence(question.peer)
                self._silent[question.peer] = (Micros(self._clock.now() + int(FRESH_S * MICROS_PER_SECOND)), question)
            question.is_over.set()

    async def _limit(self, question: _Question, answer_s: float, asking: trio.CancelScope) -> None:
        """Ends the wait. Of each step counts what it should have taken: the rest we were busy or asleep ourselves."""
        began, steps = trio.current_time(), math.ceil(answer_s / STEP_S)
        for _ in range(steps):
            await trio.sleep(answer_s / steps)
            if trio.current_time() - began > MAX_LAG * answer_s:
                question.is_answered = True  # for all that this machine can tell
                break
        asking.cancel()

    def _answer_s(self, peer: PeerId) -> float:
        way_s = min(ROUND_TRIPS * (self._pings.round_trip_s(peer) or 0.0), MAX_WAY_S)
        slowest_s = self._pings.slowest_round_trip_s(peer)
        slowest_us = None if slowest_s is None else round(slowest_s * MICROS_PER_SECOND)
        return self._patience.of(peer, slowest_us) / MICROS_PER_SECOND + way_s

    async def _ask(self, peer: PeerId, addresses: tuple[str, ...], answer_s: float) -> None:
        """An answer, whatever it is: that the connection is the peer's own is proof enough of who gave it."""
        await self._overlay.ensure_admitted(peer, addresses)
        nonce = self._entropy.random_bytes(ID_BYTES)
        stream = await self._overlay.open_exchange(peer, Probe(nonce, 2**53, 0))
        try:
            await stream.receive(answer_s)
        finally:
            await stream.reset()
