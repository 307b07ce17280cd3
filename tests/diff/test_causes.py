"""Each cause, found in a program in which exactly that went wrong."""

from dataclasses import replace
from pathlib import Path

import pytest
from programs import KERNEL, Do, Record, training
from views import both, compare_in

from rltrace.diff import Comparison, compare
from rltrace.diff.base.model import Cause, Finding, InputsMatch, Verdict
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import Origin, Phase, RowFlag

OTHER_KERNEL = tuple({**KERNEL, "isa": "AVX512"}.items())


def places(program: list[Do], name: str) -> list[int]:
    """Where instructions of this name stand."""
    return [place for place, do in enumerate(program) if do.name == name]


def changed(program: list[Do], place: int, **fields: object) -> list[Do]:
    """The program with one instruction changed."""
    return [*program[:place], replace(program[place], **fields), *program[place + 1 :]]  # type: ignore[arg-type]


def value_of(comparison: Comparison) -> Finding:
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.first_value is not None
    return comparison.first_value


def test_unchanged_runs_are_identical(record: Record) -> None:
    """The same program twice: not one finding, and not one chunk is read."""
    comparison = compare(record(training()).path, record(training()).path)
    assert comparison.verdict is Verdict.IDENTICAL
    assert (comparison.first, comparison.first_value, comparison.unordered) == (None, None, ())
    assert comparison.search.chunks_read == 0
    assert comparison.agrees is True


def test_kernel(record: Record) -> None:
    """Inputs match, outputs differ, another instruction set ran: kernel, saying which."""
    program = training()
    place = places(program, "aten.mm.default")[2]
    a, b = record(program), record(changed(program, place, kernel=OTHER_KERNEL))
    found = value_of(compare(a.path, b.path))
    assert (found.cause, found.a_index, found.b_index) == (Cause.KERNEL, a.rows[place], b.rows[place])
    assert found.inputs_match is InputsMatch.INFERRED
    assert "AVX2 against AVX512" in found.explanation
    assert (found.kernel.a, found.kernel.b) == ("ATen AVX2, 4 threads", "ATen AVX512, 4 threads")
    assert found.identical_before == a.rows[place]
    assert found.module == "critic.0"
    assert found.step == 1 and found.optimizer is not None and found.optimizer.count == 1


UNDER = {"threads": 4, "grad_mode": True, "flush_denormal": False, "mkldnn.enabled": True, "cudnn.benchmark": False}


@pytest.mark.parametrize(
    ("library", "changed", "words"),
    [
        ("ATen", {"grad_mode": False}, "B ran it without grad mode"),
        ("ATen", {"flush_denormal": True}, "B ran it with denormal numbers flushed to zero"),
        ("oneDNN", {"mkldnn.enabled": False}, "mkldnn.enabled was on in A and off in B"),
        (
            "oneDNN",
            {"mkldnn.enabled": False, "grad_mode": False},
            "B ran it without grad mode, and mkldnn.enabled was on in A and off in B",
        ),
    ],
)
def test_other_settings(tmp_path: Path, library: str, changed: dict[str, object], words: str) -> None:
    """The same kernel evidence, but torch was set to something else when the op ran: kernel, in words."""
    finding = found_under(tmp_path, library, changed)
    assert (finding.cause, finding.explanation) == (Cause.KERNEL, f"its inputs match and its outputs differ: {words}")
    assert {setting.name for setting in finding.settings} == {*changed}


def test_other_settings_that_have_nothing_to_do_with_the_op(tmp_path: Path) -> None:
    """A flag of cuDNN says nothing of an op on a CPU, nor one of oneDNN of an op of ATen: reported, but no cause."""
    finding = found_under(tmp_path, "ATen", {"cudnn.benchmark": True, "mkldnn.enabled": False})
    assert finding.cause is Cause.SAME_KERNEL
    assert [(one.name, one.a, one.b) for one in finding.settings] == [
        ("mkldnn.enabled", "on", "off"),
        ("cudnn.benchmark", "off", "on"),
    ]


def found_under(folder: Path, library: str, changed: dict[str, object]) -> Finding:
    a = one_op(folder / "a.zarr", library, UNDER, output="y")
    b = one_op(folder / "b.zarr", library, {**UNDER, **changed}, output="z")
    return value_of(compare(a, b))


def one_op(path: Path, library: str, settings: dict[str, object], output: str) -> Path:
    trace = TraceBuilder(path)
    first = trace.op("aten.ones.default", outputs=["x"], kernel=KERNEL)
    kernel = {**KERNEL, "library": library}
    trace.op("aten.gelu.default", inputs=[In(first)], outputs=[output], kernel=kernel, settings=settings)
    return trace.finish()


def test_another_kernel_with_equal_bits_is_no_difference(record: Record) -> None:
    """Evidence alone decides nothing: equal outputs are equal."""
    program = training()
    place = places(program, "aten.view.default")[0]
    a, b = record(program), record(changed(program, place, kernel=OTHER_KERNEL))
    assert compare(a.path, b.path).verdict is Verdict.IDENTICAL


