"""The modelled DHT: the closest servers, and what becomes of records."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.sim.directory import REPLICAS, Directory

HASHES = st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=60)
KEY = bytes(range(32))


def everybody(_: int) -> bool:
    return True


@given(HASHES, st.integers(0, 2**64 - 1), st.integers(1, 30))
def test_the_closest_are_those_of_the_smallest_xor(hashes: list[int], key_hash: int, count: int) -> None:
    directory = Directory()
    for number, peer_hash in enumerate(hashes):
        directory.join(number, peer_hash, 1)
    by_distance = sorted(range(len(hashes)), key=lambda number: hashes[number] ^ key_hash)
    assert directory.closest(key_hash, count) == tuple(by_distance[:count])
    for number in by_distance[::2]:
        directory.leave(number, hashes[number])
    assert directory.closest(key_hash, count) == tuple(by_distance[1::2][:count])
    assert directory.server_count == len(hashes) // 2


def crowd(count: int) -> Directory:
    directory = Directory()
    for number in range(count):
        directory.join(number, number << 48, 1)
    return directory


def test_a_record_lies_with_the_closest_until_they_are_gone() -> None:
    directory = crowd(40)
    holders = directory.publish(KEY, 7, 100, everybody)
    assert len(holders) == REPLICAS
    assert directory.find(KEY, 99, everybody) == (7,)
    for number in holders[:-1]:
        directory.leave(number, number << 48)
    assert directory.find(KEY, 99, everybody) == (7,)
    directory.leave(holders[-1], holders[-1] << 48)
    assert directory.find(KEY, 99, everybody) == ()


def test_a_server_that_comes_back_comes_back_empty() -> None:
    directory = crowd(3)
    directory.publish(KEY, 7, 100, everybody)
    for number in range(3):
        directory.leave(number, number << 48)
        directory.join(number, number << 48, 2)
    assert directory.find(KEY, 1, everybody) == ()


def test_a_record_expires_and_is_renewed() -> None:
    directory = crowd(30)
    directory.publish(KEY, 7, 100, everybody)
    directory.publish(KEY, 8, 200, everybody)
    assert directory.find(KEY, 100, everybody) == (8,)
    assert directory.record_count == 1
    directory.publish(KEY, 7, 300, everybody)
    assert directory.find(KEY, 100, everybody) == (7, 8)


def test_across_a_partition_nothing_is_stored_or_found() -> None:
    directory = crowd(30)
    assert directory.publish(KEY, 7, 100, lambda _: False) == ()
    assert directory.find(KEY, 1, everybody) == ()
    directory.publish(KEY, 7, 100, everybody)
    assert directory.find(KEY, 1, lambda _: False) == ()
    assert directory.find(bytes(32), 1, everybody) == ()


def test_a_query_takes_more_rounds_the_more_servers_there_are_but_slowly() -> None:
    rounds = [crowd(count).rounds() for count in (0, 10, 100, 1000, 10_000)]
    assert rounds == sorted(rounds)
    assert rounds[0] == 1
    assert rounds[-1] <= 8
