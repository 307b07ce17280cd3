"""A run that begins at a step of another one, and what it began without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from views import both, compare_in, paths_in

from rltrace.diff.base.model import Cause, Finding, InputsMatch
from rltrace.diff.causes.carried_state import carried_step
from rltrace.testing import In, TraceBuilder
from rltrace.testing.builder import LAYOUT
from rltrace.trace.format.schema import Generator, Kind, Origin, Step
from rltrace.trace.read.reader import open_trace

MM, ADD = "aten.mm.default", "aten.add_.Tensor"
LOADER = ("torch/utils/data/_utils/collate.py", 3, "collate", "torch.stack(batch)")

Do = Callable[[TraceBuilder, str], object]
"""Adds a row of the side, ``a`` or ``b``."""


def shifted(
    folder: Path, *common: Do, before: tuple[Do, ...] = (), opening: str = "", state: tuple[str, ...] = ("step",)
) -> Finding:
    """The first finding of values, where B begins at A's step 1; ``common``: the rows of that step; ``before``: rows of
    A's step 0; ``opening``: what a tensor holds as B's recording of ops begins; ``state``: what B's optimizer begins
    with."""
    for trace, side in both(folder):
        trace.optimizer("p" if side == "a" else "q", state=() if side == "a" else state, kept=("step",))
        if side == "a":
            trace.op(MM, outputs=["weight of a"])
            trace.op("aten.rand.default", rng="before", generator=Generator.OWN + 1, outputs=["z"])
            for do in before:
                do(trace, side)
            trace.end_step(parameters="q", gradients="g", generators="r")
        elif opening:
            trace.window(0)
            trace.op("rltrace.state", (), [("outside", opening)], kind=Kind.WINDOW, module="net", scalars=["w"])
        for do in common:
            do(trace, side)
        trace.end_step(parameters=f"end of {side}", gradients=f"g {side}", generators="r2")
    found = compare_in(folder)
    assert (found.shift.a_step, found.shift.b_step) == (1, 0)
    assert found.first_value is not None
    return found.first_value


def op(name: str = MM, **fields: Any) -> Do:
    """An op; texts that end in ``?`` are other ones on each side."""

    def of_side(value: Any, side: str) -> Any:
        if isinstance(value, str):
            return value.replace("?", side)
        if isinstance(value, list | tuple) and not isinstance(value, In):
            return type(value)(of_side(part, side) for part in value)
        return value

    return lambda trace, side: trace.op(name, **{key: of_side(value, side) for key, value in fields.items()})


def event(number: int, count: int, what: str = "environment 0") -> Do:
    """A step of an environment that returned another observation on each side, or (count 0) the same."""
    seen = {"observation": f"o{number}"} if not count else None
    return lambda trace, side: trace.event(
        Kind.ENVIRONMENT_STEP, what, owner="Walk", counts={"step": number}, digests=seen or {"observation": f"o{side}"}
    )


def lost(finding: Finding) -> tuple[str, str] | None:
    return None if finding.not_restored is None else (finding.not_restored.kind, finding.not_restored.name)


@pytest.mark.parametrize(
    ("generator", "name"),
    [
        (Generator.TORCH, "torch's generator on the CPU"),
        (Generator.DEVICE, "torch's generator of device 0"),
        (Generator.DEVICE + 3, "torch's generator of device 3"),
        (Generator.OWN, "a generator that the program made"),
        (Generator.OWN + 1, "a generator that the program made"),
        (Generator.UNKNOWN, "a generator"),
    ],
)
def test_a_generator(tmp_path: Path, generator: int, name: str) -> None:
    """The first draw from it since finds another state, whatever ops before draw from others or not at all."""
    draws = "aten.rand.default"
    found = shifted(
        tmp_path,
        op(outputs=["k"]),
        op(draws, rng="same", generator=generator + 20, outputs=["s"]),
        op(draws, rng="state of ?", generator=generator, outputs=["drawn by ?"]),
    )
    assert (found.cause, lost(found)) == (Cause.RNG, ("generator", name))
    assert (
        found.explanation == f"the state of {name} was not restored: it differs before the first op that draws from it"
    )


def test_a_generator_that_was_restored(tmp_path: Path) -> None:
    """Where its first draw is equal, a later one that is not has another reason."""
    draws = "aten.rand.default"
    found = shifted(tmp_path, op(draws, rng="r", outputs=["s"]), op(draws, rng="state of ?", outputs=["drawn by ?"]))
    assert (found.cause, lost(found)) == (Cause.RNG, None)


def test_an_environment(tmp_path: Path) -> None:
    """Its first event since differs; after an equal event it was restored."""
    reads = op(inputs=[("outside", "o?")], outputs=["y?"])
    found = shifted(tmp_path, event(3, 1), reads)
    assert lost(found) == ("environment", "environment 0 (Walk)")
    assert found.explanation.startswith("environment 0 (Walk) was not restored; environment 0 (Walk) returned another")
    found = shifted(tmp_path / "another", event(1, 0, "environment 1"), event(3, 1), reads)
    assert lost(found) == ("environment", "environment 0 (Walk)")
    later = shifted(tmp_path / "later", event(1, 0, "environment 1"), event(2, 0), event(3, 1), reads)
    assert (later.event is not None, lost(later)) == (True, ("data", "data from outside torch"))


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        (LOADER, ("data", "data loader")),
        (("train.py", 3, "main", "x"), ("data", "data from outside torch")),
        ([("train.py", 3, "main", "x"), LOADER], ("data", "data loader")),
    ],
)
def test_data(tmp_path: Path, site: Any, expected: tuple[str, str]) -> None:
    """Other data in the first step, of a loader or from anywhere, was not restored."""
    read = lambda trace, side: trace.op(MM, site, inputs=[("outside", f"batch of {side}")], outputs=[f"y{side}"])  # noqa: E731
    found = shifted(tmp_path, op(outputs=["x"]), read)
    assert (found.cause, lost(found)) == (Cause.OUTSIDE, expected)


def use_of_weight(name: str, dtype_of_b: str = "float32", **fields: Any) -> Do:
    """Reads what an op of A wrote before the step, and what came from outside in B."""
    layouts = {"a": [LAYOUT], "b": [(dtype_of_b, *LAYOUT[1:])]}
    links = {"a": In(0, "weight of a"), "b": In(origin=Origin.OUTSIDE, digest="weight of b")}
    return lambda trace, side: trace.op(
        name, inputs=[links[side]], outputs=[f"y{side}"], layouts=layouts[side], **fields
    )


def test_a_tensor(tmp_path: Path) -> None:
    """Written before the step by an op of A and loaded by B: what differs at its first use."""
    found = shifted(tmp_path, use_of_weight(MM, module="policy"))
    assert (found.cause, found.not_restored and found.not_restored.kind) == (Cause.BEFORE_WINDOW, "tensor")
    assert found.explanation.endswith("(row 0) in A, it was loaded or made outside the recorded ops in B")
    assert "was not restored: it differs at its first use; aten.mm.default at " in found.explanation
    found = shifted(tmp_path / "dtype", use_of_weight(MM, "float16", module="policy"))
    assert " of policy came back in another dtype (float32 in A, float16 in B): it differs at " in found.explanation


@pytest.mark.parametrize("made_by", ["b", "ab"])
def test_a_tensor_that_was_made_in_the_step(tmp_path: Path, made_by: str) -> None:
    """What A reads from before the step was not restored where B alone makes it; where both make it, the op was called
    on another tensor."""
    made = lambda trace, side: side in made_by and trace.op("aten.zeros.default", outputs=["zeros"])  # noqa: E731
    reads = {"a": In(0, "weight of a"), "b": In(1, "zeros")}
    use = lambda trace, side: trace.op(MM, inputs=[reads[side]], outputs=[f"y{side}"])  # noqa: E731
    found = shifted(tmp_path, op(outputs=["x"]), made, use)
    expected = (Cause.BEFORE_WINDOW, "tensor") if made_by == "b" else (Cause.ARGUMENTS, None)
    assert (found.op, found.cause, found.not_restored and found.not_restored.kind) == (MM, *expected)
    assert found.explanation.endswith(" wrote it (row 1) in B")


def test_a_tensor_of_an_optimizer(tmp_path: Path) -> None:
    """Read by an op of its attempt, it is state of the optimizer."""
    found = shifted(tmp_path, use_of_weight(ADD, phase="optimizer"))
    assert (found.cause, lost(found)) == (Cause.BEFORE_WINDOW, ("optimizer", "Adam"))
    assert found.explanation.startswith("the state of Adam was not restored: input 0 (float32[4]) differs at its first")


def test_data_of_a_later_step(tmp_path: Path) -> None:
    """Where the first step is equal, what a later one reads is no state that was not restored."""
    found = shifted(
        tmp_path,
        op(outputs=["x"]),
        lambda trace, side: trace.end_step(parameters="m", gradients="h", generators="s"),
        op(inputs=[("outside", "batch of ?")], outputs=["y?"]),
    )
    assert (found.cause, lost(found)) == (Cause.OUTSIDE, None)


def test_a_setting_of_an_optimizer(tmp_path: Path) -> None:
    """Another learning rate in its first attempt is a setting that was not restored."""

    def step(trace: TraceBuilder, side: str) -> None:
        trace.op(ADD, inputs=["unknown"], outputs=[f"y{side}"], phase="optimizer", floats=[0.1 if side == "a" else 0.2])

    found = shifted(tmp_path, step)
    assert (found.cause, lost(found)) == (Cause.ARGUMENTS, ("settings", "Adam"))
    assert found.explanation.startswith("a setting of Adam was not restored (its learning rate, what a scheduler had")


OBS, RETURNS = "VecNormalize.obs_rms", "VecNormalize.ret_rms"


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((9, 20), (0, 8), "count 9 in A, 0 in B and mean of float64 0.5 in A, 0.25 in B"),
        ((9, 20), (30, 41), "count 9 in A, 30 in B and mean of float64 0.5 in A, 0.25 in B"),
        ((9, 20), (12, 25), ""),  # it was saved amid the step
        ((9, 20), (1, 21), ""),  # it was loaded after the first use
        ((9, 20), (9, 20), ""),
    ],
)
def test_running_statistics(tmp_path: Path, a: tuple[int, int], b: tuple[int, int], expected: str) -> None:
    """They lead where other data came in from outside, and are noted beside it where they are of another wrapper."""

    def state(counts: tuple[int, int], mean: float, name: str = OBS) -> Do:
        def do(trace: TraceBuilder, side: str) -> None:
            for step, count in zip((0, 1) if side == "a" else (0, 0), counts, strict=True):
                trace.sample(f"{name}/count", count, "state", step=step)
                trace.sample(f"{name}/mean of float64", mean, "state", step=step)

        return do

    of_side: Do = lambda trace, side: state(*((a, 0.5) if side == "a" else (b, 0.25)))(trace, side)  # noqa: E731
    reads = op(inputs=[("outside", "o?")], outputs=["y?"])
    found = shifted(tmp_path, of_side, reads)
    named = f"the running statistics {OBS} were not restored: {expected}; "
    assert (lost(found) == ("statistics", OBS)) == found.explanation.startswith(named) == bool(expected)
    other: Do = lambda trace, side: state((3, 3), 0.5 if side == "a" else 0.25, RETURNS)(trace, side)  # noqa: E731
    assert lost(shifted(tmp_path / "equal", other, reads)) == ("data", "data from outside torch")
    assert lost(shifted(tmp_path / "of torch", of_side, op(outputs=["y?"]))) is None


def test_running_statistics_of_which_another_has_the_numbers(tmp_path: Path) -> None:
    """A wrapper for an evaluation may be called first on one side: which of two is which is not known."""

    def do(trace: TraceBuilder, side: str) -> None:
        for name, of_a, of_b in ((OBS, 9, 2), (f"{OBS} 2", 2, 9)):
            trace.sample(f"{name}/count", of_a if side == "a" else of_b, "state", step=0)

    assert lost(shifted(tmp_path, do, op(inputs=[("outside", "o?")], outputs=["y?"])))[0] == "data"  # type: ignore[index]


def test_a_dtype_of_running_statistics(tmp_path: Path) -> None:
    def do(trace: TraceBuilder, side: str) -> None:
        trace.sample(f"{OBS}/count", 9, "state", step=0)
        trace.sample(f"{OBS}/mean of float{64 if side == 'a' else 32}", 0.5, "state", step=0)

    found = shifted(tmp_path, do, op(inputs=[("outside", "o?")], outputs=["y?"]))
    assert "obs_rms were not restored: mean of float64 in A, mean of float32 in B; " in found.explanation


@pytest.mark.parametrize("epoch", [4, 0])
def test_a_scheduler(tmp_path: Path, epoch: int) -> None:
    """It leads where an op of an optimizer was called with another number, in a later attempt, too."""

    def step(trace: TraceBuilder, side: str) -> None:
        trace.sample("LambdaLR 0/last_epoch", 4 if side == "a" else epoch, "state")
        trace.end_step(parameters="m", gradients="h", generators="s")
        trace.op(ADD, inputs=["unknown"], outputs=[f"y{side}"], phase="optimizer", floats=[0.1 if side == "a" else 0.2])

    found = shifted(tmp_path, step)
    assert lost(found) == (("scheduler", "LambdaLR") if epoch != 4 else None)
    named = found.explanation.startswith("the scheduler LambdaLR was not restored: last_epoch 4 in A, 0 in B; ")
    assert named == (epoch != 4)


def test_an_environment_that_was_reset_with_one_seed(tmp_path: Path) -> None:
    """It needs nothing of before: it was restored as well as it can be."""
    reset: Do = lambda trace, side: trace.event(  # noqa: E731
        Kind.ENVIRONMENT_RESET,
        "environment 0",
        counts={"reset": 5, "seed": 3},
        digests={"observation": f"o{side}"},
    )
    found = shifted(tmp_path, reset, op(inputs=[("outside", "o?")], outputs=["y?"]))
    assert lost(found) == ("data", "data from outside torch")


def test_the_state_of_an_optimizer(tmp_path: Path) -> None:
    """Without it, what differs in its first attempt is due to that, and nothing in a later one."""
    late = lambda trace, side: trace.end_step(parameters="m", gradients="h", generators="s")  # noqa: E731
    update = op(ADD, inputs=["unknown"], outputs=["y?"], phase="optimizer")
    found = shifted(tmp_path, update, state=())
    assert (found.cause, lost(found)) == (Cause.BEFORE_WINDOW, ("optimizer", "Adam: step"))
    assert found.explanation == (
        "the optimizer's state was not restored: B's Adam begins without step, which A's had after 1 step"
    )
    for folder, program in (("later", [op(outputs=["x"]), late, update]), ("elsewhere", [op(outputs=["y?"])])):
        assert lost(shifted(tmp_path / folder, *program, state=())) != ("optimizer", "Adam: step")


@pytest.mark.parametrize(
    ("opening", "read", "match"),
    [
        ("weight of a", None, InputsMatch.INFERRED),
        ("weight of b", None, InputsMatch.DIFFER),
        ("weight of a", "weight of a", InputsMatch.INFERRED),
    ],
)
def test_a_window_shows_what_a_tensor_held(tmp_path: Path, opening: str, read: str | None, match: InputsMatch) -> None:
    """Its opening row has the digest of what A's op wrote before the step: then the inputs are known to match."""

    def use(trace: TraceBuilder, side: str) -> None:
        trace.op(MM, inputs=[In(0) if side == "a" else In(0, read)], outputs=[f"y{side}"], module="policy")

    found = shifted(tmp_path, use, opening=opening)
    assert (found.op, found.inputs_match) == (MM, match)


