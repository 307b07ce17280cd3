"""What workers tell the screens of ops when they are done."""

from __future__ import annotations

from textual.message import Message

from rltrace.diff.display.segments import Piece
from rltrace.query.op_pair import OpPair, Upstream
from rltrace.query.values import OpValues
from rltrace_tui.data import StreamPairData


class Opened(Message):
    """The rows of a folded piece were read."""

    def __init__(self, stream: StreamPairData, at: int, piece: Piece, new: list[Piece]) -> None:
        super().__init__()
        self.stream, self.at, self.piece, self.new = stream, at, piece, new


class Arrived(Message):
    """A stream is ready, and the line that was asked for; ``more``: what folds it is still being read."""

    def __init__(self, stream: StreamPairData, line: int, more: bool = False, said: str = "") -> None:
        super().__init__()
        self.stream, self.line, self.more, self.said = stream, line, more, said


class Sought(Message):
    """A search along the ops came to its end; ``wrong``: it could not be made."""

    def __init__(self, stream: StreamPairData, found: tuple[str, int] | None, what: str, wrong: str = "") -> None:
        super().__init__()
        self.stream, self.found, self.what, self.wrong = stream, found, what, wrong


class OpRead(Message):
    """One op was read; None: it cannot be, for this reason."""

    def __init__(self, at: tuple[int | None, int | None], pair: OpPair | None, trouble: str = "") -> None:
        super().__init__()
        self.at, self.pair, self.trouble = at, pair, trouble


class ValuesRead(Message):
    """Its recorded values were read and measured, and how they could be recorded is known."""

    def __init__(self, at: tuple[int | None, int | None], values: OpValues, how: tuple[str, ...]) -> None:
        super().__init__()
        self.at, self.values, self.how = at, values, how


class WentUpstream(Message):
    """The way upstream of an input came to its end."""

    def __init__(self, place: int, found: Upstream | None) -> None:
        super().__init__()
        self.place, self.found = place, found
