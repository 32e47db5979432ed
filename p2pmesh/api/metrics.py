"""What the API has done, counted, in the text format of Prometheus (0.0.4).

Counts since the node started; gauges are read when they are asked for. Labels are bounded: paths are those of routes,
models the first so many that were served.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from p2pmesh.wire.generation import GenerationFinished

MAX_MODEL_LABELS = 64
OTHER = "other"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Labels = tuple[tuple[str, str], ...]

_HELP: Mapping[str, tuple[str, str]] = {
    "p2pmesh_http_responses_total": ("counter", "Answers by route and status."),
    "p2pmesh_generations_running": ("gauge", "Sequences that are generated for clients of this peer."),
    "p2pmesh_generations_total": ("counter", "Sequences by how they ended: stop, length, failed."),
    "p2pmesh_prompt_tokens_total": ("counter", "Tokens of prompts, of each sequence."),
    "p2pmesh_cached_prompt_tokens_total": ("counter", "Tokens of prompts that other requests had had computed."),
    "p2pmesh_completion_tokens_total": ("counter", "Tokens that were generated."),
    "p2pmesh_recoveries_total": ("counter", "Losses that a sequence outlived."),
    "p2pmesh_mesh_answers_total": ("counter", "Answers of the model mesh by how they came to be, failed among them."),
    "p2pmesh_mesh_models_total": ("counter", "Models asked for such answers, by what as and what came of it."),
    "p2pmesh_guardrail_interventions_total": ("counter", "What guardrails did, or in mode metrics would have done."),
    "p2pmesh_time_to_first_token_seconds": ("histogram", "From a request to its first token."),
    "p2pmesh_time_per_output_token_seconds": ("histogram", "Mean time from token to token of a sequence."),
    "p2pmesh_models_routable": ("gauge", "Models that a request can be routed to from here."),
}


@dataclass(slots=True)
class _Histogram:
    """Counts by upper bound, each with those below it."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS_S) + 1))
    total_s: float = 0.0

    def note(self, seconds: float) -> None:
        """One observation."""
        self.total_s += seconds
        for index, bound in enumerate((*_BUCKETS_S, float("inf"))):
            self.counts[index] += seconds <= bound


class Metrics:
    """Everything that is counted. Times come from ``now_s``, a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self._values: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], _Histogram] = {}
        self._models: dict[str, None] = {}

    def count_response(self, route: str, status: int) -> None:
        """An answer began."""
        self._add("p2pmesh_http_responses_total", (("route", route), ("status", str(status))))

    def meter(self, model: str) -> "GenerationMeter":
        """For one sequence that begins now."""
        return GenerationMeter(self, model)

    def labels_of(self, model: str, *, is_served: bool) -> Labels:
        """The labels of a model; one that never was served gets none of its own, since clients make names up."""
        if is_served and len(self._models) < MAX_MODEL_LABELS:
            self._models.setdefault(model)
        return (("model", model if model in self._models else OTHER),)

    def add(self, name: str, labels: Labels, amount: float = 1) -> None:
        """Adds to a counter or gauge."""
        self._add(name, labels, amount)

    def note_time(self, name: str, labels: Labels, seconds: float) -> None:
        """Adds an observation to a histogram."""
        self._histograms.setdefault((name, labels), _Histogram()).note(seconds)

    def text(self, models_routable: int) -> str:
        """All of it, by name and label."""
        self._values["p2pmesh_models_routable", ()] = models_routable
        lines: list[str] = []
        for name, (kind, told) in _HELP.items():
            lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
            values = sorted((labels, value) for (one, labels), value in self._values.items() if one == name)
            lines += [f"{name}{_shown(labels)} {value:g}" for labels, value in values]
            for (one, labels), histogram in sorted(self._histograms.items(), key=lambda item: item[0]):
                if one == name:
                    lines += _histogram_lines(name, labels, histogram)
        return "\n".join(lines) + "\n"

    def _add(self, name: str, labels: Labels, amount: float = 1) -> None:
        self._values[name, labels] = self._values.get((name, labels), 0) + amount


class GenerationMeter:
    """One sequence, from its request to its end."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self._labels = metrics.labels_of(model, is_served=False)
        self._began_s = metrics.now_s()
        self._first_s: float | None = None
        self._is_open = True
        metrics.add("p2pmesh_generations_running", ())

    def start(self, prompt_tokens: int, cached_tokens: int = 0) -> None:
        """It was admitted."""
        self._labels = self._metrics.labels_of(self._model, is_served=True)
        self._metrics.add("p2pmesh_prompt_tokens_total", self._labels, prompt_tokens)
        self._metrics.add("p2pmesh_cached_prompt_tokens_total", self._labels, cached_tokens)

    def token(self) -> None:
        """Tokens arrived."""
        if self._first_s is None:
            self._first_s = self._metrics.now_s()
            waited_s = self._first_s - self._began_s
            self._metrics.note_time("p2pmesh_time_to_first_token_seconds", self._labels, waited_s)

    def finish(self, finished: GenerationFinished) -> None:
        """It ended well."""
        count = finished.completion_tokens
        self._metrics.add("p2pmesh_completion_tokens_total", self._labels, count)
        self._metrics.add("p2pmesh_recoveries_total", self._labels, finished.recoveries)
        if self._first_s is not None and count > 1:
            each_s = (self._metrics.now_s() - self._first_s) / (count - 1)
            self._metrics.note_time("p2pmesh_time_per_output_token_seconds", self._labels, each_s)
        self._end(finished.reason.value)

    def close(self) -> None:
        """It is over; where it has not finished, it failed or was cancelled."""
        if self._is_open:
            self._end("failed")

    def _end(self, outcome: str) -> None:
        self._is_open = False
        self._metrics.add("p2pmesh_generations_running", (), -1)
        self._metrics.add("p2pmesh_generations_total", (*self._labels, ("outcome", outcome)))


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _histogram_lines(name: str, labels: Labels, histogram: _Histogram) -> list[str]:
    bounds = [*(f"{bound:g}" for bound in _BUCKETS_S), "+Inf"]
    lines = [
        f"{name}_bucket{_shown((*labels, ('le', bound)))} {count}"
        for bound, count in zip(bounds, histogram.counts, strict=True)
    ]
    return [
        *lines,
        f"{name}_sum{_shown(labels)} {histogram.total_s:g}",
        f"{name}_count{_shown(labels)} {histogram.counts[-1]}",
    ]
