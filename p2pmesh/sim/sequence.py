"""One generation at a simulated driver: the very ``GenerationMachine``, and a request's fate."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS, PREFILL_CREDITS
from p2pmesh.base.quantities import Micros
from p2pmesh.core import generation
from p2pmesh.core.text import TextAssembler
from p2pmesh.sim.journal import Journal
from p2pmesh.sim.runner import MachineRunner
from p2pmesh.sim.scheduler import Scheduler
from p2pmesh.sim.snapshot import SequenceSnapshot

VOCABULARY = tuple(bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz .")
END_TOKEN = len(VOCABULARY)
STOPS = ("zz", "q.")
POLICY = generation.GenerationPolicy(PREFILL_CHUNK_TOKENS, PREFILL_CREDITS, context_tokens=4096)


@dataclass(frozen=True, slots=True)
class SimRequest:
    """What a client asks for; 0 ``cancel_after_us``: it stays to the end."""

    number: int
    ingress: int
    prompt_tokens: int
    max_tokens: int
    cancel_after_us: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Positions that go through the stages; the last of them is sampled or not."""

    position: int
    count: int
    is_sampled: bool


def sampled_token(number: int, position: int) -> int:
    """A pure function, as at a real last stage: replay gives the same token."""
    digest = hashlib.blake2b(f"{number}/{position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % (len(VOCABULARY) + 1)


class SimSequence:
    """Runs the machine; rows go to ``send_rows``, the outcome (a finish reason or an error code) to ``on_end``."""

    def __init__(
        self,
        request: SimRequest,
        scheduler: Scheduler,
        journal: Journal,
        send_rows: Callable[["SimSequence", Rows], None],
        on_end: Callable[["SimSequence", str, int], None],
    ) -> None:
        self.request = request
        self._scheduler = scheduler
        self._send_rows = send_rows
        self._on_end = on_end
        self._sent = 0
        self._credited = 0
        self._ends = 0
        self._effects_after_end = 0
        self._tokens = 0
        self.machine = generation.GenerationMachine(
            (0,) * request.prompt_tokens, request.max_tokens, frozenset({END_TOKEN}),
            TextAssembler(VOCABULARY, STOPS), POLICY,
        )  # fmt: skip
        self._runner = MachineRunner[generation.Event, generation.Effect](
            scheduler, self.machine, generation.DeadlinePassed(), self._perform, partial(_note, journal, request.number)
        )

    def start(self) -> None:
        """Begins, and ends by cancellation if the client is to go away."""
        self._runner.post(generation.Begin())
        if self.request.cancel_after_us:
            cancel = partial(self._runner.post, generation.CancelRequested())
            self._scheduler.after(self.request.cancel_after_us, cancel)

    def stop(self) -> None:
        """The driver has crashed."""
        self._runner.stop()

    def on_credit(self, position: int) -> None:
        """The last stage has consumed the prompt up to ``position``."""
        self._credited = max(self._credited, position)
        self._runner.post(generation.CreditArrived(position))

    def on_token(self, position: int, token: int) -> None:
        """The last stage has sampled."""
        self._runner.post(generation.TokensArrived(position, (token,)))

    def fail(self, code: ErrorCode, text: str) -> None:
        """A stage, a stream or a peer is lost."""
        self._runner.post(generation.SequenceFailed(code, text))

    def snapshot(self) -> SequenceSnapshot:
        """For the invariants."""
        due = self.machine.deadline()
        return SequenceSnapshot(
            self.request.number, not self.machine.is_over, self._ends, self._effects_after_end,
            0 if self.machine.is_over else self._sent - self._credited, POLICY.credits * POLICY.chunk_tokens,
            0 if due is None else max(0, self._scheduler.now - due),
        )  # fmt: skip

    def _perform(self, effect: generation.Effect) -> None:
        if self._ends:
            self._effects_after_end += 1
        match effect:
            case generation.SendPrefill(position, tokens, is_last):
                self._sent += len(tokens)
                self._send_rows(self, Rows(position, len(tokens), is_last))
            case generation.SendDecode(position):
                self._send_rows(self, Rows(position, 1, is_sampled=True))
            case generation.Emit(tokens):
                self._tokens += len(tokens)
            case generation.Finish(reason):
                self._end(reason.value)
            case generation.Fail(code):
                self._end(code.value)
            case generation.SendBegin() | generation.SendEnd() | generation.SendCancel():
                pass  # lanes are counted at the driver; stages hold a position per sequence and no more

    def _end(self, outcome: str) -> None:
        self._ends += 1
        if self._ends == 1:
            self._on_end(self, outcome, self._tokens)


def _note(journal: Journal, number: int, now: Micros, event: object, effects: tuple[object, ...]) -> None:
    journal.note(now, f"sequence {number}", event, effects)
