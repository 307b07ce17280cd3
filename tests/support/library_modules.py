"""Modules of classes that are named as a library's are."""

from typing import Any

from torch import nn


def module_of(name: str, **attributes: Any) -> Any:
    """A module of a class of that name, which has these attributes."""
    return type(name, (nn.Module,), attributes)()
