"""Peers and links for ``p2pmesh plan``, from a TOML or JSON file, or as a node's console tells them: one format.

Strict: each mistake is one line with its place and what would be right. Keys of the file::

    coordinator = "laptop"         # optional: who is given the model, and drives where it can
    hop_overhead_ms = 1.5          # optional: what each hop of a split run takes beside its link

    [[peers]]
    name = "laptop"                # unique; its peer id where a node tells
    memory = "16GiB"               # what it offers now, a size or bytes
    max_memory = "8GiB"            # all that follow are optional: what its owner allows
    max_layers = 20
    excluded = false
    excluded_models = ["name, or digest", …]
    spared = false                 # it runs on battery, or its owner uses it: others come first
    decode_bytes_per_s = "8GB"     # measured: weights read in a second of decoding; 0 is unknown
    prefill_bytes_per_s = "30GB"   # measured: weights read in a second of a prompt, once for each token; 0 is unknown
    memory_bytes_per_s = "12GB"    # copied; stands in where nothing was decoded yet
    has_model = false              # nothing need be fetched; or on_disk = ["sha256 of a model", …]
    behind_nat = false
    rank = 0                       # peers of a higher rank are taken only where those of rank 0 do not suffice
    label = "the old laptop"       # shown instead of the name

    [[peers.speeds]]               # by kind of model, instead of decode_bytes_per_s
    architecture = "llama"
    size_class = 12                # binary digits of the MiB that a token reads
    decode_bytes_per_s = "7GB"
    prefill_bytes_per_s = "30GB"   # optional

    [[links]]                      # of two peers, in any order; those that are not there are unknown
    between = ["laptop", "desk"]
    rtt_ms = 12.5
    throughput = "10MiB"           # optional, a second
    path = "direct"                # or "relayed"
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import (
    MAX_DECODE_BYTES_PER_S,
    MAX_EXCLUDED_MODELS,
    MAX_LAYERS,
    MAX_LINK_BYTES_PER_S,
    MAX_LINK_RTT_US,
    MAX_NAME_BYTES,
    MAX_PROFILE_SPEEDS,
)
from p2pmesh.base.quantities import MIB, UnixMillis, parse_size_bytes
from p2pmesh.core.links import LinkMatrix, PairLink
from p2pmesh.core.owner_wishes import excludes
from p2pmesh.core.planning.pricing import MOST_HOP_OVERHEAD_US
from p2pmesh.core.planning.request import DEFAULT_POLICY, PlanningPeer, PlanningPolicy
from p2pmesh.core.speeds import Speed, decode_speed_for, decode_speed_of_memory, prefill_speed_for
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.schema import is_line

MAX_FILE_BYTES = 16 * MIB
MAX_PEERS = 1024
MAX_LINKS = 262_144
MAX_ON_DISK = 256
_MOST_BYTES = 2**53
_PATHS = ("direct", "relayed")
_DIGEST = re.compile("[0-9a-fA-F]{64}")
_HALVES = re.compile("[\ud800-\udfff]")
_SHOWN = 64
"""Characters of what stands in the file that a message repeats."""
_LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class KnownPeers:
    """Peers by name, what they are called for people, and the models on their disks by digest."""

    coordinator: PeerId | None
    peers: tuple[PlanningPeer, ...]
    labels: Mapping[PeerId, str]
    on_disk: Mapping[PeerId, frozenset[str]]
    links: LinkMatrix
    excluded_models: Mapping[PeerId, tuple[str, ...]]
    speeds: Mapping[PeerId, tuple[Speed, ...]]
    policy: PlanningPolicy = DEFAULT_POLICY
    """With what a hop takes, where that is told."""

    def having(self, model: ModelFile, read_bytes: int) -> tuple[PlanningPeer, ...]:
        """The peers, those marked that have this model, and those whose owners do not want it, with its kind's speed.

        A token reads ``read_bytes`` of it.
        """
        return tuple(self._for(peer, model, read_bytes) for peer in self.peers)

    def _for(self, peer: PlanningPeer, model: ModelFile, read_bytes: int) -> PlanningPeer:
        speeds, architecture = self.speeds[peer.peer_id], model.index.architecture
        return replace(
            peer,
            has_model=peer.has_model or model.digest in self.on_disk[peer.peer_id],
            is_excluded=peer.is_excluded or excludes(self.excluded_models[peer.peer_id], model.name, model.digest),
            decode_bytes_per_s=decode_speed_for(speeds, architecture, read_bytes) or peer.decode_bytes_per_s,
            prefill_bytes_per_s=prefill_speed_for(speeds, architecture, read_bytes) or peer.prefill_bytes_per_s,
        )


def read_peers_file(path: Path) -> KnownPeers:
    """``ConfigError(CONFIG_INVALID)`` names the file and the first thing that is wrong in it."""
    loads: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": _load_json}
    load = loads.get(path.suffix.lower())
    if load is None:
        raise _invalid(f"{path}: a file of peers ends in .toml or .json")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _invalid(
            f"{path} cannot be read: {error.strerror}; give the path of a .toml or .json file, or leave --peers away"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise _invalid(f"{path} is larger than {MAX_FILE_BYTES // MIB} MiB")
    try:
        value = load(data.decode("utf-8-sig"))  # some editors begin a text with a mark of its encoding
    except UnicodeDecodeError as error:
        raise _invalid(f"{path} is no UTF-8 text, at byte {error.start}; save it as UTF-8") from None
    except RecursionError:
        raise _invalid(f"{path}: its lists or tables are nested too deep") from None
    except ValueError as error:
        raise _invalid(f"{path}: {_reason(error)}") from None
    return decode_peers(value, str(path))


def decode_peers(value: Any, source: str) -> KnownPeers:
    """The peers of a decoded file; ``source`` names it in errors."""
    try:
        return _decode(value)
    except _WrongError as wrong:
        raise _invalid(f"{source}: {wrong}") from None


def _invalid(text: str) -> ConfigError:
    return ConfigError(ErrorCode.CONFIG_INVALID, text)


def _reason(error: ValueError) -> str:
    """A parser's own words in one line, with the place that stands at their end."""
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_SHOWN]} … {text[-_SHOWN:]}"


