"""A driver for tests: sends frames through engines in order and collects tokens."""

from collections.abc import Sequence

from p2pmesh.ports.engine import Engine
from p2pmesh.wire.begin import Begin, encode_begin
from p2pmesh.wire.generation import SamplingParameters
from p2pmesh.wire.stage import FrameFlag, FrameKind, StageFrame

RUN = b"r" * 16
GREEDY = SamplingParameters(temperature=0.0)


class Dialogue:
    """One sequence through ``engines``, first stage to last."""

    def __init__(self, engines: Sequence[Engine], request: int = 1, parameters: SamplingParameters = GREEDY) -> None:
        self._engines = engines
        self._request = bytes([request]) * 16
        self._parameters = parameters

    def frame(self, kind: FrameKind, position: int = 0, tokens: Sequence[int] = (), **more) -> StageFrame:
        return StageFrame(kind, self._request, RUN, 0, position, tuple(tokens), **more)

    async def begin(
        self, prompt_tokens: int, top_logprobs: int | None = None, *, wants_embedding: bool = False
    ) -> None:
        body = encode_begin(Begin(self._parameters, prompt_tokens, top_logprobs, wants_embedding=wants_embedding))
        for engine in self._engines:
            await engine.send(self.frame(FrameKind.BEGIN, body=body))

    async def end(self, kind: FrameKind = FrameKind.END) -> None:
        for engine in self._engines:
            await engine.send(self.frame(kind))

    async def push(self, frame: StageFrame) -> None:
        """The frame through every stage, its answer left at the last one."""
        for engine in self._engines[:-1]:
            await engine.send(frame)
            frame = await engine.receive()
            assert frame.kind in (FrameKind.PREFILL, FrameKind.DECODE), bytes(frame.body)
        await self._engines[-1].send(frame)

    async def receive(self) -> StageFrame:
        return await self._engines[-1].receive()

    async def prefill(self, prompt: Sequence[int], chunk: int = 64) -> int:
        """The first token."""
        for start in range(0, len(prompt), chunk):
            is_last = start + chunk >= len(prompt)
            flags = FrameFlag.SAMPLE if is_last else FrameFlag.NONE
            await self.push(self.frame(FrameKind.PREFILL, start, prompt[start : start + chunk], flags=flags))
            credit = await self.receive()
            assert credit.kind is FrameKind.CREDIT, bytes(credit.body)
            assert credit.position == min(start + chunk, len(prompt))
        token = await self.receive()
        assert (token.kind, token.position) == (FrameKind.TOKEN, len(prompt))
        return token.tokens[0]

    async def decode(self, position: int, tokens: Sequence[int]) -> tuple[int, ...]:
        await self.push(self.frame(FrameKind.DECODE, position, tokens))
        answer = await self.receive()
        assert answer.kind is FrameKind.TOKEN, bytes(answer.body)
        assert answer.position == position + 1
        return answer.tokens

    async def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """``count`` tokens, one a step, from BEGIN to END."""
        await self.begin(len(prompt))
        out = [await self.prefill(prompt)]
        while len(out) < count:
            out += await self.decode(len(prompt) + len(out) - 1, [out[-1]])
        await self.end()
        return out
