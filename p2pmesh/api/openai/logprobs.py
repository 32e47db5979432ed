"""Log probabilities as OpenAI shapes them: in chat answers, and in those of the older endpoint."""

import codecs
from typing import Any

from p2pmesh.wire.generation import TokenLogprob


def chat_logprobs(logprobs: tuple[TokenLogprob, ...]) -> dict[str, Any]:
    """``logprobs`` of a chat choice."""
    content = [_entry(one) | {"top_logprobs": [_entry(likely) for likely in one.top]} for one in logprobs]
    return {"content": content, "refusal": None}


def _entry(one: TokenLogprob) -> dict[str, Any]:
    # bytes that are no whole characters show as U+FFFD in ``token``; ``bytes`` has them as they are
    return {"token": one.piece.decode("utf-8", "replace"), "logprob": one.logprob, "bytes": list(one.piece)}


class LegacyLogprobs:
    """``logprobs`` of one choice of ``/v1/completions``, in one part or in several that follow each other."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text_offset = 0

    def fields(self, logprobs: tuple[TokenLogprob, ...]) -> dict[str, Any]:
        """Of the next tokens; ``text_offset`` is the character of the choice's text that each begins at.

        ``top_logprobs`` holds the token itself too, as OpenAI's answers do. Tokens of the same text are told once, the
        likeliest of them.
        """
        offsets, tops = [], []
        for one in logprobs:
            offsets.append(self._text_offset)
            self._text_offset += len(self._decoder.decode(one.piece))
            top: dict[str, float] = {}
            for likely in (*one.top, one):
                top.setdefault(_legacy_text(likely), likely.logprob)
            tops.append(top)
        return {
            "tokens": [_legacy_text(one) for one in logprobs],
            "token_logprobs": [one.logprob for one in logprobs],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def _legacy_text(one: TokenLogprob) -> str:
    """Bytes that are no whole characters are written out, as OpenAI's endpoint did: it has no field for them."""
    try:
        return one.piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in one.piece)


def mean_logprob(logprobs: tuple[TokenLogprob, ...]) -> float:
    """By which ``best_of`` ranks; a choice without tokens comes first."""
    return sum(one.logprob for one in logprobs) / len(logprobs) if logprobs else 0.0
