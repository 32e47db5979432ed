"""The jobs of the process that talks to the hub, done in this process."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2pmesh.adapters.hub_child import Failed, _Place, do_job
from p2pmesh.adapters.range_download import fetched_bytes
from p2pmesh.base.errors import ErrorCode
from tests.fakes.hub_server import COMMIT, FakeHub, serving_hub

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # read when the library is imported, by the first job

BYTES = random.Random(3).randbytes(250_000)
REPOSITORY = "org/repo"
FILE = "Model-Q4_K_M.gguf"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving_hub() as served:
        served.add(REPOSITORY, **{"Model-Q4_K_M__gguf": BYTES, "README__md": b"hello"})
        yield served


def do(hub: FakeHub, **job: Any) -> dict[str, Any]:
    settings = {"endpoint": hub.url, "attempts": 3, "first_wait_s": 0.0, "timeout_s": 20.0}
    return do_job({**settings, "repository": REPOSITORY, "revision": None, **job})


def fetch(hub: FakeHub, folder: Path, digest: str | None = None, **changed: Any) -> None:
    files = [[FILE, len(BYTES), digest]]
    do(hub, job="fetch", commit=COMMIT, folder=str(folder), files=files, connections=1, **changed)


def add_big(hub: FakeHub) -> bytes:
    """A file of four requests."""
    big = random.Random(4).randbytes(1_000_000)
    hub.add(REPOSITORY, **{"Model-Q4_K_M__gguf": big})
    return big


def fetch_big(hub: FakeHub, folder: Path) -> None:
    do(hub, job="fetch", commit=COMMIT, folder=str(folder), files=[[FILE, 1_000_000, None]], connections=1)


def test_only_gguf_files_are_listed_with_what_the_hub_tells(hub: FakeHub) -> None:
    listed = do(hub, job="list")
    assert listed["commit"] == COMMIT
    ((name, size_bytes, digest),) = listed["files"]
    assert (name, size_bytes, len(digest)) == (FILE, len(BYTES), 64)


def test_cuts_and_faults_of_the_server_are_ridden_out(hub: FakeHub, tmp_path: Path) -> None:
    hub.statuses = [500, 429]
    hub.cut_after = [100_000, 50_000]
    fetch(hub, tmp_path)
    assert (tmp_path / FILE).read_bytes() == BYTES
    starts = [int(asked.removeprefix("bytes=").partition("-")[0]) for asked in hub.ranges]
    assert starts == [0, 0, 0, 100_000, 150_000]


def test_ten_cuts_cost_no_byte_twice(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after = [20_000] * 10
    fetch(hub, tmp_path)
    assert (tmp_path / FILE).read_bytes() == BYTES
    assert hub.sent_bytes == len(BYTES)


def test_the_address_of_the_bytes_is_asked_of_the_hub_once(hub: FakeHub, tmp_path: Path) -> None:
    big = add_big(hub)
    fetch_big(hub, tmp_path)
    assert (tmp_path / FILE).read_bytes() == big
    assert len(hub.ranges) == 4
    assert [path.startswith("/cdn/") for path in hub.asked] == [False, True, True, True, True]


def test_an_address_that_ends_is_asked_for_again(hub: FakeHub, tmp_path: Path) -> None:
    big = add_big(hub)
    hub.statuses = [None, None, 403]
    fetch_big(hub, tmp_path)
    assert (tmp_path / FILE).read_bytes() == big
    assert [path.startswith("/cdn/") for path in hub.asked] == [False, True, True, True, False, True, True]


def test_the_token_is_for_the_hub_alone() -> None:
    place = _Place("https://hub.example/a/resolve/b/c", "https://hub.example/a/resolve/b/c")
    headers = {"authorization": "Bearer secret", "user-agent": "x"}
    assert place.headers_for("https://hub.example/cdn/c", headers) == headers
    assert place.headers_for("https://cdn.example/c?signature=1", headers) == {"user-agent": "x"}


def test_a_server_that_falls_silent_is_given_up_and_what_came_stays(hub: FakeHub, tmp_path: Path) -> None:
    hub.gate = threading.Event()
    with pytest.raises(Failed) as raised:
        fetch(hub, tmp_path, attempts=1, timeout_s=0.2)
    assert raised.value.code is ErrorCode.HUB_UNREACHABLE
    before = fetched_bytes(tmp_path / FILE, len(BYTES))
    assert before > 0
    hub.gate.set()
    fetch(hub, tmp_path)
    assert (tmp_path / FILE).read_bytes() == BYTES
    assert hub.ranges[-1] == f"bytes={before}-{len(BYTES) - 1}"


def test_a_server_without_ranges_serves_too(hub: FakeHub, tmp_path: Path) -> None:
    hub.knows_ranges = False
    hub.cut_after = [1000]
    fetch(hub, tmp_path)
    assert (tmp_path / FILE).read_bytes() == BYTES


def test_a_wrong_digest_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(Failed) as raised:
        fetch(hub, tmp_path, "0" * 64)
    assert raised.value.code is ErrorCode.ARTIFACT_CORRUPT
    assert list(tmp_path.iterdir()) == []


def test_patience_with_a_broken_server_ends(hub: FakeHub, tmp_path: Path) -> None:
    hub.statuses = [500] * 3
    with pytest.raises(Failed) as raised:
        fetch(hub, tmp_path)
    assert raised.value.code is ErrorCode.HUB_UNREACHABLE
    assert "it answers 500" in raised.value.message


@pytest.mark.parametrize(
    ("status", "error_code", "code", "said"),
    [
        (401, None, ErrorCode.MODEL_NOT_FOUND, "not on the hub, or is private"),
        (401, "RepoNotFound", ErrorCode.MODEL_NOT_FOUND, "not on the hub, or is private"),
        (403, "GatedRepo", ErrorCode.HUB_REFUSED, "is gated: accept its terms at http://"),
        (404, None, ErrorCode.MODEL_NOT_FOUND, "not on the hub"),
        (503, None, ErrorCode.HUB_UNREACHABLE, "answers 503"),
        (418, None, ErrorCode.HUB_REFUSED, "answers 418"),
    ],
)
def test_a_refusal_of_the_hub_is_one_line(
    hub: FakeHub, status: int, error_code: str | None, code: ErrorCode, said: str
) -> None:
    hub.api_status, hub.error_code = status, error_code
    with pytest.raises(Failed) as raised:
        do(hub, job="list")
    assert raised.value.code is code
    assert said in raised.value.message
    assert "\n" not in raised.value.message


def test_a_gated_file_is_said_to_be_gated(hub: FakeHub, tmp_path: Path) -> None:
    hub.statuses, hub.error_code = [403], "GatedRepo"
    with pytest.raises(Failed) as raised:
        fetch(hub, tmp_path)
    assert raised.value.code is ErrorCode.HUB_REFUSED


def test_an_unknown_repository_and_an_unknown_revision_are_told_apart(hub: FakeHub) -> None:
    with pytest.raises(Failed, match="org/none is not on the hub"):
        do(hub, job="list", repository="org/none")
    with pytest.raises(Failed, match="no revision v9"):
        do(hub, job="list", revision="v9")


def test_a_search_asks_the_hub(hub: FakeHub) -> None:
    found = do(hub, job="search", query="REPO", limit=5)["models"]
    assert [model["id"] for model in found] == [REPOSITORY]
