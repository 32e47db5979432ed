"""The model store on a real directory: names, bad files, cuts, received stages, and what survives what."""

import errno
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest
import trio

from p2pmesh.adapters import model_files
from p2pmesh.adapters.hub_cache import HubCache
from p2pmesh.adapters.model_ledger import ModelLedger
from p2pmesh.adapters.model_packages import DEMO_MODEL, PackagedModel, installed_models
from p2pmesh.adapters.model_source import ChunkedSource
from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.adapters.partial_files import MAX_PARTIAL_FILES
from p2pmesh.adapters.stage_cache import StageCache
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.base.ids import Digest, LayerRange
from p2pmesh.model.cost import decode_reads
from p2pmesh.ports.models import ModelFile, ModelStore, StageArtifact, StageReads
from p2pmesh.wire.pieces import PieceList
from tests.fakes.models import pieces_of
from tests.fakes.tiny_gguf import encode_gguf, text, tiny_gemma3, tiny_llama
from tests.model.stages import stage_of

LLAMA = tiny_llama()
GEMMA = tiny_gemma3()
MIDDLE = LayerRange(1, 3)


def sha256(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


class Home:
    """A home directory, and stores on it as a node would make them, one after the other."""

    def __init__(self, root: Path) -> None:
        self.models = root / "models"
        self.cache = root / "cache"
        self.stages = self.cache / "stages"
        self.models.mkdir()

    def add(self, name: str, data: bytes) -> Path:
        path = self.models / name
        path.write_bytes(data)
        return path

    def store(
        self,
        *,
        packages: tuple[PackagedModel, ...] = (),
        quota_bytes: int = 2**40,
        disk: model_files.Disk | None = None,
    ) -> DiskModelStore:
        return DiskModelStore(self.models, self.cache, packages=lambda: packages, quota_bytes=quota_bytes, disk=disk)

    def partial(self) -> set[str]:
        """Names of all that broken transfers left."""
        return {path.name for path in (self.cache / "partial").iterdir()}

    def kept(self) -> set[str]:
        """Names of everything in the stage directory, temporary files included."""
        return {path.name for path in self.stages.iterdir()}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


async def error_of(call: Awaitable[object]) -> P2PMeshError:
    with pytest.raises(P2PMeshError) as caught:
        await call
    assert "\n" not in str(caught.value)
    return caught.value


async def bytes_of(
    store: DiskModelStore, artifact: StageArtifact, offset: int = 0, size_bytes: int | None = None
) -> list[bytes]:
    pieces: list[bytes] = []

    async def sink(piece: bytes) -> None:
        pieces.append(piece)

    await store.read_artifact(
        artifact, offset, artifact.size_bytes - offset if size_bytes is None else size_bytes, sink
    )
    return pieces


OnDisk = ModelFile | StageArtifact


def content(file: OnDisk) -> bytes:
    return Path(file.path).read_bytes()


def inode_of(file: OnDisk) -> int:
    return Path(file.path).stat().st_ino


def is_there(file: OnDisk) -> bool:
    return Path(file.path).exists()


def damage(file: OnDisk) -> None:
    """Changes the last byte, and the time of the last change beyond doubt."""
    Path(file.path).write_bytes(content(file)[:-1] + b"!")
    os.utime(file.path, ns=(1, 1))


def as_port(store: DiskModelStore) -> ModelStore:
    """The type checker's word that the store is what the node asks for."""
    return store


# --- resolve


async def test_a_path_is_a_model_named_by_its_stem(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "my.model.gguf"
    path.write_bytes(LLAMA)
    model = await as_port(home.store()).resolve(str(path))
    assert (model.name, model.path, model.size_bytes) == ("my.model", str(path), len(LLAMA))
    assert model.digest == sha256(LLAMA)
    assert model.index.layer_count == 4


async def test_a_file_in_the_home_has_a_name(home: Home) -> None:
    path = home.add("small.gguf", GEMMA)
    model = await home.store().resolve("small")
    assert (model.name, model.path) == ("small", str(path))


async def test_a_packaged_file_is_used_where_it_lies(home: Home, tmp_path: Path) -> None:
    part = tmp_path / "x.gguf"
    part.write_bytes(LLAMA)
    model = await home.store(packages=(PackagedModel("demo", (part,)),)).resolve("demo")
    assert (model.name, model.path) == ("demo", str(part))


def packaged(tmp_path: Path, digest: Digest | None = None) -> PackagedModel:
    parts = [tmp_path / f"part{n}" for n in range(3)]
    for n, part in enumerate(parts):
        part.write_bytes(LLAMA[n * 100_000 : (n + 1) * 100_000 if n < 2 else None])
    return PackagedModel("joined", tuple(parts), digest)


async def test_packaged_parts_are_joined_once(home: Home, tmp_path: Path) -> None:
    package = packaged(tmp_path, sha256(LLAMA))
    model = await home.store(packages=(package,)).resolve("joined")
    assert content(model) == LLAMA
    inode = inode_of(model)
    again = await home.store(packages=(package,)).resolve("joined")
    assert (again.digest, inode_of(again)) == (sha256(LLAMA), inode)


async def test_packaged_parts_are_listed_and_read_as_they_are(home: Home, tmp_path: Path) -> None:
    package = packaged(tmp_path)
    store = home.store(packages=(package,))
    [(named, index)] = await store.survey()
    assert (named.place, index.layer_count) == (package.parts[0], 4)
    assert list((home.cache / "models").iterdir()) == []
    with ChunkedSource(package.parts) as source:
        assert source.size_bytes == len(LLAMA)
        for offset, count in ((0, 10), (99_990, 20), (99_990, 150_000), (len(LLAMA) - 5, 9), (len(LLAMA), 1)):
            assert source.read_at(offset, count) == LLAMA[offset : offset + count]
        assert not source.has_changed()
        package.parts[1].write_bytes(b"other")
        os.utime(package.parts[1], ns=(1, 1))
        assert source.has_changed()


async def test_parts_that_no_disk_has_room_to_join_are_no_model_to_be_found_by_its_digest(
    home: Home, tmp_path: Path
) -> None:
    counting = CountingDisk()
    counting.free_bytes = 1000
    store = home.store(packages=(packaged(tmp_path, sha256(LLAMA)),), disk=counting.disk())
    assert await store.find_by_digest(sha256(LLAMA), len(LLAMA)) is None
    assert (await error_of(store.resolve("joined"))).code is ErrorCode.DISK_FULL


async def test_who_only_looks_needs_no_home(home: Home, tmp_path: Path) -> None:
    package = packaged(tmp_path, sha256(LLAMA))
    place = tmp_path / "nowhere"
    looking = HubCache(place / "cache" / "hub", is_reading=True)
    store = DiskModelStore(place / "models", place / "cache", packages=lambda: (package,), hub_cache=looking)
    assert [named.name for named, _ in await store.survey()] == ["joined"]
    assert await store.unusable() == ()
    model = await store.resolve("joined")
    assert (model.digest, model.path, model.size_bytes) == (sha256(LLAMA), str(package.parts[0]), len(LLAMA))
    assert not place.exists()


async def test_damaged_parts_are_noticed_and_leave_nothing(home: Home, tmp_path: Path) -> None:
    package = packaged(tmp_path, sha256(GEMMA))
    error = await error_of(home.store(packages=(package,)).resolve("joined"))
    assert error.code is ErrorCode.GGUF_INVALID
    assert list((home.cache / "models").iterdir()) == []


async def test_the_real_packages_resolve_by_name(home: Home) -> None:
    installed = {model.name for model in installed_models()}
    if DEMO_MODEL not in installed:
        pytest.skip(f"{DEMO_MODEL} is not installed")
    model = await DiskModelStore(home.models, home.cache).resolve("SmolLM2-135M-Instruct")
    assert model.name == "SmolLM2-135M-Instruct"
    assert (model.index.layer_count, model.index.hidden_size) == (30, 576)


async def test_an_unknown_name_lists_the_known_ones(home: Home, tmp_path: Path) -> None:
    home.add("small.gguf", LLAMA)
    store = home.store(packages=(PackagedModel("demo", (tmp_path,)),))
    error = await error_of(store.resolve("larger"))
    assert error.code is ErrorCode.MODEL_NOT_FOUND
    assert "larger" in str(error)
    assert "demo, small" in str(error)


@pytest.mark.parametrize("reference", ["", "a\0b", "x" * 5000, "a\nb", "no/such/file.gguf", "../../../x"])
async def test_strange_references_are_not_found(home: Home, reference: str) -> None:
    error = await error_of(home.store().resolve(reference))
    assert error.code in (ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_NOT_A_FILE, ErrorCode.CONFIG_INVALID)
    assert len(str(error)) < 1000


async def test_a_directory_is_no_model(home: Home, tmp_path: Path) -> None:
    error = await error_of(home.store().resolve(str(tmp_path)))
    assert error.code is ErrorCode.MODEL_NOT_A_FILE
    assert "is a directory" in str(error)


async def test_a_pipe_is_no_model_and_nobody_waits_for_it(home: Home, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    error = await error_of(home.store().resolve(str(tmp_path / "pipe.gguf")))
    assert error.code is ErrorCode.MODEL_NOT_A_FILE


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.GGUF_NOT_GGUF),
        (b"#!/bin/sh\n", ErrorCode.GGUF_NOT_GGUF),
        (LLAMA[:-1], ErrorCode.GGUF_TRUNCATED),
        (LLAMA[:1000], ErrorCode.GGUF_TRUNCATED),
        (encode_gguf([text("general.architecture", "gemma4")]), ErrorCode.ARCHITECTURE_UNSUPPORTED),
        (encode_gguf([]), ErrorCode.GGUF_INVALID),
        (stage_of(LLAMA, 0, 2), ErrorCode.GGUF_INVALID),
    ],
    ids=["empty", "script", "a byte short", "cut", "architecture", "no architecture", "stage"],
)
async def test_bad_files_are_refused_by_name_with_a_code(home: Home, data: bytes, code: ErrorCode) -> None:
    path = home.add("bad.gguf", data)
    error = await error_of(home.store().resolve("bad"))
    assert isinstance(error, ConfigError)
    assert error.code is code
    assert str(path) in str(error)


