"""Hypothesis strategies of every declared record, drawn from the shapes themselves."""

from dataclasses import fields
from functools import partial
from typing import Any

from hypothesis import strategies as st

from p2pmesh.base.ids import is_digest, is_mesh_id, is_owner_id, is_peer_id
from p2pmesh.wire.messages.artifacts import PrepareArtifact
from p2pmesh.wire.messages.claims import ClaimRun
from p2pmesh.wire.messages.generation import RoutedStageEntry
from p2pmesh.wire.messages.runs import LoadStage, StageEntry
from p2pmesh.wire.schema import (
    Boolean,
    Bytes,
    HexBytes,
    Integer,
    Line,
    ListOf,
    OpenRow,
    Optional,
    Real,
    Record,
    Row,
    Shape,
    Text,
    as_line,
    is_line,
)

_LONG = 60  # long enough to cross every msgpack form of a length but the longest


def text_of(shape: Text) -> st.SearchStrategy[str]:
    if shape.rule in (is_digest, is_owner_id):
        return st.text("0123456789abcdef", min_size=64, max_size=64)
    if shape.rule is is_mesh_id:
        return st.text("0123456789abcdef", min_size=32, max_size=32)
    if shape.rule is is_peer_id:
        return st.text("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", min_size=32, max_size=128)
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=min(_LONG, shape.max_bytes // 4))
    return text.filter(is_line) if shape.rule is is_line else text


def bytes_of(shape: Bytes | HexBytes) -> st.SearchStrategy[Any]:
    if isinstance(shape, HexBytes):
        return st.binary(min_size=shape.count, max_size=shape.count).map(bytes.hex)
    return st.binary(min_size=shape.min_bytes, max_size=min(shape.max_bytes, max(shape.min_bytes, 300)))


def values_of(shape: Shape) -> st.SearchStrategy[Any]:
    """Values that the shape takes."""
    match shape:
        case Text():
            return text_of(shape)
        case Line(max_bytes=size):
            return st.text(max_size=_LONG).map(lambda text: as_line(text, size))
        case Bytes() | HexBytes():
            return bytes_of(shape)
        case Integer(lowest=low, highest=high):
            return st.integers(low, high)
        case Real():
            return st.floats(allow_nan=False, allow_infinity=False)
        case ListOf(item=item, max_items=most):
            return st.lists(values_of(item), max_size=min(most, 5)).map(tuple)
        case Optional(inner=inner):
            return st.none() | values_of(inner)
        case Boolean():
            return st.booleans()
        case Record(cls=cls) | Row(cls=cls) | OpenRow(cls=cls):
            return records_of(cls)
    raise AssertionError(shape)


def records_of(cls: type) -> st.SearchStrategy[Any]:
    """Records whose own rules hold too."""
    if cls is LoadStage:
        return placements().flatmap(_load_stage)
    if cls is ClaimRun:
        peers = st.lists(values_of(Text(128, is_peer_id)), min_size=1, max_size=5, unique=True)
        return st.builds(lambda values, peers: ClaimRun(**{**values, "peers": tuple(peers)}), plain_fields(cls), peers)
    if cls in (StageEntry, RoutedStageEntry, PrepareArtifact):
        return st.builds(partial(_with_layers, cls), plain_fields(cls), st.integers(0, 900), st.integers(1, 100))
    return plain_fields(cls).map(lambda values: cls(**values))


def plain_fields(cls: type) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({f.name: values_of(f.metadata["shape"]) for f in fields(cls)})


def placements() -> st.SearchStrategy[tuple[StageEntry, ...]]:
    """Stages that tile their layers, each on a peer of its own."""
    sizes = st.lists(st.integers(1, 15), min_size=1, max_size=8)
    peer = values_of(Text(128, is_peer_id))
    return sizes.flatmap(
        lambda counts: st.lists(peer, min_size=len(counts), max_size=len(counts), unique=True).map(
            lambda peers: tuple(
                StageEntry(peer_id, sum(counts[:index]), sum(counts[: index + 1]), ("/ip4/192.0.2.1/tcp/1",))
                for index, peer_id in enumerate(peers)
            )
        )
    )


def _with_layers(cls: type, values: dict[str, Any], start: int, count: int) -> Any:
    return cls(**{**values, "layer_start": start, "layer_end": start + count})


def _load_stage(stages: tuple[StageEntry, ...]) -> st.SearchStrategy[LoadStage]:
    return st.builds(
        lambda values, index: LoadStage(
            **{**values, "stages": stages, "layer_count": stages[-1].layer_end, "index": index}
        ),
        plain_fields(LoadStage),
        st.integers(0, len(stages) - 1),
    )


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.binary(max_size=20)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
"""Any plain msgpack value."""
