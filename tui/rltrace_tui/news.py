"""What workers tell the list of ops when they are done."""

from __future__ import annotations

from textual.message import Message

from rltrace.diff.pieces import Piece
from rltrace_tui.work import Stream


class Opened(Message):
    """The rows of a folded piece were read."""

    def __init__(self, stream: Stream, at: int, piece: Piece, new: list[Piece]) -> None:
        super().__init__()
        self.stream, self.at, self.piece, self.new = stream, at, piece, new


class Arrived(Message):
    """A stream is ready, and the line that was asked for."""

    def __init__(self, stream: Stream, line: int) -> None:
        super().__init__()
        self.stream, self.line = stream, line


class Sought(Message):
    """A search along the ops came to its end."""

    def __init__(self, stream: Stream, line: int | None, what: str) -> None:
        super().__init__()
        self.stream, self.line, self.what = stream, line, what
