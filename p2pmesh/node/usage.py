"""What this node gives and gets, counted while it runs: kept over restarts, told from time to time, shown when asked.

Tokens are counted where they pass: at a driver for whoever asked, at a later stage for the peer that drives. The sums
are ``core.usage``'s, bytes ``node.traffic``'s.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.usage import MAX_USERS, OTHERS, OWN_CLIENTS, Ledger, Totals, Use
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.reporting import Report
from p2pmesh.node.stages import Stages
from p2pmesh.node.traffic import Traffic
from p2pmesh.ports.clock import Clock
from p2pmesh.ports.usage import UsageStore

COUNT_EVERY_S = 10.0
COUNTS_A_SAVE = 6
TELL_EVERY_S = 600.0
SAVE_AT_END_S = 2.0
MAX_TOLD_USERS = 8
MAX_SHOWN_USERS = 32


@dataclass(frozen=True, slots=True)
class UsageParts:
    """What is asked and told."""

    overlay: Overlay
    stages: Stages
    traffic: Traffic
    clock: Clock
    is_giving: Callable[[], bool]
    store: UsageStore | None
    report: Report


class UsageBook:
    """Of one node."""

    def __init__(self, parts: UsageParts) -> None:
        self._parts = parts
        kept = parts.store.restored() if parts.store is not None else None
        self._ledger = Ledger(kept or Totals(since_unix_s=parts.clock.unix_ms() // 1000))
        self._saved = self._told = self._ledger.totals()
        self._noted: dict[tuple[str, str], list[int]] = {}
        """Tokens and requests since the last count, by peer and model."""
        self._counted_bytes = (0, 0)
        self._started_us = self._counted_us = parts.clock.now()

    async def run(self) -> None:
        """Until cancelled; then the sums are saved once more."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_counting)
                nursery.start_soon(self._keep_telling)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SAVE_AT_END_S):
                await self._save()

    def note_tokens(self, peer: str, model: str, tokens: int, requests: int = 0) -> None:
        """A ``peer`` used a stage here; "" are the clients of this node. Called for each token."""
        use = self._noted.get((peer, model))
        if use is None:
            if len(self._noted) >= MAX_USERS:
                self._count()
            use = self._noted[peer, model] = [0, 0]
        use[0] += tokens
        use[1] += requests

    def describe(self) -> dict[str, Any]:
        """For the status."""
        self._count()
        totals = self._ledger.totals()
        return {
            "uptime_s": (self._parts.clock.now() - self._started_us) // MICROS_PER_SECOND,
            "since_unix_s": totals.since_unix_s,
            **_sums(totals),
            "given_bytes": self._parts.stages.reserved_bytes,
            "given_layers": self._parts.stages.held_layers,
            "users": [_row(use) for use in totals.uses[:MAX_SHOWN_USERS]],
        }

    def _name_of(self, peer: str) -> str:
        if peer in (OWN_CLIENTS, OTHERS):
            return peer
        known = self._parts.overlay.board.find(PeerId(peer))
        return "" if known is None else known.name

    async def _keep_counting(self) -> None:
        while True:
            for _ in range(COUNTS_A_SAVE):
                await trio.sleep(COUNT_EVERY_S)
                self._count()
            await self._save()

    async def _keep_telling(self) -> None:
        while True:
            await trio.sleep(TELL_EVERY_S)
            self._count()
            totals = self._ledger.totals()
            lately, self._told = totals.less(self._told), totals
            if not (lately.tokens or lately.requests or self._parts.stages.is_holding):
                continue  # a node that is only there has nothing to tell
            fields = {
                "window_s": int(TELL_EVERY_S),
                "uptime_s": (self._parts.clock.now() - self._started_us) // MICROS_PER_SECOND,
                **_sums(lately),
                "tokens_in_all": totals.tokens,
                "given_bytes": self._parts.stages.reserved_bytes,
                "given_layers": self._parts.stages.held_layers,
                "users": [_row(use) for use in lately.uses[:MAX_TOLD_USERS]],
            }
            self._parts.report("usage", fields)

    def _count(self) -> None:
        now, traffic = self._parts.clock.now(), self._parts.traffic
        seconds = (now - self._counted_us) // MICROS_PER_SECOND
        if seconds:
            self._counted_us = Micros(self._counted_us + seconds * MICROS_PER_SECOND)
            self._ledger.note_time(seconds, is_giving=self._parts.is_giving())
        noted, self._noted = self._noted, {}
        now_s = self._parts.clock.unix_ms() // 1000
        for (peer, model), (tokens, requests) in noted.items():
            self._ledger.note_use(Use(peer, self._name_of(peer), model, tokens, requests, now_s))
        sent, received = self._counted_bytes
        self._counted_bytes = (traffic.sent_bytes, traffic.received_bytes)
        self._ledger.note_bytes(traffic.sent_bytes - sent, traffic.received_bytes - received)

    async def _save(self) -> None:
        self._count()
        totals = self._ledger.totals()
        if self._parts.store is not None and totals != self._saved:
            self._saved = totals
            await self._parts.store.save(totals)


def _sums(totals: Totals) -> dict[str, Any]:
    return {
        "up_s": totals.up_s,
        "giving_s": totals.giving_s,
        "tokens": totals.tokens,
        "requests": totals.requests,
        "sent_bytes": totals.sent_bytes,
        "received_bytes": totals.received_bytes,
    }


def _row(use: Use) -> dict[str, Any]:
    return {
        "peer_id": use.peer or None,
        "name": use.name or ("clients of this node" if use.peer == OWN_CLIENTS else ""),
        "model": use.model,
        "tokens": use.tokens,
        "requests": use.requests,
    }
