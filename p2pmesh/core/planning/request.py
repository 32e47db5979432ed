"""What the planner is asked: a model in bytes, the peers at hand, the links between them, and the policy.

Owns the records and the arithmetic of one layer range. Bytes of a GGUF are ``model.cost``'s, permitted cuts
``model.families``', links ``core.links``'.
"""

from dataclasses import dataclass, field
from operator import add

from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.core.links import NO_LINKS, LinkMatrix
from p2pmesh.core.planning.outcome import PlannedStage

DEFAULT_DECODE_BYTES_PER_S = 8_000_000_000
"""Speed of a peer where nobody's is known: weights that it reads in a second of decoding. Two cores of a virtual
machine were measured at 6 GB/s, desktops reach some tens."""


@dataclass(frozen=True, slots=True)
class ShapeBytes:
    """Bytes that stages need with room for ``lanes`` sequences of ``context_tokens`` tokens each.

    A stage takes its layers' bytes and ``stage_bytes``, and at the ends ``first_bytes`` and ``last_bytes``;
    ``whole_saves_bytes`` is what a stage that is both need not hold twice (a tied embedding, the logits).
    """

    layer_bytes: tuple[int, ...]
    first_bytes: int = 0
    last_bytes: int = 0
    stage_bytes: int = 0
    whole_saves_bytes: int = 0
    context_tokens: int = 0
    lanes: int = 1

    def bytes_of(self, layers: LayerRange) -> int:
        """Memory that a peer needs to hold ``layers``."""
        size = sum(self.layer_bytes[layers.start : layers.end]) + self.stage_bytes
        is_first, is_last = layers.is_first(), layers.is_last(len(self.layer_bytes))
        size += self.first_bytes * is_first + self.last_bytes * is_last
        return size - self.whole_saves_bytes * (is_first and is_last)


@dataclass(frozen=True, slots=True)
class PlanningModel:
    """A model as the planner sees it.

    ``shapes`` stand by preference, the best first; the last one needs no more of any range than the others, and what
    does not fit with it fits with none. ``cuts`` are the layer indices at which the family may be cut, ascending,
    within ``1 … layer_count - 1``; ``forbidden`` are ranges between such cuts that the family cannot run all the same.
    ``layer_reads`` are the weights that a decoded token reads in each layer (empty: all bytes of the last shape),
    ``output_reads`` those of the output head; ``cache_reads`` is what it reads of the KV cache in each layer, at the
    position that placements are predicted for (empty: nothing). ``activation_bytes`` is what a token takes between two
    stages with the wire dtype; ``wire_cuts`` are the cuts at which that may be used, None all, and ``wire_reason`` says
    why not at others. A ``is_sticky`` family keeps states that cannot move, so that a stage stays with its owner.
    """

    shapes: tuple[ShapeBytes, ...]
    cuts: tuple[int, ...]
    forbidden: frozenset[LayerRange] = frozenset()
    layer_reads: tuple[int, ...] = ()
    output_reads: int = 0
    cache_reads: tuple[int, ...] = ()
    activation_bytes: int = 0
    wire_cuts: frozenset[int] | None = None
    wire_reason: str = ""
    is_sticky: bool = False

    @property
    def layer_count(self) -> int:
        """Layers of the whole model."""
        return len(self.least.layer_bytes)

    @property
    def least(self) -> ShapeBytes:
        """The shape that needs least."""
        return self.shapes[-1]

    @property
    def reads(self) -> tuple[int, ...]:
        """Bytes that a decoded token reads in each layer."""
        weights = self.layer_reads or self.least.layer_bytes
        return tuple(map(add, weights, self.cache_reads)) if self.cache_reads else weights