def test_kernel_by_the_environment(record: Record) -> None:
    """The rows' evidence is the same, but a setting that selects kernels differs: kernel, naming the setting."""
    program = training()
    place = places(program, "aten.mm.default")[2]
    a = record(program, facts={"cpu.capability": "AVX2", "source.train.py": "1"})
    b = record(changed(program, place, noise="x"), facts={"cpu.capability": "AVX512", "source.train.py": "2"})
    comparison = compare(a.path, b.path)
    assert value_of(comparison).cause is Cause.KERNEL
    assert "cpu.capability AVX2 against AVX512" in value_of(comparison).explanation
    assert [d.name for d in comparison.system] == ["cpu.capability", "source.train.py"]


@pytest.mark.parametrize("edited", [True, False])
def test_a_compiled_region_of_an_edited_file(tmp_path: Path, edited: bool) -> None:
    """Other code is compiled of another source: that is said where the file was edited."""
    for trace, side in both(tmp_path):
        trace.fact("source.train.py", side if edited else "a")
        kernel = {"library": "Inductor", "names": ["cpp_fused_mul_0"], "code": side}
        trace.op("inductor.compiled_graph", ("train.py", 4, "loss", "x * 2"), outputs=[f"of {side}"], kernel=kernel)
    found = value_of(compare_in(tmp_path))
    assert found.cause is Cause.KERNEL
    said = "other code was compiled for it, and train.py was edited" if edited else "another kernel ran"
    assert f"{said} (code a against b)" in found.explanation


@pytest.mark.parametrize(
    ("name", "nth", "edit", "cause", "said"),
    [
        ("aten.mm.default", 2, {"noise": "x"}, Cause.SAME_KERNEL, ["same kernel evidence", "was not tried"]),
        ("outside", 3, {"noise": "other"}, Cause.OUTSIDE, ["came from outside"]),
        ("aten.add_.Tensor", 4, {"floats": (0.5,)}, Cause.ARGUMENTS, ["0.003", "0.5"]),
        ("aten.rand.default", 1, {"kernel": OTHER_KERNEL}, Cause.KERNEL, ["RNG state is the same"]),
    ],
    ids=["same kernel", "another observation", "another learning rate", "other numbers from an equal state"],
)
def test_one_edit(record: Record, name: str, nth: int, edit: dict[str, object], cause: Cause, said: list[str]) -> None:
    """What an instruction computes differs: the op is named, or the first that reads it; not whether it repeats."""
    program = training()
    place = places(program, name)[nth]
    a, b = record(program), record(changed(program, place, **edit))
    found = value_of(compare(a.path, b.path))
    assert (found.cause, found.a_index, found.repeats) == (cause, a.rows[place + (name == "outside")], None)
    assert all(words in found.explanation for words in said) and "nondeterministic" not in found.explanation
    assert (found.inputs_match is InputsMatch.DIFFER) is (cause is Cause.OUTSIDE)


def test_extra_draw_then_rng(record: Record) -> None:
    """An extra draw: control flow diverges there first, and the next op that draws finds its generator elsewhere."""
    program = training()
    place = places(program, "aten.rand.default")[3]
    a = record(program)
    b = record(
        [*program[:place], Do("aten.rand.default", (), "extra", 99, source="log(torch.rand(3))"), *program[place:]]
    )
    comparison = compare(a.path, b.path)
    first, found = comparison.first, value_of(comparison)
    assert (first.cause, first.a_index, first.b_index) == (Cause.CONTROL_FLOW, None, b.rows[place])
    assert "draws from a generator" in first.explanation
    assert (found.cause, found.a_index, found.b_index) == (Cause.RNG, a.rows[place], b.rows[place + 1])
    assert comparison.decisive == first
    assert (comparison.structure.only_a, comparison.structure.only_b) == (0, 1)


# --- causes that need rows by hand ----------------------------------------------------------------------------------


STATE = "it may have read state that is in no argument"
LEFT = "it wrote to memory that no op had written, and what it leaves unwritten there can differ"


@pytest.mark.parametrize(
    ("op", "library", "inputs", "notes"),
    [
        ("triton.f", "Triton", [], []),
        ("triton.f", "Triton", ["overwritten"], [LEFT]),
        ("ctypes.f", "", [], [STATE]),
        ("extension.f", "", ["overwritten"], [STATE, LEFT]),
        ("aten.f.default", "", ["overwritten"], []),
    ],
)
def test_code_outside_torch(tmp_path: Path, op: str, library: str, inputs: list[str], notes: list[str]) -> None:
    """What is not known of it is said: what it read beside its arguments, and what it left unwritten."""
    kernel = {"library": library} if library else {}
    for trace, side in both(tmp_path):
        trace.op(op, inputs=[("outside", "x"), *inputs], outputs=[f"y {side}"], kernel=kernel)
        trace.end_step()
    found = value_of(compare_in(tmp_path)).explanation
    assert [note for note in (STATE, LEFT) if note in found] == notes
    assert found.endswith("; ".join(notes))


