"""Stage files of every kind load in the real llama.cpp, which aborts on those it would not run."""

import subprocess
import sys
from pathlib import Path

from tests.fakes.tiny_gguf import tiny_gemma3, tiny_llama
from tests.model.stages import stage_of

LOADER = Path(__file__).with_name("load_stages.py")
LLAMA_CUTS = [(0, 4), (0, 1), (1, 3), (3, 4)]
# all windowed, mixed, without a window in the middle, and each of them at an end
GEMMA_CUTS = [(0, 8), (0, 3), (0, 6), (1, 4), (4, 7), (5, 6), (6, 8), (5, 8)]


def test_first_middle_last_and_whole_load(tmp_path: Path) -> None:
    untied = tiny_llama(is_tied=False, kv_heads_per_layer=[2, 2, 2, 2])
    short = tiny_gemma3(pattern=[True, True, True, True, True, True, True, False])
    cases = [(model, *cut) for model in (tiny_llama(), untied) for cut in LLAMA_CUTS]
    cases += [(tiny_gemma3(), *cut) for cut in GEMMA_CUTS]
    cases += [(tiny_gemma3(pattern=2), 1, 2), (short, 7, 8)]
    paths = [tmp_path / f"{n}.gguf" for n in range(len(cases))]
    for path, (model, start, end) in zip(paths, cases, strict=True):
        path.write_bytes(stage_of(model, start, end))
    loaded = subprocess.run([sys.executable, LOADER, *paths], capture_output=True, text=True, timeout=120, check=False)
    assert loaded.returncode == 0, loaded.stderr[-2000:]
    assert [int(line) for line in loaded.stdout.split()] == [end - start for _, start, end in cases]
