"""Messages between processes of one run: record "messages", and which rows they order.

Owns the format of what one process sent or received on one channel. A message has no meaning in another run.
"""

from typing import Final, NamedTuple

from rltrace.trace.format.journal import Record
from rltrace.trace.format.records import MAX_STREAMS, check_fields, number

START: Final = "start"
"""Channel of the starts of processes."""
END: Final = "end"
"""Channel of their ends."""
THREAD: Final = "thread"
"""Channel between threads of one process: to one that was started, or from one that was joined, and from those that put
something into a queue to the one that sends it."""
FILE: Final = "file"
"""Channel of files."""
RAY: Final = "ray"
"""Channel of Ray's tasks and objects, of all machines."""


class MessageEnds(NamedTuple):
    """What one stream sent on one channel, or received, in this order."""

    channel: str
    sent: bool
    stream: int
    rows: list[int]
    """For each message the rows that the stream had before it; in a trace of steps, the attempts."""
    numbers: list[int]
    """By which those of one stream follow each other."""
    digests: list[int]

    def record(self) -> dict[str, object]:
        digests = [f"{digest:016x}" for digest in self.digests]
        return {"type": "messages", **self._asdict(), "digests": digests}


def parse_messages(record: Record) -> MessageEnds:
    """Raises KeyError, TypeError or ValueError for a record that the recorder does not write."""
    check_fields(record, channel=str, sent=bool, rows=list, numbers=list, digests=list)
    stream = number(record, "stream", MAX_STREAMS)
    rows, numbers = ([number({name: each}, name) for each in record[name]] for name in ("rows", "numbers"))
    digests = [int(digest, 16) for digest in record["digests"]]
    if not len(rows) == len(numbers) == len(digests) or not all(0 <= digest < 1 << 64 for digest in digests):
        raise ValueError("its rows, numbers and digests are not those of messages")
    return MessageEnds(record["channel"], record["sent"], stream, rows, numbers, digests)
