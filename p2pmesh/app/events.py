"""What a running node tells its operator, as fixed names and fields.

Owns names and fields, which scripts rely on (``--log-format json`` prints them as they are). How they look on a
terminal is the business of ``cli.output``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from p2pmesh.base.errors import P2PMeshError
from p2pmesh.base.ids import LayerRange, OwnerId, PeerId
from p2pmesh.core.addresses import AddressChoice


class EventName(StrEnum):
    """Every event of ``p2pmesh up``."""

    LISTENING = "listening"
    ADDRESSES = "addresses"
    REACH_CHANGED = "reach_changed"
    RELAYS_CHANGED = "relays_changed"
    PATH_UPGRADED = "path_upgraded"
    INVITE = "invite"
    JOINED = "joined"
    POOL_WARNING = "pool_warning"
    POOLS_SEARCHED = "pools_searched"
    POOL_JOINED = "pool_joined"
    POOL_ALONE = "pool_alone"
    POOL_LISTED = "pool_listed"
    POOL_UNLISTED = "pool_unlisted"
    POOL_WATCHED = "pool_watched"
    LISTINGS_REJECTED = "listings_rejected"
    LAN_PEER_MET = "lan_peer_met"
    LAN_PEER_MISSED = "lan_peer_missed"
    PEER_JOINED = "peer_joined"
    PEER_LEFT = "peer_left"
    PEER_SUSPECTED = "peer_suspected"
    PEER_RECOVERED = "peer_recovered"
    PEER_FAILED = "peer_failed"
    REPORTER_MUTED = "reporter_muted"
    VISIBILITY_ASYMMETRIC = "visibility_asymmetric"
    PEER_REFUSED = "peer_refused"
    PUT_OUT = "put_out"
    PEER_THROTTLED = "peer_throttled"
    PEER_BANNED = "peer_banned"
    PEER_UNBANNED = "peer_unbanned"
    JOIN_FAILED = "join_failed"
    MODEL_FETCHING = "model_fetching"
    MODEL_FETCHED = "model_fetched"
    PLACEMENT = "placement"
    WAITING_FOR_PEERS = "waiting_for_peers"
    STAGE_LOADING = "stage_loading"
    STAGE_FETCHED = "stage_fetched"
    ARTIFACT_SOURCE_DROPPED = "artifact_source_dropped"
    STAGE_READY = "stage_ready"
    STAGE_FAILED = "stage_failed"
    PIPELINE_READY = "pipeline_ready"
    DIRECT_RETURN_FAILED = "direct_return_failed"
    WIRE_DTYPE_WIDENED = "wire_dtype_widened"
    TPOT_COMPARED = "tpot_compared"
    MODEL_WITHDRAWN = "model_withdrawn"
    REPLICA_FETCHING = "replica_fetching"
    REPLICA_FETCHED = "replica_fetched"
    LOAD_ON_DEMAND = "load_on_demand"
    MODEL_UNLOADED = "model_unloaded"
    STAGE_HANDED_OVER = "stage_handed_over"
    UNLOAD_POSTPONED = "unload_postponed"
    MODEL_ALIASED = "model_aliased"
    MODEL_UNUSABLE = "model_unusable"
    REQUEST_RECOVERED = "request_recovered"
    RUN_TAKEN_OVER = "run_taken_over"
    REPLANNED = "replanned"
    SHARING_CHANGED = "sharing_changed"
    CONFIG_RELOADED = "config_reloaded"
    USAGE = "usage"
    GOSSIP_PUBLISHED = "gossip_published"
    GOSSIP_DELIVERED = "gossip_delivered"
    READY = "ready"
    NOT_ROUTABLE = "not_routable"
    SERVES_NOTHING = "serves_nothing"
    CLAIM_RENEWED = "claim_renewed"
    CLAIM_EXPIRES = "claim_expires"
    EVENTS_FOLDED = "events_folded"
    ERROR = "error"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Event:
    """One line for the operator; the values of ``fields`` are what JSON can hold."""

    name: EventName
    fields: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


Emit = Callable[[Event], None]
"""Tells the operator."""


def listening(api_url: str, console_url: str, peer_id: PeerId) -> Event:
    """Both HTTP ports are open; nothing need be joined or loaded yet."""
    return Event(EventName.LISTENING, {"api_url": api_url, "console_url": console_url, "peer_id": peer_id})


def addresses(choice: AddressChoice) -> Event:
    """What peers are told to dial, best first, and what they are not told, for which reason."""
    left_out = [{"address": one.address, "interface": one.interface, "reason": one.reason} for one in choice.left_out]
    return Event(EventName.ADDRESSES, {"announced": list(choice.announced), "left_out": left_out})


def invite(text: str) -> Event:
    """What another node is given to join."""
    return Event(EventName.INVITE, {"invite": text})


def pipeline_ready(model: str, run_id: bytes, stages: Sequence[tuple[PeerId, LayerRange]]) -> Event:
    """A placement has produced one real token through every stage; told by the coordinator."""
    listed = [{"peer_id": peer, "layers": [layers.start, layers.end]} for peer, layers in stages]
    return Event(EventName.PIPELINE_READY, {"model": model, "run_id": run_id.hex(), "stages": listed})


def ready(api_url: str, models: Sequence[str]) -> Event:
    """These models can be routed from this peer."""
    return Event(EventName.READY, {"api_url": api_url, "models": list(models)})


def folded(name: EventName, peer_id: str | None, count: int, window_s: int) -> Event:
    """So many further events of one name within a window were not told; ``peer_id`` None: of many peers."""
    return Event(
        EventName.EVENTS_FOLDED, {"folded": name.value, "peer_id": peer_id, "count": count, "window_s": window_s}
    )


def claim_renewed(owner_id: OwnerId, expires_unix_ms: int, message: str) -> Event:
    """The owner's claim on this node was due, and was renewed."""
    fields = {"owner_id": owner_id, "expires_unix_ms": expires_unix_ms, "message": message}
    return Event(EventName.CLAIM_RENEWED, fields)


def claim_expires(expires_unix_ms: int, message: str) -> Event:
    """The owner's claim on this node is due, and could not be renewed."""
    return Event(EventName.CLAIM_EXPIRES, {"expires_unix_ms": expires_unix_ms, "message": message})


def error(raised: P2PMeshError) -> Event:
    """Something failed; the node may live on."""
    return Event(EventName.ERROR, {"code": raised.code.value, "message": raised.message})
