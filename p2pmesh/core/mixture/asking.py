"""What each model is asked: the client's request for a worker in its role, and one that makes an answer of drafts.

A worker is given less than the client wrote, never anything else: instructions and tools stay, of the conversation the
newest messages do. Who makes one answer of drafts is given the conversation with the drafts behind it.
"""

from collections.abc import Sequence
from dataclasses import replace

from p2pmesh.core.mixture.drafts import Draft
from p2pmesh.core.mixture.roles import MixturePolicy, Worker
from p2pmesh.wire.generation import ChatMessage, GenerationRequest

INSTRUCTING = ("system", "developer")
_DRAFT_CHARACTERS = 4096
"""Of each draft that is shown to the model which makes one answer of them: about what a strong worker may say."""
_LESSON = (
    "Below are answers that other models drafted to the conversation above. Some may be wrong, and some break off. "
    "Answer it yourself, with what is right in them and nothing else. Do not speak of the drafts."
)


def worker_request(
    request: GenerationRequest, worker: Worker, policy: MixturePolicy, request_id: bytes
) -> GenerationRequest:
    """The request in the shape of a role. Log probabilities tell how sure the model is."""
    limits = policy.limits_of(worker.role)
    messages = recent_messages(request.prompt.messages or (), limits.messages)
    return _asked(request, worker.model, messages, _limit(request, limits.tokens), request_id)


def reducer_request(
    request: GenerationRequest, model: str, drafts: Sequence[Draft], policy: MixturePolicy, request_id: bytes
) -> GenerationRequest:
    """One answer is to be made of the drafts, in their order; of none where the conversation speaks for itself."""
    messages = recent_messages(request.prompt.messages or (), policy.strong.messages)
    shown = [draft.shown()[:_DRAFT_CHARACTERS] for draft in drafts]
    texts = [text for text in dict.fromkeys(shown) if text]
    if texts:
        messages = _with_drafts(messages, texts)
    return _asked(request, model, messages, _limit(request, policy.reducer_tokens), request_id)


def answers_calls(request: GenerationRequest) -> bool:
    """Whether the newest message is what a tool returned."""
    messages = request.prompt.messages or ()
    return messages[-1:] != () and messages[-1].role == "tool"


def is_own_limit(request: GenerationRequest, asked: GenerationRequest) -> bool:
    """Whether an answer to ``asked`` that ends at its limit ends where the client said, not where a role does."""
    return asked.max_tokens == request.max_tokens


def recent_messages(messages: Sequence[ChatMessage], count: int) -> tuple[ChatMessage, ...]:
    """The instructions, and the last ``count`` of the others with all back to the message of a user before them.

    So the question stays, no result stands without its call, and roles take turns as templates demand.
    """
    turns = [index for index, message in enumerate(messages) if message.role not in INSTRUCTING]
    begin = max(0, len(turns) - count)
    while begin > 0 and messages[turns[begin]].role != "user":
        begin -= 1
    kept = set(turns[begin:])
    return tuple(m for index, m in enumerate(messages) if index in kept or m.role in INSTRUCTING)


def _limit(request: GenerationRequest, tokens: int) -> int | None:
    """A grammar closes an answer before its limit and nobody could tell: what is bound has the client's limit alone."""
    if request.grammar or request.tools is not None:
        return request.max_tokens
    return tokens if request.max_tokens is None else min(tokens, request.max_tokens)


def _asked(
    request: GenerationRequest,
    model: str,
    messages: tuple[ChatMessage, ...],
    max_tokens: int | None,
    request_id: bytes,
) -> GenerationRequest:
    return replace(
        request,
        request_id=request_id,
        model=model,
        prompt=replace(request.prompt, messages=messages),
        max_tokens=max_tokens,
        top_logprobs=request.top_logprobs or 0,
    )


def _with_drafts(messages: tuple[ChatMessage, ...], texts: Sequence[str]) -> tuple[ChatMessage, ...]:
    """Within the last message of the user where that is the last one, since templates insist that roles take turns."""
    drafts = "\n\n".join(f"Draft {number}:\n{text}" for number, text in enumerate(texts, start=1))
    lesson = f"{_LESSON}\n\n{drafts}"
    if messages and messages[-1].role == "user":
        last = replace(messages[-1], content=f"{messages[-1].content}\n\n{lesson}")
        return (*messages[:-1], last)
    return (*messages, ChatMessage("user", lesson))
