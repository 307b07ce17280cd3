"""What torch calls around each step of an optimizer: two functions, the same for all recordings of a process.

Owns them and their places among torch's hooks. torch's compiler reads the hooks with the step that it compiles, and
compiles it anew when they are others: so nothing about them differs from one recording to the next, and what it reads
in them adds nothing to what it makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Protocol

from torch._compile import _disable_dynamo
from torch.compiler import is_dynamo_compiling
from torch.optim import optimizer as torch_optimizer

from rltrace.record.compiler.compiled_steps import goes_into_graph

KEY: Final = "rltrace"
"""Of the hooks in torch's tables, where others have numbers."""


class StepListener(Protocol):
    """Who is told."""

    def step_begins(self, optimizer: Any, caller: FrameType) -> None:
        """``caller`` is the frame that runs the step."""

    def step_ends(self, optimizer: Any) -> None:
        """The step that began last has ended."""

    def compiled_step_ends(self, optimizer: Any) -> None:
        """A step has ended whose beginning nobody was told of."""


_told: list[StepListener] = []


def _begins(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if not is_dynamo_compiling():
        for listener in _told:
            listener.step_begins(optimizer, sys._getframe(1))


def _ends(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if not is_dynamo_compiling():
        for listener in _told:
            listener.step_ends(optimizer)
    elif not goes_into_graph(optimizer):
        _ends_between(optimizer)


@_disable_dynamo  # where the compiler meets it, it pauses
def _ends_between(optimizer: Any) -> None:
    for listener in _told:
        listener.compiled_step_ends(optimizer)


def tell(listener: StepListener) -> Callable[[], None]:
    """From now on tell ``listener``; what is returned ends that."""
    _told.append(listener)
    before: dict[Any, Any] = torch_optimizer._global_optimizer_pre_hooks
    after: dict[Any, Any] = torch_optimizer._global_optimizer_post_hooks
    before[KEY], after[KEY] = _begins, _ends

    def stop() -> None:
        _told.remove(listener)
        if not _told:
            before.pop(KEY, None)
            after.pop(KEY, None)

    return stop
