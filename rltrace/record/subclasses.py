"""Subclasses of Tensor that a program makes by calling them, which torch refuses while any dispatch mode is active.

``MyTensor([1.0])`` has torch make a tensor and turn it into ``MyTensor``. Under a mode what torch made has come out of
an op as a Python object already, and cannot become another. Owns what stands in for ``torch.Tensor.__new__`` while
there may be modes of the recorder; all other constructors (``as_subclass``, ``_make_subclass``) work under a mode.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from rltrace.record.dispatch import out_of_the_way, recorder_is_next

_original: Any = torch.Tensor.__new__


def _new(cls: type[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """What ``torch.Tensor.__new__`` does, the recorder aside."""
    if cls is torch.Tensor or not recorder_is_next():
        return _original(cls, *args, **kwargs)
    if args and isinstance(args[0], torch.Tensor):
        with out_of_the_way():  # an alias of what is there; nothing that a row would be needed for
            return _original(cls, *args, **kwargs)
    made = _original(torch.Tensor, *args, **kwargs)  # memory from an op or from outside: that op has its row
    return torch.Tensor._make_subclass(cls, made)


class _Constructor:
    """``torch.Tensor.__new__`` for the program. torch's compiler looks it up as well, and has to find its own."""

    def __get__(self, _instance: object, owner: type) -> Any:
        if owner is torch.Tensor and sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            return _original
        return _new


class SubclassCalls:
    """The stand-in, from ``watch`` to ``ignore``."""

    def __init__(self) -> None:
        self._standing = False

    def watch(self) -> None:
        there = vars(torch.Tensor).get("__new__")
        if isinstance(there, _Constructor):  # of the process that this one is a fork of
            self._standing = True
        elif there is None:
            self._standing = True
            torch.Tensor.__new__ = _Constructor()  # type: ignore[assignment]

    def ignore(self) -> None:
        if self._standing and isinstance(vars(torch.Tensor).get("__new__"), _Constructor):
            self._standing = False
            del torch.Tensor.__new__  # its own stands in TensorBase
