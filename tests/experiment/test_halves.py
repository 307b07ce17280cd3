"""One experiment on two machines: what each refuses, what its half comes to, and what the halves are together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rltrace.commands.confirm import parse_overrides
from rltrace.commands.main import main
from rltrace.diff.base.model import Pair
from rltrace.errors import UsageError
from rltrace.experiment.confirm.arms import interrupted_outcome
from rltrace.experiment.confirm.capture import CaptureError, CaptureInfo, identity_of, write_capture
from rltrace.experiment.confirm.setup import (
    CommandOverrides,
    ConfirmOptions,
    ExperimentSetup,
    captured_recipe,
    join,
    prepare,
)
from rltrace.experiment.confirm.suggested_commands import advice_of
from rltrace.experiment.outcome import Arm, ArmName, ArmState, ExperimentResult, OriginClass, Outcome, write_outcome
from rltrace.extensions.archive.slice import slice_trace
from rltrace.extensions.jax import JAX_ENGINE
from rltrace.report.confirm import outcome_headline
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace

KIND = OriginClass(
    "aten.mm.default", Pair("x", "y"), None, 3, 1.0, True, "rank0/main", 7, 0, kind="mm", kinds_b=("mm",)
)
HALF = ExperimentResult(None, "", "a.zarr", "b.zarr", 0, 2, (), (KIND,), subject={"a": "1", "b": "2"})


def half(states: dict[ArmName, ArmState], **changes: object) -> ExperimentResult:
    """An outcome whose arms are in these states, the others not run."""
    arms = tuple(Arm(name, states.get(name, ArmState.NOT_RUN), name.value, f"of {name.value}") for name in ArmName)
    return replace(HALF, arms=arms, **changes)


GOOD = ArmState.AS_EXPECTED
OF_A = half({ArmName.A0: GOOD, ArmName.A_FROM_B: GOOD})
OF_B = half({ArmName.B0: GOOD, ArmName.B_FROM_A: GOOD}, word=Outcome.REPAIRED, trials=5, advice=("next",))


def test_two_good_halves_are_a_confirmed_cause() -> None:
    """In either order: all four arms, the search's counts, and no advice that one half gave."""
    for one, other in ((OF_A, OF_B), (OF_B, OF_A)):
        found = join(one, other)
        assert (found.word, found.trials, found.advice) == (Outcome.CONFIRMED, 5, ())
        assert {arm.state for arm in found.arms} == {GOOD}
        assert found.classes == (KIND,)


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        (OF_B, OF_B, Outcome.REPAIRED),
        (OF_A, OF_A, None),
        (half({ArmName.A0: GOOD, ArmName.A_FROM_B: ArmState.OTHERWISE}), OF_B, Outcome.PARTIAL),
        (half({ArmName.A0: ArmState.FAILED}, word=Outcome.UNRESOLVED, explanation="no"), OF_B, Outcome.UNRESOLVED),
        (OF_A, half({ArmName.B0: GOOD, ArmName.B_FROM_A: ArmState.OTHERWISE}, word=Outcome.REFUTED), Outcome.REFUTED),
        (OF_A, half({ArmName.B0: GOOD, ArmName.B_FROM_A: ArmState.OTHERWISE}, word=Outcome.PARTIAL), Outcome.PARTIAL),
        (OF_A, half({ArmName.B0: ArmState.FAILED}, word=Outcome.UNRESOLVED, explanation="no"), Outcome.UNRESOLVED),
    ],
)
def test_what_halves_come_to(a: ExperimentResult, b: ExperimentResult, word: Outcome | None) -> None:
    """Nothing but two good halves is CONFIRMED: not one of them twice, not one that failed or came out otherwise."""
    assert join(a, b).word is join(b, a).word is word


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(OF_B, subject={"a": "1", "b": "3"}), "their traces, or what --inject says, are not the same"),
        (replace(OF_B, subject={**HALF.subject, "inject": "op=mm"}), "their traces, or what --inject says"),
        (replace(OF_B, classes=(replace(KIND, kind="add"),)), "other kinds of op than B's arms found"),
        (replace(OF_B, classes=(replace(KIND, matters=False),)), "other kinds of op than B's arms found"),
        (replace(OF_B, first_step=1), "their steps are not the same"),
        (replace(OF_B, end_step=3), "their steps are not the same"),
        (half({ArmName.B0: ArmState.RUNNING}), "is not finished"),
    ],
)
def test_halves_of_two_experiments(other: ExperimentResult, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        join(OF_A, other)


def test_halves_that_do_not_say_what_they_are_of() -> None:
    with pytest.raises(UsageError, match="do not say which traces"):
        join(replace(OF_A, subject={}), replace(OF_B, subject={}))


def test_join_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status and file of the whole; what is no outcome is trouble."""
    a, b, whole = (tmp_path / name for name in ("a.json", "b.json", "whole.json"))
    write_outcome(a, OF_A)
    write_outcome(b, OF_B)
    assert main(["confirm", "--join", str(a), str(b), "-o", str(whole)]) == 0
    assert capsys.readouterr().out.startswith("CONFIRMED")
    assert main(["confirm", "--join", str(b), str(b)]) == 3
    assert main(["confirm", "--join", str(a), str(whole.with_name("none.json"))]) == 2
    assert main(["confirm", "--join", str(a)]) == 2
    assert "rltrace confirm --join a.json b.json" in capsys.readouterr().err


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path]:
    """Two traces of three steps, which part in the second."""
    paths = []
    for name in ("a", "b"):
        builder = TraceBuilder(tmp_path / f"{name}.zarr")
        for step in range(3):
            builder.op("aten.mm.default", outputs=[f"x{step}{name if step == 1 else ''}"])
            builder.end_step()
        paths.append(builder.finish())
    return paths[0], paths[1]


def captured(of: Path, file: Path, first: int = 1, end: int = 3) -> Path:
    write_capture(file, CaptureInfo(identity_of(open_trace(of)), str(of), first, end, 2), of)
    return file


def prepared(traces: tuple[Path, Path], **asked: object) -> ExperimentSetup:
    """B's arms, its program given by hand: the builder's traces have no folder."""
    given = parse_overrides("python train.py", traces[0].parent, ())
    defaults = {"sides": frozenset("b"), "overrides": {"a": given, "b": given}}
    return prepare(ConfirmOptions(*traces, **{**defaults, **asked}))


def test_a_capture_is_of_this_trace_and_these_steps(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """Of the other trace, of other steps, none at all: refused, with the command that makes the right one."""
    a, b = traces
    right = f"rltrace capture {a} --steps 1:3 -o a.capture"
    for wrong, words in (
        (captured(b, tmp_path / "b.capture"), f"is a capture of {b}, not of A"),
        (captured(a, tmp_path / "early.capture", 0, 2), right),
        (None, right),
    ):
        with pytest.raises((UsageError, CaptureError)) as raised:
            prepared(traces, capture=wrong)
        assert words in str(raised.value)
    file = captured(a, tmp_path / "a.capture")
    assert prepared(traces, capture=file).capture_name == "A0"
    slice_trace(a, 1, 3, tmp_path / "slice.zarr")
    assert prepared((tmp_path / "slice.zarr", b), capture=file).captured == file


def test_the_arms_of_a_rest_on_what_those_of_b_found(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing found, of other traces, or found without success: refused; else its kinds are what is injected."""
    file = captured(traces[1], tmp_path / "b.capture")
    asked = {"sides": frozenset("a"), "capture": file}
    subject = {side: identity_of(open_trace(trace)) for side, trace in zip("ab", traces, strict=True)}
    with pytest.raises(UsageError, match="run those first"):
        prepared(traces, **asked)
    with pytest.raises(UsageError, match="is of other traces"):
        prepared(traces, found=OF_B, **asked)
    with pytest.raises(UsageError, match="nothing to mirror"):
        prepared(traces, found=half({}, subject=subject), **asked)
    assert prepared(traces, found=replace(OF_B, subject=subject), **asked).question.classes == (KIND,)


def test_another_machine_says_what_to_run_there(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """The program of a trace from another machine is not run here; both commands are printed."""
    builder = TraceBuilder(tmp_path / "far.zarr")
    builder.fact("host.machine", "abacus")
    for step in range(3):
        builder.op("aten.mm.default", outputs=[f"x{step}far"])
        builder.end_step()
    far = builder.finish()
    with pytest.raises(UsageError) as raised:
        prepared((far, traces[1]), sides=frozenset("ab"), selectors=("op=mm",))
    assert "host.machine is" in str(raised.value)
    assert f"there: rltrace capture {far} --steps 0:2 -o a.capture" in str(raised.value)
    assert f"here:  rltrace confirm {far} {traces[1]} --arms b --capture a.capture --inject op=mm" in str(raised.value)
    with pytest.raises(UsageError, match="capture it there"):
        captured_recipe(open_trace(far), CommandOverrides())


def test_advice_leads_to_the_other_machine_and_back(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """After B's half: capture B, A's arms, join. After A's: join. The commands are ones that this version takes."""
    file = captured(traces[0], tmp_path / "a.capture")
    asked = ConfirmOptions(*traces, sides=frozenset(("b",)))
    commands = advice_of(OF_B, asked, prepared(traces, capture=file), Path("b.json"), Path("b"))
    assert [command.split()[1] for command in commands] == ["capture", "confirm", "confirm", "repro"]
    assert "--found b.json -o a.json  # on A's machine" in commands[1]
    asked = ConfirmOptions(*traces, sides=frozenset(("b",)), until=4, selectors=("op=mm",))
    again = advice_of(OF_B, asked, prepared(traces, capture=file), Path("b.json"), Path("b"))[1]
    assert "--found b.json --until 4 --inject op=mm -o a.json" in again
    asked = ConfirmOptions(*traces, sides=frozenset(("a",)), found=OF_B, found_file=Path("b.json"))
    ready = prepared(traces, capture=file)
    assert advice_of(OF_A, asked, ready, Path("a.json"), Path("a")) == ("rltrace confirm --join a.json b.json",)


def test_no_script_is_suggested_for_an_op_of_jax(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """Neither for a call, nor for an equation: such ops cannot be run again."""
    paths = []
    for side in "ab":
        trace = TraceBuilder(tmp_path / f"jax-{side}.zarr", engine=JAX_ENGINE)
        trace.op("erf_inv", outputs=[side])
        trace.end_step()
        paths.append(trace.finish())
    ready = prepared(traces, capture=captured(traces[0], tmp_path / "a.capture"))
    confirmed = replace(OF_B, word=Outcome.CONFIRMED)
    asked = ConfirmOptions(*traces)
    assert [each.split()[1] for each in advice_of(confirmed, asked, ready, Path("b.json"), Path("b"))] == ["repro"]
    of_jax = replace(ready, question=replace(ready.question, a=open_trace(paths[0]), b=open_trace(paths[1])))
    assert advice_of(confirmed, asked, of_jax, Path("b.json"), Path("b")) == ()


def test_an_experiment_that_was_broken_off_runs_no_more() -> None:
    """Its file says so to a reader that follows it, and it is joined to nothing."""
    left = interrupted_outcome(half({ArmName.B0: GOOD, ArmName.B_FROM_A: ArmState.RUNNING}))
    assert [arm.state for arm in left.arms] == [ArmState.NOT_RUN, GOOD, ArmState.NOT_RUN, ArmState.NOT_RUN]
    assert (left.word, outcome_headline(left)) == (None, "NOT FINISHED")
    assert join(left, OF_A).word is None
