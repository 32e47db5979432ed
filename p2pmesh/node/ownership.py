"""What this node makes of the owners of its peers, now: for admission, placement, routing and the status page.

Holds the trust store of a running node, which its operator may change meanwhile, and keeps opened claims, since a
signature costs more than a routing decision. The rules are ``core.ownership``'s.
"""

from collections.abc import Iterable

from p2pmesh.base.ids import PeerId
from p2pmesh.core.ownership import (
    OpenedClaim,
    Ownership,
    TrustPolicy,
    TrustStore,
    admits,
    judge_claim,
    open_claim,
    rank,
)
from p2pmesh.node.changes import Changes
from p2pmesh.ports.clock import Clock
from p2pmesh.wire.announcement import Announcement
from p2pmesh.wire.signed import Verify

MAX_OPENED_CLAIMS = 2048
"""Of at most a KiB each, and what they say."""


class PeerTrust:
    """The trust policy in force, applied to peers whose ids were checked (by the connection, or by a signature)."""

    def __init__(self, verify: Verify, clock: Clock, store: TrustStore, capacity: int = MAX_OPENED_CLAIMS) -> None:
        self._verify = verify
        self._clock = clock
        self._store = store
        self._capacity = capacity
        self._opened: dict[bytes, OpenedClaim] = {}
        self.changes = Changes()
        """Marked when the operator changes the store: who was admitted may be so no longer."""

    @property
    def policy(self) -> TrustPolicy:
        """The policy in force."""
        return self._store.policy

    @property
    def store(self) -> TrustStore:
        """The store in force."""
        return self._store

    def change(self, store: TrustStore) -> None:
        """Puts another store in force."""
        if store != self._store:
            self._store = store
            self.changes.mark()

    def assess(self, peer: PeerId, claim: bytes) -> Ownership:
        """What to make of a peer and the claim that it shows (empty: none), at this moment."""
        return judge_claim(self.open(claim), peer, self._store, self._clock.unix_ms())

    def admits(self, peer: PeerId, claim: bytes) -> bool:
        """Whether such a peer may join, hold stages and be asked. Under ``off`` nothing is looked at."""
        if self._store.policy is TrustPolicy.OFF:
            return True
        return admits(self._store.policy, self.assess(peer, claim).status)

    def rank(self, announcement: Announcement) -> int:
        """Where the speaker of a checked announcement stands among those admitted, 0 first."""
        if self._store.policy is not TrustPolicy.PREFER_OWNED:
            return 0
        return rank(self._store.policy, self.assess(PeerId(announcement.peer_id), announcement.ownership).status)

    def admitted(self, announcements: Iterable[Announcement]) -> tuple[Announcement, ...]:
        """Those whose speakers the policy admits, in the order given."""
        return tuple(a for a in announcements if self.admits(PeerId(a.peer_id), a.ownership))

    def open(self, claim: bytes) -> OpenedClaim:
        """A claim, its signature checked if it was not before."""
        opened = self._opened.get(claim)
        if opened is None:
            opened = open_claim(claim, self._verify)
            if len(self._opened) >= self._capacity:
                del self._opened[next(iter(self._opened))]  # the one opened first; it is only a cache
            self._opened[claim] = opened
        return opened
