"""Asking what ran: who may answer, and what a call that ends the process that makes it costs."""

import json
from pathlib import Path

import pytest

from rltrace.errors import RecordError, UsageError
from rltrace.extensions.kernels import queries as kernel_queries
from rltrace.extensions.kernels.queries import query_kernels
from rltrace.testing import TraceBuilder
from rltrace.trace.format.root import JOURNAL
from rltrace.trace.read.reader import open_trace

DYING = """
import json, os, signal, sys
asked = json.loads(sys.stdin.read())
with open(sys.argv[2], "w") as out:
    for row in range(3):
        where = f"0 0 {row}"
        print(json.dumps({"asking": where}), file=out, flush=True)
        if row in DEADLY and where not in asked["skip"]:
            os.kill(os.getpid(), signal.SIGKILL)
        call = [f"{row:016x}", 0, 0, row, 1]
        print(json.dumps({"process": 0, "call": call, "names": [where], "reported": [""]}), file=out, flush=True)
    print(json.dumps({"process": 0, "unknown": [["left out", len(asked["skip"])]]}), file=out)
    print(json.dumps({"facts": {}, "libraries": {}}), file=out)
"""
"""Stands for the process that makes the calls: some of them end it, as a segmentation fault would."""


def small_trace(path: Path, **facts: str) -> Path:
    builder = TraceBuilder(path)
    layouts = [["float32", [4, 4], [4, 1], "cpu"]] * 2
    kernel = {"library": "MKL", "isa": "auto", "threads": 1}
    builder.op("aten.mm.default", inputs=["unknown"] * 2, outputs=["x"], layouts=layouts, kernel=kernel)
    for name, value in facts.items():
        builder.fact(name, value)
    return builder.finish()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program of the process that makes the calls."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(kernel_queries, "WORKER", "worker")
    return tmp_path / "worker.py"


@pytest.mark.parametrize(("deadly", "left_out"), [((), 0), ((1,), 1), ((0, 2), 2)])
def test_a_call_that_ends_the_process_is_left_out(
    tmp_path: Path, worker: Path, deadly: tuple[int, ...], left_out: int
) -> None:
    """The others are asked for all the same."""
    worker.write_text(DYING.replace("DEADLY", repr(deadly)))
    found = query_kernels(small_trace(tmp_path / "a.zarr"))
    assert (found.calls, found.unknown) == (3, {"left out": left_out})


def test_one_that_never_comes_to_an_answer_is_named(tmp_path: Path, worker: Path) -> None:
    """Nothing is written then, and why is said."""
    worker.write_text("raise SystemExit('no torch here')")
    path = small_trace(tmp_path / "a.zarr")
    before = (path / JOURNAL).read_bytes()
    with pytest.raises(RecordError, match="no torch here"):
        query_kernels(path)
    assert (path / JOURNAL).read_bytes() == before


def test_only_the_machine_of_the_recording_may_answer(tmp_path: Path, worker: Path) -> None:
    """What would run on another processor is no evidence of what ran: refused, and nothing is written."""
    worker.write_text(DYING.replace("DEADLY", "()").replace('"facts": {}', '"facts": {"host.cpu": "Intel 8086"}'))
    path = small_trace(tmp_path / "a.zarr", **{"host.cpu": "Zilog Z80"})
    before = (path / JOURNAL).read_bytes()
    with pytest.raises(UsageError, match=r"host\.cpu is Zilog Z80; here it is Intel 8086"):
        query_kernels(path)
    assert (path / JOURNAL).read_bytes() == before
    assert open_trace(path).processes[0].library_reports is None


def test_what_was_cut_off_with_its_writer_is_no_answer(tmp_path: Path) -> None:
    """Of a last line that was never finished nothing is taken, and the call before it is the one that was made."""
    answers = kernel_queries._Answers()
    call = {"process": 0, "call": ["f" * 16, 0, 0, 0, 1], "names": [], "reported": []}
    lines = [json.dumps({"asking": "0 0 0"}), json.dumps(call), json.dumps({"asking": "0 0 7"}), '{"process": 0, "ca']
    assert answers.read(lines) == "0 0 7"
    assert len(answers.calls[0]) == 1 and answers.facts is None
