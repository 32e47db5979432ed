"""What this node knows of peers and links, as plain values that ``app.peers_file`` reads: what a plan is made from.

Peers in view that the trust policy admits, whether they are connected or would first be met; all in one answer, so
that it can be kept as a file.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from p2pmesh.base.ids import PeerId
from p2pmesh.core.links import LinkMatrix
from p2pmesh.node.candidates import is_behind_nat, is_spared
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.profiles import Profiles, speeds_of
from p2pmesh.node.stages import Stages
from p2pmesh.wire.announcement import Announcement
from p2pmesh.wire.profile import Profile

MAX_TOLD_PEERS = 256
"""A planner looks at fewer, and each pair may have a link: of all in a large overlay that would be tens of millions."""


def describe_peers(
    overlay: Overlay, stages: Stages, links: LinkMatrix, profiles: Profiles, hop_overhead_us: int
) -> dict[str, Any]:
    """``stages`` are this node's, which say what it offers now. It stands among the peers, as their ``coordinator``.

    ``hop_overhead_us`` is what a hop takes beside its link, by what was learnt here.
    """
    own = replace(overlay.board.own(), free_bytes=stages.free_bytes, decode_bytes_per_s=stages.decode_bytes_per_s)
    others = choose_told(overlay.trust.admitted(overlay.board.others()), overlay.trust.rank)
    told = [(own, 0), *((one, overlay.trust.rank(one)) for one in others)]
    peers = [_describe(one, rank) | _describe_profile(profiles.find(PeerId(one.peer_id))) for one, rank in told]
    return {
        "coordinator": overlay.own_peer,
        "hop_overhead_ms": hop_overhead_us / 1000,
        "peers": peers,
        "links": _links([PeerId(overlay.own_peer), *(PeerId(one.peer_id) for one in others)], links),
    }


def choose_told(others: Sequence[Announcement], rank: Callable[[Announcement], int]) -> tuple[Announcement, ...]:
    """As a plan prefers them: by rank, those not in use, the largest offers. They keep their order."""
    by_use = sorted(others, key=lambda one: (rank(one), is_spared(one), -one.free_bytes, one.peer_id))
    told = {one.peer_id for one in by_use[: MAX_TOLD_PEERS - 1]}
    return tuple(one for one in others if one.peer_id in told)


def _describe(peer: Announcement, rank: int) -> dict[str, Any]:
    return {
        "name": peer.peer_id,
        "label": peer.name or peer.peer_id,
        "memory": peer.free_bytes,
        "max_memory": peer.memory_bytes,
        "decode_bytes_per_s": peer.decode_bytes_per_s,
        "on_disk": [held.digest for held in peer.on_disk],
        "behind_nat": is_behind_nat(peer),
        "rank": rank,
        "spared": is_spared(peer),
        **({"max_layers": peer.max_layers} if peer.max_layers else {}),
    }


def _describe_profile(profile: Profile | None) -> dict[str, Any]:
    if profile is None:
        return {}
    speeds = [
        {
            "architecture": one.architecture,
            "size_class": one.size_class,
            "decode_bytes_per_s": one.decode_bytes_per_s,
            "prefill_bytes_per_s": one.prefill_bytes_per_s,
        }
        for one in speeds_of(profile)
    ]
    excluded = list(profile.excluded_models)
    caps = {"up_bytes_per_s": profile.up_bytes_per_s, "down_bytes_per_s": profile.down_bytes_per_s}
    return {"speeds": speeds, "memory_bytes_per_s": profile.memory_bytes_per_s, "excluded_models": excluded, **caps}


def _links(peers: Sequence[PeerId], links: LinkMatrix) -> list[dict[str, Any]]:
    found = []
    for at, one in enumerate(peers):
        for other in peers[at + 1 :]:
            link = links.between(one, other)
            if link is not None:
                path = "relayed" if link.is_relayed else "direct"
                rate = link.throughput_bytes_per_s
                found.append({"between": [one, other], "rtt_ms": link.rtt_us / 1000, "throughput": rate, "path": path})
    return found
