"""Tokens and text: the tokenizer, the pieces, the chat template of a loaded file."""

import ctypes
from typing import Any

import jinja2
import numpy as np
from llama_cpp import llama_cpp as native
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from p2pmesh.adapters.llama.binding import LoadedStage
from p2pmesh.adapters.llama.chats import read_messages, show_conversation
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.limits import MAX_PIECE_TEXT_BYTES
from p2pmesh.core.grammar.constraint import Words
from p2pmesh.core.tool_calls.conversation import Shown, without_system
from p2pmesh.core.tool_calls.formats import MARKERS, detect_format

_MAX_PIECE_BYTES = MAX_PIECE_TEXT_BYTES
_VOCABULARY_NONE = 0


def reasoning_options(effort: str) -> dict[str, Any]:
    """What templates read of a client's wish: gpt-oss ``reasoning_effort``, Qwen 3 and its like ``enable_thinking``."""
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"} if effort else {}


class Vocabulary:
    """The vocabulary of a stage file; a middle stage has none (``is_present`` is false)."""

    def __init__(self, stage: LoadedStage) -> None:
        self._vocabulary = stage.vocabulary
        self._size = stage.vocabulary_size
        self._template = stage.chat_template()
        self._form = detect_format(self._template)
        self.is_present = int(native.llama_vocab_type(self._vocabulary)) != _VOCABULARY_NONE

    @property
    def call_format(self) -> str:
        """How the model writes calls of tools."""
        return self._form.name

    def beginning_token(self) -> int | None:
        """The token a prompt starts with, if the vocabulary has one."""
        if not self.is_present:
            return None
        token = int(native.llama_vocab_bos(self._vocabulary))
        return token if 0 <= token < self._size else None

    def end_tokens(self) -> list[int]:
        """Every token that ends a generation."""
        if not self.is_present:
            return []
        is_end = native.llama_vocab_is_eog
        return [token for token in range(self._size) if is_end(self._vocabulary, token)]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> bytes:
        """Token ids as little-endian int32."""
        self._require()
        data = text.encode()
        room = len(data) + 8
        tokens = np.empty(room, dtype="<i4")
        pointer = ctypes.cast(tokens.ctypes.data, ctypes.POINTER(ctypes.c_int32))
        count = int(native.llama_tokenize(self._vocabulary, data, len(data), pointer, room, add_special, parse_special))
        if count < 0:
            raise Refused(ErrorCode.REQUEST_INVALID, "the text has more tokens than bytes")
        return tokens[:count].tobytes()

    def words(self) -> Words:
        """The tokens as a grammar sees them."""
        return Words(self._read_pieces(), frozenset(self.end_tokens()))

    def pieces(self) -> tuple[bytes, bytes]:
        """Lengths of all pieces (little-endian uint16) and their bytes, by id.

        Control tokens are empty, but for those that mark calls of tools.
        """
        pieces = self._read_pieces()
        return np.array([len(piece) for piece in pieces], dtype="<u2").tobytes(), b"".join(pieces)

    def _read_pieces(self) -> list[bytes]:
        self._require()
        buffer = ctypes.create_string_buffer(_MAX_PIECE_BYTES)
        pieces = [b""] * self._size
        to_piece, is_control = native.llama_token_to_piece, native.llama_vocab_is_control
        for token in range(self._size):
            if is_control(self._vocabulary, token):
                text = self._text_of(token)
                pieces[token] = text.encode() if text in MARKERS else b""
                continue
            length = to_piece(self._vocabulary, token, buffer, _MAX_PIECE_BYTES, 0, True)
            if length > 0:
                pieces[token] = ctypes.string_at(buffer, length)
        return pieces

    def render_chat(self, messages: list[dict[str, Any]], reasoning_effort: str = "", tools: str = "") -> str:
        """The messages in the model's own template, with the generation prompt.

        The template comes from the file and runs in Jinja's immutable sandbox. A model without one gets
        ``role: content`` lines and a final ``assistant:``. Tools are a JSON list, or empty.
        """
        self._require()
        shown, handed = show_conversation(read_messages(messages), tools, self._form)
        if self._template is None:
            lines = [f"{message['role']}: {message['content']}" for message in shown]
            return "\n".join([*lines, "assistant:"])
        options = {"tools": handed, **reasoning_options(reasoning_effort)}
        try:
            return self._render(self._template, shown, options)
        except Refused:
            if not tools or handed is not None:
                raise
            return self._render(self._template, without_system(shown), options)  # what teaches the tools stands there

    def _render(self, template: str, messages: list[Shown], options: dict[str, Any]) -> str:
        try:
            formatter = Jinja2ChatFormatter(
                template, self._text(native.llama_vocab_eos), self._text(native.llama_vocab_bos)
            )
            rendered: str = formatter(messages=messages, **options).prompt
        except (jinja2.TemplateError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            # a template is a program from outside: whatever it stumbles over, the conversation did not fit it
            raise Refused(
                ErrorCode.REQUEST_INVALID, f"the model's chat template refuses this conversation: {error}"
            ) from None
        return rendered

    def _text(self, which: Any) -> str:
        token = int(which(self._vocabulary))
        return self._text_of(token) if 0 <= token < self._size else ""

    def _text_of(self, token: int) -> str:
        text = native.llama_vocab_get_text(self._vocabulary, token)
        return text.decode("utf-8", "replace") if text else ""

    def _require(self) -> None:
        if not self.is_present:
            raise Refused(ErrorCode.REQUEST_INVALID, "this stage holds no vocabulary; ask the first stage")
