"""One experiment on two machines: what each refuses, what its half comes to, and what the halves are together."""

from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest
from views import both, paths_in

from rltrace.command_lines import parse_line
from rltrace.commands.confirm import parse_overrides
from rltrace.commands.main import main
from rltrace.diff.base.model import Pair
from rltrace.errors import RecordError, UsageError
from rltrace.experiment.confirm.arms import Experiment, initial_outcome, interrupted_outcome
from rltrace.experiment.confirm.run_cache import RunCache, RunSetting
from rltrace.experiment.confirm.setup import ConfirmOptions, ExperimentSetup, advice_of, join, prepare
from rltrace.experiment.outcome import (
    Arm,
    ArmName,
    ArmState,
    ExperimentResult,
    OriginClass,
    Outcome,
    identity_of,
    write_outcome,
)
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
    assert main(["confirm", "--join", str(a), str(b), "-o", str(tmp_path)]) == 2
    assert f"{tmp_path} is a folder; give the name of a file" in capsys.readouterr().err


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path]:
    """Two traces of three steps, which part in the second."""
    for builder, name in both(tmp_path):
        for step in range(3):
            builder.op("aten.mm.default", outputs=[f"x{step}{name if step == 1 else ''}"])
            builder.end_step()
    return paths_in(tmp_path)


def control(file: Path, *, values: bool = True, window: tuple[int, int] = (1, 3), middle: str = "x1a") -> Path:
    """The trace of a control, recorded in this window; by default it equals A."""
    builder = TraceBuilder(file)
    if values:
        builder.main.request_values()
    builder.window(*window)
    for step in range(3):
        builder.op("aten.mm.default", outputs=[middle if step == 1 else f"x{step}"])
        builder.end_step()
    return builder.finish()


def prepared(traces: tuple[Path, Path], **asked: object) -> ExperimentSetup:
    """B's arms, its program given by hand: the builder's traces have no folder."""
    given = parse_overrides("python train.py", traces[0].parent, ())
    defaults = {"sides": frozenset("b"), "overrides": {"a": given, "b": given}}
    return prepare(ConfirmOptions(*traces, **{**defaults, **asked}))


def test_a_control_holds_the_values_of_these_steps(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """Of other steps, without values, none at all: refused, with the command that records the right one."""
    right = "rltrace record --steps 1:3 --until 2 --verify-inputs --values all --values-inputs -o "
    for wrong, words in (
        (control(tmp_path / "early.zarr", window=(0, 2)), "does not hold the ops of steps 1 to 2"),
        (control(tmp_path / "late.zarr", window=(2, 4)), "does not hold the ops of steps 1 to 2"),
        (control(tmp_path / "bare.zarr", values=False), "holds no values"),
        (None, "give its trace with --control"),
    ):
        with pytest.raises(UsageError) as raised:
            prepared(traces, control=wrong)
        assert words in str(raised.value) and right in str(raised.value)
    file = control(tmp_path / "a-control.zarr")
    found = prepared(traces, control=file)
    assert (found.control, found.control_name) == (file, "A0")


class NoRunner:
    """In place of a ``Runner``."""

    def run(self, jobs: object) -> None:
        raise RecordError("it would be run")


def test_a_control_equals_its_trace(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """Of another program, or not known to be of this one: it proves nothing, and nothing is run."""
    damaged = control(tmp_path / "damaged.zarr")
    rmtree(damaged / "processes/0/streams/0/cells")
    for file, words in (
        (control(tmp_path / "other.zarr", middle="x1b"), "the control of A diverges from A at aten.mm.default"),
        (damaged, "unknown whether the control of A"),
        (control(tmp_path / "a-control.zarr"), None),
    ):
        ready = prepared(traces, control=file)
        setting = RunSetting(tmp_path / f"{file.name}.runs", ready.recipes, ready.question.divergence.covered)
        cache = RunCache(setting, {}, NoRunner())  # type: ignore[arg-type]
        cache.add_control("A0", file)
        experiment = Experiment(ready.question, cache, initial_outcome(ready.question, ("a", "b"), dict(ready.subject)))
        if words is None:
            with pytest.raises(RecordError, match="it would be run"):
                experiment.run()
        else:
            found = experiment.run()
            assert found.word is Outcome.UNRESOLVED
            assert words in found.explanation


def test_the_arms_of_a_rest_on_what_those_of_b_found(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing found, of other traces, or found without success: refused; else its kinds are what is injected."""
    asked = {"sides": frozenset("a"), "control": control(tmp_path / "b-control.zarr")}
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
    assert "there: (cd ~ && rltrace record --steps 0:2 --until 1 --verify-inputs --values all" in str(raised.value)
    here = f"here:  rltrace confirm {far} {traces[1]} --arms b --control far-control.zarr --inject op=mm"
    assert here in str(raised.value)


def test_advice_leads_to_the_other_machine_and_back(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """After B's half: B's control, A's arms, join. After A's: join. The commands are ones that this version takes."""
    file = control(tmp_path / "a-control.zarr")
    asked = ConfirmOptions(*traces, sides=frozenset(("b",)))
    commands = advice_of(OF_B, asked, prepared(traces, control=file), Path("b.json"), Path("b"))
    assert [parse_line(command).argv[1] for command in commands] == ["record", "confirm", "confirm", "repro"]
    assert "--control b-control.zarr" in commands[1]
    assert "--found b.json -o a.json  # on A's machine" in commands[1]
    asked = ConfirmOptions(*traces, sides=frozenset(("b",)), until=4, selectors=("op=mm",))
    again = advice_of(OF_B, asked, prepared(traces, control=file), Path("b.json"), Path("b"))[1]
    assert "--found b.json --until 4 --inject op=mm -o a.json" in again
    asked = ConfirmOptions(*traces, sides=frozenset(("a",)), found=OF_B, found_file=Path("b.json"))
    ready = prepared(traces, control=file)
    assert advice_of(OF_A, asked, ready, Path("a.json"), Path("a")) == ("rltrace confirm --join a.json b.json",)


def test_no_script_is_suggested_for_an_op_of_jax(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """Neither for a call, nor for an equation: such ops cannot be run again."""
    for trace, side in both(tmp_path / "jax", engine=JAX_ENGINE):
        trace.op("erf_inv", outputs=[side])
        trace.end_step()
    ready = prepared(traces, control=control(tmp_path / "a-control.zarr"))
    confirmed = replace(OF_B, word=Outcome.CONFIRMED)
    asked = ConfirmOptions(*traces)
    assert [each.split()[1] for each in advice_of(confirmed, asked, ready, Path("b.json"), Path("b"))] == ["repro"]
    a, b = map(open_trace, paths_in(tmp_path / "jax"))
    of_jax = replace(ready, question=replace(ready.question, a=a, b=b))
    assert advice_of(confirmed, asked, of_jax, Path("b.json"), Path("b")) == ()


def test_an_experiment_that_was_broken_off_runs_no_more() -> None:
    """Its file says so to a reader that follows it, and it is joined to nothing."""
    left = interrupted_outcome(half({ArmName.B0: GOOD, ArmName.B_FROM_A: ArmState.RUNNING}))
    assert [arm.state for arm in left.arms] == [ArmState.NOT_RUN, GOOD, ArmState.NOT_RUN, ArmState.NOT_RUN]
    assert (left.word, outcome_headline(left)) == (None, "NOT FINISHED")
    assert join(left, OF_A).word is None
