"""Which devices stages run on."""

import pytest

from p2pmesh.core.devices import (
    ALL_LAYERS,
    PROCESSOR_ALONE,
    Device,
    DeviceChoice,
    DeviceRefusal,
    choose_devices,
)


def device(name: str, type_: str, backend: str = "CUDA") -> Device:
    return Device(name, "a device", backend, type_, 1 << 30, 1 << 31)


CPU = device("CPU", "cpu", "CPU")
BLAS = device("BLAS", "accelerator", "BLAS")
CUDA0, CUDA1 = device("CUDA0", "gpu"), device("CUDA1", "gpu")
VULKAN = device("Vulkan0", "integrated_gpu", "Vulkan")
ALL = (CUDA0, CUDA1, VULKAN, BLAS, CPU)


@pytest.mark.parametrize(
    ("found", "expected"),
    [(ALL, (CUDA0, CUDA1)), ((VULKAN, BLAS, CPU), (VULKAN,)), ((BLAS, CPU), ()), ((), ())],
)
def test_without_a_wish_gpus_are_taken_then_integrated_ones_then_the_processor(
    found: tuple[Device, ...], expected: tuple[Device, ...]
) -> None:
    chosen = choose_devices(found)
    assert chosen == (DeviceChoice(expected, ALL_LAYERS) if expected else PROCESSOR_ALONE)


def test_what_is_named_is_taken_in_its_order_whatever_its_case_and_once() -> None:
    chosen = choose_devices(ALL, ("vulkan0", "CUDA1", "Vulkan0"), 12)
    assert chosen == DeviceChoice((VULKAN, CUDA1), 12)
    assert chosen.names == ("Vulkan0", "CUDA1")
    assert chosen.backends == ("Vulkan", "CUDA")
    assert not chosen.is_whole


def test_the_processor_named_alone_or_no_layers_leave_all_on_it() -> None:
    assert choose_devices(ALL, ("CPU",)) == PROCESSOR_ALONE == choose_devices(ALL, ("CPU",), 0)
    assert choose_devices(ALL, ("CUDA0",), 0) == PROCESSOR_ALONE == choose_devices(ALL, (), 0)
    assert PROCESSOR_ALONE.backends == ("CPU",)
    assert not PROCESSOR_ALONE.is_whole


def test_every_layer_on_devices_is_a_stage_whole_in_their_memory() -> None:
    for layers in (None, ALL_LAYERS, 2 * ALL_LAYERS):
        chosen = choose_devices(ALL, (), layers)
        assert isinstance(chosen, DeviceChoice)
        assert chosen.is_whole


@pytest.mark.parametrize(
    ("found", "wanted", "layers", "text"),
    [
        (ALL, ("CUDA7",), None, "--device CUDA7: it is no device of this machine; give CUDA0, CUDA1, Vulkan0, CPU"),
        (ALL, ("BLAS",), None, "--device BLAS: it holds no layers"),
        (ALL, ("CPU", "CUDA0"), None, "--device names the processor beside others"),
        ((CPU,), (), 4, "--gpu-layers 4: stages run on the processor here (CPU)"),
        (ALL, ("CPU",), 4, "--gpu-layers 4: stages run on the processor"),
        ((), ("CPU",), None, "give none, as none were found"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_in_one_line(
    found: tuple[Device, ...], wanted: tuple[str, ...], layers: int | None, text: str
) -> None:
    refusal = choose_devices(found, wanted, layers)
    assert isinstance(refusal, DeviceRefusal)
    assert text in refusal.text
    assert "\n" not in refusal.text
