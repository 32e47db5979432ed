"""Which model of this machine a reference means, or what has to be fetched for it.

Owns the order in which places are looked through: a path that exists, the home's own models, installed packages, files
fetched from the hub, the catalog, the hub. Nothing is opened here; contents are ``model_store``'s, fetching ``hub``'s.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.hub_cache import FetchedModel, HubCache
from p2pmesh.adapters.model_folder import incomplete_in, models_in
from p2pmesh.adapters.model_packages import PackagedModel
from p2pmesh.adapters.model_source import paths_of_model
from p2pmesh.adapters.package_files import is_package, usable_manifest
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.model.catalog import find_in_catalog
from p2pmesh.model.reference import (
    HUB_HOSTS,
    HUB_SCHEME,
    HubReference,
    NameReference,
    PathReference,
    Reference,
    parse_reference,
)
from p2pmesh.model.shards import parse_part_name

_MAX_SHOWN_CHARACTERS = 200
_MAX_SHOWN_NAMES = 20
_MAX_PACKAGES = 256
PIP_SOURCE = "pip"


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model by name: its (first) file, or the parts it has yet to be joined from; ``source`` says where it is of."""

    name: str
    path: Path
    package: PackagedModel | None = None
    source: str = ""

    @property
    def place(self) -> Path:
        """Where it lies now: the first of packaged parts that were not joined yet."""
        return self.path if self.package is None or _exists(self.path) else self.package.parts[0]


class ModelNames:
    """The names of one home."""

    def __init__(
        self,
        models_directory: Path,
        joined_directory: Path,
        packages: Callable[[], tuple[PackagedModel, ...]],
        hub_cache: HubCache,
        hub_hosts: tuple[str, ...] = HUB_HOSTS,
    ) -> None:
        self._home_models = models_directory
        self._joined = joined_directory
        self._packages = packages
        self._hub_cache = hub_cache
        self._hub_hosts = hub_hosts

    def all(self) -> tuple[NamedModel, ...]:
        """Everything that has a name, in the order of the places; equal names of several places all listed."""
        return tuple(named for place in self._places() for named in place)

    def in_home(self) -> tuple[NamedModel, ...]:
        """Those that the owner put into the home."""
        return tuple(self._in_home())

    def incomplete(self) -> tuple[tuple[Path, tuple[str, ...]], ...]:
        """Of models in the home that lack parts the first that is there, and which are missing."""
        found = incomplete_in(self._home_models)
        return tuple((self._home_models.joinpath(*model.files[0].split("/")), model.missing) for model in found)

    def find(self, text: str) -> NamedModel | HubReference:
        """The model, or the part of the hub that must be fetched first.

        Raises ``ConfigError``: ``CONFIG_INVALID`` for what is no reference, ``MODEL_NOT_FOUND`` (listing candidates for
        a name that means several), ``MODEL_NOT_A_FILE``.
        """
        path = Path(text)
        if files.stamp_of(path) is not None:
            return _named_file(path.absolute())
        if _exists(path):
            return _layer_package(path.absolute()) if is_package(path) else self._refuse_place(path, text)
        exact = [named for place in self._places() for named in place if named.name == text]
        if len({named.path for named in exact}) == 1:
            return exact[0]
        return self._find_reference(parse_reference(text, self._hub_hosts), text)

    def find_on_hub(self, text: str) -> HubReference | None:
        """The part of the hub that ``text`` means, whether it was fetched before or not; ``None`` for other models."""
        if _exists(Path(text)):
            return None
        reference = parse_reference(text, self._hub_hosts)
        if isinstance(reference, NameReference):
            is_here = any(_matching(place, reference.name) for place in self._places())
            return None if is_here and reference == NameReference(reference.name) else find_in_catalog(reference)
        return reference if isinstance(reference, HubReference) else None

    def _find_reference(self, reference: Reference, text: str) -> NamedModel | HubReference:
        match reference:
            case PathReference(given):
                return self._find_path(given, text)
            case NameReference():
                return self._find_name(reference)
            case HubReference():
                return self._find_in_hub(reference)

    def _find_path(self, given: str, text: str) -> NamedModel:
        if given.startswith("~"):
            try:
                path = Path(given).expanduser()
            except RuntimeError:  # no such user
                path = Path(given)
            if files.stamp_of(path) is not None:
                return _named_file(path.absolute())
            if _exists(path):
                return _layer_package(path.absolute()) if is_package(path) else self._refuse_place(path, text)
        raise self._unknown(text)

    def _find_name(self, wanted: NameReference) -> NamedModel | HubReference:
        if wanted.quant is None and wanted.revision is None:
            for place in self._places():
                found = _matching(place, wanted.name)
                if len({named.path for named in found}) > 1:
                    raise _ambiguous(wanted.name, found)
                if found:
                    return found[0]
        in_catalog = find_in_catalog(wanted)
        if in_catalog is None:
            raise self._unknown(str(wanted))
        return self._find_in_hub(in_catalog)

    def _find_in_hub(self, wanted: HubReference) -> NamedModel | HubReference:
        found = self._hub_cache.find(wanted)
        return wanted if found is None else _named_fetched(found)

    def _places(self) -> Iterable[Sequence[NamedModel]]:
        yield self._in_home()
        yield [_packaged(package, self._joined / f"{package.name}.gguf") for package in self._packages()]
        yield _newest(self._hub_cache.models())

    def _in_home(self) -> list[NamedModel]:
        folder = self._home_models
        models = [(model.name.rpartition("/")[2], model.files[0]) for model in models_in(folder)]
        return [NamedModel(name, folder.joinpath(*file.split("/"))) for name, file in models] + _layer_packages(folder)

    def _refuse_place(self, path: Path, text: str) -> NamedModel:
        kind = "a directory" if path.is_dir() else "no regular file"
        inside = [model.files[0] for model in models_in(path)][:_MAX_SHOWN_NAMES] if path.is_dir() else []
        hint = f"name the GGUF file itself, one of {', '.join(inside)}" if inside else "name the GGUF file itself"
        if _is_repository(text):
            hint += f", or write {HUB_SCHEME}{text} for the hub"
        raise ConfigError(ErrorCode.MODEL_NOT_A_FILE, f"{shown(text)} is {kind}: {hint}")

    def _unknown(self, text: str) -> ConfigError:
        names = sorted({named.name for named in self.all()})
        more = ", …" if len(names) > _MAX_SHOWN_NAMES else ""
        known = (
            ", ".join(names[:_MAX_SHOWN_NAMES]) + more if names else f"none; put a GGUF file into {self._home_models}"
        )
        return ConfigError(
            ErrorCode.MODEL_NOT_FOUND,
            f"there is no model {shown(text)}; give a path to a GGUF file, org/repo of the hub, or a name: {known}",
        )


