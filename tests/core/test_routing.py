"""Which peer drives a request."""

import collections

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_KNOWN_MODELS
from p2pmesh.core.routing import choose_driver, served_models
from p2pmesh.wire.announcement import Announcement, ServedModel

ME = PeerId("me")


def model(name: str, context_tokens: int = 4096) -> ServedModel:
    return ServedModel(name, "0" * 64, bytes(16), 1, context_tokens)


def peer(name: str, *models: ServedModel) -> Announcement:
    return Announcement(name, "0" * 32, name, "1", 1, 1, 0, (), 0, 0, models)


def drivers(count: int) -> list[Announcement]:
    return [peer(f"p{number}", model("m")) for number in range(count)]


def choose(key: bytes, announcements: list[Announcement]) -> PeerId | None:
    return choose_driver("m", key, ME, frozenset(), announcements)


def test_each_model_is_listed_once_by_name_with_the_facts_of_the_first_announcement() -> None:
    announced = [peer("a", model("z"), model("m", 1)), peer("b", model("m", 2))]
    assert served_models(announced) == {"m": model("m", 1), "z": model("z")}
    assert list(served_models(announced)) == ["m", "z"]


def test_made_up_names_beyond_the_bound_are_not_listed_and_the_first_announcer_keeps_its_own() -> None:
    strangers = [peer(f"p{n}", *(model(f"a{n}-{m}") for m in range(64))) for n in range(40)]
    listed = served_models([peer("me", model("z")), *strangers])
    assert len(listed) == MAX_KNOWN_MODELS
    assert "z" in listed


def test_this_node_drives_what_it_serves() -> None:
    assert choose_driver("m", b"key", ME, frozenset({"m"}), drivers(5)) == ME


def test_only_a_peer_that_announces_the_model_drives_it() -> None:
    assert choose(b"key", [peer("a", model("other")), peer("b", model("m")), peer("c")]) == "b"


def test_a_model_that_nobody_announces_has_no_driver() -> None:
    assert choose(b"key", [peer("a", model("other"))]) is None


def test_keys_spread_over_all_drivers() -> None:
    chosen = collections.Counter(choose(b"key %d" % number, drivers(4)) for number in range(400))
    assert len(chosen) == 4
    assert min(chosen.values()) > 60


def test_keys_that_differ_only_far_behind_spread_too() -> None:
    assert len({choose(b"x" * 500 + b"%d" % number, drivers(4)) for number in range(50)}) == 4


@given(st.binary(max_size=200), st.integers(1, 8), st.randoms(use_true_random=False))
def test_the_order_of_announcements_changes_nothing(key: bytes, count: int, rng: object) -> None:
    shuffled = drivers(count)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose(key, shuffled) == choose(key, drivers(count))


@given(st.binary(max_size=80), st.integers(2, 8), st.data())
def test_a_driver_that_leaves_moves_only_its_own_keys(key: bytes, count: int, data: st.DataObject) -> None:
    all_drivers = drivers(count)
    gone = data.draw(st.sampled_from(all_drivers))
    before = choose(key, all_drivers)
    after = choose(key, [driver for driver in all_drivers if driver is not gone])
    assert after == before or before == gone.peer_id


def test_only_peers_of_the_lowest_rank_are_asked() -> None:
    ranks = {"p0": 1, "p1": 0, "p2": 1, "p3": 0}

    def choose_ranked(key: bytes) -> PeerId | None:
        return choose_driver("m", key, ME, frozenset(), drivers(4), lambda said: ranks[said.peer_id])

    assert {choose_ranked(b"key %d" % number) for number in range(100)} == {"p1", "p3"}
    assert choose_driver("m", b"k", ME, frozenset({"m"}), drivers(4), lambda said: ranks[said.peer_id]) == ME


def test_a_rank_counts_only_among_those_that_serve_the_model() -> None:
    announced = [peer("good", model("other")), peer("bad", model("m"))]
    ranked = choose_driver("m", b"key", ME, frozenset(), announced, lambda said: int(said.peer_id == "bad"))
    assert ranked == "bad"
