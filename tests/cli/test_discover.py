"""Listed pools for people."""

from typing import Any

from p2pmesh.cli.discover import MOST_SHOWN_POOLS, describe_pools
from p2pmesh.cli.parser import build_parser

POOL: dict[str, Any] = {
    "mesh_id": "0123456789abcdef" * 2, "name": None, "region": None, "is_open": True, "nodes": 3,
    "memory_bytes": 24 << 30,
    "serving": ["a", "b", "c", "d", "e"], "wanted": [], "on_disk": [], "clients": 2, "max_clients": 16, "score": 450,
    "listed_s_ago": 12, "publishers": ["ab" * 32],
}  # fmt: skip
FACTS: dict[str, Any] = {
    "relays": [{"url": "wss://one.example", "answered": True, "detail": ""}], "pools": [POOL], "hidden": 0,
    "rejections": [],
}  # fmt: skip


def test_a_pool_is_a_line() -> None:
    heading, line, end = describe_pools(FACTS)
    assert heading.split() == ["pool", "nodes", "memory", "serving", "clients", "region", "score", "listed"]
    assert line == "(no name, 01234567)  3      24.0 GiB  a, b, c and 2 more  2 of 16  -       450    12 seconds ago"
    assert end == "1 pool at 1 of 1 relay, by their own word"


def test_without_pools_there_is_a_line_all_the_same() -> None:
    assert list(describe_pools({**FACTS, "pools": []})) == ["0 pools at 1 of 1 relay"]


def test_what_is_hidden_silent_or_left_out_is_told_once_a_reason() -> None:
    silent = {"url": "wss://two.example", "answered": False, "detail": "no connection in time"}
    facts = {
        **FACTS, "pools": [], "hidden": 2, "relays": [*FACTS["relays"], silent],
        "rejections": [{"reason": "signature_invalid", "count": 40, "detail": "the signature does not fit"}],
    }  # fmt: skip
    assert list(describe_pools(facts)) == [
        "0 pools at 1 of 2 relays; 2 others not of the kind that you asked for",
        "no answer from wss://two.example: no connection in time",
        "left out: 40 signature invalid (first: the signature does not fit)",
    ]


def test_where_nothing_is_of_now_the_clock_is_asked_about() -> None:
    late = {"reason": "expired", "count": 9, "detail": "its time is over", "publisher": ""}
    lines = list(describe_pools({**FACTS, "pools": [], "rejections": [late]}))
    assert lines[-1].startswith("is the clock of this machine right?")
    assert not any("clock" in line for line in describe_pools({**FACTS, "rejections": [late]}))


def test_more_pools_than_a_person_reads_are_counted() -> None:
    lines = list(describe_pools({**FACTS, "pools": [POOL] * (MOST_SHOWN_POOLS + 7)}))
    assert lines[MOST_SHOWN_POOLS + 1] == "and 7 more; --json shows all"


def test_the_choice_is_told_with_what_it_rests_on() -> None:
    choice = {"mesh_id": "ab" * 16, "name": "attic", "nodes": 3, "serving": 2, "score": 435, "round_trip_us": 12_340,
              "answered": 1}  # fmt: skip
    *_, last = describe_pools({**FACTS, "choice": choice})
    assert last == "up --auto would join attic: 435 points by what it answered, 12.3 ms away"
    *_, last = describe_pools({**FACTS, "choice": None})
    assert last == "up --auto would serve alone: none of them answered, or they are full"
    *_, last = describe_pools({**FACTS, "pools": [{**POOL, "name": "attic", "is_open": False}], "choice": None})
    assert last.startswith("up --auto would serve alone: all of them have names")
    *_, last = describe_pools({**FACTS, "pools": [], "choice": None})
    assert last == "up --auto would serve alone: none is listed"


def test_what_up_calls_otherwise_is_known_by_either_name() -> None:
    parse = build_parser().parse_args
    by_ours = parse(["discover", "--name", "attic", "--relay", "ws://a"])
    assert parse(["discover", "--pool-name", "attic", "--nostr-relay", "ws://a"]) == by_ours
    assert (by_ours.name, by_ours.relay) == ("attic", ["ws://a"])
