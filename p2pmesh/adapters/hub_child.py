"""The process that talks to the hub: one job of ``adapters.hub``, then it ends.

``huggingface_hub`` blocks, reads its settings once at import, and cannot be told to stop; a process can be. The job
comes as one JSON line on stdin; answers go out as JSON lines on stdout: ``progress``, then ``result`` or ``error``.
When stdin closes, the node is gone or wants no more, and this process ends at once.
"""

import errno
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from p2pmesh.adapters.range_download import (
    DigestMismatch,
    Passing,
    Patience,
    RangeResponse,
    Wanted,
    download,
)
from p2pmesh.base.errors import ErrorCode

PROGRESS_EVERY_S = 0.25
QUESTION_ATTEMPTS = 3
_STDIN = 0
_READ_BYTES = 65_536
_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class Failed(Exception):
    """The job cannot be done: a code and one line."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def main() -> None:
    """Reads the job, does it, writes how it went."""
    job = json.loads(_read_line())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        result = do_job(job)
    except Failed as failure:
        _say({"kind": "error", "code": failure.code.value, "message": failure.message})
    else:
        _say({"kind": "result", **result})
    sys.stdout.flush()
    os._exit(0)  # what the library left running need not be waited for


def do_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a job; ``Failed`` says why there is none."""
    return _JOBS[job["job"]](job)


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(_STDIN, _READ_BYTES)
        if not data:
            os._exit(1)
        line += data
    return line


def _end_with_stdin() -> None:
    while os.read(_STDIN, _READ_BYTES):
        continue
    os._exit(1)


def _say(line: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


# --- jobs


def _list(job: Mapping[str, Any]) -> dict[str, Any]:
    from huggingface_hub import HfApi

    def ask() -> Any:
        return HfApi(endpoint=job["endpoint"]).model_info(
            job["repository"], revision=job["revision"], files_metadata=True, timeout=job["timeout_s"]
        )

    info = _patiently(job, f"{job['repository']}@{job['revision'] or 'main'}", ask)
    files = [_describe_file(sibling) for sibling in info.siblings or ()]
    return {"commit": info.sha, "files": [file for file in files if file[0].lower().endswith(".gguf")]}


def _describe_file(sibling: Any) -> list[Any]:
    lfs = sibling.lfs or {}
    digest = lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)
    return [sibling.rfilename, sibling.size, digest]


def _search(job: Mapping[str, Any]) -> dict[str, Any]:
    from huggingface_hub import HfApi

    def ask() -> list[Any]:
        return list(
            HfApi(endpoint=job["endpoint"]).list_models(
                search=job["query"], filter="gguf", sort="downloads", limit=job["limit"]
            )
        )

    found = _patiently(job, "the search", ask)
    keys = ("id", "downloads", "likes", "last_modified", "gated", "tags")
    return {"models": [{key: _plain(getattr(model, key, None)) for key in keys} for model in found]}


def _plain(value: object) -> object:
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value[:64]]
    return str(value)


def _fetch(job: Mapping[str, Any]) -> dict[str, Any]:
    progress = _Progress()
    for name, size_bytes, digest in job["files"]:
        wanted = Wanted(Path(job["folder"]).joinpath(*name.split("/")), size_bytes, digest)
        _fetch_file(job, name, wanted, progress.note)
    progress.say()
    return {}


def _fetch_file(job: Mapping[str, Any], name: str, wanted: Wanted, note: Callable[[int], None]) -> None:
    patience = Patience(job["attempts"], job["first_wait_s"])
    try:
        download(wanted, job["connections"], _range_opener(job, name), patience, note)
    except Passing as error:
        raise _unreachable(job["endpoint"], name, str(error)) from error
    except DigestMismatch:
        raise Failed(
            ErrorCode.ARTIFACT_CORRUPT,
            f"{name} of {job['repository']} has not the sha256 that the hub tells; it was thrown away, try again",
        ) from None
    except OSError as error:
        raise _disk_failure(wanted.path.parent, error) from error


def _range_opener(job: Mapping[str, Any], name: str) -> Callable[[int, int], Any]:
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined] # public, by a lazy import

    address = hf_hub_url(job["repository"], name, revision=job["commit"], endpoint=job["endpoint"])
    # bytes as they are: a range of a compressed file would be something else
    headers = {**build_hf_headers(), "accept-encoding": "identity"}
    place = _Place(address, address)

    @contextmanager
    def open_range(start: int, end: int) -> Iterator[RangeResponse]:
        asked = place.current
        ranged = {**place.headers_for(asked, headers), "range": f"bytes={start}-{end - 1}"}
        with _translated(job, name), place.kept():
            with get_session().stream("GET", asked, headers=ranged, timeout=job["timeout_s"]) as response:
                if response.status_code >= 400 and asked != address:
                    raise Passing(f"where the hub has {name}, the answer is {response.status_code}")
                begin = _checked_start(response)
                place.current = str(response.url)
                yield _Answer(begin, response, lambda: _translated(job, name))

    return open_range


