"""``/v1/completions``, the older endpoint: its requests parsed, its answers shaped."""

from collections.abc import Callable, Sequence
from typing import Any

from p2pmesh.api.errors import RequestError, error_body, invalid_parameter, unsupported_parameter
from p2pmesh.api.openai.fields import Fields, check_text, wrong_type
from p2pmesh.api.openai.logprobs import LegacyLogprobs
from p2pmesh.api.openai.parameters import (
    COMPLETIONS_HARMLESS,
    IMPLEMENTED,
    MAX_CHOICES,
    MAX_TOKEN_ID,
    Call,
    check_names,
    fan_out,
    read_max_tokens,
    read_model,
    read_n,
    read_sampling,
    read_stop,
    read_stream,
)
from p2pmesh.api.openai.reading import TextReader
from p2pmesh.api.openai.shape import AnswerHead, Choice, ChoiceReader, Events, Piece, ServerEvent, TextTemplate, Usage
from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.base.limits import MAX_PROMPT_TOKENS, MAX_TEXT_BYTES, MAX_TOP_LOGPROBS
from p2pmesh.wire.generation import FinishReason, GenerationRequest, GenerationStarted, Prompt

DEFAULT_MAX_TOKENS = 16
"""What OpenAI's own endpoint takes when the request names no limit."""

COMPLETIONS_IMPLEMENTED = IMPLEMENTED | {"prompt", "best_of", "echo"}


def parse_completions(body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
    """A request of the older endpoint; ``RequestError`` names the parameter at fault."""
    fields = Fields(body)
    check_names(fields, COMPLETIONS_IMPLEMENTED, COMPLETIONS_HARMLESS)
    is_streamed, wants_usage_chunk = read_stream(fields)
    limit = read_max_tokens(fields, "max_tokens")
    prompts = _read_prompts(fields)
    n = read_n(fields)
    candidates = _read_best_of(fields, n, is_streamed=is_streamed)
    top_logprobs = _read_logprobs(fields)
    request = GenerationRequest(
        request_id=request_id,
        model=read_model(fields),
        prompt=prompts[0],
        sampling=read_sampling(fields, random_seed),
        stop=read_stop(fields),
        max_tokens=DEFAULT_MAX_TOKENS if limit is None else limit,
        # what best_of ranks by
        top_logprobs=0 if top_logprobs is None and candidates > n else top_logprobs,
    )
    return Call(
        fan_out(request, prompts, candidates),
        is_streamed,
        wants_usage_chunk,
        fields.boolean("return_token_ids"),
        shows_logprobs=top_logprobs is not None,
        n=n,
        candidates=candidates,
        echoes=_read_echoes(fields, prompts, candidates),
    )


def _read_best_of(fields: Fields, n: int, *, is_streamed: bool) -> int:
    candidates = fields.integer("best_of", 1, MAX_CHOICES)
    if candidates is None:
        return n
    if candidates < n:
        raise invalid_parameter("best_of", f"best_of must be at least n, which is {n}")
    if candidates > n and is_streamed:
        raise invalid_parameter("best_of", "best_of above n cannot be streamed: which are best is known at the end")
    return candidates


def _read_logprobs(fields: Fields) -> int | None:
    if fields.values.get("logprobs") is False:  # what some clients send for none
        return None
    return fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)


def _read_echoes(fields: Fields, prompts: Sequence[Prompt], candidates: int) -> tuple[str, ...]:
    if not fields.boolean("echo"):
        return ()
    if _read_logprobs(fields) is not None:
        raise unsupported_parameter("echo", "echo is not supported together with logprobs")
    if any(prompt.text is None for prompt in prompts):
        raise unsupported_parameter("echo", "echo is supported only for prompts that are text")
    return tuple(prompt.text or "" for prompt in prompts for _ in range(candidates))


def _read_prompts(fields: Fields) -> tuple[Prompt, ...]:
    """One prompt, or a batch of them: text or token ids each."""
    if not fields.has("prompt"):
        raise invalid_parameter("prompt", "prompt is required")
    value = fields.values["prompt"]
    if isinstance(value, str):
        return (Prompt(text=check_text(value, "prompt", MAX_TEXT_BYTES)),)
    if not isinstance(value, list):
        raise wrong_type(value, "prompt", "a string, an array of token ids, or an array of either")
    if not value:
        raise invalid_parameter("prompt", "prompt must not be empty")
    if not isinstance(value[0], str | list):
        return (Prompt(tokens=read_token_ids(value, "prompt")),)
    if len(value) > MAX_CHOICES:
        raise invalid_parameter("prompt", f"prompt may hold {MAX_CHOICES} prompts, not {len(value)}")
    return tuple(read_prompt(item, f"prompt[{index}]") for index, item in enumerate(value))


def read_prompt(item: object, param: str) -> Prompt:
    """One of several prompts: text, or token ids."""
    if isinstance(item, str):
        return Prompt(text=check_text(item, param, MAX_TEXT_BYTES))
    if not isinstance(item, list):
        raise wrong_type(item, param, "a string or an array of token ids")
    return Prompt(tokens=read_token_ids(item, param))


