"""Which peer drives a request."""

import collections

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_KNOWN_MODELS
from p2pmesh.core.affinity import Tie
from p2pmesh.core.driver_records import DriverView
from p2pmesh.core.routing import (
    ENOUGH_ANSWERS,
    EXPLORED_PERCENT,
    DriverChoice,
    RouteReason,
    choose_driver,
    served_models,
)
from p2pmesh.wire.announcement import Announcement, ServedModel

ME = PeerId("me")


def model(name: str, context_tokens: int = 4096) -> ServedModel:
    return ServedModel(name, "0" * 64, bytes(16), 1, context_tokens)


def peer(name: str, *models: ServedModel) -> Announcement:
    return Announcement(name, "0" * 32, name, "1", 1, 1, 0, (), 0, 0, models)


def drivers(count: int) -> list[DriverChoice]:
    return [DriverChoice(PeerId(f"p{number}")) for number in range(count)]


def seen(name: str, token_ms: int, *, in_flight: int = 0, rtt_us: int | None = 20_000) -> DriverChoice:
    view = DriverView(in_flight=in_flight, answers=ENOUGH_ANSWERS, start_us=0, token_us=token_ms * 1000)
    return DriverChoice(PeerId(name), 0, rtt_us, view)


def choose(key: bytes, choices: list[DriverChoice]) -> PeerId | None:
    chosen = choose_driver(choices, key)
    return None if chosen is None else chosen[0]


def test_each_model_is_listed_once_by_name_with_the_facts_of_the_first_announcement() -> None:
    announced = [peer("a", model("z"), model("m", 1)), peer("b", model("m", 2))]
    assert served_models(announced) == {"m": model("m", 1), "z": model("z")}
    assert list(served_models(announced)) == ["m", "z"]


def test_made_up_names_beyond_the_bound_are_not_listed_and_the_first_announcer_keeps_its_own() -> None:
    strangers = [peer(f"p{n}", *(model(f"a{n}-{m}") for m in range(64))) for n in range(40)]
    listed = served_models([peer("me", model("z")), *strangers])
    assert len(listed) == MAX_KNOWN_MODELS
    assert "z" in listed


def test_of_equal_drivers_this_node_is_the_nearest() -> None:
    choices = [*drivers(5), DriverChoice(ME, rtt_us=0), DriverChoice(PeerId("near"), rtt_us=1)]
    assert choose_driver(choices, b"key") == (ME, RouteReason.FASTEST)


def test_a_model_that_nobody_serves_has_no_driver_and_one_driver_is_the_only_one() -> None:
    assert choose_driver([], b"key") is None
    assert choose_driver(drivers(1), b"key") == ("p0", RouteReason.ONLY)


def test_keys_spread_over_all_drivers() -> None:
    chosen = collections.Counter(choose(b"key %d" % number, drivers(4)) for number in range(400))
    assert len(chosen) == 4
    assert min(chosen.values()) > 60


def test_keys_that_differ_only_far_behind_spread_too() -> None:
    assert len({choose(b"x" * 500 + b"%d" % number, drivers(4)) for number in range(50)}) == 4


choice_lists = st.lists(
    st.builds(
        DriverChoice,
        st.integers(0, 9).map(lambda number: PeerId(f"p{number}")),
        st.integers(0, 2),
        st.none() | st.integers(0, 300_000),
        st.builds(
            DriverView,
            st.booleans(),
            st.integers(0, 20),
            st.integers(0, 5),
            st.none() | st.integers(0, 10**7),
            st.none() | st.integers(0, 10**6),
        ),
    ),
    max_size=6,
    unique_by=lambda choice: choice.peer,
)


@given(st.binary(max_size=100), choice_lists, st.sampled_from(Tie), st.randoms(use_true_random=False))
def test_the_order_of_choices_changes_nothing(key: bytes, choices: list[DriverChoice], tie: Tie, rng: object) -> None:
    remembered = (choices[0].peer, tie) if choices else None
    shuffled = list(choices)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose_driver(shuffled, key, remembered) == choose_driver(choices, key, remembered)


@given(st.binary(max_size=100), choice_lists)
def test_who_is_asked_is_well_and_of_the_lowest_rank_as_far_as_there_is_one(
    key: bytes, choices: list[DriverChoice]
) -> None:
    chosen = choose(key, choices)
    assert (chosen is None) == (not choices)
    well = [choice for choice in choices if not choice.seen.is_cooling] or choices
    assert all(choice.peer != chosen or choice in well for choice in choices)
    assert all(choice.peer != chosen or choice.rank == min(one.rank for one in well) for choice in choices)


@given(st.binary(max_size=80), st.integers(2, 8), st.data())
def test_a_driver_that_leaves_moves_only_its_own_keys(key: bytes, count: int, data: st.DataObject) -> None:
    all_drivers = drivers(count)
    gone = data.draw(st.sampled_from(all_drivers))
    before = choose(key, all_drivers)
    after = choose(key, [driver for driver in all_drivers if driver is not gone])
    assert after == before or before == gone.peer


def test_a_conversation_stays_where_it_was_until_another_is_far_faster() -> None:
    tied = (PeerId("slow"), Tie.SESSION)
    assert choose_driver([seen("slow", 30), seen("fast", 20)], b"k", tied) == ("slow", RouteReason.SESSION)
    assert choose_driver([seen("slow", 60), seen("fast", 20)], b"k", tied) == ("fast", RouteReason.FASTEST)
    assert choose_driver([seen("gone", 30), seen("fast", 20)], b"k", tied) == ("fast", RouteReason.FASTEST)


def test_a_driver_whose_lanes_are_full_gives_way_to_one_that_is_idle() -> None:
    tied = (PeerId("full"), Tie.PREFIX)
    assert choose_driver([seen("full", 20, in_flight=3), seen("idle", 20)], b"k", tied) == ("full", RouteReason.PREFIX)
    assert choose_driver([seen("full", 20, in_flight=5), seen("idle", 20)], b"k", tied) == ("idle", RouteReason.FASTEST)


def test_the_faster_and_of_about_equal_ones_the_nearer_is_asked() -> None:
    assert choose(b"k", [seen("far", 20, rtt_us=90_000), seen("slow", 60, rtt_us=1000)]) == "far"
    assert choose(b"k", [seen("far", 20, rtt_us=90_000), seen("near", 21, rtt_us=1000)]) == "near"
    assert choose(b"k", [seen("far", 20, rtt_us=None), seen("near", 21, rtt_us=80_000)]) == "near"


def test_speeds_count_only_between_five_and_a_hundred_tokens_a_second() -> None:
    assert seen("a", 0).expected_us == seen("a", 10).expected_us < seen("a", 11).expected_us
    assert seen("a", 9999).expected_us == seen("a", 200).expected_us


def test_a_share_of_requests_goes_to_drivers_whose_speed_is_not_known() -> None:
    choices = [seen("known", 10), DriverChoice(PeerId("new"), rtt_us=20_000)]
    chosen = collections.Counter(choose_driver(choices, b"key %d" % number) for number in range(2000))
    assert chosen.keys() == {("known", RouteReason.FASTEST), ("new", RouteReason.EXPLORED)}
    assert abs(chosen[PeerId("new"), RouteReason.EXPLORED] - 20 * EXPLORED_PERCENT) < 60


def test_the_cooling_are_asked_where_all_are() -> None:
    cooling = DriverView(is_cooling=True)
    ill, well = DriverChoice(PeerId("ill"), seen=cooling), DriverChoice(PeerId("well"), rank=5)
    assert choose(b"k", [ill, well]) == "well"
    assert choose(b"k", [ill]) == "ill"
