"""How many clients of other peers a node serves at a time, as its owner wants; its own clients are never counted.

Owns who counts: a client with any number of requests is one. Who gets a lane next is ``core.lane_queue``'s.
"""

from collections import Counter

from p2pmesh.core.lane_queue import Claimant


class ClientCap:
    """``most`` None: any number; a lower one cuts nobody off who is served already."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._served: Counter[Claimant] = Counter()

    @property
    def served(self) -> int:
        """Clients that are served now."""
        return len(self._served)

    def enter(self, client: Claimant) -> bool:
        """Whether a request of the client may be served; one that may must ``leave``."""
        is_new = client not in self._served
        if is_new and self.most is not None and self.served >= self.most:
            return False
        self._served[client] += 1
        return True

    def leave(self, client: Claimant) -> None:
        """One of its requests is over."""
        self._served[client] -= 1
        if not self._served[client]:
            del self._served[client]
