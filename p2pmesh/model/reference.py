"""What an operator types to name a model: text -> reference, and back.

Owns the grammar. Whether a file, a name or a repository exists is found out by ``adapters.model_finder``; which file of
a repository is meant, by ``repository``.

=============================  ==============================================
``/models/a.gguf``, ``./a``    a path
``SmolLM2-135M-Instruct``      a name: of the local store, or of the catalog
``org/repo``                   a repository of the hub
``org/repo:Q4_K_M``            the file of this quantisation in it
``org/repo@5a1b…``             at a revision: a branch, a tag, a commit
``hf://org/repo/b.gguf``       the hub, said aloud; a file may be named
``https://huggingface.co/…``   what a browser shows
=============================  ==============================================
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from p2pmesh.base.errors import ConfigError, ErrorCode

MAX_REFERENCE_CHARACTERS = 1024
HUB_HOSTS = ("huggingface.co", "hf.co", "www.huggingface.co")
HUB_SCHEME = "hf://"

_OWNER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?\Z")
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._ +-]{0,190}[A-Za-z0-9_+])?\Z")
_QUANT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,30}[A-Za-z0-9])?\Z")
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/+-]{0,126}[A-Za-z0-9_+-])?\Z")
_PATH_STARTS = ("/", "./", "../", "~")
_GGUF_SUFFIX = ".gguf"
_MAX_SHOWN_CHARACTERS = 120
_URL_KINDS = ("tree", "blob", "resolve")


@dataclass(frozen=True, slots=True)
class PathReference:
    """A file of this machine, as typed."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class NameReference:
    """A model by a name without a folder; ``quant`` and ``revision`` only mean something to the catalog."""

    name: str
    quant: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        return self.name + _ending(self.quant, self.revision)


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository ``org/repo`` of the hub; ``quant`` or ``file`` choose in it; no ``revision`` is the main branch."""

    repository: str
    quant: str | None = None
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.repository + _ending(self.quant, self.revision)
        return f"{HUB_SCHEME}{self.repository}/{self.file}" + _ending(None, self.revision)


Reference = PathReference | NameReference | HubReference


def parse_reference(text: str, hub_hosts: tuple[str, ...] = HUB_HOSTS) -> Reference:
    """The reference that ``text`` is. Total: any other text is ``ConfigError(CONFIG_INVALID)`` with its reason.

    ``hub_hosts`` are the hosts (with a port where it is unusual) whose URLs are the hub's.
    """
    if not text or not text.isprintable():
        raise _invalid(text, "it is empty or holds control characters")
    if len(text) > MAX_REFERENCE_CHARACTERS:
        raise _invalid(text, f"it has {len(text)} characters, {MAX_REFERENCE_CHARACTERS} are possible")
    if text.startswith(HUB_SCHEME):
        return _parse_hub(text, text.removeprefix(HUB_SCHEME))
    if "://" in text:
        return _parse_url(text, hub_hosts)
    if text.startswith(_PATH_STARTS) or text.lower().endswith(_GGUF_SUFFIX):
        return PathReference(text)
    if "/" in text:
        return _parse_hub(text, text)
    return _parse_name(text)


def _parse_name(text: str) -> NameReference:
    name, quant, revision = _split_ending(text, text)
    if not _NAME.match(name):
        raise _invalid(text, "a name has letters, digits, and . _ - + inside; a path begins with / or ./")
    return NameReference(name, quant, revision)


def _parse_hub(text: str, rest: str) -> HubReference:
    body, quant, revision = _split_ending(text, rest)
    parts = body.removesuffix("/").split("/")
    if len(parts) < 2:
        raise _invalid(text, "a repository has two parts, org/repo")
    repository, file = _repository(text, parts[:2]), "/".join(parts[2:]) or None
    if file is not None and not text.startswith(HUB_SCHEME):
        raise _invalid(text, f"a file of the hub is written {HUB_SCHEME}{repository}/FILE.gguf, a path begins with ./")
    if file is not None:
        _check_file(text, file)
    if file is not None and quant is not None:
        raise _invalid(text, "it names a file and a quantisation; one is enough")
    return HubReference(repository, quant, revision, file)


def _parse_url(text: str, hub_hosts: tuple[str, ...]) -> HubReference:
    try:
        url = urlsplit(text)
        is_http, host = url.scheme in ("http", "https"), url.netloc.lower()
    except ValueError:
        raise _invalid(text, "it is no URL") from None
    if not is_http or host not in hub_hosts:
        raise _invalid(text, f"only URLs of the hub ({hub_hosts[0]}) are understood; download it and give its path")
    parts = [unquote(part) for part in url.path.split("/") if part]
    if len(parts) < 2:
        raise _invalid(text, "it names no repository; a model's page is https://HOST/org/repo")
    repository = _repository(text, parts[:2])
    if len(parts) == 2:
        return HubReference(repository)
    if parts[2] not in _URL_KINDS or len(parts) < 4:
        raise _invalid(text, f"behind the repository, /{'/, /'.join(_URL_KINDS)}/REVISION may follow")
    file = "/".join(parts[4:]) or None
    if parts[2] == "tree":
        file = None  # a folder of the repository: the choice is left to the rules
    elif file is None:
        raise _invalid(text, "it names no file behind the revision")
    if file is not None:
        _check_file(text, file)
    return HubReference(repository, None, _revision(text, parts[3]), file)


def _split_ending(text: str, rest: str) -> tuple[str, str | None, str | None]:
    """What is before ``:QUANT@REVISION``, and both."""
    body, at, revision = rest.partition("@")
    body, colon, quant = body.partition(":")
    if colon and not _QUANT.match(quant):
        raise _invalid(text, "behind : comes a quantisation such as Q4_K_M")
    return body, quant if colon else None, _revision(text, revision) if at else None


def _revision(text: str, revision: str) -> str:
    if not _REVISION.match(revision) or ".." in revision or "//" in revision:
        raise _invalid(text, "behind @ comes a branch, a tag or a commit")
    return revision


def _repository(text: str, parts: list[str]) -> str:
    if not all(_OWNER.match(part) and ".." not in part and "--" not in part for part in parts):
        raise _invalid(text, "a repository is written org/repo, with letters, digits and . _ - inside")
    return "/".join(parts)


def _check_file(text: str, file: str) -> None:
    parts = file.split("/")
    if any(part in ("", ".", "..") for part in parts) or not file.isprintable() or "\\" in file:
        raise _invalid(text, "the file's path inside the repository makes no sense")
    if not file.lower().endswith(_GGUF_SUFFIX):
        raise _invalid(text, "the file must be a GGUF file, ending in .gguf")
    if ":" in file or "@" in file:
        raise _invalid(text, "the file's path holds : or @, which mean something else here")


def _ending(quant: str | None, revision: str | None) -> str:
    return (f":{quant}" if quant is not None else "") + (f"@{revision}" if revision is not None else "")


def _invalid(text: str, reason: str) -> ConfigError:
    shown = "".join(character if character.isprintable() else "?" for character in text[:_MAX_SHOWN_CHARACTERS])
    return ConfigError(ErrorCode.CONFIG_INVALID, f"{shown!r} names no model: {reason}")
