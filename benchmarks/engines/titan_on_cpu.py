"""Has TorchTitan 0.3 use a CPU, where it takes "cuda" if it finds no accelerator. Import before anything else of it."""

from __future__ import annotations

import types
from typing import Any

import torch
from torchtitan.tools import utils


class Cpu(types.ModuleType):
    """What TorchTitan calls of the module of a device."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def set_device(self, device: Any) -> None:
        pass

    def get_device_properties(self, *_: Any) -> Any:
        return types.SimpleNamespace(total_memory=1 << 34)


utils.device_type = "cpu"
utils.device_module = Cpu("cpu")
utils.get_local_device = lambda: torch.device("cpu")
