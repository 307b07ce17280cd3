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
from made_programs import run_text, text_of

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Finding
from rltrace.live_diff.follower import Follower
from rltrace.recorder.session import session as sessions
from rltrace.trace.format.journal import frame, parse_journal
from rltrace.trace.format.root import JOURNAL, PROCESSES
from rltrace.trace.read.reader import open_trace

STEPS = 6


def flush() -> None:
    """Commit the rows so far, as a program that runs for longer does every few seconds."""
    session = sessions.current.session
    assert session is not None
    session._committer.flush()


def end_step() -> None:
    rltrace.step()
    flush()


Program = Callable[[bool], object]


def training(change: Callable[[int, torch.Tensor], torch.Tensor]) -> Program:
    """A small training, whose batch of each step ``change`` may alter in B."""

    def program(is_b: bool) -> None:
        parameter = torch.ones(4, requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for step in range(STEPS):
            batch = torch.as_tensor([float(step), 1.0, 2.0, 3.0])
            optimizer.zero_grad()
            (parameter * (change(step, batch) if is_b else batch)).square().mean().backward()
            optimizer.step()
            flush()

    return program


equal = training(lambda step, batch: batch)
values = training(lambda step, batch: torch.as_tensor([float(step), 1.0, 2.0, 3.5 if step == 3 else 3.0]))
extra_op = training(lambda step, batch: batch.flip(0) if step >= 2 else batch)
other_order = training(lambda step, batch: torch.as_tensor([float({3: 4, 4: 3}.get(step, step)), 1.0, 2.0, 3.0]))


def one_more_log_line(is_b: bool) -> None:
    training(lambda step, batch: (batch.sum(), batch)[1])(is_b)


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

    def grow(self, count: int, *, ended: bool = False) -> None:
        """Its process has written so many records; ``ended``: its launch has ended."""
        if not self.path.exists():
            shutil.copytree(self._whole, self.path, ignore=lambda folder, names: [n for n in names if n[:2] == "c."])
        self._write(PROCESSES + "/0", self.records[:count])
        for record in self.records[:count]:
            for index, array in enumerate(("rows", "cells")) if record["type"] == "commit" else ():
                key = f"{PROCESSES}/0/streams/{record['stream']}/{array}/c.{record['segment']}" + (".0", "")[index]
                self._link(key)
            for number, _ in enumerate(record["files"]) if record["type"] == "tables" else ():
                self._link(f"{PROCESSES}/0/tables/c.{record['chunk'] + number}")
            if record["type"] in ("steps", "series") and "chunk" in record:
                self._link(f"{PROCESSES}/0/{record['type']}/c.{record['chunk']}.0")
        launch = parse_journal((self._whole / JOURNAL).read_bytes()).records
        self._write("", launch if ended else launch[:1])

    def _write(self, base: str, records: list[dict[str, Any]]) -> None:
        digest, data = 0, []
        for record in records:
            framed, digest = frame(digest, record)
            data.append(framed)
        Path(self.path, base, JOURNAL).write_bytes(b"".join(data))

    def _link(self, key: str) -> None:
        if not (self.path / key).exists():
            os.link(self._whole / key, self.path / key)


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


PROGRAMS = {"values": values, "extra op": extra_op, "order": other_order, "log": one_more_log_line, "equal": equal}
FIRST = {"values": 3, "extra op": 2, "order": 3, "log": None, "equal": None}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("level", ["op", "step"])
def test_the_finding_of_the_whole_traces(tmp_path: Path, name: str, level: str) -> None:
    """It is found at the first look at which both sides have ended its step, in whatever order they grew."""
    recordings = Recordings(tmp_path).make(PROGRAMS[name], level=level)
    whole = recordings.decisive
    assert (None if whole is None else whole.step) == FIRST[name]
    for turn in ("b ahead", "a ahead", "together"):
        pair = Pair(recordings, tmp_path / turn)
        (tmp_path / turn).mkdir()
        a, b = len(pair.a.records), len(pair.b.records)
        looks = {
            "b ahead": [(0, b), *((k, b) for k in range(1, a + 1))],
            "a ahead": [(a, 0), *((a, k) for k in range(1, b + 1))],
            "together": [(k, k) for k in range(1, min(a, b) + 1)],
        }[turn]
        found = next(filter(None, (pair.look(*look) for look in looks)), None)
        assert place(found) == place(whole)
        if found is not None and found.step is not None:
            counts = [open_trace(side.path).processes[0].step_count for side in (pair.a, pair.b)]
            assert min(counts) == found.step + 1  # no sooner, and no later
        pair.end()
        assert place(pair.follower.finding) == place(whole)
        if whole is None:
            assert pair.follower.is_equal


@given(st.integers(0, 1 << 32), st.integers(0, 2))
@settings(max_examples=8, deadline=None)
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
        if soon is not None and "it draws from a generator" not in soon.explanation:  # later draws may settle it
            assert place(soon) == wanted
        assert place(pair.end()) == wanted
