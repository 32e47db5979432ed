"""The life of one run at its coordinator: load from the last stage to the first, prove a token, publish, watch.

A run is one attempt at one placement; it is never repaired, a new run replaces it. Who plans the next one, and when,
is decided in ``node.coordinator``.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.base.errors import GARBAGE_CODES, ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.quantities import KIB, MICROS_PER_SECOND, Micros


def run_fingerprint(stages: Sequence[tuple[LayerRange, str]], wire_dtype: str, *, is_lossless: bool) -> str:
    """A name for all that the bits of a run depend on beside the model: runs of equal fingerprint give equal tokens.

    ``stages`` holds the fingerprint of each engine. Where all are equal and activations lose nothing, it matters to no
    bit where the model is cut, and the engines' own fingerprint is the run's.
    """
    engines = {fingerprint for _, fingerprint in stages}
    if len(engines) == 1 and (is_lossless or len(stages) == 1):
        return stages[0][1]
    parts = (wire_dtype, *(f"{layers.start}-{layers.end}:{fingerprint}" for layers, fingerprint in stages))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def accused_stage(index: int, code: ErrorCode, stage_count: int) -> int | None:
    """The stage that answered garbage, when stage ``index`` gave up with ``code``; None if that says nothing of others.

    Rows come from the stage before, tokens and credits to the first one from the last.
    """
    if code not in GARBAGE_CODES:
        return None
    return index - 1 if index > 0 else stage_count - 1


class StageState(StrEnum):
    """States that a peer reports of a stage, in order; the last two end it.

    A stage that is ``leaving`` takes frames as before, but its peer is about to go.
    """

    ASSIGNED = "assigned"
    DOWNLOADING = "downloading"
    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"
    FAILED = "failed"
    STOPPED = "stopped"


class RunPhase(StrEnum):
    """Where a run stands; see the table in ``docs/architecture/runs.md``."""

    LOADING = "loading"
    PROBING = "probing"
    PUBLISHING = "publishing"
    SERVING = "serving"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """Times in microseconds: a stage that loads must report something within ``progress_us``.

    It must have its file within ``fetch_us`` and what its bytes take at ``slowest_bytes_per_s``, and be ready within
    ``load_us`` of saying so first: reports alone, which cost a peer nothing, keep nobody waiting for ever. A peer's
    own engine has ten minutes (``adapters.llama.launcher``), so that who is honest says itself why it failed.
    """

    progress_us: int = 120_000_000
    fetch_us: int = 600_000_000
    slowest_bytes_per_s: int = 256 * KIB
    load_us: int = 660_000_000
    probe_us: int = 120_000_000
    publish_us: int = 15_000_000

    def longest_fetch_us(self, size_bytes: int) -> int:
        """How long a stage of so many bytes may take until its engine loads it."""
        return self.fetch_us + size_bytes * MICROS_PER_SECOND // self.slowest_bytes_per_s


# --- events -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RunStarted:
    """The placement is to be put into effect."""


@dataclass(frozen=True, slots=True)
class StageReported:
    """A stage's peer reported a state, or progress within it."""

    index: int
    state: StageState


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A stage refused, failed, or its peer is gone."""

    index: int
    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class ProbeSucceeded:
    """One real token went through every stage."""


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """It did not."""

    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class PublishSucceeded:
    """The driver routes to the run from now on."""


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """The driver did not announce the model."""

    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class ClaimWasLost:
    """The claim that the run stands on is held no longer: another may coordinate it by now."""

    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class RunGivenUp:
    """Its coordinator has something better to do with the model: no request needs the run any more."""

    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = (
    RunStarted
    | StageReported
    | StageFailed
    | ProbeSucceeded
    | ProbeFailed
    | PublishSucceeded
    | PublishFailed
    | ClaimWasLost
    | RunGivenUp
    | DeadlinePassed
)


# --- effects ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class StartLoad:
    """Ask the peer of stage ``index`` to load it."""

    index: int


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Ask the driver for one real token."""


@dataclass(frozen=True, slots=True)
class StartPublish:
    """Ask the driver to announce the model."""


@dataclass(frozen=True, slots=True)
class ReportServing:
    """The run serves."""


@dataclass(frozen=True, slots=True)
class EndRun:
    """Stop every stage; the run is over. ``index`` is the stage at fault, if one is."""

    code: ErrorCode
    text: str
    index: int | None


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """Step back and stop nothing: if the run serves, its stages are those of whoever takes it over."""

    code: ErrorCode
    text: str


Effect = StartLoad | StartProbe | StartPublish | ReportServing | EndRun | LeaveRun


