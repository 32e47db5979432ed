"""Tokens and text of a model that is driven here or elsewhere: both ends of the ``tokenize`` exchange."""

from dataclasses import dataclass

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable, Refused, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_PROMPT_TOKENS, MAX_TEXT_BYTES
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.driver import TOKENIZE_TIMEOUT_S, Driver, Drivers
from p2pmesh.node.exchanges import chat_message_of, message_entry_of, tool_use_entry_of, tool_use_of
from p2pmesh.node.overlay import Overlay
from p2pmesh.node.sequences import code_for_client
from p2pmesh.wire.generation import Prompt, ToolUse
from p2pmesh.wire.messages.generation import Tokenize, Tokenized

_ANSWER_TIMEOUT_S = TOKENIZE_TIMEOUT_S + 10.0


@dataclass(frozen=True, slots=True)
class TextOrTokens:
    """``text`` is that of tokens that were asked about, else ``tokens`` are those of the prompt."""

    tokens: tuple[int, ...]
    text: str


class TokenizeExchanges:
    """Answers other peers for the models that are driven here."""

    def __init__(self, overlay: Overlay, drivers: Drivers) -> None:
        self._drivers = drivers
        overlay.serve_exchange(Tokenize, self._serve)

    async def _serve(self, stream: MessageStream, asked: Tokenize) -> None:
        driver = self._drivers.find_published(asked.model)
        if driver is None:
            raise Refused(ErrorCode.MODEL_NOT_READY, f"{asked.model} is not driven here; try again")
        entries = asked.messages
        messages = None if entries is None else tuple(map(chat_message_of, entries))
        prompt = Prompt(messages, asked.text, asked.tokens, asked.reasoning_effort)
        tools = None if asked.tools is None else tool_use_of(asked.tools)
        answer = await tokenize_here(driver, prompt, tools, add_special=asked.add_special)
        await stream.send(Tokenized(answer.tokens, answer.text))
        await stream.finish()


async def tokenize_here(driver: Driver, prompt: Prompt, tools: ToolUse | None, *, add_special: bool) -> TextOrTokens:
    """By the driver of this node."""
    if prompt.tokens is not None:
        text = driver.text_of(prompt.tokens)
        if len(text.encode()) > MAX_TEXT_BYTES:
            raise Refused(ErrorCode.REQUEST_INVALID, f"the text is longer than {MAX_TEXT_BYTES} bytes; ask in parts")
        return TextOrTokens((), text)
    tokens = await driver.tokenize(prompt, tools, add_special=add_special)
    if len(tokens) > MAX_PROMPT_TOKENS:
        raise Refused(ErrorCode.REQUEST_INVALID, f"the text has more than {MAX_PROMPT_TOKENS} tokens; ask in parts")
    return TextOrTokens(tokens, "")


async def tokenize_remotely(
    overlay: Overlay, peer: PeerId, model: str, prompt: Prompt, tools: ToolUse | None, *, add_special: bool
) -> TextOrTokens:
    """By another peer that drives the model; ``PeerUnavailable`` if it does not answer in time."""
    messages = prompt.messages
    entries = None if messages is None else tuple(map(message_entry_of, messages))
    offered = None if tools is None else tool_use_entry_of(tools)
    asked = Tokenize(model, entries, prompt.text, prompt.tokens, add_special, prompt.reasoning_effort, offered)
    with trio.move_on_after(_ANSWER_TIMEOUT_S):
        stream = await overlay.open_exchange(peer, asked)
        try:
            answer: Tokenized = await stream.expect(Tokenized, _ANSWER_TIMEOUT_S)
        except P2PMeshError as error:
            if isinstance(error, PeerUnavailable):
                raise
            raise RemoteProtocolError(code_for_client(error.code), error.message) from None
        finally:
            await stream.reset()
        return TextOrTokens(answer.tokens, answer.text)
    raise PeerUnavailable(ErrorCode.PEER_UNREACHABLE, f"peer {peer} did not answer in {_ANSWER_TIMEOUT_S:.0f} s")