@pytest.mark.parametrize(
    ("op", "phase", "verdict"),
    [
        ("aten.add.Tensor", Phase.FORWARD, Verdict.IDENTICAL),
        ("aten.add.Tensor", Phase.OPTIMIZER, Verdict.DIVERGED),
        ("c10d.send.default", Phase.FORWARD, Verdict.DIVERGED),
        ("extension.library.save", Phase.FORWARD, Verdict.DIVERGED),
    ],
)
def test_who_computes_with_unwritten_memory(tmp_path: Path, op: str, phase: Phase, verdict: Verdict) -> None:
    """An op that only computes is harmless; not an optimizer's, one that sends, or one that may do more."""
    for trace, side in both(tmp_path):
        empty = trace.op("aten.empty.memory_format", outputs=[], flags=RowFlag.ALLOCATION)
        copied = trace.op("aten.clone.default", inputs=[In(empty)], outputs=[f"junk {side}"], flags=RowFlag.MARKED)
        trace.op(op, inputs=[copied], outputs=[f"result {side}"], phase=phase)
        trace.end_step()
    comparison = compare_in(tmp_path)
    assert comparison.verdict is verdict
    assert comparison.marked.unused == (verdict is Verdict.IDENTICAL)


def test_reads_of_one_side_only_are_no_difference(tmp_path: Path) -> None:
    """One side digested an input that the other had digested before: nothing differs."""
    for trace, side in both(tmp_path):
        if side == "b":
            early = trace.op("aten.norm.default", ("train.py", 3, "log", "log(w)"), [("outside", "w")], ["n"])
            trace.op("aten.mm.default", inputs=[In(early, slot=0, known=True)], outputs=["y"])
        else:
            trace.op("aten.mm.default", inputs=[("outside", "w")], outputs=["y"])
        trace.end_step()
    comparison = compare_in(tmp_path)
    assert comparison.verdict is Verdict.SAME_VALUES
    assert (comparison.structure.only_a, comparison.structure.only_b) == (0, 1)


def test_source_and_destination_overlap(tmp_path: Path) -> None:
    """A copy within one storage: its order of going through memory is said to matter, whatever the cause is called."""
    for trace, kernel in both(tmp_path, KERNEL, {**KERNEL, "threads": 1}):
        whole = trace.op("aten.randn.default", outputs=["t"], rng="seed")
        links = [In(origin=Origin.OVERWRITTEN), In(whole)]
        outputs = [str(kernel["threads"])]
        trace.op("aten.copy_.default", inputs=links, outputs=outputs, kernel=kernel, flags=RowFlag.OVERLAPPING)
    found = value_of(compare_in(tmp_path))
    assert (found.cause, found.op) == (Cause.KERNEL, "aten.copy_.default")
    assert "source and destination overlap" in found.explanation


def test_a_label_for_the_profiler_is_reported_as_its_line(record: Record) -> None:
    """``optimizer.step()`` begins with an op that names it to the profiler: what a side goes on with is that line."""
    label = Do("profiler._record_function_enter_new.default", (), "", 29, source="optimizer.step()")
    program = [do for given in training() for do in ([label, given] if given.line == 30 else [given])]
    place = program.index(label)
    logged = [*program[:place], Do("aten.abs.default", ("e",), "n", 25), *program[place:]]
    comparison = compare(record(program).path, record(logged).path)
    assert comparison.verdict is Verdict.SAME_VALUES
    assert (
        comparison.first.explanation == "only B runs it; there A continues with optimizer.step() at train.py:29 (train)"
    )


@pytest.mark.parametrize("trained", [True, False])
def test_a_difference_that_no_parameter_depends_on(tmp_path: Path, trained: bool) -> None:
    """A log line with a time in it: diverged, and a note that nothing which was trained differs; else no note."""

    def build(trace: TraceBuilder, side: str) -> None:
        for step in range(2):
            trace.op("aten.mean.default", inputs=[("outside", f"time {side}")], outputs=[f"mean {side}"])
            state = f"{step}{'' if trained else side}"
            trace.end_step("Adam", 0, parameters=state, gradients="g", generators="r")

    paths = []
    for side in ("a", "b"):
        builder = TraceBuilder(tmp_path / f"{side}.zarr")
        build(builder, side)
        paths.append(builder.finish(parameters={0: "1" if trained else f"1{side}"}, generators="r"))
    comparison = compare(*paths)
    assert value_of(comparison).cause is Cause.OUTSIDE
    assert any("no trained parameter depends on this difference" in note for note in comparison.notes) is trained


def test_an_input_that_differs_without_effect(tmp_path: Path) -> None:
    """A buffer that is full in part, read whole: its result is equal, which is said."""
    for trace, side in both(tmp_path):
        trace.op("aten.index_select.default", inputs=[("outside", f"buffer {side}")], outputs=["rows"])
    found = value_of(compare_in(tmp_path))
    assert found.cause is Cause.OUTSIDE and "what the op returned is equal" in found.explanation