class RunMachine:
    """One run over ``stage_count`` stages, which take ``stage_bytes`` each (empty: nobody knows)."""

    def __init__(self, stage_count: int, policy: RunPolicy | None = None, *, stage_bytes: Sequence[int] = ()) -> None:
        if stage_count < 1:
            raise ValueError("a run holds at least one stage")
        self._policy = policy or RunPolicy()
        self._stage_count = stage_count
        self._stage_bytes = tuple(stage_bytes) or (0,) * stage_count
        self._loading = stage_count - 1
        self._asked_at = Micros(0)
        self._load_ends_at = Micros(0)
        """Whatever is reported, the stage that loads is given up then."""
        self._is_in_engine = False
        """Whether that stage has its file, for all that its peer says."""
        self._is_started = False
        self._phase = RunPhase.LOADING
        self._deadline: Micros | None = None

    @property
    def phase(self) -> RunPhase:
        """Where the run stands."""
        return self._phase

    def deadline(self) -> Micros | None:
        """When ``DeadlinePassed`` is due."""
        return self._deadline

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event; a run that is over has none."""
        if self._phase is RunPhase.OVER:
            return ()
        match event:
            case RunStarted():
                return self._on_started(now)
            case StageReported(index, state):
                return self._on_report(index, state, now)
            case ProbeSucceeded():
                return self._on_probe(now)
            case PublishSucceeded():
                return self._on_publish()
            case RunGivenUp(code, text):
                return self._end(code, text, None)
            case DeadlinePassed():
                return self._on_deadline(now)
            case _:
                return self._on_failure(event)

    def _on_failure(self, event: StageFailed | ProbeFailed | PublishFailed | ClaimWasLost) -> tuple[Effect, ...]:
        match event:
            case StageFailed(index, code, text):
                return self._end(code, text, index) if self._is_stage(index) else ()
            case ProbeFailed(code, text):
                return self._fail_in(RunPhase.PROBING, code, f"no token came through: {text}")
            case PublishFailed(code, text):
                return self._fail_in(RunPhase.PUBLISHING, code, f"the model was not published: {text}")
            case ClaimWasLost(code, text):
                return self._leave(code, text)

    def _is_stage(self, index: int) -> bool:
        return 0 <= index < self._stage_count

    def _on_started(self, now: Micros) -> tuple[Effect, ...]:
        if self._is_started:
            return ()
        self._is_started = True
        return self._load(now)

    def _load(self, now: Micros) -> tuple[Effect, ...]:
        self._asked_at, self._is_in_engine = now, False
        self._load_ends_at = Micros(now + self._policy.longest_fetch_us(self._stage_bytes[self._loading]))
        self._note_progress(now)
        return (StartLoad(self._loading),)

    def _note_progress(self, now: Micros) -> None:
        self._deadline = Micros(min(now + self._policy.progress_us, self._load_ends_at))

    def _on_report(self, index: int, state: StageState, now: Micros) -> tuple[Effect, ...]:
        if not self._is_started or not self._is_stage(index):
            return ()
        if state in (StageState.FAILED, StageState.STOPPED):
            return self._end(ErrorCode.PEER_LOST, f"stage {index} {state.value}", index)
        if state is StageState.LEAVING and self._phase is not RunPhase.SERVING:
            return self._end(ErrorCode.SHUTTING_DOWN, f"the peer of stage {index} is leaving", index)
        if self._phase is not RunPhase.LOADING or index != self._loading:
            return ()
        if state is StageState.LOADING and not self._is_in_engine:
            self._is_in_engine = True
            self._load_ends_at = Micros(now + self._policy.load_us)
        self._note_progress(now)
        if state is not StageState.READY:
            return ()
        if self._loading > 0:
            self._loading -= 1
            return self._load(now)
        self._phase = RunPhase.PROBING
        self._deadline = Micros(now + self._policy.probe_us)
        return (StartProbe(),)

    def _on_probe(self, now: Micros) -> tuple[Effect, ...]:
        if self._phase is not RunPhase.PROBING:
            return ()
        self._phase = RunPhase.PUBLISHING
        self._deadline = Micros(now + self._policy.publish_us)
        return (StartPublish(),)

    def _fail_in(self, phase: RunPhase, code: ErrorCode, text: str) -> tuple[Effect, ...]:
        return self._end(code, text, None) if self._phase is phase else ()

    def _on_publish(self) -> tuple[Effect, ...]:
        if self._phase is not RunPhase.PUBLISHING:
            return ()
        self._phase = RunPhase.SERVING
        self._deadline = None
        return (ReportServing(),)

    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        if self._deadline is None or now < self._deadline:
            return ()
        text = f"no progress while {self._phase.value}"
        if self._phase is not RunPhase.LOADING:
            return self._end(ErrorCode.DEADLINE_EXCEEDED, text, None)
        if now >= self._load_ends_at:
            took_s = (now - self._asked_at) // MICROS_PER_SECOND
            text = f"stage {self._loading} is not ready after {took_s} s, whatever its peer reports"
        return self._end(ErrorCode.DEADLINE_EXCEEDED, text, self._loading)

    def _leave(self, code: ErrorCode, text: str) -> tuple[Effect, ...]:
        self._phase = RunPhase.OVER
        self._deadline = None
        return (LeaveRun(code, text),)

    def _end(self, code: ErrorCode, text: str, index: int | None) -> tuple[Effect, ...]:
        self._phase = RunPhase.OVER
        self._deadline = None
        return (EndRun(code, text, index),)
