"""Run as a program: what llama.cpp says that it allocates for stage files, as engines load them; JSON, a line each.

Arguments: context, lanes, then for each file ``path:is_first:is_last``; ``tiny=NAME:path`` writes that tiny model
first. A separate process, because a file that llama.cpp dislikes aborts it.
"""

import json
import re
import sys
from pathlib import Path

from p2pmesh.adapters.llama import native_log
from p2pmesh.adapters.llama.binding import LoadedStage, LoadOptions
from p2pmesh.adapters.llama.child import cache_bytes
from p2pmesh.adapters.llama.tiny_models import write_tiny_model
from p2pmesh.adapters.llama.tiny_variants import VARIANTS, tiny_metadata
from p2pmesh.model.cost import SPARE_CELLS, SPARE_SEQUENCES

_BUFFER = re.compile(r"(model|KV|RS|compute|output) buffer size = +([0-9.]+) MiB")


def measure(path: str, is_first: bool, is_last: bool, context_tokens: int, lanes: int) -> dict[str, int]:
    """Bytes by part, and ``caches`` as an engine reports them."""
    native_log.forget()
    cells = context_tokens * lanes + SPARE_CELLS
    stage = LoadedStage(LoadOptions(path, is_first, is_last, lanes + SPARE_SEQUENCES, cells, 1, False))
    found = dict.fromkeys(("model", "KV", "RS", "compute", "output"), 0)
    for line in native_log.lines():
        match = _BUFFER.search(line)
        if match is not None:
            found[match[1]] += round(float(match[2]) * 2**20)
    stage.close()
    return {**found, "caches": cache_bytes()}


def main() -> None:
    context, lanes, *items = sys.argv[1:]
    for item in items:
        if item.startswith("tiny="):
            name, _, path = item.removeprefix("tiny=").partition(":")
            variant = next(variant for variant in VARIANTS if variant.name == name)
            write_tiny_model(tiny_metadata(variant), Path(path))
            continue
        path, is_first, is_last = item.rsplit(":", 2)
        print(json.dumps(measure(path, is_first == "1", is_last == "1", int(context), int(lanes))), flush=True)


if __name__ == "__main__":
    main()
