"""A ggml library whose devices are given: every machine's listing on a machine that has but a processor."""

from collections.abc import Sequence
from typing import Any

TYPES = ("cpu", "gpu", "integrated_gpu", "accelerator")


class FakeGgml:
    """The functions of ``ggml-backend.h`` that list devices; a row is name, description, backend, type, free, total."""

    def __init__(self, devices: Sequence[tuple[str, str, str, int, int, int]]) -> None:
        self._devices = devices
        self._backends = list(dict.fromkeys(device[2] for device in devices))

    def __getattr__(self, name: str) -> Any:
        answers = {
            "ggml_backend_dev_count": lambda: len(self._devices),
            "ggml_backend_dev_get": lambda at: at,
            "ggml_backend_dev_name": lambda at: self._devices[at][0].encode(),
            "ggml_backend_dev_description": lambda at: self._devices[at][1].encode(),
            "ggml_backend_dev_type": lambda at: self._devices[at][3],
            "ggml_backend_dev_backend_reg": lambda at: self._backends.index(self._devices[at][2]),
            "ggml_backend_dev_memory": lambda at, free, total: self._memory(at, free, total),
            "ggml_backend_reg_count": lambda: len(self._backends),
            "ggml_backend_reg_get": lambda at: at,
            "ggml_backend_reg_name": lambda at: self._backends[at].encode(),
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def _memory(self, at: int, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = self._devices[at][4:]
