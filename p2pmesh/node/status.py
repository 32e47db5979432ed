"""What a node tells its console: plain values that JSON can hold."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from p2pmesh.base.ids import PeerId
from p2pmesh.core.coordination import RunPhase
from p2pmesh.core.links import LinkEstimate
from p2pmesh.core.membership_events import GONE
from p2pmesh.core.planning.outcome import StepEstimate
from p2pmesh.core.reachability import ReachReport
from p2pmesh.node.liveness import Liveness
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.ownership import PeerTrust
from p2pmesh.node.predictions import describe_estimate
from p2pmesh.node.run_table import RunTable
from p2pmesh.node.stage_run import StageRun
from p2pmesh.node.stages import Stages
from p2pmesh.wire.announcement import Announcement, ServedModel

MAX_SHOWN_PEERS = 256


class CoordinatedRun(Protocol):
    """A run that is coordinated here."""

    @property
    def run_id(self) -> bytes:
        """Its name."""

    @property
    def phase(self) -> RunPhase:
        """Where it stands."""

    @property
    def predicted(self) -> StepEstimate | None:
        """What a token is predicted to take; None where that is not known."""

    @property
    def planned(self) -> StepEstimate | None:
        """What a plan that is made now would predict for the same stages, without what was measured of this run."""

    def described_stages(self) -> list[dict[str, object]]:
        """Peers and layer ranges."""


class ModelCoordinator(Protocol):
    """Who places a model, or took a run of it over."""

    @property
    def model_name(self) -> str:
        """What clients call the model."""

    @property
    def run(self) -> CoordinatedRun | None:
        """The present run."""

    def described_standbys(self) -> list[dict[str, object]]:
        """Engines that wait for a stage of it to be lost."""


def describe_node(
    overlay: Overlay,
    stages: Stages,
    table: RunTable,
    coordinators: Sequence[ModelCoordinator],
    models: Mapping[str, ServedModel],
    links: Sequence[tuple[PeerId, LinkEstimate]],
    liveness: Liveness,
) -> dict[str, Any]:
    """The whole status. Neither invite nor key is part of it."""
    own = overlay.board.own()
    others = overlay.board.others()
    health = liveness.describe()
    return {
        "version": own.version,
        "peer_id": own.peer_id,
        "name": own.name,
        "mesh_id": overlay.mesh_id,
        "is_founder": overlay.is_founder,
        "admission": {**overlay.standing(), **overlay.credentials.describe()},
        "addresses": list(own.addresses),
        "memory_bytes": own.memory_bytes,
        "free_bytes": stages.free_bytes,
        "trust_policy": overlay.trust.policy.value,
        **_describe_ownership(overlay.trust, own),
        "peer_count": len(others),
        "peers": [_describe_peer(overlay, peer, health) for peer in _shown(overlay, others)],
        "gone_peers": _gone(health)[:MAX_SHOWN_PEERS],
        "asymmetries": liveness.describe_asymmetries()[:MAX_SHOWN_PEERS],
        "links": [_describe_link(peer, link) for peer, link in links[:MAX_SHOWN_PEERS]],
        "bans": overlay.conduct.describe_bans(MAX_SHOWN_PEERS),
        "models": [_describe_model(model) for model in models.values()],
        "stages": [_describe_stage(run) for run in table.runs()],
        "placements": [_describe_placement(coordinator) for coordinator in coordinators],
    }


def _shown(overlay: Overlay, others: Sequence[Announcement]) -> Sequence[Announcement]:
    """Admitted peers first, and no more than a person or a request can take."""
    return sorted(others, key=lambda peer: not overlay.is_admitted(PeerId(peer.peer_id)))[:MAX_SHOWN_PEERS]


def _gone(health: Mapping[PeerId, dict[str, Any]]) -> list[dict[str, Any]]:
    """Who failed, left or was put out lately."""
    shown = ("peer_id", "name", "health", "last_heard_s")
    return [{name: facts[name] for name in shown} for facts in health.values() if facts["health"] in GONE]


def _describe_peer(overlay: Overlay, peer: Announcement, health: Mapping[PeerId, dict[str, Any]]) -> dict[str, Any]:
    return {
        **health.get(PeerId(peer.peer_id), {}),
        "peer_id": peer.peer_id,
        "name": peer.name,
        "version": peer.version,
        "is_admitted": overlay.is_admitted(PeerId(peer.peer_id)),
        "addresses": list(peer.addresses),
        "memory_bytes": peer.memory_bytes,
        "free_bytes": peer.free_bytes,
        "max_layers": peer.max_layers or None,
        "is_on_battery": peer.is_on_battery,
        "is_busy": peer.is_busy,
        "models": [model.name for model in peer.models],
        **_describe_ownership(overlay.trust, peer),
    }


def _describe_ownership(trust: PeerTrust, peer: Announcement) -> dict[str, Any]:
    """What this node makes of a peer's claim; ``owner_id`` is null where none is proven."""
    found = trust.assess(PeerId(peer.peer_id), peer.ownership)
    return {
        "ownership": found.status.value,
        "owner_id": found.owner_id,
        "owner_label": found.owner_label,
        "node_label": found.label,
        "claim_expires_unix_ms": found.expires_unix_ms,
    }


def _describe_link(peer: PeerId, link: LinkEstimate) -> dict[str, Any]:
    return {
        "peer_id": peer,
        "rtt_us": link.rtt_us,
        "jitter_us": link.jitter_us,
        "throughput_bytes_per_s": link.throughput_bytes_per_s or None,
        "path": "relayed" if link.is_relayed else "direct",
    }


def describe_reach(report: ReachReport) -> dict[str, Any]:
    """How others reach this node."""
    return {
        "reachability": report.verdict.value,
        "nat": report.nat.value,
        "needs_relay": report.needs_relay,
        "witnesses": {"reached": report.reached_networks, "failed": report.failed_networks},
        "observed_hosts": list(report.observed_hosts),
        "confirmed_addresses": list(report.confirmed_addresses),
        "reservations": [asdict(held) for held in report.reservations],
        "relaying": asdict(report.relaying),
        "paths": {"direct": report.direct_peers, "relayed": report.relayed_peers},
    }


def _describe_model(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "digest": model.digest,
        "run_id": model.run_id.hex(),
        "stage_count": model.stage_count,
        "context_tokens": model.context_tokens,
    }


def _describe_stage(run: StageRun) -> dict[str, Any]:
    entry = run.load.stage
    facts = run.engine.facts
    return {
        "model": run.load.model,
        "run_id": run.load.run_id.hex(),
        "stage": run.load.index,
        "layers": [entry.layer_start, entry.layer_end],
        "fingerprint": facts.fingerprint,
        "exact_width": facts.exact_width,
        "kv_bytes": facts.kv_bytes,
        "open_sequences": run.open_sequences,
        "notes": list(facts.notes),
    }


def _describe_placement(coordinator: ModelCoordinator) -> dict[str, Any]:
    run = coordinator.run
    described: dict[str, Any] = {"model": coordinator.model_name, "phase": "waiting", "stages": []}
    described["standbys"] = coordinator.described_standbys()
    if run is not None:
        described |= {"phase": run.phase.value, "run_id": run.run_id.hex(), "stages": run.described_stages()}
        predicted = run.predicted
        described |= {"predicted_tpot_us": None} if predicted is None else describe_estimate(predicted)
        described["planned_tpot_us"] = None if run.planned is None else run.planned.tpot_us
    return described
