"""Events of one choice -> pieces: reasoning apart from what is said, log probabilities no sooner than their text.

Which choices there are, and how pieces look to a client, stays with the endpoints.
"""

import codecs
from collections import deque

from p2pmesh.api.openai.parameters import Call
from p2pmesh.api.openai.shape import Piece
from p2pmesh.api.openai.tools import reader_of
from p2pmesh.core.reasoning import ReasoningSplitter
from p2pmesh.core.tool_calls.reading import CallReader, Step
from p2pmesh.wire.generation import FinishReason, GenerationDelta, GenerationFinished, GenerationStarted, TokenLogprob


class LogprobAligner:
    """Gives log probabilities out with the text of their tokens, so that none tells of a stop sequence.

    Tokens without bytes (the one that ends an answer, for instance) are no text, and are left out.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        """Each with the character that its token's text begins at; bounded by what the driver holds back."""
        self._decoded = 0
        self._shown = 0

    def add(self, logprobs: tuple[TokenLogprob, ...], text: str) -> tuple[TokenLogprob, ...]:
        """Those whose text has begun to be shown with ``text``."""
        for one in logprobs:
            if one.piece:
                self._waiting.append((self._decoded, one))
                self._decoded += len(self._decoder.decode(one.piece))
        self._shown += len(text)
        due: list[TokenLogprob] = []
        while self._waiting and self._waiting[0][0] < self._shown:
            due.append(self._waiting.popleft()[1])
        return tuple(due)


class TextReader:
    """For answers that are text as the model gives it."""

    reasoning_tokens = 0

    def __init__(self, *, wants_token_ids: bool, has_logprobs: bool) -> None:
        self._wants_token_ids = wants_token_ids
        self._aligner = LogprobAligner() if has_logprobs else None

    def add(self, delta: GenerationDelta) -> Piece:
        """What a delta brings."""
        logprobs = self._aligner.add(delta.logprobs, delta.text) if self._aligner is not None else ()
        return Piece(delta.text, self._ids(delta.tokens), logprobs=logprobs)

    def finish(self, finished: GenerationFinished) -> tuple[Piece, FinishReason]:
        """What the driver held back."""
        return self.add(GenerationDelta((), finished.text)), finished.reason

    def _ids(self, tokens: tuple[int, ...]) -> tuple[int, ...] | None:
        return tokens if self._wants_token_ids else None


class ChatReader(TextReader):
    """For answers that may begin with reasoning; ``is_reasoning`` when the template has opened it already.

    ``calls`` reads calls of tools out of what is said; None where none were offered.
    """

    def __init__(
        self, *, wants_token_ids: bool, has_logprobs: bool, is_reasoning: bool, calls: CallReader | None = None
    ) -> None:
        super().__init__(wants_token_ids=wants_token_ids, has_logprobs=has_logprobs)
        self._splitter = ReasoningSplitter(is_inside=is_reasoning)
        self._calls = calls
        self.reasoning_tokens = 0

    def add(self, delta: GenerationDelta) -> Piece:
        """What a delta brings."""
        logprobs = self._aligner.add(delta.logprobs, delta.text) if self._aligner is not None else ()
        was_inside = self._splitter.is_inside
        split = self._splitter.add(delta.text)
        if was_inside or self._splitter.is_inside:
            self.reasoning_tokens += len(delta.tokens)
        step = Step(split.content) if self._calls is None else self._calls.add(split.content)
        return Piece(step.content, self._ids(delta.tokens), split.reasoning, logprobs, step.calls)

    def finish(self, finished: GenerationFinished) -> tuple[Piece, FinishReason]:
        """What the driver and the splitter held back."""
        last = self.add(GenerationDelta((), finished.text))
        rest = self._splitter.finish()
        steps = [Step(rest.content)]
        if self._calls is not None:
            is_cut = finished.reason is FinishReason.LENGTH or bool(finished.stop)
            steps = [self._calls.add(rest.content), self._calls.finish(is_cut=is_cut)]
        text = last.text + "".join(step.content for step in steps)
        calls = (*last.calls, *(part for step in steps for part in step.calls))
        piece = Piece(text, last.token_ids, last.reasoning + rest.reasoning, last.logprobs, calls)
        return piece, finished.reason


def chat_reader(call: Call, started: GenerationStarted) -> ChatReader:
    """The reader of one choice, for what its call asks to be shown."""
    return ChatReader(
        wants_token_ids=call.wants_token_ids,
        has_logprobs=call.shows_logprobs,
        is_reasoning=started.is_reasoning,
        calls=reader_of(call.request, started),
    )
