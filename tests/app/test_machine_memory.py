"""What a node offers of its machine."""

import pytest

from p2pmesh.app import machine_memory
from p2pmesh.app.machine_memory import RESERVE_BYTES, offered_memory_bytes
from p2pmesh.base.quantities import GIB
from p2pmesh.core.devices import ALL_LAYERS, Device, DeviceChoice


def test_what_was_typed_is_offered() -> None:
    assert offered_memory_bytes(5) == 5


@pytest.mark.parametrize(("left", "expected"), [(None, 8 * GIB), (4 * GIB, 4 * GIB), (16 * GIB, 8 * GIB), (0, 0)])
def test_a_share_of_what_machine_and_group_leave(
    monkeypatch: pytest.MonkeyPatch, left: int | None, expected: int
) -> None:
    class Memory:
        available = 8 * GIB

    monkeypatch.setattr(machine_memory.psutil, "virtual_memory", Memory)
    monkeypatch.setattr(machine_memory, "memory_left_bytes", lambda: left)
    assert offered_memory_bytes(None) == max(0, int(expected * 0.8) - RESERVE_BYTES)


@pytest.mark.parametrize(
    ("types", "layers", "expected"),
    [
        (("gpu", "gpu"), ALL_LAYERS, 12 * GIB),
        (("integrated_gpu",), ALL_LAYERS, 5 * GIB),
        (("gpu",), 4, 5 * GIB),
    ],
)
def test_stages_that_lie_on_devices_are_bounded_by_their_memory(
    monkeypatch: pytest.MonkeyPatch, types: tuple[str, ...], layers: int, expected: int
) -> None:
    monkeypatch.setattr(machine_memory, "available_memory_bytes", lambda: 5 * GIB)
    unknown = DeviceChoice((Device("d", "", "SYCL", "gpu", 0, 0),), ALL_LAYERS)
    assert offered_memory_bytes(None, unknown) == int(5 * GIB * 0.8) - RESERVE_BYTES
    devices = tuple(Device(f"d{at}", "", "CUDA", type_, 6 * GIB, 8 * GIB) for at, type_ in enumerate(types))
    assert offered_memory_bytes(None, DeviceChoice(devices, layers)) == int(expected * 0.8) - RESERVE_BYTES
