"""What keeps a node among its peers: who lives, how far they are, how they reach us, which connections stay.

Starts these services and lets each know of the others what it needs; what one does is its own module's. Admission and
announcements are ``node.overlay``'s, on which all of them stand.
"""

from collections.abc import Callable
from typing import Any

import trio

from p2pmesh.base.ids import PeerId
from p2pmesh.core.relaying import ReachSettings
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.connections import Connections
from p2pmesh.node.lan import LanMeetings
from p2pmesh.node.links import Links
from p2pmesh.node.liveness import Liveness
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.own_identity import IdentityGuard
from p2pmesh.node.reach import Reach
from p2pmesh.node.reporting import Report
from p2pmesh.node.status import describe_reach
from p2pmesh.ports.lan import Lan


class ControlPlane:
    """Of one node. ``is_generating``: whether tokens pass through here, which measurements of links must not slow."""

    def __init__(
        self,
        overlay: Overlay,
        ports: Neighbours,
        reach: ReachSettings,
        lan: Lan | None,
        is_generating: Callable[[], bool],
        report: Report,
    ) -> None:
        self._overlay = overlay
        self.links = Links(overlay, ports, is_generating)
        self.reach = Reach(overlay, ports, reach, report)
        self.reach.on_upgraded = self.links.look_again
        if overlay.credentials.desk is not None:  # its invite says where we are
            self.reach.on_announced = overlay.credentials.desk.revoked.mark
        self.liveness = Liveness(overlay, ports, report)
        self.lan = LanMeetings(overlay, ports, lan, report)
        self.connections = Connections(overlay, ports)
        self._identity_guard = IdentityGuard(overlay, ports, report)

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; started when peers can say hello."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._overlay.run)
            await nursery.start(self.liveness.run)
            nursery.start_soon(self.links.run)
            nursery.start_soon(self.reach.run)
            nursery.start_soon(self.connections.run)
            nursery.start_soon(self._identity_guard.run)
            nursery.start_soon(self.lan.run)
            task_status.started()

    def round_trips(self) -> dict[PeerId, int]:
        """To the peers whose links were measured, and to this node itself; microseconds."""
        measured = {peer: link.rtt_us for peer, link in self.links.estimates() if link.rtt_us}
        return measured | {self._overlay.own_peer: 0}

    def describe(self) -> dict[str, Any]:
        """For the status."""
        return {
            "lan": self.lan.describe(),
            "clock": self._overlay.clock_offsets.describe(),
            "reach": describe_reach(self.reach.report()),
        }
