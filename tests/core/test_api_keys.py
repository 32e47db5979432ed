"""What the requests of one API key may use."""

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.limits import MAX_API_KEYS
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.api_keys import MINUTE_US, Admit, ApiKey, Began, Charged, Ended, KeyUse, Refuse


def key(name: str = "k", in_flight: int = 0, per_minute: int = 0) -> ApiKey:
    return ApiKey(name, "", "00" * 32, in_flight, per_minute, 0)


def test_a_key_without_limits_is_always_admitted() -> None:
    use = KeyUse()
    assert all(use.handle(Began(key()), Micros(0)) == Admit() for _ in range(1000))


def test_requests_in_flight_are_limited_by_key() -> None:
    use = KeyUse()
    two = key(in_flight=2)
    assert use.handle(Began(two), Micros(0)) == use.handle(Began(two), Micros(0)) == Admit()
    refused = use.handle(Began(two), Micros(0))
    assert isinstance(refused, Refuse)
    assert "2 requests in flight" in refused.text
    assert use.handle(Began(key("other", 1)), Micros(0)) == Admit()
    use.handle(Ended("k"), Micros(0))
    assert use.handle(Began(two), Micros(0)) == Admit()


def test_requests_of_a_minute_are_limited_and_come_back_evenly() -> None:
    use = KeyUse()
    six = key(per_minute=6)
    answers = [use.handle(Began(six), Micros(0)) for _ in range(7)]
    assert answers[:6] == [Admit()] * 6
    assert answers[6] == Refuse("this API key may send 6 requests a minute", 10 * MICROS_PER_SECOND)
    assert isinstance(use.handle(Began(six), Micros(10 * MICROS_PER_SECOND - 1)), Refuse)
    assert use.handle(Began(six), Micros(10 * MICROS_PER_SECOND)) == Admit()


def test_what_a_request_is_put_to_besides_counts_and_is_made_up_for_before_the_next() -> None:
    use = KeyUse()
    six = key(per_minute=6)
    assert use.handle(Began(six), Micros(0)) == Admit()
    assert use.handle(Charged(six, 7), Micros(0)) is None
    assert use.handle(Began(six), Micros(0)) == Refuse(
        "this API key may send 6 requests a minute", 30 * MICROS_PER_SECOND
    )
    assert isinstance(use.handle(Began(six), Micros(30 * MICROS_PER_SECOND - 1)), Refuse)
    assert use.handle(Began(six), Micros(30 * MICROS_PER_SECOND)) == Admit()
    assert use.handle(Charged(key("free"), 7), Micros(0)) is None
    assert use.handle(Began(key("free")), Micros(0)) == Admit()


def test_an_end_that_nobody_began_counts_for_nothing() -> None:
    use = KeyUse()
    use.handle(Ended("k"), Micros(0))
    assert use.in_flight("k") == 0
    assert use.handle(Began(key(in_flight=1)), Micros(0)) == Admit()


def test_keys_that_came_and_went_are_forgotten() -> None:
    use = KeyUse()
    for number in range(3 * MAX_API_KEYS):
        use.handle(Began(key(str(number), per_minute=1)), Micros(number))
        use.handle(Ended(str(number)), Micros(number))
    newest = key(str(3 * MAX_API_KEYS - 1), per_minute=1)
    assert isinstance(use.handle(Began(newest), Micros(3 * MAX_API_KEYS)), Refuse)


@given(
    st.integers(1, 5),
    st.integers(1, 90),
    st.lists(st.tuples(st.booleans(), st.integers(0, MINUTE_US // 4)), max_size=60),
)
def test_never_more_in_flight_nor_twice_as_many_in_a_minute(
    in_flight: int, per_minute: int, steps: list[tuple[bool, int]]
) -> None:
    use, now, busy = KeyUse(), 0, 0
    admitted: list[int] = []
    for begins, wait in steps:
        now += wait
        if begins and use.handle(Began(key("k", in_flight, per_minute)), Micros(now)) == Admit():
            busy += 1
            admitted.append(now)
        elif not begins and busy:
            use.handle(Ended("k"), Micros(now))
            busy -= 1
        assert use.in_flight("k") == busy <= in_flight
        assert sum(now - one < MINUTE_US for one in admitted) <= 2 * per_minute
