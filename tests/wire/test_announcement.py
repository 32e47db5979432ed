"""Announcements beyond the vectors."""

from dataclasses import replace

import pytest
from hypothesis import given

from p2pmesh.base.errors import ErrorCode, LocalProtocolError
from p2pmesh.base.limits import MAX_ANNOUNCEMENT_BYTES
from p2pmesh.wire.announcement import (
    LONGEST_LIFE_MS,
    Announcement,
    Link,
    ModelDemand,
    ServedModel,
    decode_announcement,
    encode_announcement,
    life_ms,
    model_hash_of,
    model_topic_of,
    peer_hash_of,
    topic_of,
)
from tests.wire.keys import FOUNDER, JOINER, peer_id_of, verify
from tests.wire.records import records_of

PLAIN = Announcement(JOINER.peer_id, FOUNDER.mesh_id, "n", "0", 1, 2, 3, (), 0, 0, ())


@given(records_of(Announcement))
def test_an_announcement_comes_back_as_that_of_the_peer_that_signed_it(announcement: Announcement) -> None:
    own = replace(announcement, peer_id=JOINER.peer_id)
    data = encode_announcement(own, JOINER.public_key, JOINER.sign)
    assert decode_announcement(data, verify, peer_id_of) == own
    assert encode_announcement(announcement, JOINER.public_key, JOINER.sign) == data  # nobody speaks for another


def test_an_announcement_that_no_reader_takes_is_not_written() -> None:
    long = replace(PLAIN, addresses=("/" + "a" * 511,) * 32, name="n" * 256)
    data = encode_announcement(long, JOINER.public_key, JOINER.sign)
    assert len(data) <= MAX_ANNOUNCEMENT_BYTES
    for wrong in (replace(PLAIN, name="a\nb"), replace(PLAIN, addresses=("/x",) * 33)):
        with pytest.raises(LocalProtocolError):
            encode_announcement(wrong, JOINER.public_key, JOINER.sign)


def test_a_crowded_announcement_is_not_written() -> None:
    models = tuple(ServedModel("m" * 256, "a" * 64, bytes(16), 1, 1) for _ in range(64))
    crowded = replace(PLAIN, addresses=("/" + "a" * 511,) * 32, models=models)
    with pytest.raises(LocalProtocolError, match=str(MAX_ANNOUNCEMENT_BYTES)) as error:
        encode_announcement(crowded, JOINER.public_key, JOINER.sign)
    assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_restart_is_fresher_than_any_sequence_before_it() -> None:
    assert replace(PLAIN, incarnation=2, sequence=0).freshness > replace(PLAIN, sequence=2**53).freshness
    assert replace(PLAIN, sequence=3).freshness > PLAIN.freshness


def test_the_topics_of_an_overlay() -> None:
    root = f"mesh-llm/1/{FOUNDER.mesh_id}"
    assert topic_of(FOUNDER.mesh_id) == f"{root}/announce"
    assert topic_of(FOUNDER.mesh_id, "011") == f"{root}/announce/011"
    assert model_topic_of(FOUNDER.mesh_id, "ab" * 32) == f"{root}/model/abababababababab"


def test_an_idle_peers_announcement_is_small() -> None:
    said = Announcement(
        JOINER.peer_id, FOUNDER.mesh_id, "living room", "0.2.0", 1_780_000_000_000, 1234, 1_780_000_000_000,
        ("/ip4/192.168.178.31/tcp/4001", "/ip4/127.0.0.1/tcp/4001"), 16 << 30, 12 << 30, (), 1_780_000_000_000,
    )  # fmt: skip
    links = tuple(Link(peer_hash_of(FOUNDER.peer_id), 41_800 + n, 11_800_000, False) for n in range(3))
    bare = len(encode_announcement(said, JOINER.public_key, JOINER.sign))
    linked = len(encode_announcement(replace(said, links=links), JOINER.public_key, JOINER.sign))
    assert bare < 280
    assert linked < bare + 100


def test_demand_costs_little_and_nothing_where_nobody_asks() -> None:
    def size_of(announcement: Announcement) -> int:
        return len(encode_announcement(announcement, JOINER.public_key, JOINER.sign))

    said = replace(PLAIN, passes=(b"p" * 160,), decode_bytes_per_s=6_400_000_000)
    holding = replace(said, loadable=(model_hash_of("a"), model_hash_of("b")))
    asking = replace(
        said, demand=(ModelDemand(model_hash_of("a"), 1, 12, 340), ModelDemand(model_hash_of("b"), 0, 1, 9))
    )
    assert size_of(holding) - size_of(said) <= 40
    assert size_of(asking) - size_of(said) <= 60


def test_an_announcement_outlives_two_losses_up_to_a_quarter_of_an_hour() -> None:
    assert life_ms(20_000) == 90_000
    assert life_ms(100_000) == 330_000
    assert life_ms(900_000) == LONGEST_LIFE_MS