async def test_lists_what_can_be_served(home: Home) -> None:
    home.add("b.gguf", LLAMA)
    home.add("a.gguf", GEMMA)
    home.add("broken.gguf", LLAMA[:500])
    home.add("notes.txt", b"x")
    assert [model.name for model in await home.store().list_models()] == ["a", "b"]


async def test_finds_a_model_by_its_digest(home: Home) -> None:
    home.add("a.gguf", GEMMA)
    home.add("b.gguf", LLAMA)
    found = await home.store().find_by_digest(sha256(LLAMA), len(LLAMA))
    assert found is not None
    assert found.name == "b"
    assert await home.store().find_by_digest(sha256(b"other"), len(LLAMA)) is None
    assert await home.store().find_by_digest(sha256(LLAMA), 17) is None


async def test_a_replaced_file_has_a_new_digest(home: Home) -> None:
    path = home.add("a.gguf", LLAMA)
    store = home.store()
    first = await store.resolve("a")
    replacement = path.with_name("new")
    replacement.write_bytes(GEMMA)
    replacement.replace(path)
    second = await store.resolve("a")
    assert (first.digest, second.digest) == (sha256(LLAMA), sha256(GEMMA))
    assert second.index.architecture == "gemma3"
    assert await store.find_by_digest(first.digest, len(LLAMA)) is None


