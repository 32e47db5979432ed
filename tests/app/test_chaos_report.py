"""What is counted of answers and faults, and how it is told."""

from p2pmesh.app.chaos_faults import Fault, FaultKind
from p2pmesh.app.chaos_report import Struck, Tally, describe_chaos
from p2pmesh.app.chaos_requests import Answer

DATA = ["a", "data: [DONE]"]


def struck(kind: FaultKind, began_s: float = 10.0) -> Struck:
    return Struck(Fault(0.0, kind, 1), "peer-1", began_s)


def test_answers_are_identical_or_not() -> None:
    tally = Tally()
    tally.count(Answer("finished", data=list(DATA), longest_pause_ms=7), DATA)
    assert tally.is_good
    tally.count(Answer("finished", data=["b", DATA[1]], refusals=2), DATA)
    tally.count(Answer("failed", "gone", data=["a"]), DATA)
    tally.count(Answer(), DATA)
    assert dict(tally.outcomes) == {"identical": 1, "differs": 1, "failed": 1, "hung": 1}
    assert (tally.refusals, tally.requests, tally.is_good) == (2, 4, False)
    assert any("failed after 1 pieces: gone" in detail for detail in tally.details)


def test_a_run_is_replaced_by_the_newest_fault() -> None:
    tally = Tally()
    tally.note_withdrawn(1.0, "peer_lost")  # nothing was done yet
    tally.note_serving(2.0)
    tally.struck += [struck(FaultKind.FREEZE), struck(FaultKind.CORRUPT, 20.0)]
    tally.note_serving(20.1)  # what was under way before
    tally.note_withdrawn(20.5, "peer_lost")
    tally.note_withdrawn(21.0, "internal")
    tally.note_serving(22.0)
    tally.note_serving(23.0)
    freeze, corrupt = tally.struck
    assert (freeze.withdrawn_s, freeze.serving_s) == (None, None)
    assert (corrupt.withdrawn_s, corrupt.serving_s, corrupt.code) == (20.5, 22.0, "peer_lost")
    assert tally.described()["unprovoked_withdrawals"] == 2


def test_a_run_that_is_replaced_because_a_stage_is_slow_is_a_failure() -> None:
    tally = Tally()
    tally.struck.append(struck(FaultKind.SLOW))
    assert tally.is_good
    tally.note_withdrawn(12.0, "engine_unresponsive")
    assert not tally.is_good
    assert tally.described()["needless_replacements"] == 1


def test_the_report_says_what_was_lost_and_by_what() -> None:
    tally = Tally(recovered=[{"is_exact": True, "stall_ms": 9}, {"is_exact": False, "stall_ms": 11}])
    tally.without_spare = 3
    tally.count(Answer("finished", data=list(DATA)), DATA)
    tally.count(Answer("failed", "gone", data=["a"]), DATA)
    tally.struck += [struck(FaultKind.CORRUPT), struck(FaultKind.SLOW)]
    memory = [{"process": "peer-1", "lived_s": 400, "kib_per_minute": 1.5, "is_flat": True}]
    told = "\n".join(describe_chaos({"model": "m", **tally.described(), "memory": memory, "is_whole": True}))
    for part in (
        "2 requests of m: 1 failed, 1 identical",
        "replaced for what is no loss: 0, without a fault to blame: 0",
        "2, of which 1 inexact; stalls: median",
        "struck before spare engines were ready: 3",
        "failed after 1 pieces: gone",
    ):
        assert part in told
    assert [line.split()[0] for line in told.splitlines() if line[:4] in ("corr", "slow", "peer")] == [
        "corrupt", "slow", "peer-1",
    ]  # fmt: skip


def test_a_report_of_nothing_is_whole() -> None:
    told = describe_chaos({"model": "m", **Tally().described(), "memory": [], "is_whole": False})
    assert told[0] == "0 requests of m: none; cut short"


def test_the_last_line_says_whether_anything_was_lost() -> None:
    def last_line(tally: Tally) -> str:
        return describe_chaos({"model": "m", **tally.described(), "memory": [], "is_whole": True})[-1]

    tally = Tally()
    tally.count(Answer("finished", data=list(DATA)), DATA)
    assert last_line(tally) == "nothing was lost"
    tally.count(Answer("failed", "gone", data=["a"]), DATA)
    assert last_line(tally) == "1 of 2 answers were not the undisturbed one"
    tally.struck.append(struck(FaultKind.SLOW))
    tally.note_withdrawn(12.0, "engine_unresponsive")
    assert last_line(tally).endswith("undisturbed one; 1 runs were replaced needlessly")
