"""Files of peers: what they mean, and one clear line for each mistake."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.app.peers_file import MAX_PEERS, KnownPeers, decode_peers, read_peers_file
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import Digest, PeerId
from p2pmesh.base.quantities import GIB, MIB
from p2pmesh.core.links import PairLink
from p2pmesh.core.planning.request import DEFAULT_POLICY, PlanningPeer
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.schema import is_line
from tests.fakes.models import fake_model

DIGEST = "ab" * 32
TOML = f"""
coordinator = "laptop"

[[peers]]
name = "laptop"
memory = "16GiB"
max_memory = "8GiB"
max_layers = 20
decode_bytes_per_s = "8GB"
prefill_bytes_per_s = "30GB"
has_model = true
behind_nat = true
label = "the old laptop"

[[peers]]
name = "desk"
memory = 1073741824
rank = 1
excluded = true
on_disk = ["{DIGEST}"]

[[links]]
between = ["laptop", "desk"]
rtt_ms = 12.5
throughput = "10MiB"
path = "relayed"
"""


def file_of(tmp_path: Path, text: str, name: str = "peers.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def model_of(digest: str, name: str = "m") -> ModelFile:
    return replace(fake_model(), name=name, digest=Digest(digest))


def test_caps_and_speeds_count_for_the_models_that_they_are_of(tmp_path: Path) -> None:
    text = """