def _load_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:_SHOWN]!r} stands twice in one object")
        found[name] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


class _WrongError(Exception):
    """What is wrong, with its place."""


class _Fields:
    """The fields of one table, taken by name; what is left over is a mistake."""

    def __init__(self, value: Any, place: str, known: tuple[str, ...]) -> None:
        if not isinstance(value, dict):
            raise _WrongError(f"{place or 'the file'} is no table")
        self._place = f"{place}." if place else ""
        self._values = value
        unknown = next((name for name in value if name not in known), None)
        if unknown is not None:
            raise _WrongError(f"{self._place}{_key(unknown)} is no key; there are {', '.join(known)}")

    def take(self, name: str, otherwise: Any, is_right: Callable[[Any], bool], wanted: str) -> Any:
        """A value, or what it is otherwise; a mistake says what is wanted."""
        if name not in self._values:
            if otherwise is not None:
                return otherwise
            raise _WrongError(f"{self._place}{name} is missing: {wanted}")
        value = self._values[name]
        if not is_right(value):
            raise self.wrong(name, wanted)
        return value

    def wrong(self, name: str, wanted: str) -> _WrongError:
        """What a field holds, and what it should."""
        return _WrongError(f"{self._place}{name} is {_shown(self._values[name])}; write {wanted}")

    def text(self, name: str, otherwise: str | None = None) -> str:
        """A line of text."""
        wanted = f"a line of at most {MAX_NAME_BYTES} bytes"
        return str(self.take(name, otherwise, lambda v: _is_short(v) and bool(v), wanted))

    def short(self, name: str) -> str:
        """A line of text, possibly empty: a peer may tell anything of itself."""
        return str(self.take(name, None, _is_short, f"a line of at most {MAX_NAME_BYTES} bytes"))

    def texts(self, name: str, most: int, is_right: Callable[[Any], bool], wanted: str) -> tuple[str, ...]:
        """A list of texts; empty where it is missing."""
        found = self.rows(name, most)
        wrong = next((at for at, value in enumerate(found) if not is_right(value)), None)
        if wrong is not None:
            raise _WrongError(f"{self._place}{name}[{wrong}] is {_shown(found[wrong])}; write {wanted}")
        return tuple(found)

    def whole(self, name: str, most: int) -> int:
        """A number from 0 on; 0 where it is missing."""
        return int(self.take(name, 0, lambda v: type(v) is int and 0 <= v <= most, f"a whole number from 0 to {most}"))

    def flag(self, name: str) -> bool:
        """True or false; false where it is missing."""
        return bool(self.take(name, False, lambda v: isinstance(v, bool), "true or false"))

    def size(self, name: str, most: int, otherwise: int | None = None) -> int:
        """Bytes, as a number or as text."""
        wanted = f"bytes or a size such as 8GiB, at most {most}"
        value = self.take(name, otherwise, lambda v: isinstance(v, str) or type(v) is int, wanted)
        try:
            size = parse_size_bytes(value) if isinstance(value, str) else int(value)
        except (ValueError, OverflowError):
            raise self.wrong(name, wanted) from None
        if not 0 <= size <= most:
            raise self.wrong(name, wanted)
        return size

    def milliseconds(self, name: str, most: float, otherwise: float | None = None) -> float:
        """A number from 0 on, not necessarily whole."""
        wanted = f"a number from 0 to {int(most)}"
        return float(self.take(name, otherwise, lambda v: _is_number(v) and 0 <= v <= most, wanted))

    def rows(self, name: str, most: int) -> list[Any]:
        """A list; empty where it is missing."""
        wanted = f"a list of at most {most}"
        return list(self.take(name, [], lambda v: isinstance(v, list) and len(v) <= most, wanted))

    def has(self, name: str) -> bool:
        """Whether the field is there."""
        return name in self._values


