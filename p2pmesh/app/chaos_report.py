"""What came of a run of ``p2pmesh chaos``: answers, faults, stalls and memory, as plain values and for people."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from p2pmesh.app.bench_nodes import Event
from p2pmesh.app.bench_overlay import quantiles
from p2pmesh.app.chaos_faults import NO_LOSS, Fault
from p2pmesh.app.chaos_memory import ProcessMemory
from p2pmesh.app.chaos_requests import Answer

MAX_DETAILS = 50
IDENTICAL = "identical"


@dataclass(slots=True)
class Struck:
    """One fault that was done, and when the run that it hit was withdrawn and another served."""

    fault: Fault
    node: str
    began_s: float
    withdrawn_s: float | None = None
    serving_s: float | None = None
    code: str = ""
    """Of the withdrawal."""

    @property
    def is_needless(self) -> bool:
        """Whether a run was replaced for what is no loss."""
        return self.fault.kind in NO_LOSS and self.withdrawn_s is not None


@dataclass(slots=True)
class Tally:
    """Counts of one run; bounded by the number of its requests and faults."""

    outcomes: Counter[str] = field(default_factory=Counter)
    struck: list[Struck] = field(default_factory=list)
    recovered: list[Event] = field(default_factory=list)
    pauses_ms: list[int] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    refusals: int = 0
    unprovoked: int = 0
    """Runs that were withdrawn though no fault was done since the last one began to serve."""
    without_spare: int = 0
    """Cases of the matrix for which no spare engine was ready in time."""

    def count(self, answer: Answer, expected: Sequence[str]) -> None:
        """One answer, compared with the undisturbed one."""
        if answer.outcome == "finished":
            answer.outcome = IDENTICAL if answer.data == expected else "differs"
        self.outcomes[answer.outcome] += 1
        self.refusals += answer.refusals
        self.pauses_ms.append(answer.longest_pause_ms)
        if answer.outcome != IDENTICAL and len(self.details) < MAX_DETAILS:
            self.details.append(f"{answer.outcome} after {len(answer.data)} pieces: {answer.detail}"[:300])

    def note_withdrawn(self, now_s: float, code: str) -> None:
        """A run is over: by the newest fault, if any has been done since the last one began to serve."""
        if self.struck and self.struck[-1].withdrawn_s is None:
            self.struck[-1].withdrawn_s = now_s
            self.struck[-1].code = code
        else:
            self.unprovoked += 1

    def note_serving(self, now_s: float) -> None:
        """Another run serves."""
        if self.struck and self.struck[-1].withdrawn_s is not None and self.struck[-1].serving_s is None:
            self.struck[-1].serving_s = now_s

    @property
    def requests(self) -> int:
        """Answers that were counted."""
        return sum(self.outcomes.values())

    @property
    def is_good(self) -> bool:
        """Whether every answer was the undisturbed one, and no run was replaced for what is no loss."""
        return self.requests == self.outcomes[IDENTICAL] and not any(struck.is_needless for struck in self.struck)

    def described(self) -> dict[str, Any]:
        """As plain values, times in milliseconds."""
        return {
            "requests": self.requests,
            "outcomes": dict(sorted(self.outcomes.items())),
            "faults": list(_by_kind(self.struck)),
            "needless_replacements": sum(struck.is_needless for struck in self.struck),
            "unprovoked_withdrawals": self.unprovoked,
            "refused_and_repeated": self.refusals,
            "struck_without_spare": self.without_spare,
            "recoveries": len(self.recovered),
            "inexact_recoveries": sum(not event["is_exact"] for event in self.recovered),
            "stall_ms": quantiles([event["stall_ms"] for event in self.recovered]),
            "longest_pause_ms": quantiles(self.pauses_ms),
            "details": self.details,
        }


def _by_kind(struck: Iterable[Struck]) -> Iterator[dict[str, Any]]:
    kinds: dict[str, list[Struck]] = {}
    for one in struck:
        kinds.setdefault(one.fault.kind.value, []).append(one)
    for kind, done in sorted(kinds.items()):
        found = [_ms(one.withdrawn_s - one.began_s) for one in done if one.withdrawn_s is not None]
        served = [_ms(one.serving_s - one.began_s) for one in done if one.serving_s is not None]
        yield {
            "fault": kind,
            "count": len(done),
            "runs_replaced": len(found),
            "codes": ",".join(sorted({one.code for one in done if one.code})),
            "withdrawn_median_ms": _median(found),
            "withdrawn_max_ms": max(found, default=None),
            "serving_median_ms": _median(served),
            "serving_max_ms": max(served, default=None),
        }


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def _median(values: Sequence[int]) -> int | None:
    return round(statistics.median(values)) if values else None


def describe_memory(lives: Sequence[ProcessMemory]) -> list[dict[str, Any]]:
    """Of those that are judged, and of the nodes that were there to the end though they came late."""
    return [life.described() for life in lives if life.is_flat is not None]


def describe_chaos(report: Mapping[str, Any]) -> list[str]:
    """The report for people."""
    outcomes = ", ".join(f"{count} {name}" for name, count in report["outcomes"].items()) or "none"
    return [
        f"{report['requests']} requests of {report['model']}: {outcomes}{'' if report['is_whole'] else '; cut short'}",
        f"{report['refused_and_repeated']} refusals before a start were repeated; "
        f"runs replaced for what is no loss: {report['needless_replacements']}, "
        f"without a fault to blame: {report['unprovoked_withdrawals']}",
        f"recoveries: {report['recoveries']}, of which {report['inexact_recoveries']} inexact; "
        f"stalls: {_quantiles(report['stall_ms'])}; struck before spare engines were ready: "
        f"{report['struck_without_spare']}",
        *_table(report["faults"]),
        *_table(report["memory"]),
        *report["details"],
        _verdict(report),
    ]


def _verdict(report: Mapping[str, Any]) -> str:
    lost = report["requests"] - report["outcomes"].get(IDENTICAL, 0)
    parts = [f"{lost} of {report['requests']} answers were not the undisturbed one"] if lost else []
    if report["needless_replacements"]:
        parts.append(f"{report['needless_replacements']} runs were replaced needlessly")
    return "; ".join(parts) or "nothing was lost"


def _quantiles(values: Mapping[str, int] | None) -> str:
    return "none" if values is None else ", ".join(f"{name} {value} ms" for name, value in values.items())


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    cells = [[name.replace("_", " ") for name in rows[0]], *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for first, *rest in cells:
        numbers = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *numbers])


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)
