"""Which of the devices that llama.cpp finds a node's stages run on: the owner's wish, or the best of what there is.

Owns the records and the choice. How devices are found is ``adapters.llama.devices``', how much memory is offered of
them ``app.machine_memory``'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p2pmesh.base.limits import MAX_LAYERS

ALL_LAYERS = MAX_LAYERS + 1
"""More than any stage has: its layers, and the output head of a last one."""
PROCESSOR = "cpu"
_OFFLOADING = ("gpu", "integrated_gpu")
"""Types that layers can be given to, the preferred first. Accelerators work for the processor and hold nothing."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device; ``type`` is cpu, gpu, integrated_gpu or accelerator, ``backend`` such as CPU, CUDA, Vulkan, Metal."""

    name: str
    description: str
    backend: str
    type: str
    free_bytes: int
    total_bytes: int

    @property
    def takes_layers(self) -> bool:
        """Whether layers can be given to it, and are the processor's otherwise."""
        return self.type in _OFFLOADING


@dataclass(frozen=True, slots=True)
class DeviceListing:
    """What one build of llama.cpp finds on one machine. ``backends`` are those it was built with, by name."""

    devices: tuple[Device, ...]
    backends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Where stages run: ``gpu_layers`` of each on ``devices``, what is beyond them on the processor."""

    devices: tuple[Device, ...] = ()
    gpu_layers: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """As llama.cpp calls the devices."""
        return tuple(device.name for device in self.devices)

    @property
    def is_whole(self) -> bool:
        """Whether every layer of a stage goes to the devices: then their memory is what bounds a stage."""
        return bool(self.devices) and self.gpu_layers >= ALL_LAYERS

    @property
    def backends(self) -> tuple[str, ...]:
        """What runs the layers, for people."""
        return tuple(dict.fromkeys(device.backend for device in self.devices)) or ("CPU",)


PROCESSOR_ALONE = DeviceChoice()


@dataclass(frozen=True, slots=True)
class DeviceRefusal:
    """Why a wish cannot be met, and what could be written instead."""

    text: str


def choose_devices(
    found: Sequence[Device], wanted: Sequence[str] = (), gpu_layers: int | None = None
) -> DeviceChoice | DeviceRefusal:
    """``wanted`` are names as llama.cpp gives them (case does not matter), empty for the best of what was ``found``.

    Best are all devices of type gpu, without one the integrated ones, without those the processor. ``gpu_layers`` None
    gives every layer of a stage to them, 0 none.
    """
    named = _named(found, wanted) if wanted else _best(found)
    if isinstance(named, DeviceRefusal):
        return named
    if gpu_layers and not named:
        text = f"--gpu-layers {gpu_layers}: stages run on the processor here ({_listed(found)}); leave it away"
        return DeviceRefusal(f"{text}, or see `p2pmesh gpus`")
    if not named or gpu_layers == 0:
        return PROCESSOR_ALONE
    return DeviceChoice(named, ALL_LAYERS if gpu_layers is None else min(gpu_layers, ALL_LAYERS))


def _best(found: Sequence[Device]) -> tuple[Device, ...]:
    for kind in _OFFLOADING:
        devices = tuple(device for device in found if device.type == kind)
        if devices:
            return devices
    return ()


def _named(found: Sequence[Device], wanted: Sequence[str]) -> tuple[Device, ...] | DeviceRefusal:
    by_name = {device.name.lower(): device for device in found}
    named: dict[str, Device] = {}
    for name in wanted:
        device = by_name.get(name.lower())
        if device is None or device.type == "accelerator":
            why = (
                "is no device of this machine" if device is None else "holds no layers; the processor uses it by itself"
            )
            return DeviceRefusal(f"--device {name}: it {why}; give {_listed(found)}")
        named[device.name] = device
    kinds = {device.type == PROCESSOR for device in named.values()}
    if len(kinds) > 1:
        return DeviceRefusal("--device names the processor beside others: it takes what they do not; name it alone")
    return () if True in kinds else tuple(named.values())


def _listed(found: Sequence[Device]) -> str:
    """Names that may be given."""
    return ", ".join(device.name for device in found if device.type != "accelerator") or "none, as none were found"
