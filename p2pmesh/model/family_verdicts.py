"""What runs have shown about each architecture: the reviewed record in ``families.json``.

``p2pmesh certify families`` writes it; nothing is decided here. The record names the llama.cpp it was made with.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

RECORD_NAME = "families.json"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One architecture. ``is_splittable``: cut at every place that the rules permit, it gave the bits of the whole.

    ``is_served``: the engine runs it. ``reason`` is empty for what is both.
    """

    architecture: str
    is_splittable: bool
    is_served: bool
    reason: str


@cache
def _record() -> Mapping[str, Any]:
    text = resources.files("p2pmesh.model").joinpath(RECORD_NAME).read_text(encoding="utf-8")
    record: dict[str, Any] = json.loads(text)
    return record


@cache
def verdicts() -> Mapping[str, Verdict]:
    """All verdicts by architecture, in order of name."""
    return {
        name: Verdict(name, fields["splittable"], fields["served"], fields["reason"])
        for name, fields in sorted(_record()["families"].items())
    }


def verdict_of(architecture: str) -> Verdict | None:
    """The verdict on an architecture; ``None`` where none was run."""
    return verdicts().get(architecture)


def record_build() -> tuple[str, str]:
    """Version of llama-cpp-python and commit of the llama.cpp within that the runs were made with."""
    record = _record()
    return str(record["llama_cpp_python"]), str(record["llama_cpp_commit"])
