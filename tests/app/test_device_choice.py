"""Devices of a node from what was typed, and what to do where there are none."""

import pytest

from p2pmesh.app import device_choice
from p2pmesh.app.device_choice import choose, remedy_for
from p2pmesh.base.errors import ConfigError, EngineError, ErrorCode, P2PMeshError
from p2pmesh.core.devices import PROCESSOR_ALONE, Device, DeviceListing

CPU = Device("CPU", "x", "CPU", "cpu", 1, 2)
CUDA = Device("CUDA0", "x", "CUDA", "gpu", 1, 2)
BOTH = DeviceListing((CUDA, CPU), ("CUDA", "CPU"))


def fail() -> DeviceListing:
    raise EngineError(ErrorCode.ENGINE_LOAD_FAILED, "killed by SIGILL")


def no_note(error: P2PMeshError) -> None:
    raise AssertionError(error)


def test_a_build_for_the_processor_alone_need_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "is_built_for_processor_alone", lambda: True)
    assert choose((), None, fail, no_note) == PROCESSOR_ALONE


def test_any_other_build_is_asked_and_a_crash_of_it_leaves_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "is_built_for_processor_alone", lambda: False)
    assert choose((), None, lambda: BOTH, no_note).devices == (CUDA,)
    noted: list[P2PMeshError] = []
    assert choose((), None, fail, noted.append) == PROCESSOR_ALONE
    assert noted[0].code is ErrorCode.ENGINE_LOAD_FAILED


def test_a_wish_is_checked_against_what_is_found() -> None:
    assert choose(("cuda0",), 3, lambda: BOTH, no_note).gpu_layers == 3
    with pytest.raises(ConfigError, match="give CUDA0, CPU"):
        choose(("Vulkan0",), None, lambda: BOTH, no_note)
    with pytest.raises(EngineError):
        choose(("CUDA0",), None, fail, no_note)


@pytest.mark.parametrize(
    ("backends", "path", "expected"),
    [
        (("CPU",), "/dev/nvidiactl", "an NVIDIA GPU is here, but this llama.cpp is not built for it"),
        (("CUDA", "CPU"), "/dev/nvidiactl", "finds no device: check its driver"),
        (("CPU",), "/dev/kfd", "-DGGML_HIP=on"),
        (("ROCm", "CPU"), "/dev/kfd", "built for it (HIP), but finds no device"),
        (("CPU",), "/dev/dri/renderD128", "-DGGML_VULKAN=on"),
        (("CPU",), "", "no sign of a GPU"),
    ],
)
def test_the_remedy_fits_what_drivers_left_in_the_system(
    backends: tuple[str, ...], path: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_choice.sys, "platform", "linux")
    remedy = remedy_for(DeviceListing((CPU,), backends), "0.3.36", lambda asked: asked == path)
    assert remedy is not None
    assert expected in remedy
    assert "\n" not in remedy


def test_no_remedy_where_a_gpu_is_found() -> None:
    assert remedy_for(BOTH, "0.3.36") is None