def test_an_environment_that_returned_it_before(tmp_path: Path) -> None:
    """An op reads what no event brought in since, and the last event before it is at another step."""

    def event_at(side_steps: tuple[int, int], what: str) -> Do:
        return lambda trace, side: trace.event(
            Kind.ENVIRONMENT_STEP, what, owner="Walk", counts={"step": side_steps[side == "b"]}, digests={"o": "same"}
        )

    reads = op(inputs=[("outside", "o?")], outputs=["y?"])
    found = shifted(tmp_path, event_at((1_812, 5), "environment 0"), reads)
    assert lost(found) == ("environment", "environment 0 (Walk)")
    assert found.explanation.startswith(
        "environment 0 (Walk) may not have been restored: its last event before is step 1,812 in A, step 5 in B"
    )
    bare = lambda trace, side: trace.event(  # noqa: E731
        Kind.ENVIRONMENT_STEP, "environment 0", counts={} if side == "a" else {"reset": 3}, digests={"o": "same"}
    )
    found = shifted(tmp_path / "uncounted", bare, reads)
    assert "its last event before is last event in A, reset 3 in B" in found.explanation
    other = lambda trace, side: event_at((9, 5), f"environment {'ab'.index(side)}")(trace, side)  # noqa: E731
    assert lost(shifted(tmp_path / "other", other, reads)) == ("data", "data from outside torch")
    found = shifted(tmp_path / "same", event_at((5, 5), "environment 0"), reads)
    assert lost(found) == ("data", "data from outside torch")


