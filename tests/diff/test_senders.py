"""Which row of another process wrote what a process received, where no message says when."""

from pathlib import Path

import pytest
from message_programs import Member

from rltrace.diff import compare
from rltrace.diff.base.model import Cause
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


def test_another_op_of_a_worker_wrote_it_in_b(tmp_path: Path) -> None:
    """The worker scales what it sends: what arrives is led by the ops that wrote it, each proven by its digest."""
    paths = []
    for value in "ab":
        trace = TraceBuilder(tmp_path / value)
        main, worker = (Member(trace.process(f"rank0/{name}").stream()) for name in ("main", "worker:1"))
        worker.stream.op("aten.randn.default", outputs=["a"])
        if value == "b":
            worker.stream.op("aten.mul.Tensor", inputs=[In(1)], outputs=["b"])
        worker.message("pipe", True, "sent")
        main.message("pipe", False, "sent")
        main.stream.op("aten.mm.default", inputs=[In(digest=digest(value))], outputs=[f"product of {value}"])
        paths.append(trace.finish())
    found = compare(*paths).first_value
    assert found is not None and found.cause is Cause.OUTSIDE
    assert found.explanation == (
        "input 0 (float32[4]) came from outside (no recorded op wrote it) and differs: in A it is what "
        "aten.randn.default (row 0) of rank0/worker:1 wrote, and in B it is what aten.mul.Tensor (row 1) of "
        "rank0/worker:1 wrote"
    )