def _is_repository(text: str) -> bool:
    try:
        return isinstance(parse_reference(text), HubReference)
    except ConfigError:
        return False


def _matching(place: Sequence[NamedModel], name: str) -> list[NamedModel]:
    """Those of this name; where there are none, those whose name differs only in the case of letters."""
    exact = [named for named in place if named.name == name]
    return exact or [named for named in place if named.name.lower() == name.lower()]


def _ambiguous(name: str, found: Sequence[NamedModel]) -> ConfigError:
    paths = ", ".join(str(named.path) for named in found[:_MAX_SHOWN_NAMES])
    return ConfigError(ErrorCode.MODEL_NOT_FOUND, f"{name} may mean {len(found)} models; type one of {paths}")


def _named_file(path: Path) -> NamedModel:
    """A model by its file; any part of several stands for all."""
    part = parse_part_name(path.name)
    return NamedModel(part.base if part is not None else path.stem, paths_of_model(path)[0])


def _layer_package(path: Path) -> NamedModel:
    """``ConfigError(PACKAGE_INVALID)`` if the manifest breaks a rule."""
    return NamedModel(usable_manifest(path).model_id, path)


def _layer_packages(folder: Path) -> list[NamedModel]:
    """Those that lie right in the folder, if it is there; a broken one is told of when it is named by its path."""
    found: list[NamedModel] = []
    with files.translated(f"cannot list {folder}"):
        if not folder.exists():
            return found
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and is_package(path))
    for path in paths[:_MAX_PACKAGES]:
        with contextlib.suppress(ConfigError):
            found.append(_layer_package(path))
    return found


def _newest(models: Iterable[FetchedModel]) -> list[NamedModel]:
    """Of several commits of one repository, a name means the file of the one that was asked for last."""
    named: dict[tuple[str, str], NamedModel] = {}
    for model in models:
        named.setdefault((model.source.partition("@")[0], model.name), _named_fetched(model))
    return list(named.values())


def _named_fetched(model: FetchedModel) -> NamedModel:
    return NamedModel(model.name, model.paths[0], source=model.source)


def _packaged(package: PackagedModel, joined: Path) -> NamedModel:
    if len(package.parts) == 1:
        return NamedModel(package.name, package.parts[0], source=PIP_SOURCE)
    return NamedModel(package.name, joined, package, source=PIP_SOURCE)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def shown(text: str) -> str:
    """``text`` on one line and not too long, for an error message."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= _MAX_SHOWN_CHARACTERS else printable[:_MAX_SHOWN_CHARACTERS] + "…"