[[peers]]
name = "laptop"
memory = "1GiB"
excluded_models = ["Other"]
spared = true
decode_bytes_per_s = 5
speeds = [
  { architecture = "llama", size_class = 3, decode_bytes_per_s = 30, prefill_bytes_per_s = 60 },
  { architecture = "gemma3", size_class = 9, decode_bytes_per_s = 90 },
]
[[peers]]
name = "desk"
memory = "1GiB"
memory_bytes_per_s = 100
"""
    known = read_peers_file(file_of(tmp_path, text))
    laptop, desk = known.having(model_of(DIGEST), 5 << 20)
    assert (laptop.is_spared, laptop.is_excluded, laptop.decode_bytes_per_s) == (True, False, 30)
    assert (desk.is_spared, desk.decode_bytes_per_s) == (False, 50)
    assert [peer.prefill_bytes_per_s for peer in (laptop, desk)] == [60, 0]
    assert [peer.is_excluded for peer in known.having(model_of(DIGEST, "other"), 0)] == [True, False]


def check_is_whole(known: KnownPeers) -> None:
    laptop, desk = known.peers
    assert laptop == PlanningPeer(
        PeerId("laptop"), 16 * GIB, most_bytes=8 * GIB, most_layers=20, decode_bytes_per_s=8 * GIB, has_model=True,
        is_behind_nat=True, prefill_bytes_per_s=30 * GIB,
    )  # fmt: skip
    assert desk == PlanningPeer(PeerId("desk"), GIB, rank=1, is_excluded=True)
    assert (known.coordinator, known.labels) == ("laptop", {"laptop": "the old laptop", "desk": "desk"})
    assert known.links.between(PeerId("desk"), PeerId("laptop")) == PairLink(12_500, 10 * MIB, True)
    assert [peer.has_model for peer in known.having(model_of(DIGEST), 0)] == [True, True]
    assert [peer.has_model for peer in known.having(model_of("cd" * 32), 0)] == [True, False]


def test_a_toml_file_says_who_offers_what_and_how_far_they_are(tmp_path: Path) -> None:
    check_is_whole(read_peers_file(file_of(tmp_path, TOML)))


def test_the_same_as_json(tmp_path: Path) -> None:
    import tomllib

    check_is_whole(read_peers_file(file_of(tmp_path, json.dumps(tomllib.loads(TOML)), "peers.json")))


def test_what_is_not_there_is_unknown(tmp_path: Path) -> None:
    known = read_peers_file(file_of(tmp_path, '[[peers]]\nname = "a"\nmemory = 5\n'))
    assert known.peers == (PlanningPeer(PeerId("a"), 5),)
    assert (known.coordinator, len(known.links), known.labels) == (None, 0, {"a": "a"})
    assert known.policy == DEFAULT_POLICY


def peers(**changes: Any) -> dict[str, Any]:
    """Two peers and a link; the first peer changed."""
    first = {"name": "a", "memory": 5, **changes}
    return {"peers": [first, {"name": "b", "memory": 5}], "links": [{"between": ["a", "b"], "rtt_ms": 1}]}


def links(*links: dict[str, Any]) -> dict[str, Any]:
    return {**peers(), "links": list(links)}


LINK = {"between": ["a", "b"], "rtt_ms": 1}


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ([], "the file is no table"),
        ({}, "it has no peers"),
        ({"peers": {}}, "peers is '{}'; write a list of at most 1024"),
        ({"peers": [{}] * (MAX_PEERS + 1)}, "write a list of at most 1024"),
        ({"peers": ["a"]}, "peers[0] is no table"),
        ({**peers(), "peer": 1}, "peer is no key; there are coordinator, hop_overhead_ms, peers"),
        ({**peers(), "coordinator": "c"}, "coordinator is 'c', which is none of the peers"),
        ({**peers(), "coordinator": 1}, "coordinator is '1'; write a line"),
        ({**peers(), "hop_overhead_ms": -1}, "hop_overhead_ms is '-1'; write a number from 0 to 20"),
        ({**peers(), "hop_overhead_ms": 21}, "hop_overhead_ms is '21'"),
        ({"peers": [{"memory": 1}]}, "peers[0].name is missing"),
        ({"peers": [{"name": "a"}]}, "peers[0].memory is missing"),
        (peers(name=""), "peers[0].name is ''"),
        (peers(name="a\nb"), "peers[0].name is"),
        (peers(name="b"), "peers[1].name is 'b', as of a peer before"),
        (peers(memory="lots"), "peers[0].memory is 'lots'; write bytes or a size such as 8GiB"),
        (peers(memory=-1), "peers[0].memory is '-1'"),
        (peers(memory=True), "peers[0].memory is 'True'"),
        (peers(memory=1.5), "peers[0].memory is '1.5'"),
        (peers(memory=2**60), "peers[0].memory is"),
        (peers(memory="9999999T"), "peers[0].memory is"),
        (peers(max_layers=1025), "peers[0].max_layers is '1025'; write a whole number from 0 to 1024"),
        (peers(excluded="no"), "peers[0].excluded is 'no'; write true or false"),
        (peers(on_disk=DIGEST), "peers[0].on_disk is"),
        (peers(on_disk=[DIGEST, "model.gguf"]), "peers[0].on_disk[1] is 'model.gguf'; write the sha256 of a model"),
        (peers(on_disk=[None]), "peers[0].on_disk[0] is 'None'; write the sha256 of a model, 64 hex digits"),
        (peers(excluded_models=["a", {}]), "peers[0].excluded_models[1] is '{}'; write a model's name or digest"),
        (peers(excluded_models=["a\nb"]), "peers[0].excluded_models[0] is 'a\\nb'"),
        (peers(speeds=[{"architecture": "llama"}]), "peers[0].speeds[0].decode_bytes_per_s is missing"),
        (peers(prefill_bytes_per_s=-1), "peers[0].prefill_bytes_per_s is '-1'; write bytes or a size"),
        (peers(memory=16**5000), "peers[0].memory is a number of more than 32 digits; write bytes or a size"),
        (peers(memory=[[5]]), "peers[0].memory is a list; write bytes or a size"),
        (peers(name={"first": "a"}), "peers[0].name is a table; write a line"),
        (peers(name="half \ud800"), "peers[0].name is 'half \\ud800'; write a line"),
        (peers(label="\u202etxt"), "peers[0].label is"),
        (peers(**{"a\nb": 1}), "peers[0].'a\\nb' is no key; there are name"),
        (peers(**{"k" * 10_000: 1}), "is no key; there are name"),
        (peers(speed=1), "peers[0].speed is no key; there are name, memory"),
        (links({"between": ["a", "b"]}), "links[0].rtt_ms is missing"),
        (links({"between": ["a"], "rtt_ms": 1}), "links[0].between is"),
        (links({"between": ["a", "c"], "rtt_ms": 1}), "links[0].between names 'c', which is none of the peers"),
        (links({"between": ["a", "c" * 10_000], "rtt_ms": 1}), "links[0].between names 'ccc"),
        (links({"between": ["a", "\ud800"], "rtt_ms": 1}), "links[0].between names '\\ud800', which is none"),
        (links({"between": ["a", "a"], "rtt_ms": 1}), "links[0].between names one peer twice"),
        (links(LINK, {**LINK, "between": ["b", "a"]}), "links[1].between names a pair that a link before names"),
        (links({**LINK, "rtt_ms": -1}), "links[0].rtt_ms is '-1'; write a number from 0"),
        (links({**LINK, "rtt_ms": True}), "links[0].rtt_ms is 'True'"),
        (links({**LINK, "rtt_ms": float("nan")}), "links[0].rtt_ms is 'nan'"),
        (links({**LINK, "path": "tor"}), "links[0].path is 'tor'; write direct or relayed"),
        (links({**LINK, "loss": 1}), "links[0].loss is no key"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(value: Any, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_peers(value, "peers.toml")
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert caught.value.message.startswith("peers.toml: ")
    assert line in caught.value.message
    check_is_a_line(caught.value.message)


def check_is_a_line(message: str) -> None:
    assert is_line(message)
    assert message.encode()  # no halves of characters: it can be printed
    assert len(message) < 500


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("peers.txt", "", "ends in .toml or .json"),
        ("peers.toml", "peers = [", "peers.toml: "),
        ("peers.json", '{"peers": [', "peers.json: "),
        ("peers.json", '{"peers": [], "peers": []}', "'peers' stands twice in one object"),
        ("peers.json", '{"coordinator": NaN}', "NaN is no number"),
        ("peers.json", "[" * 100_000, "peers.json: its lists or tables are nested too deep"),
        ("peers.toml", "a = " + "[" * 100_000, "peers.toml: its lists or tables are nested too deep"),
        ("peers.json", "", "peers.json: Expecting value: line 1 column 1"),
        ("peers.toml", '[[peers]]\nname = "a"\nname = "b"\n', "(at line 3, column "),
        ("peers.toml", f"{'k' * 10_000} = 1\n" * 2, "(at line 2, column "),
        ("peers.json", "{" + f'"{"k" * 10_000}": 1, ' * 2 + '"a": 1}', "kkk' stands twice in one object"),
        ("peers.toml", f"peers = 0x{'f' * 5000}", "peers is a number of more than 32 digits"),
        ("peers.toml", f"peers = {'9' * 5000}", "peers.toml: "),
        ("peers.toml", "[[peers]]\nname = 'a'\nmemory = 1979-05-27", "peers[0].memory is '1979-05-27'"),
    ],
)
def test_a_file_that_cannot_be_read_says_so_in_one_line(tmp_path: Path, name: str, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_peers_file(file_of(tmp_path, text, name))
    assert line in caught.value.message
    check_is_a_line(caught.value.message.removeprefix(str(tmp_path)))


def test_a_text_of_another_encoding_says_so_and_a_mark_of_utf8_is_none(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    path.write_bytes(TOML.encode("utf-16"))
    with pytest.raises(ConfigError, match="is no UTF-8 text, at byte 0; save it as UTF-8"):
        read_peers_file(path)
    path.write_bytes(TOML.encode("utf-8-sig"))
    check_is_whole(read_peers_file(path))


KEYS = st.sampled_from([
    "peers", "links", "coordinator", "hop_overhead_ms", "name", "memory", "max_memory", "max_layers", "on_disk",
    "speeds", "architecture", "size_class", "decode_bytes_per_s", "between", "rtt_ms", "throughput", "path", "rank",
])  # fmt: skip
ODD = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud800", "8GiB", 16**3000])
)
VALUES = st.recursive(ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(), inner))


@given(VALUES | st.fixed_dictionaries({"peers": st.lists(st.dictionaries(KEYS, VALUES))}, optional={"links": VALUES}))
def test_whatever_stands_in_a_file_it_is_peers_or_a_line(value: Any) -> None:
    try:
        known = decode_peers(value, "peers.json")
    except ConfigError as wrong:
        check_is_a_line(wrong.message)
    else:
        assert known.peers


@given(st.binary(max_size=200), st.sampled_from(["peers.toml", "peers.json"]))
def test_whatever_bytes_a_file_has_it_is_peers_or_a_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_peers_file(path)
    check_is_a_line(caught.value.message)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_peers_file(tmp_path / "none.toml")