async def test_an_unusable_home_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(ConfigError) as caught:
        DiskModelStore(tmp_path / "models", tmp_path / "cache")
    assert caught.value.code is ErrorCode.HOME_UNUSABLE


# --- cut


async def resolved(home: Home, store: DiskModelStore, data: bytes = LLAMA) -> ModelFile:
    home.add("m.gguf", data)
    return await store.resolve("m")


async def test_a_cut_is_the_planned_file(home: Home) -> None:
    store = home.store()
    artifact = await store.cut(await resolved(home, store), MIDDLE)
    expected = stage_of(LLAMA, 1, 3)
    assert content(artifact) == expected
    assert (artifact.digest, artifact.size_bytes) == (sha256(expected), len(expected))
    assert home.kept() == {f"{artifact.digest}.gguf"}


async def test_only_a_last_stage_reads_the_output_head(home: Home) -> None:
    store = home.store()
    model = await resolved(home, store)
    middle, last = await store.cut(model, MIDDLE), await store.cut(model, LayerRange(2, 4))
    layers, output = decode_reads(model.index)
    assert await store.stage_reads(middle, is_last=False) == StageReads("llama", sum(layers[1:3]))
    assert await store.stage_reads(last, is_last=True) == StageReads("llama", sum(layers[2:4]) + output, output)


async def test_the_whole_range_is_the_model_itself(home: Home) -> None:
    store = home.store()
    model = await resolved(home, store)
    artifact = await store.cut(model, LayerRange(0, 4))
    assert artifact == StageArtifact(model.path, model.digest, model.size_bytes)
    assert await store.find_artifact(model.digest) == artifact
    assert home.kept() == set()


async def test_a_cut_outlives_the_process(home: Home) -> None:
    store = home.store()
    artifact = await store.cut(await resolved(home, store), MIDDLE)
    inode = inode_of(artifact)
    later = home.store()
    again = await later.cut(await later.resolve("m"), MIDDLE)
    assert again == artifact
    assert inode_of(again) == inode


class CountingDisk:
    """Counts the files it creates; writes fail with ``error_number`` after ``capacity_bytes``."""

    def __init__(self, capacity_bytes: int = 2**40, error_number: int = errno.ENOSPC) -> None:
        self.created = 0
        self.capacity_bytes = capacity_bytes
        self.error_number = error_number
        self.free_bytes = 2**40

    def disk(self) -> model_files.Disk:
        return model_files.Disk(self._create, lambda _: self.free_bytes, lambda path: LimitedFile(path, self, "rb+"))

    def _create(self, path: Path) -> io.FileIO:
        self.created += 1
        return LimitedFile(path, self)


class LimitedFile(io.FileIO):
    """A file on a ``CountingDisk``."""

    def __init__(self, path: Path, owner: CountingDisk, mode: str = "xb") -> None:
        if mode != "xb":
            path.touch()
        super().__init__(path, mode if mode == "xb" else "rb+")
        self._owner = owner

    def write(self, data: object) -> int:
        written = super().write(data)  # type: ignore[arg-type]
        self._owner.capacity_bytes -= written
        if self._owner.capacity_bytes < 0:
            raise OSError(self._owner.error_number, os.strerror(self._owner.error_number))
        return written


async def test_concurrent_cuts_of_a_range_share_one_work(home: Home) -> None:
    counting = CountingDisk()
    store = home.store(disk=counting.disk())
    model = await resolved(home, store)
    artifacts: list[StageArtifact] = []

    async def cut() -> None:
        artifacts.append(await store.cut(model, MIDDLE))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(cut)
    assert len(artifacts) == 5
    assert len(set(artifacts)) == 1
    assert counting.created == 1