@dataclass(frozen=True, slots=True)
class PlanningPeer:
    """A peer and what it offers now; peers of ``rank`` 0 come before all others.

    ``free_bytes`` is what is free, ``most_bytes`` what its owner allows (None: all of it), ``most_layers`` likewise.
    ``decode_bytes_per_s`` is measured, 0 unknown; so is ``prefill_bytes_per_s``, weights that it reads in a second of a
    prompt, once for each token, by which nothing is decided. ``has_model`` means that nothing need be fetched for any
    stage.
    ``is_spared`` where it runs on battery, or its owner uses it: others come first. ``up_bytes_per_s`` and
    ``down_bytes_per_s`` are what its owner lets it send and receive; 0: all that its links carry.
    """

    peer_id: PeerId
    free_bytes: int
    rank: int = 0
    most_bytes: int | None = None
    most_layers: int | None = None
    is_excluded: bool = False
    decode_bytes_per_s: int = 0
    prefill_bytes_per_s: int = 0
    has_model: bool = False
    is_behind_nat: bool = False
    is_spared: bool = False
    up_bytes_per_s: int = 0
    down_bytes_per_s: int = 0

    @property
    def offered_bytes(self) -> int:
        """What it gives, by its memory and by its owner's wish."""
        if self.is_excluded or self.most_layers == 0:
            return 0
        return max(0, self.free_bytes if self.most_bytes is None else min(self.free_bytes, self.most_bytes))


@dataclass(frozen=True, slots=True)
class PlanningPolicy:
    """What the planner weighs, and how much it may search.

    Sizes are predicted to within a twentieth (measured: 3 % for buffers), so a sixteenth of what a peer offers stays
    free: a fill to the brim ends in the first peer's swap. Times are known no better than ``tolerance_us`` and
    ``tolerance_percent``; what differs by less counts as equally fast.
    """

    head_room_divisor: int = 16
    tolerance_us: int = 1_000
    tolerance_percent: int = 2
    coordinator_factor: int = 2
    """The coordinator drives unless the step then takes longer than this many times the best: whoever drives reads the
    prompts, and is where its clients are."""
    hop_overhead_us: int = 1_500
    """Beside the network, of each hop of a split run: framing, encryption, and two processes that wake up."""
    step_overhead_us: int = 300
    """Of each step: sampling, text, the answer's event."""
    relay_penalty_us: int = 10_000
    """A relayed hop counts as so much longer when placements are compared, not when they are predicted: relays end
    connections as they like, and share their queues."""
    most_peers: int = 64
    """The largest offers that are looked at."""
    most_exhaustive_orders: int = 150
    """So many orders are all tried: those of five peers always are."""
    most_evaluated_stages: int = 3_000
    """Of all further orders together."""
    most_neighbours: int = 10_000
    """Orders that are looked at from afar, by their hops alone."""
    most_tied_stages: int = 600
    """Of equally fast orders that are compared further."""
    runner_ups: int = 3


DEFAULT_POLICY = PlanningPolicy()
DEFAULT_TARGET_US = 33_000
"""A token in this time is what upstream calls interactive."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """So many more peers are here that no plan may rest on yet: they hold the model for a run of another coordinator,
    and are asked again after ``for_us`` at most."""

    peers: int = 0
    for_us: int = 0


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A model, and the peers that may hold it.

    ``stage_count`` None is automatic; otherwise exactly so many stages (at least 1) on so many peers. The
    ``coordinator`` drives where it can. A peer that stands twice counts once, with its smaller offer. ``kept`` are
    stages of an earlier placement that are still up. Of those ``left_out`` a refusal tells.
    """

    model: PlanningModel
    peers: tuple[PlanningPeer, ...]
    coordinator: PeerId | None = None
    stage_count: int | None = None
    links: LinkMatrix = NO_LINKS
    kept: tuple[PlannedStage, ...] = ()
    target_us: int = DEFAULT_TARGET_US
    policy: PlanningPolicy = field(default=DEFAULT_POLICY)
    left_out: LeftOut = LeftOut()

    def __post_init__(self) -> None:
        if self.stage_count is not None and self.stage_count < 1:
            raise ValueError(f"{self.stage_count} stages hold no model")

    def usable_bytes(self, peer: PlanningPeer) -> int:
        """What a stage on this peer may take: its offer without the head room."""
        return peer.offered_bytes - peer.offered_bytes // self.policy.head_room_divisor
