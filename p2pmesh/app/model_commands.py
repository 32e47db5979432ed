"""``p2pmesh models``: what a home has and what the hub has, in facts that a person asks for.

Each command is a function from what was typed to plain values; how they look is ``cli.models``'. What removes files is
``model_upkeep``'s.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.hub import COMMAND_QUESTION_DEADLINE_S, SEARCH_DEADLINE_S, Hub, TransferProgress
from p2pmesh.adapters.model_names import NamedModel
from p2pmesh.adapters.model_source import paths_of_model
from p2pmesh.app.client import fetch_status
from p2pmesh.app.machine_memory import offered_memory_bytes
from p2pmesh.app.model_access import ModelAccess, describe_progress, open_access
from p2pmesh.app.silence import SILENCE_S, Silence
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.limits import DEFAULT_CONTEXT_TOKENS, DEFAULT_LANES
from p2pmesh.base.quantities import format_size
from p2pmesh.model.catalog import CATALOG
from p2pmesh.model.cost import ModelBytes, measure_model, stage_cost
from p2pmesh.model.describe import describe_model
from p2pmesh.model.families import permitted_cuts
from p2pmesh.model.gguf import GgufIndex
from p2pmesh.model.reference import HubReference
from p2pmesh.model.repository import models_among, quant_of
from p2pmesh.ports.models import ModelFile

Watch = Callable[[dict[str, Any]], None]
Tell = Callable[[str], None]
"""Hears, from another thread, what is waited for where that takes long."""


def _tell_nobody(line: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ModelsOptions:
    """Whose models, and which hub; None leaves the hub to the environment."""

    home: Path
    hub_endpoint: str | None = None
    is_offline: bool = False
    context_tokens: int = DEFAULT_CONTEXT_TOKENS
    lanes: int = DEFAULT_LANES

    def open(self, *, is_reading: bool = False) -> ModelAccess:
        """The models of the home, with a hub that is waited for as long as somebody sits before it."""
        access = open_access(self.home, self.hub_endpoint, self.is_offline, is_reading=is_reading)
        settings = replace(access.hub.settings, question_s=COMMAND_QUESTION_DEADLINE_S)
        return ModelAccess(access.store, Hub(access.hub.cache, settings))


def list_models(options: ModelsOptions) -> list[dict[str, Any]]:
    """Name, size, layers and path of each model that ``--model`` finds by name."""
    return [_summary(named.name, index, named.source, str(named.place)) for named, index in trio.run(_survey, options)]


def list_unusable(options: ModelsOptions) -> tuple[tuple[str, str], ...]:
    """Files among the home's models that are none, and why."""
    return tuple((str(path), why) for path, why in trio.run(options.open(is_reading=True).store.unusable))


async def _survey(options: ModelsOptions) -> tuple[tuple[NamedModel, GgufIndex], ...]:
    return await options.open(is_reading=True).store.survey()


def list_catalog() -> list[dict[str, Any]]:
    """The names that stand for models of the hub."""
    return [{"name": entry.name, "quant": entry.quant, "repository": entry.repository} for entry in CATALOG]


def search_hub(
    options: ModelsOptions, query: str, limit: int, tell: Tell = _tell_nobody, silence_s: float = SILENCE_S
) -> list[dict[str, Any]]:
    """Repositories with GGUF files, those downloaded most first."""
    if limit < 1:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"--limit must be at least 1, not {limit}")
    hub = options.open(is_reading=True).hub
    with _asking(hub, "is asked", SEARCH_DEADLINE_S, tell, silence_s):
        found = trio.run(hub.search, query, limit)
    return [
        {
            "repository": str(model.get("id") or ""),
            "downloads": model.get("downloads"),
            "likes": model.get("likes"),
            "updated": str(model.get("last_modified") or "")[:10],
            "is_gated": bool(model.get("gated")),
        }
        for model in found
    ]


def _asking(hub: Hub, question: str, deadline_s: float, tell: Tell, silence_s: float) -> Silence:
    line = f"waiting: the hub at {hub.settings.endpoint} {question}, for {deadline_s:.0f} s at most"
    return Silence(lambda: tell(line), silence_s)


def _asking_for(hub: Hub, wanted: HubReference, tell: Tell, silence_s: float) -> Silence:
    return _asking(hub, f"is asked for {wanted.repository}", hub.settings.question_s, tell, silence_s)


def show_model(
    options: ModelsOptions, reference: str, tell: Tell = _tell_nobody, silence_s: float = SILENCE_S
) -> dict[str, Any]:
    """What one model holds, needs, and where it would fit; of a repository that is not here, what it offers."""
    access = options.open(is_reading=True)
    found = access.store.find(reference)
    if isinstance(found, HubReference):
        with _asking_for(access.hub, found, tell, silence_s):
            return trio.run(_show_repository, access, found)
    return _describe(trio.run(access.store.load, found), options)