async def test_pieces_come_and_go_beside_work_that_takes_long(home: Home) -> None:
    at_work, may_end = threading.Semaphore(0), threading.Event()

    def create(path: Path) -> io.FileIO:
        at_work.release()
        may_end.wait(120)
        return LimitedFile(path, CountingDisk())

    store = home.store(disk=model_files.Disk(create))
    model, pieces = await resolved(home, store), pieces_of(LARGE)
    async with trio.open_nursery() as nursery, store.receive_artifact(sha256(LARGE), pieces) as reception:
        try:
            for layers in (LayerRange(1, 2), LayerRange(1, 3)):
                nursery.start_soon(store.cut, model, layers)
                await trio.to_thread.run_sync(at_work.acquire)
            with trio.fail_after(60):
                whole = await store.find_artifact(model.digest)
                assert whole is not None
                assert (await store.piece_list(StageArtifact("", sha256(b""), 1))).count == 1
                assert b"".join(await bytes_of(store, whole)) == LLAMA
                for piece in range(pieces.count):
                    await reception.write_piece(piece, LARGE[piece * pieces.piece_bytes :][: pieces.length_of(piece)])
        finally:
            may_end.set()


async def test_a_disk_that_fills_up_leaves_nothing(home: Home) -> None:
    store = home.store(disk=CountingDisk(capacity_bytes=100_000).disk())
    error = await error_of(store.cut(await resolved(home, store), MIDDLE))
    assert isinstance(error, Refused)
    assert error.code is ErrorCode.DISK_FULL
    assert home.kept() == set()


async def test_a_disk_without_room_is_noticed_before_writing(home: Home) -> None:
    counting = CountingDisk()
    counting.free_bytes = 1000
    store = home.store(disk=counting.disk())
    error = await error_of(store.cut(await resolved(home, store), MIDDLE))
    assert error.code is ErrorCode.DISK_FULL
    assert counting.created == 0


async def test_another_write_error_is_no_full_disk(home: Home) -> None:
    store = home.store(disk=CountingDisk(100_000, errno.EIO).disk())
    error = await error_of(store.cut(await resolved(home, store), MIDDLE))
    assert error.code is ErrorCode.HOME_UNUSABLE
    assert home.kept() == set()


async def test_a_cancelled_cut_leaves_nothing(home: Home) -> None:
    store = home.store()
    model = await resolved(home, store)
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.cut(model, MIDDLE)
    assert scope.cancelled_caught
    assert home.kept() == set()


async def test_a_cut_that_is_cancelled_while_writing_leaves_nothing(home: Home) -> None:
    scope = trio.CancelScope()
    counting = CountingDisk()

    def create(path: Path) -> io.FileIO:
        trio.from_thread.run_sync(scope.cancel)
        return LimitedFile(path, counting)

    store = home.store(disk=model_files.Disk(create))
    model = await resolved(home, store)
    with scope:
        await store.cut(model, MIDDLE)
    assert scope.cancelled_caught
    assert home.kept() == set()


async def test_a_model_that_changed_is_not_cut(home: Home) -> None:
    store = home.store()
    model = await resolved(home, store)
    damage(model)
    error = await error_of(store.cut(model, MIDDLE))
    assert error.code is ErrorCode.GGUF_INVALID
    assert home.kept() == set()


async def test_a_model_that_is_gone_is_named(home: Home) -> None:
    store = home.store()
    model = await resolved(home, store)
    os.unlink(model.path)
    error = await error_of(store.cut(model, MIDDLE))
    assert error.code is ErrorCode.MODEL_NOT_FOUND
    assert model.path in str(error)


async def test_a_range_that_cannot_be_cut_is_refused(home: Home) -> None:
    store = home.store()
    error = await error_of(store.cut(await resolved(home, store), LayerRange(3, 9)))
    assert error.code is ErrorCode.CUT_UNSUPPORTED


# --- artifacts


async def test_a_damaged_stage_is_put_aside_and_cut_again(home: Home) -> None:
    store = home.store()
    model = await resolved(home, store)
    artifact = await store.cut(model, MIDDLE)
    store.release(artifact.digest)
    damage(artifact)
    assert await home.store().find_artifact(artifact.digest) is None
    assert not is_there(artifact)
    assert await store.cut(model, MIDDLE) == artifact
    (aside,) = (home.cache / "quarantine").iterdir()
    assert aside.name.startswith(artifact.digest)


