"""The baseline of the benchmarks, where it does not end or cannot begin; that it counts is seen in any benchmark."""

import os
from pathlib import Path

import pytest

from p2pmesh.adapters.llama.plain_loop import measure_plain_decode
from p2pmesh.base.errors import EngineError, ErrorCode


async def test_a_loop_that_hangs_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "never.gguf"
    os.mkfifo(path)  # whoever opens it waits for a writer
    with pytest.raises(EngineError, match="did not end within 2 s") as failure:
        await measure_plain_decode(str(path), 8, 8, timeout_s=2.0)
    assert failure.value.code is ErrorCode.DEADLINE_EXCEEDED


async def test_a_loop_that_fails_says_so_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="the plain loop ended with") as failure:
        await measure_plain_decode(str(tmp_path / "none.gguf"), 8, 8, timeout_s=60.0)
    assert failure.value.code is ErrorCode.ENGINE_CRASHED
    assert "\n" not in failure.value.message
