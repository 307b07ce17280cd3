"""What torch calls when something is registered with a module: two functions, the same for all recordings.

Owns them. torch's compiler reads them where a compiled function makes modules: they hold nothing that it could stumble
over, and what it reads in them adds nothing to what it makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as torch_module


class RegistrationListener(Protocol):
    """Who is told."""

    def registered(self, parent: torch.nn.Module, name: str, child: torch.nn.Module | None) -> None:
        """``child`` becomes a submodule of ``parent``."""

    def born(self, module: torch.nn.Module) -> None:
        """A parameter or a buffer is registered with ``module``."""

    def failed(self, module: torch.nn.Module, error: Exception) -> None:
        """One of these has raised; the program does not notice."""


_told: list[RegistrationListener] = []


def _registered(parent: torch.nn.Module, name: str, child: Any) -> None:
    if not is_dynamo_compiling():
        for listener in _told:
            try:
                listener.registered(parent, name, child)
            except Exception as error:
                listener.failed(parent, error)


def _born(module: torch.nn.Module, _name: str, _value: Any) -> None:
    if not is_dynamo_compiling():
        for listener in _told:
            try:
                listener.born(module)
            except Exception as error:
                listener.failed(module, error)


def tell(listener: RegistrationListener) -> Callable[[], None]:
    """From now on tell ``listener``; what is returned ends that. One is told at a time: a process has one recording."""
    _told.append(listener)
    hooks = [
        torch_module.register_module_module_registration_hook(_registered),
        torch_module.register_module_parameter_registration_hook(_born),
        torch_module.register_module_buffer_registration_hook(_born),
    ]

    def stop() -> None:
        if listener in _told:
            _told.remove(listener)
        for hook in hooks:
            hook.remove()

    return stop
