"""Models that have a name everywhere: short names for repositories of the hub.

Facts only, no code: a name that is not here is looked up nowhere else. What a name stands for never changes its model;
which file of the repository is taken, the operator may say (``smollm2-1.7b:Q8_0``).
"""

from dataclasses import dataclass

from p2pmesh.model.reference import HubReference, NameReference


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A name and its repository, with the quantisation that is taken unless another is asked for."""

    name: str
    repository: str
    quant: str


CATALOG = (
    CatalogEntry("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF", "Q8_0"),
    CatalogEntry("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", "Q4_K_M"),
    CatalogEntry("qwen3-0.6b", "Qwen/Qwen3-0.6B-GGUF", "Q8_0"),
    CatalogEntry("qwen3-1.7b", "Qwen/Qwen3-1.7B-GGUF", "Q8_0"),
    CatalogEntry("qwen3-4b", "Qwen/Qwen3-4B-GGUF", "Q4_K_M"),
    CatalogEntry("qwen3-8b", "Qwen/Qwen3-8B-GGUF", "Q4_K_M"),
    CatalogEntry("qwen3-14b", "Qwen/Qwen3-14B-GGUF", "Q4_K_M"),
    CatalogEntry("qwen3-32b", "Qwen/Qwen3-32B-GGUF", "Q4_K_M"),
)


def find_in_catalog(wanted: NameReference) -> HubReference | None:
    """What a name of the catalog stands for, in any case of its letters; ``None`` for other names."""
    for entry in CATALOG:
        if entry.name == wanted.name.lower():
            return HubReference(entry.repository, wanted.quant or entry.quant, wanted.revision)
    return None