def pull_model(
    options: ModelsOptions, reference: str, watch: Watch, tell: Tell = _tell_nobody, silence_s: float = SILENCE_S
) -> dict[str, Any]:
    """Fetches a model of the hub; what is whole already is not fetched again, but the hub is asked what is newest."""
    access = options.open()
    wanted = access.store.find_on_hub(reference)
    with ExitStack() as waiting:

        def note(progress: TransferProgress) -> None:
            waiting.close()  # from here on progress is what is seen
            watch(describe_progress(progress))

        if wanted is None:  # a model that needs no hub, or an error that says so
            return _summary_of(trio.run(access.obtain, reference, note))
        waiting.enter_context(_asking_for(access.hub, wanted, tell, silence_s))
        return _summary_of(trio.run(access.fetch, wanted, note))


async def _show_repository(access: ModelAccess, wanted: HubReference) -> dict[str, Any]:
    record = await access.hub.list_files(wanted.repository, wanted.revision)
    sizes = {file.path: file.size_bytes or 0 for file in record.files}
    models = models_among(sizes)
    return {
        "repository": record.repository,
        "commit": record.commit,
        "is_on_this_machine": False,
        "models": [
            {
                "name": model.name,
                "quant": quant_of(model.name) or "",
                "size": format_size(sum(sizes.get(name, 0) for name in model.files)),
                "files": len(model.files),
            }
            for model in models
        ],
    }


def _summary(name: str, index: GgufIndex, source: str, path: str) -> dict[str, Any]:
    return {
        "name": name,
        "architecture": index.architecture,
        "layer_count": index.layer_count,
        "size": format_size(index.size_bytes),
        "source": source or "file",
        "path": path,
    }


def _summary_of(model: ModelFile) -> dict[str, Any]:
    return _summary(model.name, model.index, model.source, model.path)


def _describe(model: ModelFile, options: ModelsOptions) -> dict[str, Any]:
    index = model.index
    facts = describe_model(index)
    cuts = list(permitted_cuts(index))
    return {
        **_summary_of(model),
        "file_count": len(paths_of_model(Path(model.path))),
        "digest": model.digest,
        "size_bytes": model.size_bytes,
        "hidden_size": facts.hidden_size,
        "head_count": facts.head_count,
        "kv_head_count": facts.kv_head_count,
        "context_length": facts.context_length,
        "vocabulary_size": facts.vocabulary_size,
        "sliding_window": facts.sliding_window,
        "tensor_count": len(index.tensors),
        "quantisation": quant_of(model.name) or facts.tensor_types[0],
        "tensor_types": list(facts.tensor_types),
        "kv_bytes_per_token": facts.kv_bytes_per_token,
        "state_bytes_per_sequence": facts.state_bytes_per_sequence,
        "activation_bytes_per_token": facts.activation_bytes_per_token,
        "permitted_cuts": cuts,
        "cut_refusal": facts.cut_refusal,
        "fits": _fits(measure_model(index), bool(cuts), options),
    }


# --- where it would fit


def _fits(model: ModelBytes, is_cuttable: bool, options: ModelsOptions) -> dict[str, Any]:
    """An estimate for each place by itself; what a placement decides counts all together, links too."""
    whole = LayerRange(0, model.layer_count)
    needed = stage_cost(model, whole, options.context_tokens, options.lanes).total_bytes
    places: list[dict[str, Any]] = [
        {
            "where": where,
            "offered_bytes": offered,
            "fits_whole": needed <= offered,
            "layers": _layers_that_fit(model, offered, options) if is_cuttable or needed <= offered else 0,
        }
        for where, offered in _places(options.home)
    ]
    return {
        "context_tokens": options.context_tokens,
        "lanes": options.lanes,
        "needed_bytes": needed,
        "needed": format_size(needed),
        "is_enough_together": sum(place["layers"] for place in places) >= model.layer_count,
        "places": places,
    }


def _places(home: Path) -> list[tuple[str, int]]:
    """This machine, or the running node of the home and the peers that it sees."""
    try:
        status = fetch_status(home)
        own = ("this node", int(status["free_bytes"]))
        others = [(str(peer["name"] or peer["peer_id"]), int(peer["free_bytes"])) for peer in status["peers"]]
    except (P2PMeshError, KeyError, TypeError, ValueError):  # no node, or one that is not up yet
        return [("this machine", offered_memory_bytes(None))]
    return [own, *others]


def _layers_that_fit(model: ModelBytes, offered: int, options: ModelsOptions) -> int:
    """The longest range from the first layer on that fits into ``offered`` bytes."""
    most = 0
    for count in range(1, model.layer_count + 1):
        if stage_cost(model, LayerRange(0, count), options.context_tokens, options.lanes).total_bytes > offered:
            break
        most = count
    return most
