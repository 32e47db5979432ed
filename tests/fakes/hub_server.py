"""A small hub on loopback: repositories of files, served as the real one serves them, with faults on request.

``GET /api/models/<repo>[/revision/<rev>]``, ``GET /api/models?search=``, and ``/<repo>/resolve/<rev>/<file>``, which
redirects to ``/cdn/…`` as for large files, where ranges are served.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" * 6 + "c0ff"
OTHER_COMMIT = "beef" * 10
GATE_TIMEOUT_S = 60.0
"""For whoever forgets to open a gate; longer than any client here waits."""
_PIECE_BYTES = 16 * 1024


@dataclass
class FakeHub:
    """What the server has, how it misbehaves, what it was asked. Faults are used up as they happen."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commit: str = COMMIT
    url: str = ""
    statuses: list[int | None] = field(default_factory=list)
    """Answered to the next requests for files' bytes instead; ``None`` for one that goes well."""
    api_status: int | None = None
    error_code: str | None = None
    cut_after: list[int] = field(default_factory=list)
    """The next connections end after so many bytes."""
    knows_ranges: bool = True
    lies_about_digest: bool = False
    gate: threading.Event | None = None
    """Each connection stops after its first piece until this is set."""
    has_sent: threading.Event = field(default_factory=threading.Event)
    sent_bytes: int = 0
    watched_bytes: int | None = None
    """``has_reached`` is set when so many bytes were sent."""
    has_reached: threading.Event = field(default_factory=threading.Event)
    ranges: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def add(self, repository: str, **files: bytes) -> None:
        """A repository with these files (``__`` in a name stands for a dot)."""
        self.files[repository] = {name.replace("__", "."): data for name, data in files.items()}

    def watch(self, sent_bytes: int) -> threading.Event:
        """An event that is set when so many bytes were sent in all."""
        self.has_reached, self.watched_bytes = threading.Event(), sent_bytes
        return self.has_reached

    def note_sent(self, count: int) -> None:
        """So many bytes more; the server's lock is held."""
        self.sent_bytes += count
        self.has_sent.set()
        if self.watched_bytes is not None and self.sent_bytes >= self.watched_bytes:
            self.has_reached.set()


@contextmanager
def serving_hub() -> Iterator[FakeHub]:
    """A hub while the scope lasts."""
    hub = FakeHub()
    server = _HubServer(hub)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        if hub.gate is not None:
            hub.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


@lru_cache(maxsize=64)
def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _HubServer(ThreadingHTTPServer):
    """One thread per connection; ``lock`` is for what several of them change in ``hub``."""

    daemon_threads = True

    def __init__(self, hub: FakeHub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: _HubServer
    protocol_version = "HTTP/1.1"

    @property
    def _hub(self) -> FakeHub:
        return self.server.hub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def handle(self) -> None:
        with suppress(ConnectionResetError):  # a client that was killed
            super().handle()

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        with self.server.lock:
            self._hub.asked.append(self.path)
        try:
            if path == "/api/models":
                self._search()
            elif path.startswith("/api/models/"):
                self._describe(path.removeprefix("/api/models/"))
            elif path.startswith("/cdn/"):
                self._send_file(path.removeprefix("/cdn/"))
            elif "/resolve/" in path:
                self._redirect(path)
            else:
                self._send_json(404, {})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _search(self) -> None:
        query = parse_qs(urlsplit(self.path).query).get("search", [""])[0].lower()
        found = [name for name in self._hub.files if query in name.lower()]
        self._send_json(200, [{"id": name, "downloads": 7, "likes": 1, "tags": ["gguf"]} for name in found])

    def _describe(self, rest: str) -> None:
        repository, _, revision = rest.partition("/revision/")
        if self._hub.api_status is not None:
            self._send_json(self._hub.api_status, {"error": "no"}, self._hub.error_code)
        elif repository not in self._hub.files:
            self._send_json(401, {"error": "Repository not found"}, "RepoNotFound")
        elif revision not in ("", "main", self._hub.commit):
            self._send_json(404, {"error": "Invalid rev id"}, "RevisionNotFound")
        else:
            siblings = [self._sibling(name, data) for name, data in self._hub.files[repository].items()]
            self._send_json(200, {"id": repository, "sha": self._hub.commit, "siblings": siblings})

    def _sibling(self, name: str, data: bytes) -> dict[str, Any]:
        digest = "0" * 64 if self._hub.lies_about_digest else _digest(data)
        lfs = {"sha256": digest, "size": len(data), "pointerSize": 130}
        return {"rfilename": name, "size": len(data), "blobId": digest[:40], "lfs": lfs}

    def _redirect(self, path: str) -> None:
        self.send_response(302)
        self.send_header("Location", "/cdn" + path)
        self.send_header("X-Repo-Commit", self._hub.commit)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_file(self, path: str) -> None:
        match = re.fullmatch(r"(.+)/resolve/([^/]+)/(.+)", path)
        data = self._hub.files.get(match[1], {}).get(match[3]) if match else None
        if data is None:
            self._send_json(404, {"error": "Entry not found"}, "EntryNotFound")
            return
        with self.server.lock:
            status = self._hub.statuses.pop(0) if self._hub.statuses else None
            cut = self._hub.cut_after.pop(0) if self._hub.cut_after and status is None else None
            self._hub.ranges.append(self.headers.get("Range", ""))
        if status is not None:
            self._send_json(status, {"error": "fault"}, self._hub.error_code)
            return
        self._send_bytes(data, cut)

    def _send_bytes(self, data: bytes, cut: int | None) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = 0, len(data)
        if asked and self._hub.knows_ranges:
            start, end = int(asked[1]), min(len(data), int(asked[2] or len(data)) + 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{_digest(data)}"')
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        self._send_pieces(data[start:end], cut)

    def _send_pieces(self, data: bytes, cut: int | None) -> None:
        limit = len(data) if cut is None else min(cut, len(data))
        for offset in range(0, limit, _PIECE_BYTES):
            piece = data[offset : min(limit, offset + _PIECE_BYTES)]
            self.wfile.write(piece)
            with self.server.lock:
                self._hub.note_sent(len(piece))
            gate = self._hub.gate
            if gate is not None:
                gate.wait(GATE_TIMEOUT_S)
        if limit < len(data):
            self.close_connection = True

    def _send_json(self, status: int, value: object, error_code: str | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if error_code is not None:
            self.send_header("X-Error-Code", error_code)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
