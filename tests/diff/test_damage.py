"""Damaged traces: what is equal is never called different, what differs is never called equal, and nothing crashes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Do, Machine, training

from rltrace.diff import compare
from rltrace.diff.model import Verdict
from rltrace.errors import RltraceError
from rltrace.report.json import comparison_json
from rltrace.report.text import render_comparison
from rltrace.testing import TraceBuilder


def recorded_in_pieces(path: Path, program: list[Do], level: str = "op") -> Path:
    """Record with a commit after every step, so that there are many files to damage."""
    trace = TraceBuilder(path, level=level)
    machine = Machine(trace)
    for step in range(program.count(Do("step"))):
        ends = [p for p, do in enumerate(program) if do.name == "step"]
        machine.run(program[0 if step == 0 else ends[step - 1] + 1 : ends[step] + 1])
        trace.commit()
    return trace.finish()


@pytest.fixture(scope="module", params=["op", "step"])
def originals(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("originals")
    program = training(5)
    place = [p for p, do in enumerate(program) if do.name == "aten.mm.default"][5]
    other = [*program[:place], replace(program[place], noise="x"), *program[place + 1 :]]
    return {
        name: recorded_in_pieces(folder / f"{name}.zarr", done, request.param)
        for name, done in (("a", program), ("same", program), ("other", other))
    }


damages = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["flip", "cut", "remove", "zero", "swap"]), st.floats(0, 1)),
    min_size=1,
    max_size=3,
)


def spoil(trace: Path, damage: list[tuple[float, str, float]]) -> None:
    files = sorted(path for path in trace.rglob("*") if path.is_file())
    for which, how, where in damage:
        file = files[min(int(which * len(files)), len(files) - 1)]
        if not file.exists():
            continue
        data = bytearray(file.read_bytes())
        at = min(int(where * len(data)), max(len(data) - 1, 0))
        if how == "flip" and data:
            data[at] ^= 1 << (at % 8)
        elif how == "zero":
            data = bytearray(len(data))
        elif how == "swap":
            data = bytearray(files[len(files) // 2].read_bytes()) if files[len(files) // 2].exists() else data
        file.write_bytes(bytes(data[:at] if how == "cut" else data))
        if how == "remove":
            file.unlink()


@pytest.mark.parametrize("name", ["same", "other"])
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damages)
def test_damage_never_turns_the_answer(
    originals: dict[str, Path], name: str, damage: list[tuple[float, str, float]], tmp_path: Path
) -> None:
    """Bits flipped, files cut, emptied, swapped or removed: the true answer, an open one, or a named error."""
    spoilt = tmp_path / "spoilt.zarr"
    shutil.rmtree(spoilt, ignore_errors=True)
    shutil.copytree(originals[name], spoilt)
    spoil(spoilt, damage)
    try:
        comparison = compare(originals["a"], spoilt)
    except RltraceError:
        return
    true = Verdict.IDENTICAL if name == "same" else Verdict.DIVERGED
    assert comparison.verdict in (true, Verdict.UNKNOWN), comparison.why
    assert render_comparison(comparison, color=False) and comparison_json(comparison)
