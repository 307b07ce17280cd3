"""Facts that differ, and source files that were edited between two runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from programs import Machine, training
from views import compare_in

from rltrace.diff import compare
from rltrace.diff.system_facts import fact_differences, selects_kernels
from rltrace.report.diff import verdict_document
from rltrace.report.text import document_text
from rltrace.testing import TraceBuilder


def test_an_edited_file_is_named_with_its_lines(record: Callable[..., Machine]) -> None:
    """By the hashes of the file; of its lines those in the call stacks of one run only, wherever they moved."""
    program = [replace(do, source="b = policy(0.5 * observation)") if do.line == 11 else do for do in training()]
    edited = [replace(do, source="b = policy(0.6 * observation)") if do.line == 11 else do for do in training()]
    moved = [replace(do, line=do.line + 2, source=do.source or f"line {do.line}") for do in edited]
    a = record(program, facts={"source.train.py": "1", "source.envs.py": "3", "source.same.py": "4"})
    b = record(moved, facts={"source.train.py": "2", "source.envs.py": "5", "source.same.py": "4"})
    found = compare(a.path, b.path)
    train, envs = found.edits  # the one with the nearest line first
    assert (envs.file, envs.only_a, envs.only_b) == ("envs.py", (), ())
    assert train.file == "train.py"
    assert [(site.line, site.source) for site in train.only_a] == [(11, "b = policy(0.5 * observation)")]
    assert [(site.line, site.source) for site in train.only_b] == [(13, "b = policy(0.6 * observation)")]
    text = document_text(verdict_document(found))
    assert "  sources  train.py, envs.py were edited between the runs\n" in text
    assert "  <  train.py:11 in train\n       b = policy(0.5 * observation)\n  >  train.py:13" in text


def test_a_file_that_one_run_alone_loaded_was_not_edited(record: Callable[..., Machine]) -> None:
    """A file that one run alone loaded was not edited, nor one whose hash is unknown on a side."""
    a = record(training(), facts={"source.extra.py": "1", "source.large.py": None})
    b = record(training(), facts={"source.large.py": "2"})
    assert compare(a.path, b.path).edits == ()


def test_facts_of_the_recording_are_no_differences() -> None:
    """How a loop of JAX was digested, and what was compared of its code, differs with the options of ``record``."""
    recorded = {"jax.loops": "jit.train: 6 iterations", "jax.code": "jit.train: its 9 …", "jax.enable_x64": True}
    assert [found.name for found in fact_differences(recorded, {})] == ["jax.enable_x64"]
    assert [name for name in recorded if selects_kernels(name)] == ["jax.enable_x64"]


def test_facts_that_a_killed_process_could_not_record(tmp_path: Path) -> None:
    """They are unknown, not unset; the variables that are recorded first are known."""
    for side, names in (("a", ("flag.mkldnn", "env.MKL_CBWR", "env.SEED")), ("b", ())):
        trace = TraceBuilder(tmp_path / f"{side}.zarr")
        for name in ("host.cpu", *names):
            trace.fact(name, "1")
        trace.op("aten.mm.default")
        trace.finish("complete" if names else "killed")
    assert [fact.name for fact in compare_in(tmp_path).system] == ["env.MKL_CBWR"]


def test_whose_facts_differ(tmp_path: Path) -> None:
    """Behind a launcher: a difference that several ranks have is named once, with how many do."""
    for side in "ab":
        trace = TraceBuilder(tmp_path / f"{side}.zarr", process="launcher:torchrun")
        for rank in range(3):
            process = trace.process(f"rank{rank}/main")
            process.fact("env.SEED", side)
            process.fact("env.PART", side if rank == 2 else "")
            process.stream().op("aten.mm.default")
        trace.finish()
    names = [fact.name for fact in compare_in(tmp_path).system]
    assert names == ["env.PART (rank2/main)", "env.SEED (rank0/main and 2 more)"]
