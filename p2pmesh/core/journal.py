"""What the ingress keeps of a request, so that another driver can go on with it where the last one ended.

Owns the journal: prompt ids, every token id that was given out, the limit, the model file and the engines' fingerprint;
parameters, stops and seed stand in the request, which has them before its first attempt. That is all an answer depends
on: sampling is a function of them, so is the text, and the boundaries of calls follow from the length of the prompt.
What a failure means and how long a new driver is waited for is ``core.recovery``'s.
"""

from dataclasses import replace

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_PROMPT_TOKENS
from p2pmesh.wire.generation import (
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Prompt,
)


class Journal:
    """One request from its first attempt to its end."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._started: GenerationStarted | None = None
        self._tokens: list[int] = []
        self._is_exact = True
        self._is_begun = False
        """Whether the driver of this attempt has said what it goes on from."""
        self._asked_as = b""
        self._ran_as = b""
        """The request id of the last attempt that began: what stages of its run may hold rows of."""
        self.recoveries = 0
        """Attempts that went on after an earlier one had started."""

    @property
    def has_started(self) -> bool:
        """Whether the client was told that its request is admitted."""
        return self._started is not None

    @property
    def token_count(self) -> int:
        """Tokens given out so far."""
        return len(self._tokens)

    @property
    def is_exact(self) -> bool:
        """Whether every driver so far had engines of the same fingerprint."""
        return self._is_exact

    def next_request(self, request_id: bytes) -> GenerationRequest:
        """What to ask of the next driver; the first one is asked as the client asked, under its own id."""
        self._is_begun = False
        self._asked_as = request_id
        if self._started is None:
            return replace(self._request, request_id=request_id)
        return replace(
            self._request,
            request_id=request_id,
            prompt=Prompt(tokens=self._started.prompt_tokens),
            max_tokens=self._started.max_tokens or self._request.max_tokens,
            history=tuple(self._tokens),
            # a prompt that is read is pooled from its first row on: what a stage holds of it is no use
            continues=b"" if self._request.wants_embedding else self._ran_as,
        )

    def take(self, event: GenerationEvent) -> GenerationEvent | None:
        """What the client is given of a driver's event; raises ``RemoteProtocolError`` for one that cannot be."""
        if not self._is_begun and not isinstance(event, GenerationStarted):
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, "the driver answers before it has begun")
        match event:
            case GenerationStarted():
                return self._start(event)
            case GenerationDelta(tokens):
                if len(self._tokens) + len(tokens) > MAX_PROMPT_TOKENS:
                    text = f"the driver gives more than {MAX_PROMPT_TOKENS} tokens"
                    raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, text)
                self._tokens += tokens
                return event
            case GenerationFinished(completion_tokens=count, stop=stop):
                if stop and stop not in self._request.stop:
                    text = "the driver ends by a stop sequence that it was not given"
                    raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, text)
                if count != len(self._tokens):
                    text = f"the driver ends after {count} tokens, {len(self._tokens)} were given"
                    raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, text)
                return replace(event, recoveries=self.recoveries, is_exact=self._is_exact)

    def _start(self, event: GenerationStarted) -> GenerationStarted | None:
        self._is_begun = True
        self._ran_as = self._asked_as
        if self._started is None:
            self._started = event
            return event
        if event.prompt_tokens != self._started.prompt_tokens:
            raise RemoteProtocolError(ErrorCode.MESSAGE_UNEXPECTED, "the driver goes on with another prompt")
        self.recoveries += 1
        self._is_exact = self._is_exact and event.fingerprint == self._started.fingerprint
        return None