async def test_a_stage_that_appears_while_it_is_looked_for_is_not_put_aside(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = home.store()
    first = await store.cut(await resolved(home, store), MIDDLE)
    data = content(first)
    os.unlink(first.path)
    check = StageCache._checked_artifact

    def check_too_early(self: StageCache, digest: Digest, path: Path) -> StageArtifact | None:
        found = check(self, digest, path)
        path.write_bytes(data)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(StageCache, "_checked_artifact", check_too_early)
        assert await store.find_artifact(first.digest) is None
    assert await store.find_artifact(first.digest) == first


async def test_unknown_artifacts_are_not_found(home: Home) -> None:
    store = home.store()
    assert await store.find_artifact(sha256(b"")) is None
    assert await store.find_artifact(Digest("../../etc/passwd")) is None


async def test_reads_in_portions_from_an_offset(home: Home) -> None:
    data = os.urandom(2**20 + 5)
    store = home.store()
    await receive(store, data)
    artifact = await store.find_artifact(sha256(data))
    assert artifact is not None
    portions = await bytes_of(store, artifact, offset=3)
    assert b"".join(portions) == data[3:]
    assert max(map(len, portions)) == 2**18
    assert await bytes_of(store, artifact, 7, 2) == [data[7:9]]
    assert await bytes_of(store, artifact, offset=len(data)) == []


@pytest.mark.parametrize(("offset", "size_bytes"), [(-1, 1), (10**9, 1), (0, 10**9), (1, -1)])
async def test_bytes_outside_are_refused(home: Home, offset: int, size_bytes: int) -> None:
    store = home.store()
    artifact = await store.cut(await resolved(home, store), MIDDLE)
    assert (await error_of(bytes_of(store, artifact, offset, size_bytes))).code is ErrorCode.REQUEST_INVALID


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"short")])
async def test_a_stage_that_is_gone_cannot_be_read(home: Home, change: Callable[[Path], object]) -> None:
    store = home.store()
    artifact = await store.cut(await resolved(home, store), MIDDLE)
    change(Path(artifact.path))
    assert (await error_of(bytes_of(store, artifact))).code is ErrorCode.ARTIFACT_UNKNOWN


# --- receive


STAGE = stage_of(LLAMA, 1, 3)
STAGE_DIGEST = sha256(STAGE)
LARGE = bytes(range(256)) * 4096 + STAGE
"""Of five pieces."""


async def receive(
    store: DiskModelStore, data: bytes, only: Iterable[int] | None = None, digest: Digest | None = None
) -> tuple[int, ...]:
    """The pieces that were there before."""
    pieces = pieces_of(data)
    async with store.receive_artifact(digest or sha256(data), pieces) as reception:
        before = reception.have
        for piece in range(pieces.count) if only is None else only:
            await reception.write_piece(piece, data[piece * pieces.piece_bytes :][: pieces.length_of(piece)])
    return before


async def test_a_received_stage_is_kept_and_found_later(home: Home) -> None:
    assert await receive(home.store(), LARGE) == ()
    artifact = await home.store().find_artifact(sha256(LARGE))
    assert artifact is not None
    assert content(artifact) == LARGE
    assert home.partial() == set()


async def test_a_whole_model_that_came_from_peers_is_found_and_cut_like_any_and_gone_with_its_file(home: Home) -> None:
    store = home.store()
    await receive(store, LLAMA)
    artifact = await store.find_artifact(sha256(LLAMA))
    assert artifact is not None
    model = await store.adopt("theirs", artifact)
    assert (model.name, model.digest, model.size_bytes) == ("theirs", sha256(LLAMA), len(LLAMA))
    assert await store.find_by_digest(model.digest, len(LLAMA)) == model
    assert content(await store.cut(model, MIDDLE)) == stage_of(LLAMA, MIDDLE.start, MIDDLE.end)
    await trio.Path(artifact.path).unlink()
    assert await store.find_by_digest(model.digest, len(LLAMA)) is None


async def test_a_file_that_came_from_peers_and_is_no_model_is_not_adopted(home: Home) -> None:
    store = home.store()
    await receive(store, LARGE)
    artifact = await store.find_artifact(sha256(LARGE))
    assert artifact is not None
    assert (await error_of(store.adopt("theirs", artifact))).code is ErrorCode.GGUF_NOT_GGUF


@pytest.mark.parametrize("order", [(4, 3, 2, 1, 0), (2, 0, 4, 1, 3), (0, 0, 1, 1, 4, 2, 3)])
async def test_pieces_may_come_in_any_order_and_twice(home: Home, order: tuple[int, ...]) -> None:
    await receive(home.store(), LARGE, order)
    artifact = await home.store().find_artifact(sha256(LARGE))
    assert artifact is not None
    assert content(artifact) == LARGE


async def test_a_broken_transfer_keeps_its_pieces_for_the_next(home: Home) -> None:
    assert (await error_of(receive(home.store(), LARGE, (1, 3)))).code is ErrorCode.ARTIFACT_CORRUPT
    assert home.kept() == set()
    assert (await error_of(receive(home.store(), LARGE, (0,)))).code is ErrorCode.ARTIFACT_CORRUPT
    assert await receive(home.store(), LARGE, (2, 4)) == (0, 1, 3)
    artifact = await home.store().find_artifact(sha256(LARGE))
    assert artifact is not None
    assert content(artifact) == LARGE
    assert home.partial() == set()


async def test_a_receiver_that_is_cancelled_keeps_its_pieces(home: Home) -> None:
    store, pieces = home.store(), pieces_of(LARGE)
    with trio.CancelScope() as scope:
        async with store.receive_artifact(sha256(LARGE), pieces) as reception:
            await reception.write_piece(0, LARGE[: pieces.piece_bytes])
            scope.cancel()
            await trio.sleep_forever()
    assert home.kept() == set()
    assert await receive(store, LARGE) == (0,)