@pytest.mark.parametrize("seen", ["o?", "p?"])
def test_an_environment_that_goes_on_elsewhere(tmp_path: Path, seen: str) -> None:
    """An op reads what a step of it returned in A before the shift, and what a reset did in B, in whichever cell."""

    def returned(kind: Kind, name: str, **counts: int) -> Do:
        def do(trace: TraceBuilder, side: str) -> None:
            if side == ("a" if kind is Kind.ENVIRONMENT_STEP else "b"):
                digests = {"observation": f"o{side}", "goal": f"p{side}"} if name.endswith("0") else {"o": "other"}
                trace.event(kind, name, owner="Walk", counts=counts, digests=digests, floats={"reward": 0.5})

        return do

    steps = [returned(Kind.ENVIRONMENT_STEP, f"environment {k}", step=1_812 + k) for k in range(2)]
    reset = returned(Kind.ENVIRONMENT_RESET, "environment 0", reset=0)
    found = shifted(tmp_path, reset, op(inputs=[("outside", seen)], outputs=["y?"]), before=tuple(steps))
    assert lost(found) == ("environment", "environment 0 (Walk)")
    assert found.explanation.startswith(
        "environment 0 (Walk) was not restored: A goes on from its step 1,812, B from its reset 0; "
    )


@pytest.mark.parametrize(
    ("began", "state", "unequal", "expected", "why"),
    [
        ("z", ("step",), [Step.PARAMETERS], ("tensor", "parameters of Adam"), "the parameters were not restored"),
        ("q", (), [Step.PARAMETERS], ("optimizer", "Adam: step"),
         "B's Adam begins without step, which A's had after 1 s"),
        ("q", ("step",), [Step.PARAMETERS], ("optimizer", "Adam"),
         "the state or the settings of Adam were not restored"),
        ("q", (), [Step.GRADIENTS, Step.PARAMETERS], ("data", "data of a loader or an environment"),
         "other data came in"),
        ("q", (), [Step.GRADIENTS, Step.TORCH_GENERATOR], ("generator", "torch's generator on the CPU"),
         "the state of torch's generator on the CPU was not restored, or it was drawn from otherwise"),
        ("q", (), [Step.DEVICE_GENERATORS], ("generator", "torch's generators of devices"),
         "the state of torch's generators of devices was not restored, or it was drawn from otherwise"),
        (None, ("step",), [Step.GRADIENTS], ("data", "data of a loader or an environment"), "other data came in"),
    ],
)  # fmt: skip
def test_a_step_of_which_no_rows_are_readable(
    tmp_path: Path, began: str | None, state: tuple[str, ...], unequal: list[Step], expected: tuple[str, str], why: str
) -> None:
    """The cause follows from what the optimizers began with and which digests differ at the end of the step."""
    for trace, side in both(tmp_path, level="step"):
        if side == "a" or began is not None:
            trace.optimizer("p" if side == "a" else began, state=() if side == "a" else state, kept=("step",))
        for parameters, ordinal in (("q", 0), ("o", 1), ("r", 0)) if side == "a" else (("r", 0),):
            trace.end_step(ordinal=ordinal, parameters=parameters, gradients="g", generators="s")
    a, b = (open_trace(path).processes[0] for path in paths_in(tmp_path))
    a = a.from_step(2)
    lost, text = carried_step(a, b, a.steps[0], unequal)
    assert (lost.kind, lost.name) == expected and why in text
