"""What is known of listings: the newest of each publisher, bounded, whatever a relay gives."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core.listings import ListingsView, NewestEvents
from p2pmesh.wire.listing import (
    KIND,
    LIFE_S,
    ListingEvent,
    ReadingRules,
    RejectionReason,
    encode_content,
    event_id_of,
    listing_tags,
)
from tests.wire.keys import verify
from tests.wire.listing_vectors import CONTENT, NOW_S, event_of, named, text_of
from tests.wire.schnorr import verify_event

NOW = UnixMillis(NOW_S * 1000)
RULES = ReadingRules(NOW, verify)


def event(publisher: int = 0, created_unix_s: int = NOW_S, **changes: Any) -> ListingEvent:
    content = encode_content(named(changes.pop("name", None), **changes))
    tags = listing_tags(created_unix_s + LIFE_S)
    key = f"{publisher:064x}"
    return ListingEvent(event_id_of(key, created_unix_s, KIND, tags, content), key, created_unix_s, KIND, tags, content)


def names(view: ListingsView, now: UnixMillis = NOW) -> list[str | None]:
    return [listing.content.name for listing in view.listings(now)]


def test_the_newest_of_a_publisher_counts_in_whatever_order_they_come() -> None:
    for order in ((NOW_S - 9, NOW_S - 3), (NOW_S - 3, NOW_S - 9)):
        view = ListingsView()
        for created in order:
            view.take_event(event(created_unix_s=created, name=str(created)), RULES)
        assert names(view) == [str(NOW_S - 3)]
        assert view.rejections() == ()


def test_an_older_event_given_again_later_is_left_out() -> None:
    view = ListingsView()
    old, new = event(created_unix_s=NOW_S - 60, name="old"), event(name="new")
    assert view.take_event(new, RULES) is None
    rejection = view.take_event(old, ReadingRules(UnixMillis(NOW + 30_000), verify))
    assert rejection is not None
    assert rejection.reason is RejectionReason.SUPERSEDED
    assert names(view) == ["new"]


def test_of_one_second_the_lower_id_counts() -> None:
    pair = sorted((event(name="a"), event(name="b")), key=lambda one: one.event_id)
    for order in (pair, pair[::-1]):
        view = ListingsView()
        for one in order:
            view.take_event(one, RULES)
        assert [view.listings(NOW)[0].content.name] == [replace_name(pair[0])]


def replace_name(one: ListingEvent) -> str:
    return "a" if '"name":"a"' in one.content else "b"


def test_a_newer_event_that_breaks_a_rule_does_not_take_the_place_of_a_good_one() -> None:
    view = ListingsView()
    view.take_event(event(created_unix_s=NOW_S - 10, name="good"), RULES)
    broken = replace(event(), content="{}")
    assert view.take_event(broken, RULES) is not None
    assert names(view) == ["good"]


def test_what_is_over_is_not_shown_but_keeps_older_ones_out() -> None:
    view = ListingsView()
    view.take_event(event(created_unix_s=NOW_S - 100), RULES)
    later = UnixMillis(NOW + 60_000)
    assert names(view, later) == []
    older = replace(event(created_unix_s=NOW_S - 101), tags=listing_tags(NOW_S + 700))
    rejection = view.take_event(older, ReadingRules(later, verify))
    assert rejection is not None
    assert rejection.reason is RejectionReason.SUPERSEDED


def test_publishers_of_a_fetch_are_bounded() -> None:
    view = ListingsView(max_listings=3)
    for publisher in range(5):
        view.take_event(event(publisher, created_unix_s=NOW_S - publisher), RULES)
    assert len(view.listings(NOW)) == 3
    assert [(one.first.reason, one.count) for one in view.rejections()] == [(RejectionReason.TOO_MANY, 2)]
    assert view.take_event(event(0, created_unix_s=NOW_S + 1), RULES) is None


def test_what_one_fetch_saw_keeps_older_ones_out_of_the_next_and_is_shown_only_where_it_is_given_again() -> None:
    newest = NewestEvents()
    new, old = event(created_unix_s=NOW_S - 5), event(created_unix_s=NOW_S - 50)
    first, second, third = (ListingsView(newest) for _ in range(3))
    assert first.take_event(new, RULES) is None
    rejection = second.take_event(old, RULES)
    assert rejection is not None
    assert rejection.reason is RejectionReason.SUPERSEDED
    assert second.listings(NOW) == ()
    assert third.take_event(new, RULES) is None
    assert third.listings(NOW) == first.listings(NOW)


def test_what_is_remembered_is_bounded_and_makes_room_for_the_living() -> None:
    newest = NewestEvents(max_publishers=2)
    view = ListingsView(newest)
    for publisher in range(3):
        view.take_event(event(publisher, created_unix_s=NOW_S - 5), RULES)
    assert newest.replaces(event(0, created_unix_s=NOW_S - 9))
    assert not newest.replaces(event(2, created_unix_s=NOW_S - 9))
    later = ReadingRules(UnixMillis(NOW + 151_000), verify)
    ListingsView(newest).take_event(event(3, created_unix_s=NOW_S + 140), later)
    assert newest.replaces(event(3, created_unix_s=NOW_S + 139))
    assert not newest.replaces(event(0, created_unix_s=NOW_S - 9))


def test_a_flood_of_garbage_costs_a_count_a_reason_and_the_good_one_is_found() -> None:
    view = ListingsView()
    forged = text_of({**event_of(encode_content(CONTENT)), "sig": "0" * 128})
    garbage = ["", "[]", "{}", forged, "x" * 50_000] * 100
    for text in [*garbage, text_of(event_of(encode_content(CONTENT)))]:
        view.take(text, RULES, verify_event)
    assert names(view) == ["the attic"]
    assert [(one.first.reason, one.count) for one in view.rejections()] == [
        (RejectionReason.EVENT_MALFORMED, 300),
        (RejectionReason.EVENT_TOO_LARGE, 100),
        (RejectionReason.SIGNATURE_INVALID, 100),
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-200, 60)), max_size=30), st.randoms(use_true_random=False))
def test_what_is_shown_does_not_depend_on_the_order_of_arrival(said: list[tuple[int, int]], chance: Any) -> None:
    events = [event(publisher, NOW_S + offset) for publisher, offset in said]
    shuffled = events[:]
    chance.shuffle(shuffled)
    shown = []
    for order in (events, shuffled):
        view = ListingsView()
        for one in order:
            view.take_event(one, RULES)
        shown.append(view.listings(NOW))
    assert shown[0] == shown[1]
    assert len({one.publisher for one in shown[0]}) == len(shown[0])
