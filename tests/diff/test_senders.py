"""Which row of another process wrote what a process received, where no message says when."""

from pathlib import Path

import pytest
from message_programs import Member

from rltrace.diff import compare
from rltrace.testing import In, TraceBuilder, digest


@pytest.mark.parametrize("is_made", [True, False])
def test_what_is_written_to_shared_memory_after_the_last_message(tmp_path: Path, is_made: bool) -> None:
    """The first row that has the bytes sent them where it made them; where it read them from outside as the other did,
    both may have them from elsewhere."""
    paths = []
    for value in "ab":
        trace = TraceBuilder(tmp_path / value)
        main, worker = (Member(trace.process(f"rank0/{name}").stream()) for name in ("main", "worker:1"))
        main.op("begins")
        main.message("pipe", True, "begin")
        worker.message("pipe", False, "begin")
        outside = [In(digest=digest(value))]
        main.stream.op("aten.mul.Tensor", inputs=[] if is_made else outside, outputs=[value])
        main.stream.op("aten.clone.default", inputs=[In(1)], outputs=[value])
        worker.stream.op("aten.sin.default", inputs=outside, outputs=[f"sine of {value}"])
        paths.append(trace.finish())
    found = compare(*paths)
    of_worker = next(one for one in (*found.unordered, *found.later) if one.stream == "rank0/worker:1")
    sender = of_worker.sender
    assert (sender and (sender.stream, sender.a_index, sender.b_index)) == (("rank0/main", 1, 1) if is_made else None)
    assert (found.decisive.stream == "rank0/main" and of_worker in found.later) == is_made
