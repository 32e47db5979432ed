"""The hub for trio: what a repository holds, finding one, fetching a model of it into the home's cache.

Each call is one child process (``hub_child``), which is killed when the caller is cancelled or its deadline passes:
the library underneath blocks and cannot be interrupted. What was fetched until then stays and is gone on with. Owns
the order of a fetch (list, choose, check the disk, fetch, remember the commit); layout on disk is ``hub_cache``'s.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

import trio

from p2pmesh.adapters import model_files as files
from p2pmesh.adapters.child_environment import child_environment
from p2pmesh.adapters.hub_cache import FetchedModel, HubCache, HubFile, HubRecord, is_commit, parse_file
from p2pmesh.adapters.range_download import fetched_bytes
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, Refused
from p2pmesh.base.quantities import KIB, MIB
from p2pmesh.model.reference import HUB_HOSTS, HubReference
from p2pmesh.model.repository import choose_model

DEFAULT_ENDPOINT = "https://huggingface.co"
ENDPOINT_VARIABLE = "HF_ENDPOINT"
OFFLINE_VARIABLE = "HF_HUB_OFFLINE"
MAX_SEARCH_RESULTS = 100
QUESTION_DEADLINE_S = 300.0
"""Of a node, which may wait for a hub that is slow."""
COMMAND_QUESTION_DEADLINE_S = 30.0
"""The same, of a command."""
SEARCH_DEADLINE_S = 15.0
"""In all: somebody sits before it, and a search costs nothing to ask again."""
SILENCE_S = 600.0
"""A fetch that tells nothing for so long is given up; the child's own patience is far shorter."""
RATE_WINDOW_S = 15.0
_MAX_LINE_BYTES = 8 * MIB
_MAX_ERROR_BYTES = 16 * KIB
_TRUE = frozenset({"1", "on", "yes", "true"})

