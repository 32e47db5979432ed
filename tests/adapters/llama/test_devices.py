"""What llama.cpp says that it can run on, from a real child."""

import subprocess

import pytest

from p2pmesh.adapters.llama import devices
from p2pmesh.adapters.llama.devices import decode_devices, list_devices
from p2pmesh.base.errors import EngineError


def test_every_machine_has_a_processor() -> None:
    [processor] = [device for device in list_devices() if device.type == "cpu"]
    assert processor.backend == "CPU"
    assert 0 < processor.free_bytes <= processor.total_bytes


@pytest.mark.parametrize("answer", [b"", b"{}", b'[{"name": "a"}]', b"[1]", b"null"])
def test_an_answer_that_cannot_be_read_is_an_error(answer: bytes) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        decode_devices(answer)


def test_a_child_that_dies_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.CompletedProcess([], -11, b"", b"")
    monkeypatch.setattr(devices.subprocess, "run", lambda *_, **__: dead)
    with pytest.raises(EngineError, match="SIGSEGV"):
        list_devices()