_PEER_KEYS = (
    "name", "memory", "max_memory", "max_layers", "excluded", "decode_bytes_per_s", "prefill_bytes_per_s", "has_model",
    "on_disk", "behind_nat", "rank", "label", "spared", "excluded_models", "speeds",
    "memory_bytes_per_s", "up_bytes_per_s", "down_bytes_per_s",
)  # fmt: skip


def _decode(value: Any) -> KnownPeers:
    top = _Fields(value, "", ("coordinator", "hop_overhead_ms", "peers", "links"))
    peers: dict[PeerId, PlanningPeer] = {}
    labels: dict[PeerId, str] = {}
    on_disk: dict[PeerId, frozenset[str]] = {}
    excluded: dict[PeerId, tuple[str, ...]] = {}
    speeds: dict[PeerId, tuple[Speed, ...]] = {}
    for at, row in enumerate(top.rows("peers", MAX_PEERS)):
        fields = _Fields(row, f"peers[{at}]", _PEER_KEYS)
        peer = _decode_peer(fields)
        if peer.peer_id in peers:
            raise _WrongError(f"peers[{at}].name is {_shown(peer.peer_id)}, as of a peer before; give each its own")
        peers[peer.peer_id] = peer
        labels[peer.peer_id] = fields.text("label", peer.peer_id) or peer.peer_id
        digests = fields.texts("on_disk", MAX_ON_DISK, _is_digest, "the sha256 of a model, 64 hex digits")
        on_disk[peer.peer_id] = frozenset(map(str.lower, digests))
        wanted = f"a model's name or digest, a line of at most {MAX_NAME_BYTES} bytes"
        excluded[peer.peer_id] = fields.texts("excluded_models", MAX_EXCLUDED_MODELS, _is_short, wanted)
        speeds[peer.peer_id] = _decode_speeds(fields, f"peers[{at}]")
    if not peers:
        raise _WrongError("it has no peers; write [[peers]] tables with name and memory")
    named = top.text("coordinator") if top.has("coordinator") else None
    if named is not None and named not in peers:
        raise _WrongError(f"coordinator is {_shown(named)}, which is none of the peers")
    coordinator = None if named is None else PeerId(named)
    links, policy = _links(top, peers), _decode_policy(top)
    return KnownPeers(coordinator, tuple(peers.values()), labels, on_disk, links, excluded, speeds, policy)


def _decode_policy(top: _Fields) -> PlanningPolicy:
    most_ms = MOST_HOP_OVERHEAD_US // 1000
    known_ms = DEFAULT_POLICY.hop_overhead_us / 1000
    overhead_ms = top.milliseconds("hop_overhead_ms", most_ms, known_ms)
    return replace(DEFAULT_POLICY, hop_overhead_us=round(overhead_ms * 1000))


