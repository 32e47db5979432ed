"""What a machine gave and got: tokens by who asked for them, bytes, time. Counters that outlive the node.

Owns the sums and their bounds. Who is counted for what is the business of ``node.usage``, the file ``adapters``'.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

MAX_USERS = 128
"""Rows; of more the one that was used longest ago joins the row of others."""
OWN_CLIENTS = ""
"""Stands for the peer where clients of this very node asked."""
OTHERS = "others"
MOST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Use:
    """What one peer used of one model: tokens that passed a stage here, and requests that were driven here."""

    peer: str
    name: str
    model: str
    tokens: int = 0
    requests: int = 0
    last_unix_s: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """All that was counted since ``since_unix_s``; ``giving_s`` is the time in which anything was offered."""

    since_unix_s: int = 0
    up_s: int = 0
    giving_s: int = 0
    tokens: int = 0
    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    uses: tuple[Use, ...] = ()

    def less(self, before: "Totals") -> "Totals":
        """What came after ``before``; users by what they used since, the most first."""
        earlier = {(use.peer, use.model): use for use in before.uses}
        uses = (_less(use, earlier.get((use.peer, use.model))) for use in self.uses)
        return Totals(
            before.since_unix_s,
            self.up_s - before.up_s,
            self.giving_s - before.giving_s,
            self.tokens - before.tokens,
            self.requests - before.requests,
            self.sent_bytes - before.sent_bytes,
            self.received_bytes - before.received_bytes,
            _by_tokens(use for use in uses if use.tokens > 0 or use.requests > 0),
        )


def _less(use: Use, before: Use | None) -> Use:
    if before is None:
        return use
    return replace(use, tokens=use.tokens - before.tokens, requests=use.requests - before.requests)


def _by_tokens(uses: Iterable[Use]) -> tuple[Use, ...]:
    return tuple(sorted(uses, key=lambda use: (-use.tokens, use.peer, use.model)))


@dataclass(slots=True)
class Ledger:
    """The running sums, from those that were ``kept``."""

    kept: Totals
    _uses: dict[tuple[str, str], Use] = field(init=False)

    def __post_init__(self) -> None:
        self._uses = {(use.peer, use.model): use for use in self.kept.uses[:MAX_USERS]}

    def totals(self) -> Totals:
        """As they are now; users by tokens, the most first."""
        return replace(self.kept, uses=_by_tokens(self._uses.values()))

    def note_use(self, use: Use) -> None:
        """Adds tokens and requests; the name and the time are the newest."""
        before = self._uses.pop((use.peer, use.model), None)
        self._uses[use.peer, use.model] = use if before is None else _sum(use, before)
        self.kept = replace(
            self.kept, tokens=_add(self.kept.tokens, use.tokens), requests=_add(self.kept.requests, use.requests)
        )
        while len(self._uses) > MAX_USERS:
            self._fold_oldest()

    def note_bytes(self, sent: int, received: int) -> None:
        """To and from peers."""
        self.kept = replace(
            self.kept,
            sent_bytes=_add(self.kept.sent_bytes, sent),
            received_bytes=_add(self.kept.received_bytes, received),
        )

    def note_time(self, seconds: int, *, is_giving: bool) -> None:
        """The node was up for so long."""
        giving_s = seconds if is_giving else 0
        self.kept = replace(self.kept, up_s=_add(self.kept.up_s, seconds), giving_s=_add(self.kept.giving_s, giving_s))

    def _fold_oldest(self) -> None:
        old = min(
            (use for use in self._uses.values() if use.peer != OTHERS),
            key=lambda use: (use.last_unix_s, use.peer, use.model),
        )
        del self._uses[old.peer, old.model]
        before = self._uses.get((OTHERS, OTHERS), Use(OTHERS, OTHERS, OTHERS))
        self._uses[OTHERS, OTHERS] = replace(_sum(old, before), peer=OTHERS, name=OTHERS, model=OTHERS)


def _sum(use: Use, before: Use) -> Use:
    return replace(
        use,
        name=use.name or before.name,
        tokens=_add(before.tokens, use.tokens),
        requests=_add(before.requests, use.requests),
        last_unix_s=max(use.last_unix_s, before.last_unix_s),
    )


def _add(one: int, other: int) -> int:
    return min(MOST, one + other)
