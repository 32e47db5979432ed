"""After a run: at once after one that served, later and later after those that came to nothing."""

from p2pmesh.base.quantities import MICROS_PER_SECOND as SECOND
from p2pmesh.core.next_run import NextRun, RunOutcome, RunPacing

FAILED = RunOutcome(is_claimed=True)
SERVED = RunOutcome(is_claimed=True, had_served=True, served_us=100 * SECOND)


def test_a_run_that_served_is_replaced_at_once() -> None:
    assert RunPacing().after(SERVED) == NextRun(0, keeps_stages=True)


def test_one_that_broke_as_soon_as_it_served_is_replaced_after_a_moment() -> None:
    hardly = RunOutcome(is_claimed=True, had_served=True, served_us=SECOND)
    assert RunPacing().after(hardly) == NextRun(SECOND, keeps_stages=True)


def test_runs_that_come_to_nothing_follow_each_other_later_and_later() -> None:
    pacing = RunPacing()
    waits = [pacing.after(FAILED).wait_us // SECOND for _ in range(8)]
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
    assert pacing.after(SERVED).wait_us == 0
    assert pacing.after(FAILED) == NextRun(2 * SECOND, keeps_stages=False)


def test_who_did_not_get_its_claim_asks_others_soon_however_often() -> None:
    pacing = RunPacing()
    assert [pacing.after(RunOutcome(is_claimed=False)) for _ in range(3)] == [NextRun(SECOND // 2, False)] * 3
    assert pacing.after(FAILED).wait_us == 2 * SECOND


def test_a_run_that_another_goes_on_with_is_not_replaced() -> None:
    left = RunOutcome(is_claimed=True, had_served=True, is_left=True, served_us=100 * SECOND)
    assert RunPacing().after(left) == NextRun(2 * SECOND, keeps_stages=False)
