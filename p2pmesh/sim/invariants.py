"""What must hold at every moment, as functions from a snapshot to sentences that say what does not."""

from collections.abc import Callable, Iterable

from p2pmesh.base.ids import ranges_tile
from p2pmesh.base.limits import MAX_LANES, MAX_PEERS, MAX_UNADMITTED_PEERS
from p2pmesh.sim.snapshot import Snapshot

Invariant = Callable[[Snapshot], Iterable[str]]


def stages_tile_within_offers(snapshot: Snapshot) -> Iterable[str]:
    """The stages of each run cover every layer once, and none needs more than its peer offers."""
    for run in snapshot.runs:
        if not ranges_tile(run.ranges, run.layer_count):
            yield f"run {run.number}: stages do not tile {run.layer_count} layers"
        if any(needed > free for needed, free in zip(run.needed_bytes, run.free_bytes, strict=True)):
            yield f"run {run.number}: a stage needs more than its peer offers"


def each_sequence_ends_once(snapshot: Snapshot) -> Iterable[str]:
    """A live sequence has no end and is not overdue; any other has one, and nothing after it."""
    for sequence in snapshot.sequences:
        if sequence.ends != (0 if sequence.is_live else 1):
            yield f"sequence {sequence.number}: {sequence.ends} ends while {'live' if sequence.is_live else 'over'}"
        if sequence.effects_after_end:
            yield f"sequence {sequence.number}: {sequence.effects_after_end} effects after its end"
        if sequence.late_us > 0:
            yield f"sequence {sequence.number}: its deadline passed {sequence.late_us} us ago"


def credits_hold(snapshot: Snapshot) -> Iterable[str]:
    """No sequence has more prompt on its way than its credits cover, or less than none."""
    for sequence in snapshot.sequences:
        if not 0 <= sequence.open_tokens <= sequence.open_tokens_limit:
            yield f"sequence {sequence.number}: {sequence.open_tokens} tokens without credit"


def no_effect_to_a_lost_peer(snapshot: Snapshot) -> Iterable[str]:
    """Once a coordinator knows that a stage's peer is lost, its machines ask nothing more of that peer."""
    for run in snapshot.runs:
        if run.effects_to_lost:
            yield f"run {run.number}: {run.effects_to_lost} effects to a lost peer"


def collections_are_bounded(snapshot: Snapshot) -> Iterable[str]:
    """Every collection stays within its limit."""
    for peer in snapshot.peers:
        if peer.waiting > MAX_UNADMITTED_PEERS or peer.admitted > MAX_PEERS or peer.known > MAX_PEERS:
            yield f"peer {peer.number}: {peer.waiting} waiting, {peer.admitted} admitted, {peer.known} known"
    live = sum(sequence.is_live for sequence in snapshot.sequences)
    if live > MAX_LANES:
        yield f"{live} live sequences"


INVARIANTS: tuple[Invariant, ...] = (
    stages_tile_within_offers,
    each_sequence_ends_once,
    credits_hold,
    no_effect_to_a_lost_peer,
    collections_are_bounded,
)


def violations(snapshot: Snapshot) -> tuple[str, ...]:
    """All that does not hold, each with the moment."""
    return tuple(f"{snapshot.now_us} us: {text}" for invariant in INVARIANTS for text in invariant(snapshot))
