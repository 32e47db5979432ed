"""Which model of a repository is meant: the files' names, and what was asked for -> one model's files.

Pure and total: an answer, or one line that lists what could have been meant and how to say it. Where the names come
from (the hub, a folder) is the caller's business.
"""

import re
from collections.abc import Iterable

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.model.reference import HUB_SCHEME, HubReference
from p2pmesh.model.shards import ModelFiles, group_files

PREFERRED_QUANTS = (
    "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "UD-Q4_K_XL", "MXFP4", "MXFP4_MOE", "Q5_K_M", "Q5_K_S",
    "Q5_0", "Q5_1", "Q6_K", "Q8_0", "Q3_K_M", "BF16", "F16", "F32",
)  # fmt: skip
"""What is taken where nothing was asked for: the field's usual compromise first."""

_QUANT = re.compile(
    r"(?:^|[-._/ ])((?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))(?=$|[-._/ ])",
    re.IGNORECASE,
)
_NOT_MODELS = ("mmproj", "imatrix")
_MAX_SHOWN = 12


def is_model_file(name: str) -> bool:
    """Whether a GGUF file is a language model by its name: no projector, no importance matrix, nothing hidden."""
    base = name.rpartition("/")[2].lower()
    return base.endswith(".gguf") and not base.startswith(".") and not any(word in base for word in _NOT_MODELS)


def quant_of(name: str) -> str | None:
    """The quantisation that a model's name tells, as it is written there; the last one where it tells several."""
    found = _QUANT.findall(name)
    return found[-1] if found else None


def models_among(names: Iterable[str]) -> tuple[ModelFiles, ...]:
    """The language models among a repository's files, sorted by name."""
    return group_files(name for name in names if is_model_file(name))


def choose_model(names: Iterable[str], wanted: HubReference) -> ModelFiles:
    """The one model that ``wanted`` means; ``ConfigError(MODEL_NOT_FOUND)`` lists the candidates otherwise."""
    models = models_among(names)
    if not models:
        raise _not_found(f"{wanted.repository} holds no GGUF model; its GGUF version may be another repository")
    chosen = _candidates(models, wanted)
    if not chosen:
        what = wanted.file or wanted.quant
        raise _not_found(f"{wanted.repository} has no {what}; it has {_choices(models, wanted)}")
    if len(chosen) > 1:
        raise _not_found(f"{wanted} may mean {len(chosen)} models; type one of {_choices(chosen, wanted)}")
    if chosen[0].missing:
        raise _not_found(f"{chosen[0].name} is incomplete in {wanted.repository}: {', '.join(chosen[0].missing[:3])}")
    return chosen[0]


def _candidates(models: tuple[ModelFiles, ...], wanted: HubReference) -> tuple[ModelFiles, ...]:
    if wanted.file is not None:
        return tuple(model for model in models if wanted.file in model.files)
    if wanted.quant is not None:
        return _of_quant(models, wanted.quant)
    if len(models) == 1:
        return models
    for quant in PREFERRED_QUANTS:
        found = _of_quant(models, quant)
        if found:
            return found
    return models


def _of_quant(models: tuple[ModelFiles, ...], quant: str) -> tuple[ModelFiles, ...]:
    """Those whose name tells this quantisation, in any case; otherwise those whose name ends in it."""
    sought = quant.lower()
    exact = tuple(model for model in models if (quant_of(model.name) or "").lower() == sought)
    return exact or tuple(model for model in models if re.search(rf"[-._/]{re.escape(sought)}\Z", model.name.lower()))


def _choices(models: tuple[ModelFiles, ...], wanted: HubReference) -> str:
    """What to type for each, by quantisation where that is enough."""
    quants = [quant_of(model.name) for model in models]
    typed = []
    for model, quant in zip(models, quants, strict=True):
        is_enough = quant is not None and quants.count(quant) == 1
        typed.append(
            f"{wanted.repository}:{quant}" if is_enough else f"{HUB_SCHEME}{wanted.repository}/{model.files[0]}"
        )
    more = f" and {len(typed) - _MAX_SHOWN} more" if len(typed) > _MAX_SHOWN else ""
    return ", ".join(typed[:_MAX_SHOWN]) + more


def _not_found(message: str) -> ConfigError:
    return ConfigError(ErrorCode.MODEL_NOT_FOUND, message)
