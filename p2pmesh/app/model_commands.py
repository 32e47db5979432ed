"""``p2pmesh models``: what the store of a home finds, in facts that a person asks for."""

from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.base.quantities import format_size
from p2pmesh.model.families import permitted_cuts
from p2pmesh.ports.models import ModelFile


def list_models(home: Path) -> list[dict[str, Any]]:
    """Name, size, layers and path of each model that ``--model`` finds by name."""
    return [_summary(model) for model in trio.run(_store(home).list_models)]


def show_model(home: Path, reference: str) -> dict[str, Any]:
    """What one model holds; ``ConfigError`` says what is wrong with the reference or the file."""
    model = trio.run(_store(home).resolve, reference)
    index = model.index
    return {
        **_summary(model),
        "digest": model.digest,
        "size_bytes": model.size_bytes,
        "hidden_size": index.hidden_size,
        "context_length": index.context_length,
        "vocabulary_size": index.vocabulary_size,
        "sliding_window": index.sliding_window,
        "tensor_count": len(index.tensors),
        "permitted_cuts": list(permitted_cuts(index)),
    }


def _store(home: Path) -> DiskModelStore:
    return DiskModelStore(home / "models", home / "cache")


def _summary(model: ModelFile) -> dict[str, Any]:
    return {
        "name": model.name,
        "architecture": model.index.architecture,
        "layer_count": model.index.layer_count,
        "size": format_size(model.size_bytes),
        "path": model.path,
    }