_CHILD = (sys.executable, "-m", "p2pmesh.adapters.hub_child")


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Where the hub is, and how patient to be. ``connections`` are per file, waits double from ``first_wait_s``, and
    what a repository holds is told within ``question_s`` or not at all."""

    endpoint: str = DEFAULT_ENDPOINT
    is_offline: bool = False
    connections: int = 4
    attempts: int = 6
    first_wait_s: float = 1.0
    timeout_s: float = 30.0
    question_s: float = QUESTION_DEADLINE_S
    offline_by: str = "--offline"
    """What set ``is_offline``."""

    def hosts(self) -> tuple[str, ...]:
        """Hosts whose URLs mean this hub."""
        own = urlsplit(self.endpoint).netloc.lower()
        return HUB_HOSTS if own in HUB_HOSTS else (own,)


def hub_settings(endpoint: str | None, is_offline: bool, environment: Mapping[str, str]) -> HubSettings:
    """What was typed, else ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE``; ``ConfigError(CONFIG_INVALID)`` for no URL."""
    chosen = (endpoint or environment.get(ENDPOINT_VARIABLE) or DEFAULT_ENDPOINT).rstrip("/")
    try:
        url = urlsplit(chosen)
        is_usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        is_usable = False
    if not is_usable or not chosen.isprintable():
        where = "--hub-endpoint" if endpoint else ENDPOINT_VARIABLE
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"{where} must be a URL such as {DEFAULT_ENDPOINT}")
    offline = is_offline or environment.get(OFFLINE_VARIABLE, "").lower() in _TRUE
    return HubSettings(chosen, offline, offline_by=OFFLINE_VARIABLE if offline and not is_offline else "--offline")


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """How far a fetch is. ``rate_bytes_per_s`` is that of the last seconds; ``left_s`` None while it is unknown."""

    model: str
    done_bytes: int
    total_bytes: int
    rate_bytes_per_s: int
    left_s: int | None


Watch = Callable[[TransferProgress], None]


class Hub:
    """The hub of one home."""

    def __init__(self, cache: HubCache, settings: HubSettings, *, disk: files.Disk | None = None) -> None:
        self.cache = cache
        self.settings = settings
        self._disk = disk if disk is not None else files.Disk()

    async def list_files(self, repository: str, revision: str | None) -> HubRecord:
        """What the hub says of a revision, remembered; its commit is what everything else is about.

        Raises ``Refused`` (``HUB_UNREACHABLE``, ``HUB_REFUSED``, ``MODEL_NOT_FOUND``).
        """
        job = {"job": "list", "repository": repository, "revision": revision}
        answer = await self._ask(job, self.settings.question_s)
        commit = answer.get("commit")
        if not isinstance(commit, str) or not is_commit(commit):
            raise Refused(ErrorCode.HUB_REFUSED, f"the hub at {self.settings.endpoint} tells no commit of {repository}")
        listed = (parse_file(*entry) for entry in answer["files"])
        record = HubRecord(
            repository, commit, (revision or "main",), tuple(file for file in listed if file is not None)
        )
        await trio.to_thread.run_sync(self.cache.remember, record)
        return record

    async def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """Repositories with GGUF files, those downloaded most first."""
        answer = await self._ask(
            {"job": "search", "query": query, "limit": min(limit, MAX_SEARCH_RESULTS)}, SEARCH_DEADLINE_S
        )
        return list(answer["models"])

    async def fetch(self, wanted: HubReference, watch: Watch) -> FetchedModel:
        """The model, whole and checked, in the cache; what is here already is not fetched again.

        Raises ``Refused`` (as ``list_files``, ``DISK_FULL``, ``ARTIFACT_CORRUPT``), ``ConfigError(MODEL_NOT_FOUND)``
        where the repository has no such model or several.
        """
        record = await self.list_files(wanted.repository, wanted.revision)
        chosen = choose_model((file.path for file in record.files), wanted)
        wanted_files = [self._sized(record, name) for name in chosen.files]
        await self._fetch_files(record, chosen.name.rpartition("/")[2], wanted_files, watch)
        exact = HubReference(record.repository, None, record.commit, chosen.files[0])
        found = self.cache.find(exact)
        if found is None:
            raise Refused(ErrorCode.ARTIFACT_UNKNOWN, f"{exact} vanished right after it was fetched")
        return found

    def _sized(self, record: HubRecord, name: str) -> HubFile:
        file = next(file for file in record.files if file.path == name)
        if file.size_bytes is None:
            text = f"the hub at {self.settings.endpoint} does not tell how long {name} is"
            raise Refused(ErrorCode.HUB_REFUSED, text)
        return file

    async def _fetch_files(self, record: HubRecord, model: str, wanted: list[HubFile], watch: Watch) -> None:
        folder = self.cache.folder_of(record.repository, record.commit)
        paths = {file: self.cache.path_of(record, file.path) for file in wanted}
        total = sum(file.size_bytes or 0 for file in wanted)
        here = sum(fetched_bytes(path, file.size_bytes or 0) for file, path in paths.items())
        missing = [file for file in wanted if not paths[file].exists()]
        meter = _Meter(model, here, total, watch)
        meter.note(0)
        if not missing:
            return
        with files.translated(f"cannot use {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        files.require_free(folder, total - here, self._disk)
        job = {
            "job": "fetch",
            "repository": record.repository,
            "commit": record.commit,
            "folder": str(folder),
            "files": [[file.path, file.size_bytes, file.digest] for file in missing],
            "connections": self.settings.connections,
        }
        async with self._child(job) as answers:
            await _follow(answers, meter.note)

    # --- the child

    async def _ask(self, job: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        try:
            with trio.fail_after(deadline_s):
                async with self._child(job) as answers:
                    return await _follow(answers, lambda count: None)
        except trio.TooSlowError:
            where = self.settings.endpoint
            text = f"the hub at {where} did not answer within {deadline_s:.0f} s: is it reachable from here? try again"
            raise Refused(ErrorCode.HUB_UNREACHABLE, text) from None

    @asynccontextmanager
    async def _child(self, job: dict[str, Any]) -> AsyncIterator["_Answers"]:
        """One job; however this scope ends, the process is gone."""
        if self.settings.is_offline:
            what = job.get("repository") or "a search"
            raise Refused(ErrorCode.HUB_UNREACHABLE, f"{what} needs the hub, and {self.settings.offline_by} forbids it")
        settings = self.settings
        line = {
            **job,
            "endpoint": settings.endpoint,
            "attempts": settings.attempts,
            "first_wait_s": settings.first_wait_s,
            "timeout_s": settings.timeout_s,
        }
        with tempfile.TemporaryFile() as errors:
            process = await trio.lowlevel.open_process(
                list(_CHILD),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C on a terminal is for the node, which drains
                env=_environment(settings),
            )
            try:
                assert process.stdin is not None
                await process.stdin.send_all(json.dumps(line).encode() + b"\n")
                yield _Answers(process, errors)
            finally:
                await _end(process)


def _environment(settings: HubSettings) -> dict[str, str]:
    """Ours, with what the library reads at its import: our endpoint, and nothing told or shown beside the job."""
    return {
        **child_environment(),
        ENDPOINT_VARIABLE: settings.endpoint,
        OFFLINE_VARIABLE: "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }


async def _end(process: trio.Process) -> None:
    with trio.CancelScope(shield=True):
        process.kill()
        await process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                await pipe.aclose()


class _Answers:
    """Lines of a child."""

    def __init__(self, process: trio.Process, errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self._buffer = bytearray()

    async def next_line(self) -> dict[str, Any]:
        """The next answer; ``Refused(INTERNAL)`` where the child died."""
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            piece = await self._process.stdout.receive_some(64 * KIB)
            if not piece or len(self._buffer) > _MAX_LINE_BYTES:
                raise self._death()
            self._buffer += piece
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _death(self) -> P2PMeshError:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _MAX_ERROR_BYTES))
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        return Refused(ErrorCode.INTERNAL, f"the process that talks to the hub ended: {last[0][:300]}")


async def _follow(answers: _Answers, note: Callable[[int], None]) -> dict[str, Any]:
    """The result; progress on the way goes to ``note``. Raises what the child says went wrong."""
    while True:
        with trio.move_on_after(SILENCE_S) as scope:
            answer = await answers.next_line()
        if scope.cancelled_caught:
            raise Refused(ErrorCode.HUB_UNREACHABLE, f"nothing came from the hub for {SILENCE_S:.0f} s: try again")
        match answer["kind"]:
            case "progress":
                note(answer["done_bytes"])
            case "result":
                return answer
            case _:
                raise _raised(ErrorCode(answer["code"]), answer["message"])


def _raised(code: ErrorCode, message: str) -> P2PMeshError:
    is_operators = code in (ErrorCode.MODEL_NOT_FOUND, ErrorCode.CONFIG_INVALID, ErrorCode.HOME_UNUSABLE)
    return ConfigError(code, message) if is_operators else Refused(code, message)


class _Meter:
    """Turns bytes that came into progress with a rate over the last seconds."""

    def __init__(self, model: str, here_bytes: int, total_bytes: int, watch: Watch) -> None:
        self._model = model
        self._here_bytes = here_bytes
        self._total_bytes = total_bytes
        self._watch = watch
        self._seen: deque[tuple[float, int]] = deque(maxlen=256)

    def note(self, fetched: int) -> None:
        """``fetched`` bytes came since the start, less what had to be thrown away."""
        now = time.monotonic()
        self._seen.append((now, fetched))
        while now - self._seen[0][0] > RATE_WINDOW_S:
            self._seen.popleft()
        first_at, first = self._seen[0]
        rate = int((fetched - first) / (now - first_at)) if now > first_at and fetched > first else 0
        done = min(self._total_bytes, max(0, self._here_bytes + fetched))
        left = -(-(self._total_bytes - done) // rate) if rate else None
        self._watch(TransferProgress(self._model, done, self._total_bytes, rate, left))
