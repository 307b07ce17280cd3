"""Two traces compared as they grow: the first difference is the one that a comparison of the whole traces names."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from program_pairs import run_text, text_of

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Finding
from rltrace.errors import NotATraceError
from rltrace.live_diff.follower import Follower, Reach, may_grow
from rltrace.recorder.session import session as sessions
from rltrace.trace.format.journal import frame, parse_journal
from rltrace.trace.format.root import JOURNAL, PROCESSES
from rltrace.trace.read.reader import open_trace

STEPS = 6


def flush() -> None:
    """Commit the rows so far, as a program that runs for longer does every few seconds."""
    session = sessions.current.session
    session._committer.flush()


def end_step() -> None:
    rltrace.step()
    flush()


Program = Callable[[bool], object]


def training(
    number: Callable[[int], float] = float, change: Callable[[int, torch.Tensor], torch.Tensor] | None = None
) -> Program:
    """A small training. ``number``: what B's batch of a step begins with; ``change`` returns what it computes with."""

    def program(is_b: bool) -> None:
        parameter = torch.ones(4, requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for step in range(STEPS):
            batch = torch.as_tensor([number(step) if is_b else float(step), 1.0, 2.0, 3.0])
            if is_b and change is not None:
                batch = change(step, batch)
            optimizer.zero_grad()
            (parameter * batch).square().mean().backward()
            optimizer.step()
            flush()

    return program


PROGRAMS = {
    "equal": training(),
    "values": training(lambda step: 3.5 if step == 3 else step),
    "order": training(lambda step: {3: 4, 4: 3}.get(step, step)),
    "extra op": training(change=lambda step, batch: batch.flip(0) if step >= 2 else batch),
    "log line": training(change=lambda step, batch: (batch.sum(), batch)[1]),
}
FIRST = {"values": 3, "extra op": 2, "order": 3, "log line": None, "equal": None}


@dataclass
class Recordings:
    """Both sides of a program, recorded whole."""

    folder: Path

    def make(self, program: Program, **options: Any) -> Recordings:
        for is_b in (False, True):
            torch.manual_seed(0)
            with rltrace.record(self.path(is_b), **options):
                program(is_b)
        return self

    def path(self, is_b: bool) -> Path:
        return self.folder / ("b.zarr" if is_b else "a.zarr")

    @property
    def decisive(self) -> Finding | None:
        """What a comparison of the whole traces names."""
        return compare(self.path(False), self.path(True)).decisive


class Growing:
    """A copy of a trace that grows record by record, as its writer wrote it."""

    def __init__(self, whole: Path, path: Path) -> None:
        self.path = path
        self._whole = whole
        self.records = parse_journal((whole / PROCESSES / "0" / JOURNAL).read_bytes()).records

    @property
    def ends_of_steps(self) -> list[int]:
        """Numbers of records up to the end of each step."""
        return [number for number, record in enumerate(self.records, 1) if record["type"] == "steps"]

    def grow(self, count: int, *, ended: bool = False) -> None:
        """Its process has written so many records; ``ended``: its launch has ended."""
        if not self.path.exists():
            shutil.copytree(self._whole, self.path, ignore=lambda folder, names: [n for n in names if n[:2] == "c."])
        self._write(PROCESSES + "/0", self.records[:count])
        for key in [key for record in self.records[:count] for key, *_ in record.get("files", ())]:
            if not (link := self.path / PROCESSES / "0" / key).exists():
                os.link(self._whole / PROCESSES / "0" / key, link)
        launch = parse_journal((self._whole / JOURNAL).read_bytes()).records
        self._write("", launch if ended else launch[:1])

    def _write(self, base: str, records: list[dict[str, Any]]) -> None:
        digest, data = 0, []
        for record in records:
            framed, digest = frame(digest, record)
            data.append(framed)
        Path(self.path, base, JOURNAL).write_bytes(b"".join(data))


class Pair:
    """Both sides as they grow, and what follows them."""

    def __init__(self, recordings: Recordings, folder: Path) -> None:
        self.a, self.b = (Growing(recordings.path(is_b), folder / f"growing-{is_b}.zarr") for is_b in (False, True))
        self.follower = Follower(self.a.path, self.b.path)

    def look(self, a: int, b: int) -> Finding | None:
        for side, count in ((self.a, a), (self.b, b)):
            if count:
                side.grow(count)
        self.follower.look()
        return self.follower.finding

    def end(self) -> Finding | None:
        for side in (self.a, self.b):
            side.grow(len(side.records), ended=True)
        self.follower.conclude()
        return self.follower.finding


def place(finding: Finding | None) -> tuple[object, ...] | None:
    if finding is None:
        return None
    return finding.stream, finding.step, finding.a_index, finding.b_index, finding.op, finding.cause, finding.outputs


@pytest.mark.parametrize(
    ("name", "level"), [*((name, "op") for name in PROGRAMS), ("values", "step"), ("equal", "step")]
)
def test_the_finding_of_the_whole_traces(tmp_path: Path, name: str, level: str) -> None:
    """It is found at the first look at which both sides have ended its step, in whatever order they grew."""
    recordings = Recordings(tmp_path).make(PROGRAMS[name], level=level)
    whole = recordings.decisive
    assert (None if whole is None else whole.step) == FIRST[name]
    for turn in ("b ahead", "a ahead", "together") if name == "values" else ("together",):
        pair = Pair(recordings, tmp_path / turn)
        (tmp_path / turn).mkdir()
        a, b = pair.a.ends_of_steps, pair.b.ends_of_steps
        looks = {
            "b ahead": [(0, b[-1]), *((k, b[-1]) for k in a)],
            "a ahead": [(a[-1], 0), *((a[-1], k) for k in b)],
            "together": list(zip(a, b, strict=True)),
        }[turn]
        found = next(filter(None, (pair.look(*look) for look in looks)), None)
        assert place(found) == place(whole)
        if found is not None and found.step is not None:
            counts = [open_trace(side.path).processes[0].step_count for side in (pair.a, pair.b)]
            assert min(counts) == found.step + 1  # no sooner, and no later
        assert place(pair.end()) == place(whole)
        assert pair.follower.reach is Reach.ENDED
        assert pair.follower.is_equal is (whole is None)


def test_ending_within_the_step(tmp_path: Path) -> None:
    """Where B has ended and A has not ended the step that differs, that is what is known, and is not final."""
    recordings = Recordings(tmp_path).make(PROGRAMS["values"])
    pair = Pair(recordings, tmp_path)
    a = pair.a.ends_of_steps[3] - 1  # the rows of the step, without its end
    assert pair.look(a, len(pair.b.records)) is None
    pair.b.grow(len(pair.b.records), ended=True)
    pair.follower.conclude()
    assert place(pair.follower.finding) == place(recordings.decisive)
    assert (pair.follower.is_final, pair.follower.is_equal) == (False, None)
    assert "has not ended on both sides" in pair.follower.undecided


def test_what_may_grow(tmp_path: Path) -> None:
    """What does not exist yet, or is being created; not a recording that has ended, nor anything else."""
    recordings = Recordings(tmp_path).make(lambda is_b: torch.ones(2))
    begun = tmp_path / "begun.zarr"
    (begun / "starts").mkdir(parents=True)
    assert may_grow(tmp_path / "missing.zarr")
    assert may_grow(begun)
    assert not may_grow(recordings.path(False))
    with pytest.raises(NotATraceError):
        may_grow(tmp_path)


@given(st.integers(0, 1 << 32), st.integers(0, 2))
@settings(max_examples=4, deadline=None)
def test_random_programs(seed: int, extra: int) -> None:
    """Extra ops, harmless and not, and ops that are off from some line on: as a comparison of the whole traces."""
    random = Random(seed)
    texts = [text.splitlines() for text in text_of(random, extra)]
    marked = ["\n".join(line + ("\nend_step()" if k % 4 == 3 else "") for k, line in enumerate(text)) for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        recordings = Recordings(Path(folder)).make(lambda is_b: run_text(marked[is_b], end_step=end_step))
        pair = Pair(recordings, Path(folder))
        a = b = 0
        while (a, b) != (len(pair.a.records), len(pair.b.records)):
            a, b = (min(n + random.randint(0, 6), len(side.records)) for n, side in ((a, pair.a), (b, pair.b)))
            pair.look(a, b)
        soon, whole = pair.follower.finding, recordings.decisive
        wanted = None if whole is None or whole.cause is Cause.ENDED else place(whole)
        if soon is not None:
            assert place(soon) == wanted
        assert place(pair.end()) == wanted