def read_token_ids(items: list[Any], param: str) -> tuple[int, ...]:
    """Token ids of a prompt; whether the vocabulary has them is found out where it is."""
    if not items:
        raise invalid_parameter(param, f"{param} must not be empty")
    if len(items) > MAX_PROMPT_TOKENS:
        raise RequestError(ErrorCode.REQUEST_TOO_LARGE, f"{param} may hold {MAX_PROMPT_TOKENS} token ids", param)
    return tuple(_token_id(item, param) for item in items)


def _token_id(item: object, param: str) -> int:
    if isinstance(item, bool) or not isinstance(item, int):
        raise wrong_type(item, param, "an array of token ids")
    if not 0 <= item <= MAX_TOKEN_ID:
        raise invalid_parameter(param, f"{param} holds a token id outside 0 to {MAX_TOKEN_ID}")
    return item


class CompletionsShape:
    """Answers of the older endpoint as OpenAI shapes them."""

    prompt_param = "prompt"
    id_prefix = "cmpl-"

    def parse(self, body: dict[str, Any], request_id: bytes, random_seed: Callable[[], int]) -> Call:
        """See ``parse_completions``."""
        return parse_completions(body, request_id, random_seed)

    def reader(self, call: Call, started: GenerationStarted) -> ChoiceReader:
        """A reader of text as the model gives it."""
        return TextReader(wants_token_ids=call.wants_token_ids, has_logprobs=call.request.top_logprobs is not None)

    def whole(self, head: AnswerHead, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer in one piece."""
        shown = [_whole_choice(choice) for choice in choices]
        return {**head.fields("text_completion"), "choices": shown, "usage": usage.fields()}

    def stream(self, call: Call) -> "CompletionsStream":
        """The answer in chunks."""
        return CompletionsStream(call)

    def error(self, error: P2PMeshError) -> dict[str, Any]:
        """OpenAI's error object."""
        return error_body(error, self.prompt_param)


def _whole_choice(choice: Choice) -> dict[str, Any]:
    piece = choice.piece
    logprobs = LegacyLogprobs().fields(piece.logprobs) if piece.logprobs else None
    fields = piece.token_fields() | choice.prompt_fields()
    return _choice(choice.index, piece.text, choice.reason) | {"logprobs": logprobs, **fields}


class CompletionsStream:
    """Chunks of an answer of the older endpoint."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._head: AnswerHead | None = None
        self._logprobs = [LegacyLogprobs() for _ in call.requests]
        self._saying: dict[int, TextTemplate] = {}
        """Of each choice, its text."""

    def begin(self, head: AnswerHead) -> Events:
        """Nothing before the first choice."""
        self._head = head
        return ()

    def open(self, index: int, prompt_token_ids: tuple[int, ...] | None) -> Events:
        """There is no role to announce, only the prompt's ids where they were asked for, and the echo."""
        if prompt_token_ids is not None:
            fields = Piece(token_ids=()).token_fields() | {"prompt_token_ids": list(prompt_token_ids)}
            return (self._chunk(_choice(index, "", None) | fields),)
        return ()

    def add(self, index: int, piece: Piece) -> Events:
        """A chunk of text."""
        if piece.is_text_alone:
            return (self._say(index, piece.text),)
        if not piece.is_shown() and not self._call.wants_token_ids:
            return ()
        choice = _choice(index, piece.text, None) | piece.token_fields()
        if piece.logprobs:
            choice["logprobs"] = self._logprobs[index].fields(piece.logprobs)
        return (self._chunk(choice),)

    def _say(self, index: int, text: str) -> ServerEvent:
        template = self._saying.get(index)
        if template is None:
            template = self._saying[index] = TextTemplate(self._fields(_choice(index, TextTemplate.PLACE, None)))
        return template.event(text)

    def close(self, index: int, reason: FinishReason, stop: str = "") -> Events:
        """The chunk that carries the finish reason and no text."""
        return (self._chunk(_choice(index, "", reason)),)

    def finish(self, usage: Usage) -> Events:
        """The usage, if ``stream_options.include_usage`` asks for it, and the end mark."""
        assert self._head is not None
        end = ServerEvent("[DONE]")
        if not self._head.wants_usage_chunk:
            return (end,)
        return ServerEvent({**self._head.fields("text_completion"), "choices": [], "usage": usage.fields()}), end

    def fail(self, error: P2PMeshError) -> Events:
        """The error as an event, without an end mark."""
        return (ServerEvent(error_body(error, CompletionsShape.prompt_param)),)

    def _chunk(self, choice: dict[str, Any]) -> ServerEvent:
        return ServerEvent(self._fields(choice))

    def _fields(self, choice: dict[str, Any]) -> dict[str, Any]:
        assert self._head is not None
        return {**self._head.fields("text_completion"), "choices": [choice], **self._head.usage_placeholder()}


def _choice(index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": reason and reason.value}
