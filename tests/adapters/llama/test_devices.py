"""What llama.cpp says that it can run on, from a real child, and from a library whose devices are made up."""

import json
import subprocess

import pytest

from p2pmesh.adapters.llama.devices import decode_listing, is_built_for_processor_alone, list_devices
from p2pmesh.adapters.llama.devices_child import list_ggml
from p2pmesh.base.errors import EngineError
from p2pmesh.base.quantities import GIB
from p2pmesh.core.devices import Device
from tests.fakes.ggml import FakeGgml


def test_every_machine_has_a_processor() -> None:
    listing = list_devices()
    [processor] = [device for device in listing.devices if device.type == "cpu"]
    assert processor.backend == "CPU"
    assert "CPU" in listing.backends
    assert 0 < processor.free_bytes <= processor.total_bytes


@pytest.mark.parametrize(
    ("name", "backend", "number", "type_"),
    [
        ("CUDA0", "CUDA", 1, "gpu"), ("ROCm0", "ROCm", 1, "gpu"), ("Vulkan1", "Vulkan", 2, "integrated_gpu"),
        ("MTL0", "MTL", 1, "gpu"), ("BLAS", "BLAS", 3, "accelerator"), ("NEW0", "NEW", 9, "9"),
    ],
)  # fmt: skip
def test_devices_of_other_builds_arrive_as_ggml_tells_them(name: str, backend: str, number: int, type_: str) -> None:
    library = FakeGgml([(name, "some card", backend, number, GIB, 2 * GIB), ("CPU", "x", "CPU", 0, 1, 2)])
    listing = decode_listing(json.dumps(list_ggml(library)).encode())
    assert listing.devices[0] == Device(name, "some card", backend, type_, GIB, 2 * GIB)
    assert listing.backends == (backend, "CPU")


@pytest.mark.parametrize(
    ("free", "total", "expected"),
    [(1, 2, (1, 2)), (3, 2, (2, 2)), (2**64 - 1, 2**64 - 1, (0, 0)), (0, 0, (0, 0)), (5, 0, (0, 0))],
)
def test_memory_that_a_backend_does_not_know_is_none(free: int, total: int, expected: tuple[int, int]) -> None:
    library = FakeGgml([("SYCL0", "some card", "SYCL", 1, free, total)])
    [device] = decode_listing(json.dumps(list_ggml(library)).encode()).devices
    assert (device.free_bytes, device.total_bytes) == expected


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"devices": [{"name": "a"}], "backends": []}', b"[1]", b"null"])
def test_an_answer_that_cannot_be_read_is_an_error(answer: bytes) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        decode_listing(answer)


def test_a_child_that_a_trapped_instruction_kills_says_so_and_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PMESH_PROBE_TRAP", "1")
    with pytest.raises(EngineError, match="SIGILL"):
        list_devices()


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (subprocess.TimeoutExpired("child", 30), "within 30 s"),
        (OSError(12, "Cannot allocate memory"), "be started"),
    ],
)
def test_a_child_that_hangs_or_cannot_be_started_is_an_error(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, text: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(EngineError, match=text):
        list_devices()


def test_a_build_for_the_processor_alone_is_known_by_its_files() -> None:
    assert is_built_for_processor_alone() == (set(list_devices().backends) == {"CPU"})
