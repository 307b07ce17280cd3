"""Messages from workers to the screens of ops."""

from textual.message import Message

from rltrace.diff.display.segments import Piece
from rltrace.errors import HoleError
from rltrace.query.op_pair import OpPair, Upstream
from rltrace.query.values import OpValues
from rltrace_tui.data import StreamPairData


class Opened(Message):
    """The rows of a folded piece were read."""

    def __init__(self, stream: StreamPairData, at: int, piece: Piece, new: list[Piece]) -> None:
        super().__init__()
        self.stream, self.at, self.piece, self.new = stream, at, piece, new


class Arrived(Message):
    """A stream and the requested line are ready; ``more``: rows of a fold are still being read."""

    def __init__(self, stream: StreamPairData, line: int, more: bool = False, note: str = "") -> None:
        super().__init__()
        self.stream, self.line, self.more, self.note = stream, line, more, note


class Sought(Message):
    """A search in the ops ended; ``error``: why it was impossible."""

    def __init__(self, stream: StreamPairData, found: tuple[str, int] | None, what: str, error: str = "") -> None:
        super().__init__()
        self.stream, self.found, self.what, self.error = stream, found, what, error


class OpRead(Message):
    """An op was read; ``pair`` None: it cannot be read, because of ``trouble``."""

    def __init__(self, at: tuple[int | None, int | None], pair: OpPair | None, trouble: str = "") -> None:
        super().__init__()
        self.at, self.pair, self.trouble = at, pair, trouble


def read_op(stream: StreamPairData, a: int | None, b: int | None) -> OpRead:
    """The op of these rows of A and B, or why it cannot be read."""
    try:
        with stream.browser.lock:
            return OpRead((a, b), stream.pairs.pair(a, b))
    except HoleError as error:
        return OpRead((a, b), None, str(error))


class ValuesRead(Message):
    """Recorded values of an op were read and measured; ``commands``: record them, if they are missing."""

    def __init__(self, at: tuple[int | None, int | None], values: OpValues, commands: tuple[str, ...]) -> None:
        super().__init__()
        self.at, self.values, self.commands = at, values, commands


class WentUpstream(Message):
    """The op that computed an input was looked up; None: it is unknown."""

    def __init__(self, place: int, found: Upstream | None) -> None:
        super().__init__()
        self.place, self.found = place, found
