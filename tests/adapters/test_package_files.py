"""Layer packages on disk: models come back to the bit, each rule has a package that breaks it, kills leave none."""

import errno
import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.adapters import model_files
from p2pmesh.adapters.identity import Ed25519Verifier
from p2pmesh.adapters.model_files import FileSource, digest_of
from p2pmesh.adapters.owner_keystore import OwnerKey
from p2pmesh.adapters.package_files import (
    PackageCheck,
    PackageSource,
    Sign,
    check_package,
    fragments_of_range,
    is_package,
)
from p2pmesh.base import limits
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused
from p2pmesh.base.ids import LayerRange
from p2pmesh.model.gguf import ValueType, read_index
from p2pmesh.model.package import MANIFEST_FILE, ViolationCode
from p2pmesh.model.stage_file import Copy, Literal, plan_stage_file
from p2pmesh.wire.package import encode_statement
from tests.fakes.memory_source import MemorySource
from tests.fakes.packages import Fields, artifact_fields, change_manifest, package_of, replace_fragment, unhurried
from tests.fakes.tiny_gguf import Tensor, encode_gguf, number, text, tiny_gemma3, tiny_llama, zero_tensor
from tests.model.stages import stage_of

MODELS = {
    "llama": tiny_llama(),
    "untied": tiny_llama(is_tied=False),
    "gemma3": tiny_gemma3(),
    "per layer": tiny_llama(kv_heads_per_layer=(1, 2, 1, 2)),
    "repeats first": tiny_llama().replace(b"llama", b"rwkv7"),
    "version 2": b"GGUF\x02" + tiny_llama()[5:],
}
LAYER = "layers/layer-00001.gguf"
METADATA = "shared/metadata.gguf"
C = ViolationCode


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return package_of(MODELS["llama"], tmp_path / "package")


def check(package: Path) -> PackageCheck:
    return check_package(package, Ed25519Verifier().is_signature_of, unhurried)


def codes(package: Path) -> set[ViolationCode]:
    return {violation.code for violation in check(package).violations}


def owner_signs(key: OwnerKey) -> Sign:
    return lambda package_id, manifest: encode_statement(package_id, manifest, key.public_key, key.sign)


# --- what comes back


@pytest.mark.parametrize("name", MODELS)
def test_a_package_breaks_no_rule_and_gives_its_model_back_to_the_bit(name: str, tmp_path: Path) -> None:
    built = package_of(MODELS[name], tmp_path / "package")
    assert check(built) == PackageCheck(check(built).manifest, None, ())
    with PackageSource(built, lambda source: digest_of(source, unhurried)) as source:
        assert source.read_at(0, source.size_bytes + 100) == MODELS[name]
        assert source.index == read_index(source)
        assert not source.has_changed()


@pytest.mark.parametrize("name", MODELS)
def test_a_stage_is_assembled_from_its_fragments_alone(name: str, tmp_path: Path) -> None:
    built = package_of(MODELS[name], tmp_path / "package")
    count = 8 if name == "gemma3" else 4
    for layers in (LayerRange(0, 1), LayerRange(1, 3), LayerRange(2, count)):
        opened: set[str] = set()

        def digest(source: FileSource, opened: set[str] = opened) -> str:
            opened.add(str(source.path.relative_to(built)))
            return digest_of(source, unhurried)

        with PackageSource(built, digest) as source:
            parts = [
                segment.data
                if isinstance(segment, Literal)
                else source.read_at(segment.span.offset, segment.span.size_bytes)
                if isinstance(segment, Copy)
                else bytes(segment.size_bytes)
                for segment in plan_stage_file(source.index, layers).segments
            ]
        assert b"".join(parts) == stage_of(MODELS[name], layers.start, layers.end)
        index = read_index(MemorySource(MODELS[name]))
        needed = fragments_of_range(built, index, layers, lambda source: digest_of(source, unhurried))
        assert opened <= {str(Path(fragment.path).relative_to(built)) for fragment in needed[1:]}


