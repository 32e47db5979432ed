"""One engine process, driven in lockstep without a node: what a benchmark row measures below the peers."""

import time

from p2pmesh.base.errors import EngineError, ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.limits import DEFAULT_CONTEXT_TOKENS, PREFILL_CHUNK_TOKENS
from p2pmesh.ports.engine import Engine, EngineSpec
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.begin import Begin, encode_begin
from p2pmesh.wire.generation import SamplingParameters
from p2pmesh.wire.stage import FrameFlag, FrameKind, StageFrame, WireDtype, decode_error

_RUN_ID = b"bench-run-id-16b"


def whole_model_spec(model: ModelFile, lanes: int) -> EngineSpec:
    """The whole model in one engine, with the defaults of ``p2pmesh up``."""
    count = model.index.layer_count
    return EngineSpec(
        artifact_path=model.path,
        artifact_digest=model.digest,
        layers=LayerRange(0, count),
        layer_count=count,
        context_tokens=DEFAULT_CONTEXT_TOKENS,
        lanes=lanes,
        wire_dtype=WireDtype.F32,
        model_digest=model.digest,
    )


async def measure_engine_decode(engine: Engine, prompt: tuple[int, ...], decode_tokens: int, number: int) -> float:
    """Tokens per second of a greedy decode after ``prompt``; ``number`` makes the request id."""
    request_id = number.to_bytes(16, "big")

    async def send(kind: FrameKind, position: int = 0, tokens: tuple[int, ...] = (), body: bytes = b"") -> None:
        is_end_of_prompt = kind is FrameKind.PREFILL and position + len(tokens) == len(prompt)
        flags = FrameFlag.SAMPLE if is_end_of_prompt else FrameFlag.NONE
        await engine.send(
            StageFrame(kind, request_id, _RUN_ID, position=position, tokens=tokens, flags=flags, body=body)
        )

    await send(FrameKind.BEGIN, body=encode_begin(Begin(SamplingParameters(temperature=0.0), len(prompt))))
    for start in range(0, len(prompt), PREFILL_CHUNK_TOKENS):
        await send(FrameKind.PREFILL, start, prompt[start : start + PREFILL_CHUNK_TOKENS])
    position, token = await _next_token(engine)
    started = time.perf_counter()
    for _ in range(decode_tokens - 1):
        await send(FrameKind.DECODE, position, (token,))
        position, token = await _next_token(engine)
    elapsed_s = time.perf_counter() - started
    await send(FrameKind.END)
    return (decode_tokens - 1) / elapsed_s


async def _next_token(engine: Engine) -> tuple[int, int]:
    while True:
        frame = await engine.receive()
        if frame.kind is FrameKind.TOKEN:
            return frame.position, frame.tokens[0]
        if frame.kind is FrameKind.ERROR:
            code, text = decode_error(frame)
            raise EngineError(ErrorCode.INTERNAL, f"the engine gave up ({code.value}): {text}")