async def test_pieces_that_changed_on_the_disk_are_fetched_again(home: Home) -> None:
    await error_of(receive(home.store(), LARGE, (0, 1, 2)))
    (part,) = (home.cache / "partial").glob("*.part")
    with part.open("r+b") as file:
        file.seek(pieces_of(LARGE).piece_bytes + 5)
        file.write(b"!")
    assert await receive(home.store(), LARGE) == (0, 2)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-3], lambda raw: raw + b"\xff\xff\xff\xff", lambda raw: raw + raw[64:68] * 100]
)
async def test_a_torn_journal_is_read_as_far_as_it_goes(home: Home, damage: Callable[[bytes], bytes]) -> None:
    await error_of(receive(home.store(), LARGE, (0, 1, 2)))
    (journal,) = (home.cache / "partial").glob("*.journal")
    journal.write_bytes(damage(journal.read_bytes()))
    have = await receive(home.store(), LARGE)
    assert have in ((0, 1), (0, 1, 2))


@pytest.mark.parametrize("damage", [lambda raw: b"", lambda raw: b"x" * 64 + raw[64:], lambda raw: raw[:10]])
async def test_a_journal_of_another_list_counts_for_nothing(home: Home, damage: Callable[[bytes], bytes]) -> None:
    await error_of(receive(home.store(), LARGE, (0, 1, 2)))
    (journal,) = (home.cache / "partial").glob("*.journal")
    journal.write_bytes(damage(journal.read_bytes()))
    assert await receive(home.store(), LARGE) == ()


async def test_pieces_that_make_another_digest_are_corrupt_and_leave_nothing(home: Home) -> None:
    error = await error_of(receive(home.store(), LARGE, digest=sha256(STAGE)))
    assert isinstance(error, RemoteProtocolError)
    assert error.code is ErrorCode.ARTIFACT_CORRUPT
    assert (home.kept(), home.partial()) == (set(), set())


async def test_a_longer_file_of_an_earlier_lie_leaves_no_tail(home: Home) -> None:
    await error_of(receive(home.store(), LARGE * 2, (0, 7), digest=sha256(LARGE)))
    await receive(home.store(), LARGE)
    artifact = await home.store().find_artifact(sha256(LARGE))
    assert artifact is not None
    assert content(artifact) == LARGE


@pytest.mark.parametrize(
    ("digest", "size_bytes"), [("../x", 10), ("", 10), ("0" * 64, 0), ("0" * 64, -1), ("0" * 64, 2**50)]
)
async def test_impossible_announcements_are_refused(home: Home, digest: str, size_bytes: int) -> None:
    async def begin() -> None:
        async with home.store().receive_artifact(Digest(digest), PieceList(size_bytes, bytes(32))):
            pass

    assert (await error_of(begin())).code is ErrorCode.ARTIFACT_CORRUPT


async def test_receiving_onto_a_full_disk_is_refused_and_goes_on_where_it_was(home: Home) -> None:
    store = home.store(disk=CountingDisk(capacity_bytes=600_000).disk())
    assert (await error_of(receive(store, LARGE))).code is ErrorCode.DISK_FULL
    assert home.kept() == set()
    assert await receive(home.store(), LARGE) == (0, 1)


async def test_a_disk_without_room_is_refused_before_anything_comes(home: Home) -> None:
    disk = CountingDisk()
    disk.free_bytes = 1000
    assert (await error_of(receive(home.store(disk=disk.disk()), LARGE))).code is ErrorCode.DISK_FULL
    assert home.partial() == set()


async def test_a_file_that_no_disk_could_hold_evicts_nothing(home: Home) -> None:
    store = home.store()
    stage = await store.cut(await resolved(home, store), MIDDLE)
    store.release(stage.digest)
    await error_of(receive(store, LARGE, (0,)))
    before = home.partial()
    disk = CountingDisk()
    disk.free_bytes = 1000
    assert (await error_of(receive(home.store(disk=disk.disk()), LARGE * 2))).code is ErrorCode.DISK_FULL
    assert is_there(stage)
    assert home.partial() == before


async def test_a_file_of_a_peer_that_is_beyond_the_quota_is_refused(home: Home) -> None:
    store = home.store(quota_bytes=len(LARGE) - 1)
    error = await error_of(receive(store, LARGE))
    assert error.code is ErrorCode.DISK_FULL
    assert "--cache-quota" in error.message


async def test_what_broken_transfers_left_goes_first_when_room_is_needed(home: Home) -> None:
    store = home.store()
    model = await resolved(home, store)
    stage = await store.cut(model, MIDDLE)
    store.release(stage.digest)
    await error_of(receive(store, LARGE, (0, 1, 2)))
    store = home.store(quota_bytes=stage.size_bytes + len(LARGE) + 100_000)
    await receive(store, LARGE[:-1])
    assert is_there(stage)
    assert home.partial() == set()