def test_the_same_model_has_the_same_package_id_wherever_it_is_packaged(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    one = package_of(MODELS["llama"], tmp_path / "one", name="one", created=1)
    other = package_of(MODELS["llama"], tmp_path / "elsewhere" / "two", name="other", created=2)
    ids = [json.loads((built / MANIFEST_FILE).read_bytes())["package_id"] for built in (one, other)]
    assert ids[0] == ids[1]
    different = package_of(tiny_llama(seed=2), tmp_path / "three")
    assert json.loads((different / MANIFEST_FILE).read_bytes())["package_id"] != ids[0]


def test_an_owner_vouches_for_contents_and_names(tmp_path: Path) -> None:
    key = OwnerKey.generate()
    built = package_of(MODELS["llama"], tmp_path / "package", sign=owner_signs(key))
    assert check(built).owner_id == key.owner_id
    assert codes(built) == set()
    change_manifest(built, lambda fields: fields.update(model_id="another"))
    assert codes(built) == {C.SIGNATURE_INVALID}
    assert check(built).owner_id is None


def test_a_model_with_wide_alignment_comes_back(tmp_path: Path) -> None:
    keys = [text("general.architecture", "llama"), number("llama.block_count", 1), number("general.alignment", 256)]
    keys += [number("llama.embedding_length", 8)]
    tensors = [zero_tensor("token_embd.weight", (8, 3)), zero_tensor("blk.0.attn_norm.weight", (8,))]
    model = encode_gguf(keys, tensors, alignment=256)
    built = package_of(model, tmp_path / "package")
    assert codes(built) == set()
    with PackageSource(built, lambda source: digest_of(source, unhurried)) as source:
        assert source.read_at(0, len(model)) == model


@given(data=st.data())
def test_any_bytes_of_the_model_can_be_read(data: st.DataObject, built: Path) -> None:
    model = MODELS["gemma3"]
    offset = data.draw(st.integers(0, len(model) + 10))
    count = data.draw(st.integers(0, 20_000))
    with PackageSource(built, lambda source: digest_of(source, unhurried)) as source:
        assert source.read_at(offset, count) == model[offset : offset + count]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package_of(MODELS["gemma3"], tmp_path_factory.mktemp("any") / "package")


# --- every rule


def sets(name: str, value: object) -> Callable[[Path], None]:
    """Changes one field of the manifest."""
    return lambda package: change_manifest(package, lambda fields: fields.update({name: value}))


def on(artifact: str, **values: object) -> Callable[[Path], None]:
    """Changes fields of one artifact."""
    return lambda package: change_manifest(package, lambda fields: artifact_fields(fields, artifact).update(values))


def raw(change: Callable[[Fields], object]) -> Callable[[Path], None]:
    return lambda package: change_manifest(package, change)


def tensors_of(package: Path, path: str) -> list[Tensor]:
    with FileSource(package / path) as source:
        return [
            Tensor(entry.name, entry.shape, entry.ggml_type, source.read_at(entry.offset, entry.size_bytes))
            for entry in read_index(source).tensors
        ]


def rewrites(change: Callable[[list[Tensor]], list[Tensor]], path: str = LAYER) -> Callable[[Path], None]:
    """Changes the tensors of one fragment, and the manifest with them."""

    def apply(package: Path) -> None:
        tensors = change(tensors_of(package, path))
        data = encode_gguf([text("general.architecture", "llama")], tensors)
        replace_fragment(package, path, data, len(tensors), sum(len(tensor.data) for tensor in tensors))

    return apply


def moves_a_tensor(package: Path) -> None:
    moved = tensors_of(package, LAYER)[0]
    rewrites(lambda tensors: tensors[1:])(package)
    rewrites(lambda tensors: [*tensors, moved], "layers/layer-00002.gguf")(package)


def copies_a_tensor(package: Path) -> None:
    copied = tensors_of(package, LAYER)[0]
    rewrites(lambda tensors: [*tensors, copied], "layers/layer-00002.gguf")(package)


def turns(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, (*tensor.shape, 1), tensor.ggml_type, tensor.data)


def writes(path: str, data: bytes) -> Callable[[Path], None]:
    return lambda package: (package / path).write_bytes(data) and None


def flips_a_bit(package: Path) -> None:
    data = bytearray((package / LAYER).read_bytes())
    data[-1] ^= 1
    (package / LAYER).write_bytes(data)


def grows(package: Path) -> None:
    with (package / LAYER).open("ab") as file:
        file.write(bytes(32))


def names_a_foreign_metadata(package: Path) -> None:
    data = encode_gguf([text("general.architecture", "llama"), number("llama.block_count", 4)])
    replace_fragment(package, METADATA, data, 0, 0)


def renames_layer(package: Path) -> None:
    change_manifest(package, lambda fields: artifact_fields(fields, LAYER).update(path="layers/other.gguf"))


PROJECTOR = {"kind": "mmproj", "path": "projectors/a.gguf", "tensor_count": 0, "tensor_bytes": 0,
             "artifact_bytes": 1, "sha256": "0" * 64}  # fmt: skip

BROKEN: list[tuple[ViolationCode, Callable[[Path], object]]] = [
    (C.MANIFEST_MISSING, lambda package: (package / MANIFEST_FILE).unlink()),
    (C.MANIFEST_TOO_LARGE, writes(MANIFEST_FILE, b" " * (limits.MAX_PACKAGE_MANIFEST_BYTES + 1))),
    (C.MANIFEST_MALFORMED, writes(MANIFEST_FILE, b"{}")),
    (C.MANIFEST_MALFORMED, writes(MANIFEST_FILE, b'{"schema_version": 1, "schema_version": 1}')),
    (C.MANIFEST_MALFORMED, writes(MANIFEST_FILE, b"[" * 100_000)),
    (C.MANIFEST_MALFORMED, writes(MANIFEST_FILE, b"\xff")),
    (C.MANIFEST_MALFORMED, raw(lambda fields: fields.pop("shared"))),
    (C.MANIFEST_MALFORMED, sets("layer_count", 4.0)),
    (C.MANIFEST_MALFORMED, sets("layer_count", True)),
    (C.MANIFEST_MALFORMED, sets("layer_count", 0)),
    (C.MANIFEST_MALFORMED, sets("model_id", "a\nb")),
    (C.MANIFEST_MALFORMED, sets("model_id", "")),
    (C.MANIFEST_MALFORMED, sets("signature", "xyz")),
    (C.MANIFEST_MALFORMED, on(LAYER, sha256="0" * 63)),
    (C.MANIFEST_MALFORMED, on(LAYER, tensor_count=-1)),
    (C.SCHEMA_UNKNOWN, sets("schema_version", 2)),
    (C.FORMAT_UNKNOWN, sets("format", "layers")),
    (C.ABI_INCOMPATIBLE, sets("skippy_abi_version", "0.2.0")),
    (C.ABI_INCOMPATIBLE, sets("skippy_abi_version", "0.1.31")),
    (C.ABI_INCOMPATIBLE, sets("skippy_abi_version", "1.1.30")),
    (C.ABI_INCOMPATIBLE, sets("skippy_abi_version", "0.1")),
    (C.PACKAGE_ID_MISMATCH, lambda p: change_manifest(p, lambda f: f.update(package_id="sha256:0"), keeps_id=True)),
    (C.PACKAGE_ID_MISMATCH, lambda p: change_manifest(p, lambda f: f.update(extra=1), keeps_id=True)),
    (C.SIGNATURE_INVALID, sets("signature", "00")),
    (C.MANIFEST_MALFORMED, sets("signature", "00" * (limits.MAX_PACKAGE_SIGNATURE_BYTES + 1))),
    (C.PATH_INVALID, on(LAYER, path="../layers/layer-00001.gguf")),
    (C.PATH_INVALID, on(LAYER, path="/layers/layer-00001.gguf")),
    (C.PATH_INVALID, on(LAYER, path="layers//layer-00001.gguf")),
    (C.PATH_INVALID, on(LAYER, path="layers\\layer-00001.gguf")),
    (C.PATH_INVALID, on(LAYER, path="")),
    (C.PATH_UNEXPECTED, renames_layer),
    (C.PATH_UNEXPECTED, sets("projectors", [{**PROJECTOR, "path": "layers/a.gguf"}])),
    (C.PATH_DUPLICATE, on(LAYER, path="layers/layer-00000.gguf")),
    (C.LAYER_MISSING, raw(lambda fields: fields["layers"].pop(1))),
    (C.LAYER_DUPLICATE, raw(lambda fields: fields["layers"].append(fields["layers"][0]))),
    (C.LAYER_UNKNOWN, raw(lambda fields: fields["layers"].append({**fields["layers"][0], "layer_index": 4}))),
    (C.LAYER_UNKNOWN, sets("layer_count", 3)),
    (C.PROJECTOR_KIND_UNKNOWN, sets("projectors", [{**PROJECTOR, "kind": "lora"}])),
    (C.ARTIFACT_EMPTY, on(LAYER, artifact_bytes=0)),
    (C.TENSOR_BYTES_INCONSISTENT, on(LAYER, tensor_bytes=0)),
    (C.TENSOR_BYTES_INCONSISTENT, on("shared/output.gguf", tensor_bytes=4)),
    (C.ARTIFACT_MISSING, lambda package: (package / LAYER).unlink()),
    (C.ARTIFACT_MISSING, lambda package: ((package / LAYER).unlink(), (package / LAYER).mkdir())),
    (C.ARTIFACT_SIZE_MISMATCH, grows),
    (C.ARTIFACT_DIGEST_MISMATCH, flips_a_bit),
    (C.ARTIFACT_MALFORMED, lambda package: replace_fragment(package, LAYER, b"GGUF", 1, 1)),
    (C.ARTIFACT_MALFORMED, names_a_foreign_metadata),
    (C.TENSOR_COUNT_MISMATCH, on(LAYER, tensor_count=3)),
    (C.TENSOR_BYTES_MISMATCH, on(LAYER, tensor_bytes=3)),
    (C.TENSOR_MISSING, rewrites(lambda tensors: tensors[1:])),
    (C.TENSOR_DUPLICATE, copies_a_tensor),
    (C.TENSOR_UNKNOWN, rewrites(lambda tensors: [*tensors, zero_tensor("blk.1.other.weight", (4,))])),
    (C.TENSOR_MISPLACED, moves_a_tensor),
    (C.TENSOR_CHANGED, rewrites(lambda tensors: [turns(tensors[0]), *tensors[1:]])),
    (C.LAYER_COUNT_MISMATCH, sets("layer_count", 5)),
    (C.ACTIVATION_WIDTH_MISMATCH, sets("activation_width", 65)),
    (C.SOURCE_MISMATCH, raw(lambda fields: fields["source_model"].update(sha256="0" * 64))),
    (C.SOURCE_MISMATCH, raw(lambda fields: fields["source_model"]["files"][0].update(size_bytes=1))),
]  # fmt: skip


def test_every_rule_has_a_package_that_breaks_it() -> None:
    assert {code for code, _ in BROKEN} == set(ViolationCode)


@pytest.mark.parametrize(("code", "spoil"), BROKEN, ids=[f"{code}-{n}" for n, (code, _) in enumerate(BROKEN)])
def test_a_broken_rule_is_found_by_its_name(
    code: ViolationCode, spoil: Callable[[Path], object], package: Path
) -> None:
    spoil(package)
    assert code in codes(package)


def test_a_fault_of_a_fragment_is_found_only_by_who_reads_it(package: Path) -> None:
    flips_a_bit(package)
    with PackageSource(package, lambda source: digest_of(source, unhurried)) as source:
        entries = {entry.name: entry for entry in source.index.tensors}
        good, bad = entries["blk.0.attn_q.weight"], entries["blk.1.attn_q.weight"]
        assert len(source.read_at(good.offset, good.size_bytes)) == good.size_bytes
        with pytest.raises(ConfigError) as caught:
            source.read_at(bad.offset, 1)
    assert caught.value.code is ErrorCode.PACKAGE_INVALID


# --- building


def test_nothing_is_written_over(package: Path, tmp_path: Path) -> None:
    before = (package / MANIFEST_FILE).read_bytes()
    with pytest.raises(ConfigError) as caught:
        package_of(MODELS["gemma3"], package)
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert (package / MANIFEST_FILE).read_bytes() == before


def test_a_full_disk_is_known_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = model_files.Disk(free_bytes=lambda _: len(MODELS["llama"]) // 2)
    monkeypatch.setattr(model_files, "Disk", lambda: full)
    with pytest.raises(Refused) as caught:
        package_of(MODELS["llama"], tmp_path / "package")
    assert caught.value.code is ErrorCode.DISK_FULL
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model_files.Disk()

    class Filling(io.FileIO):
        def write(self, data: Any, /) -> int:
            raise OSError(errno.ENOSPC, "no space left on device")

    def create(path: Path) -> Any:
        return Filling(path, "x") if path.parent.name == "layers" else whole.create(path)

    disk = model_files.Disk(create=create)
    monkeypatch.setattr(model_files, "Disk", lambda: disk)
    with pytest.raises(Refused) as caught:
        package_of(MODELS["llama"], tmp_path / "package")
    assert caught.value.code is ErrorCode.DISK_FULL
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_disk_that_cannot_sync_a_directory_takes_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def sync_files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_files_only)
    assert codes(package_of(MODELS["llama"], tmp_path / "package")) == set()


def test_a_model_with_bytes_between_its_tensors_stays_one_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        package_of(MODELS["llama"] + b"\x01", tmp_path / "package")
    assert caught.value.code is ErrorCode.GGUF_INVALID
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_trailing_zeros_come_back_too(tmp_path: Path) -> None:
    model = MODELS["llama"] + bytes(77)
    built = package_of(model, tmp_path / "package")
    assert codes(built) == set()


def test_a_model_with_our_own_keys_is_refused(tmp_path: Path) -> None:
    keys = [text("general.architecture", "llama"), number("llama.block_count", 1), number("p2pmesh.package.version", 3)]
    with pytest.raises(ConfigError) as caught:
        package_of(encode_gguf(keys), tmp_path / "package")
    assert caught.value.code is ErrorCode.GGUF_INVALID


def test_a_killed_build_leaves_no_package_and_the_next_one_removes_what_is_left(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    model.write_bytes(MODELS["llama"])
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.fakes.packages import package_of\n"
        "from p2pmesh.adapters import package_files\n"
        "left = [int(sys.argv[3])]\n"
        "write = package_files._write_fragment\n"
        "def dying(*arguments):\n"
        "    left[0] -= 1\n"
        "    if not left[0]:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return write(*arguments)\n"
        "package_files._write_fragment = dying\n"
        "package_files._publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "package_of(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]))\n"
    )
    out = tmp_path / "package"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    for fragments in (1, 4, 99):
        command = [sys.executable, "-c", script, str(model), str(out), str(fragments)]
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert not out.exists()
        left = [path for path in tmp_path.iterdir() if path.is_dir()]
        assert len(left) == 1  # that of the build before is gone
        if fragments < 99:
            assert codes(left[0]) == {C.MANIFEST_MISSING}
            assert not is_package(left[0])
    package_of(MODELS["llama"], out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["package", "tiny.gguf"]
    assert codes(out) == set()


def test_fragments_are_gguf_files_of_the_models_tensors(package: Path) -> None:
    with FileSource(package / LAYER) as source:
        fragment = read_index(source)
    assert {tensor.name.split(".")[1] for tensor in fragment.tensors} == {"1"}
    with FileSource(package / METADATA) as source:
        metadata = read_index(source)
    assert [tensor.name for tensor in metadata.tensors] == ["output_norm.weight"]
    assert metadata.metadata["p2pmesh.package.directory"].element_type == ValueType.UINT8
    fields = json.loads((package / MANIFEST_FILE).read_bytes())
    assert fields["source_model"]["sha256"] == hashlib.sha256(MODELS["llama"]).hexdigest()