def _decode_speeds(fields: _Fields, place: str) -> tuple[Speed, ...]:
    found = []
    for at, row in enumerate(fields.rows("speeds", MAX_PROFILE_SPEEDS)):
        keys = ("architecture", "size_class", "decode_bytes_per_s", "prefill_bytes_per_s")
        one = _Fields(row, f"{place}.speeds[{at}]", keys)
        decode = one.size("decode_bytes_per_s", MAX_DECODE_BYTES_PER_S)
        prefill = one.size("prefill_bytes_per_s", MAX_DECODE_BYTES_PER_S, 0)
        kind = one.short("architecture"), one.whole("size_class", 64)
        found.append(Speed(*kind, decode, prefill, UnixMillis(0)))
    return tuple(found)


def _decode_peer(fields: _Fields) -> PlanningPeer:
    memory_speed = decode_speed_of_memory(fields.size("memory_bytes_per_s", MAX_DECODE_BYTES_PER_S, 0))
    return PlanningPeer(
        peer_id=PeerId(fields.text("name")),
        free_bytes=fields.size("memory", _MOST_BYTES),
        rank=fields.whole("rank", 100),
        most_bytes=fields.size("max_memory", _MOST_BYTES) if fields.has("max_memory") else None,
        most_layers=fields.whole("max_layers", MAX_LAYERS) if fields.has("max_layers") else None,
        is_excluded=fields.flag("excluded"),
        decode_bytes_per_s=fields.size("decode_bytes_per_s", MAX_DECODE_BYTES_PER_S, 0) or memory_speed,
        prefill_bytes_per_s=fields.size("prefill_bytes_per_s", MAX_DECODE_BYTES_PER_S, 0),
        has_model=fields.flag("has_model"),
        is_behind_nat=fields.flag("behind_nat"),
        is_spared=fields.flag("spared"),
        up_bytes_per_s=fields.size("up_bytes_per_s", MAX_LINK_BYTES_PER_S, 0),
        down_bytes_per_s=fields.size("down_bytes_per_s", MAX_LINK_BYTES_PER_S, 0),
    )


def _links(top: _Fields, peers: Mapping[PeerId, PlanningPeer]) -> LinkMatrix:
    links: dict[tuple[PeerId, PeerId], PairLink] = {}
    for at, row in enumerate(top.rows("links", MAX_LINKS)):
        place = f"links[{at}]"
        fields = _Fields(row, place, ("between", "rtt_ms", "throughput", "path"))
        ends = fields.take("between", None, _are_two_names, "two names of peers")
        one, other = sorted(map(PeerId, ends))
        unknown = next((end for end in (one, other) if end not in peers), None)
        if unknown is not None:
            raise _WrongError(f"{place}.between names {_shown(unknown)}, which is none of the peers")
        if one == other or (one, other) in links:
            text = "one peer twice" if one == other else "a pair that a link before names"
            raise _WrongError(f"{place}.between names {text}")
        links[one, other] = _decode_link(fields)
    return LinkMatrix(links)


def _decode_link(fields: _Fields) -> PairLink:
    most_ms = MAX_LINK_RTT_US / 1000
    rtt_ms = fields.milliseconds("rtt_ms", most_ms)
    path = fields.take("path", "direct", lambda v: v in _PATHS, " or ".join(_PATHS))
    return PairLink(round(rtt_ms * 1000), fields.size("throughput", MAX_LINK_BYTES_PER_S, 0), path == "relayed")


def _shown(value: Any) -> str:
    """What stands in the file, as far as it fits into a line."""
    if isinstance(value, list | dict) and value:
        return "a list" if isinstance(value, list) else "a table"
    if isinstance(value, int) and value.bit_length() > 8 * _SHOWN // 3:
        return f"a number of more than {_SHOWN // 2} digits"
    return repr(str(value)[:_SHOWN])


def _key(name: str) -> str:
    return name if name and _is_short(name) and len(name) <= _SHOWN else _shown(name)


def _is_short(value: Any) -> bool:
    """Whether it is a line of text of which there are bytes: JSON can spell halves of characters."""
    if not isinstance(value, str) or not is_line(value):
        return False
    return len(value.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES and not _HALVES.search(value)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _are_two_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(name, str) for name in value)