@dataclass(slots=True)
class _Place:
    """Where the bytes of a file lie: at the hub, until it has sent us elsewhere, as it does for large files.

    Asking there saves the hub a question for each range. Such an address ends some time; after any failure the hub is
    asked again.
    """

    hub: str
    current: str

    def headers_for(self, asked: str, headers: Mapping[str, str]) -> dict[str, str]:
        """``headers``, without our token for any other host than the hub."""
        is_hub = urlsplit(asked).netloc == urlsplit(self.hub).netloc
        return {name: value for name, value in headers.items() if is_hub or name.lower() != "authorization"}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The address stays as long as nothing goes wrong within."""
        try:
            yield
        except BaseException:
            self.current = self.hub
            raise


@dataclass(frozen=True, slots=True)
class _Answer:
    """A ``RangeResponse`` over the library's own."""

    start: int
    response: Any
    translated: Callable[[], AbstractContextManager[None]]

    def pieces(self) -> Iterator[bytes]:
        """The body; what breaks on the way is ``Passing``."""
        with self.translated():
            yield from self.response.iter_raw()


def _checked_start(response: Any) -> int:
    """Where the answer begins, from its status and ``Content-Range``."""
    from huggingface_hub import hf_raise_for_status

    if response.status_code >= 400:
        response.read()
    hf_raise_for_status(response)
    if response.status_code != 206:
        return 0
    told = response.headers.get("content-range", "")
    begin = told.removeprefix("bytes ").partition("-")[0]
    return int(begin) if begin.isdecimal() else -1


# --- failures


def _patiently(job: Mapping[str, Any], what: str, ask: Callable[[], Any]) -> Any:
    """The answer of a short question, asked again while that may help: somebody waits for the first word."""
    patience = Patience(min(QUESTION_ATTEMPTS, job["attempts"]), job["first_wait_s"])
    failures = 0
    while True:
        try:
            with _translated(job, what):
                return ask()
        except Passing as error:
            failures += 1
            if failures >= patience.attempts:
                raise _unreachable(job["endpoint"], what, str(error)) from error
            time.sleep(patience.wait_s(failures))


@contextmanager
def _translated(job: Mapping[str, Any], what: str) -> Iterator[None]:
    """Turns what the library raises into ``Passing`` or ``Failed``."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except (Failed, Passing, GeneratorExit):
        raise
    except HfHubHTTPError as error:
        raise _http_failure(job, what, error) from error
    except HFValidationError as error:
        raise Failed(ErrorCode.CONFIG_INVALID, f"the hub has no such name: {job['repository']}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Passing(_reason(error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2"):
            raise Passing(_reason(error)) from error
        raise


def _http_failure(job: Mapping[str, Any], what: str, error: Any) -> Exception:
    status = error.response.status_code
    if status in _PASSING_STATUSES:
        return Passing(f"it answers {status}")
    repository, endpoint = job.get("repository", ""), job["endpoint"]
    page = f"{endpoint}/{repository}"
    kind = type(error).__name__
    if status == 401 and error.response.headers.get("x-error-message", "").startswith("Invalid credentials"):
        return Failed(ErrorCode.HUB_REFUSED, f"the hub refuses the token for {what}: set a valid HF_TOKEN")
    if status == 401:
        text = f"{repository} is not on the hub, or is private: check the name, or set HF_TOKEN"
        return Failed(ErrorCode.MODEL_NOT_FOUND, text)
    if status == 403:
        return Failed(ErrorCode.HUB_REFUSED, f"{what} is gated: accept its terms at {page}, and set HF_TOKEN")
    if status == 404 and kind == "RevisionNotFoundError":
        return Failed(ErrorCode.MODEL_NOT_FOUND, f"{repository} has no revision {job.get('revision')}: see {page}")
    if status == 404:
        return Failed(ErrorCode.MODEL_NOT_FOUND, f"{what} is not on the hub at {endpoint}: check the name")
    return Failed(ErrorCode.HUB_REFUSED, f"the hub at {endpoint} answers {status} for {what}")


def _unreachable(endpoint: str, what: str, reason: str) -> Failed:
    text = f"the hub at {endpoint} cannot be reached for {what} ({reason}): check the network, or use --offline"
    return Failed(ErrorCode.HUB_UNREACHABLE, text)


def _disk_failure(folder: Path, error: OSError) -> Failed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = f"cannot write in {folder}: the disk is full; free some space, a further pull goes on from here"
        return Failed(ErrorCode.DISK_FULL, text)
    return Failed(ErrorCode.HOME_UNUSABLE, f"cannot write in {folder}: {error.strerror or error}")


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:200]


class _Progress:
    """Bytes that were written so far by this job, told a few times a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._said_at = 0.0

    def note(self, count: int) -> None:
        """Some bytes more, or less."""
        with self._lock:
            self._done_bytes += count
            now = time.monotonic()
            if now - self._said_at < PROGRESS_EVERY_S:
                return
            self._said_at = now
            _say({"kind": "progress", "done_bytes": self._done_bytes})

    def say(self) -> None:
        """The last word."""
        with self._lock:
            _say({"kind": "progress", "done_bytes": self._done_bytes})


_JOBS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "list": _list,
    "search": _search,
    "fetch": _fetch,
}

if __name__ == "__main__":
    main()