async def test_a_quota_that_shrinks_takes_what_nobody_uses_at_once(home: Home) -> None:
    store = home.store()
    first, second = (bytes([number]) + LARGE for number in range(2))
    await receive(store, first)
    store.release(sha256(first))
    await receive(store, second)
    await store.change_quota(len(LARGE) * 3)
    assert home.kept() == {f"{sha256(first)}.gguf", f"{sha256(second)}.gguf"}
    await store.change_quota(len(LARGE) // 2)
    assert home.kept() == {f"{sha256(second)}.gguf"}  # it is held
    assert (await error_of(receive(store, LARGE))).code is ErrorCode.DISK_FULL


async def test_files_that_are_received_beside_each_other_share_the_quota(home: Home) -> None:
    first, second, third = (bytes([number]) + LARGE for number in range(3))
    store = home.store(quota_bytes=len(LARGE) * 5 // 2)
    await receive(store, first)
    store.release(sha256(first))
    with trio.CancelScope() as scope:
        async with store.receive_artifact(sha256(second), pieces_of(second)):
            assert home.kept() == {f"{sha256(first)}.gguf"}
            await receive(store, third)
            scope.cancel()
            await trio.sleep_forever()
    assert home.kept() == {f"{sha256(third)}.gguf"}


async def test_old_leftovers_and_too_many_are_removed(home: Home) -> None:
    store = home.store()
    others = [LARGE + bytes([number]) for number in range(MAX_PARTIAL_FILES + 2)]
    for number, data in enumerate(others):
        await error_of(receive(store, data, (0,)))
        os.utime(home.cache / "partial" / f"{sha256(data)}.part", (2_000_000_000 + number, 2_000_000_000 + number))
    home.store()
    assert len(home.partial()) == 2 * MAX_PARTIAL_FILES
    assert f"{sha256(others[0])}.part" not in home.partial()
    os.utime(home.cache / "partial" / f"{sha256(others[5])}.part", (1, 1))
    home.store()
    assert f"{sha256(others[5])}.part" not in home.partial()


async def test_a_file_that_is_being_received_is_nobodys_leftover(home: Home) -> None:
    store, pieces = home.store(), pieces_of(LARGE)
    async with store.receive_artifact(sha256(LARGE), pieces) as reception:
        await reception.write_piece(0, LARGE[: pieces.piece_bytes])
        os.utime(home.cache / "partial" / f"{sha256(LARGE)}.part", (1, 1))
        home.store()
        assert f"{sha256(LARGE)}.part" in home.partial()
        for piece in range(1, pieces.count):
            await reception.write_piece(piece, LARGE[piece * pieces.piece_bytes :][: pieces.length_of(piece)])


# --- piece lists


async def test_the_list_of_a_cut_or_received_stage_is_known_without_reading_it(home: Home) -> None:
    store = home.store()
    cut = await store.cut(await resolved(home, store), MIDDLE)
    await receive(store, LARGE)
    received = await store.find_artifact(sha256(LARGE))
    assert received is not None
    for artifact in (cut, received):
        data = content(artifact)
        assert await store.piece_list(artifact) == pieces_of(data)
    damage(received)
    assert await store.piece_list(received) == pieces_of(LARGE)


async def test_the_list_of_a_whole_model_is_made_once_and_a_damaged_one_again(home: Home) -> None:
    store = home.store()
    path = home.add("large.gguf", LLAMA + bytes(2**20))
    model = await store.resolve(str(path))
    artifact = StageArtifact(model.path, model.digest, path.stat().st_size)
    wanted = pieces_of(path.read_bytes())
    assert await store.piece_list(artifact) == wanted
    kept = home.cache / "pieces" / model.digest
    kept.write_bytes(b"x" + kept.read_bytes()[1:])
    assert await home.store().piece_list(artifact) == wanted


async def test_a_file_that_changed_has_no_list(home: Home) -> None:
    path = home.add("large.gguf", LARGE)
    artifact = StageArtifact(str(path), sha256(LARGE[:-1] + b"!"), len(LARGE))
    assert (await error_of(home.store().piece_list(artifact))).code is ErrorCode.ARTIFACT_UNKNOWN


# --- quota


async def test_the_least_recently_used_stage_makes_room(home: Home) -> None:
    store = home.store()
    model = await resolved(home, store)
    first, second, third = [await store.cut(model, LayerRange(n, n + 1)) for n in (1, 2, 0)]
    store = home.store(quota_bytes=first.size_bytes + second.size_bytes + third.size_bytes)
    assert await store.find_artifact(first.digest) == first
    store.release(first.digest)
    await store.cut(await store.resolve("m"), LayerRange(1, 3))
    assert not is_there(second)
    assert is_there(first)


async def test_a_stage_that_a_command_removes_meanwhile_is_no_error(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = home.store()
    model = await resolved(home, store)
    first = await store.cut(model, LayerRange(1, 2))
    store.release(first.digest)
    by_use = ModelLedger.by_use

    def removed_just_then(self: ModelLedger, paths: list[Path]) -> list[Path]:
        Path(first.path).unlink()
        return by_use(self, paths)

    with monkeypatch.context() as patch:
        patch.setattr(ModelLedger, "by_use", removed_just_then)
        second = await store.cut(model, LayerRange(2, 3))
    assert home.kept() == {f"{second.digest}.gguf"}


async def test_a_stage_in_use_is_never_evicted(home: Home) -> None:
    store = home.store(quota_bytes=1)
    model = await resolved(home, store)
    first = await store.cut(model, LayerRange(1, 2))
    second = await store.cut(model, LayerRange(2, 3))
    assert is_there(first)
    assert is_there(second)
    store.release(first.digest)
    await store.cut(model, MIDDLE)
    assert not is_there(first)
    assert is_there(second)


async def test_a_stage_stays_until_each_of_its_holders_has_released_it(home: Home) -> None:
    store = home.store(quota_bytes=1)
    model = await resolved(home, store)
    first = await store.cut(model, LayerRange(1, 2))
    assert await store.cut(model, LayerRange(1, 2)) == first
    assert await store.find_artifact(first.digest) == first
    for _ in range(2):
        store.release(first.digest)
        store.release((await store.cut(model, MIDDLE)).digest)
        assert is_there(first)
    store.release(first.digest)
    await store.cut(model, LayerRange(2, 3))
    assert not is_there(first)


async def test_a_received_stage_is_held_once(home: Home) -> None:
    store = home.store(quota_bytes=len(STAGE))
    model = await resolved(home, store)
    await receive(store, STAGE)
    store.release((await store.cut(model, LayerRange(1, 2))).digest)
    assert f"{STAGE_DIGEST}.gguf" in home.kept()
    store.release(STAGE_DIGEST)
    await store.cut(model, LayerRange(2, 3))
    assert f"{STAGE_DIGEST}.gguf" not in home.kept()


async def test_a_find_that_is_cancelled_holds_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    store = home.store()
    first = await store.cut(await resolved(home, store), LayerRange(1, 2))
    store = home.store(quota_bytes=1)
    os.utime(first.path, ns=(1, 1))  # so that it is read again
    digest_of = model_files.digest_of
    scope = trio.CancelScope()

    def cancelled(source: model_files.FileSource, check_cancelled: Callable[[], None]) -> Digest:
        trio.from_thread.run_sync(scope.cancel)
        return digest_of(source, check_cancelled)

    with monkeypatch.context() as patch, scope:
        patch.setattr(model_files, "digest_of", cancelled)
        await store.find_artifact(first.digest)
    assert scope.cancelled_caught
    await store.cut(await store.resolve("m"), MIDDLE)
    assert not is_there(first)


async def test_a_short_disk_evicts_too(home: Home) -> None:
    store = home.store()
    old = await store.cut(await resolved(home, store), LayerRange(1, 2))
    counting = CountingDisk()
    counting.free_bytes = len(STAGE) - 1000
    store = home.store(disk=counting.disk())
    await error_of(store.cut(await store.resolve("m"), MIDDLE))
    assert not is_there(old)


# --- leftovers and the ledger


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_temporary_files_of_dead_processes_are_removed(home: Home) -> None:
    home.store()
    stale = home.stages / f".{dead_pid()}.0badf00d.1234.tmp"
    same_pid = home.stages / f".{os.getpid()}.0badf00d.1234.tmp"
    living = home.stages / f".{os.getppid()}.0badf00d.1234.tmp"
    own = home.stages / model_files.temporary_name()
    for path in (stale, same_pid, living, own):
        path.write_bytes(b"x")
    home.store()
    assert home.kept() == {living.name, own.name}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"version":1}',
        b'{"version":1,"digests":[["a",1,2,3]],"cuts":[]}',
        b'{"version":1,"digests":[["a",1,2,3,"nonsense"]],"cuts":[]}',
        b'{"version":1,"digests":[],"cuts":[["a",7]]}',
        b'{"version":99,"digests":[],"cuts":[]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
async def test_a_damaged_ledger_is_forgotten(home: Home, content: bytes) -> None:
    home.cache.mkdir()
    (home.cache / "ledger.json").write_bytes(content)
    store = home.store()
    artifact = await store.cut(await resolved(home, store), MIDDLE)
    assert artifact.digest == sha256(STAGE)
    assert json.loads((home.cache / "ledger.json").read_bytes())["version"] == 1


def test_the_ledger_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pmesh.adapters.model_ledger.MAX_DIGESTS", 3)
    monkeypatch.setattr("p2pmesh.adapters.model_ledger.MAX_CUTS", 2)
    ledger = ModelLedger(tmp_path / "ledger.json")
    stamp = model_files.FileStamp(1, 2, 3)
    for n in range(5):
        ledger.remember_digest(Path(f"f{n}"), stamp, sha256(b"%d" % n))
        ledger.remember_cut(f"c{n}", sha256(b"%d" % n))
    for known in (ledger, ModelLedger(tmp_path / "ledger.json")):
        assert [known.digest(Path(f"f{n}"), stamp) is not None for n in range(5)] == [False, False, True, True, True]
        assert [known.cut(f"c{n}") is not None for n in range(5)] == [False, False, False, True, True]


async def test_an_unwritable_ledger_is_no_error(home: Home) -> None:
    (home.cache / "ledger.json").mkdir(parents=True)
    store = home.store()
    artifact = await store.cut(await resolved(home, store), MIDDLE)
    assert artifact.digest == sha256(STAGE)
    assert not list(home.cache.glob(".*.tmp"))
