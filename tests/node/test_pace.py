"""What a run's speed is measured by: its own steps, not its readers'."""

from p2pmesh.node.pace import Pace


def test_steps_are_smoothed_and_a_prompt_is_counted_by_the_token() -> None:
    pace = Pace()
    meter = pace.meter(0, prompt_tokens=10)
    assert meter.note_token(1000) is None
    assert [meter.note_token(now) for now in (1100, 1200)] == [100, 100]
    assert (pace.prefill_us_per_token, pace.step_us) == (100, 100)


def test_a_slow_reader_does_not_make_a_run_slow() -> None:
    pace = Pace()
    meter = pace.meter(0, prompt_tokens=0)
    meter.note_token(1000)
    meter.note_token(1100)
    told = [meter.note_token(9_000_000, is_behind=True), meter.note_token(18_000_000, is_behind=True)]
    assert [*told, meter.note_token(18_000_001)] == [None] * 3  # what was waiting came at once
    assert meter.note_token(18_000_101) == 100
    assert pace.step_us == 100


def test_a_prompt_that_is_read_late_tells_nothing() -> None:
    pace = Pace()
    pace.meter(0, prompt_tokens=10).note_token(9_000_000, is_behind=True)
    assert pace.prefill_us_per_token == 0
