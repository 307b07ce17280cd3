"""What intercepts an op is one thing, what becomes of it another: the two sides of that seam.

Owns the Protocols. A trace names its engine; op streams of two engines are not compared row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch._ops import OpOverload

if TYPE_CHECKING:
    from rltrace.record.keepers import Keepers


class Observer(Protocol):
    """What becomes of an op."""

    def observe(
        self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        """Run the op, write down what there is to know, return what it returned; raise only what it raised.

        ``by`` is whatever intercepted it. It comes first so that torch can call this method with nothing in between.
        """


class Companion(Protocol):
    """What goes along with the recording of a process: has streams of its own kind, and something to say at the end."""

    def joined(self, keepers: Keepers) -> Keepers:
        """What the recording keeps, and the kind of stream that has it, with what is the companion's."""

    def records(self) -> list[dict[str, Any]]:
        """Records for the process's journal, asked for when it ends."""


class Engine(Protocol):
    """What intercepts ops, on the thread that calls ``enter``. Not re-entrant."""

    name: str
    """Named in the trace."""

    def enter(self, observer: Observer) -> None:
        """From now on hand every op of the calling thread to ``observer``."""

    def leave(self) -> bool:
        """Stop; False when that is not possible now (another mode lies on top) and ops merely pass through."""

    def is_between_ops(self) -> bool:
        """Whether an op that the calling thread ran now would go to the observer: none of its is under way there."""

    def silence(self) -> None:
        """Let ops pass through from now on. May be called from another thread than ``enter``."""
