"""Each cause, found in a program in which exactly that went wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from programs import KERNEL, Do, Machine, Record, training
from views import both, compare_in

from rltrace.diff import Comparison, compare
from rltrace.diff.base.model import Cause, Finding, InputsMatch, Verdict
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import Kind, Origin, Phase, RowFlag

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


def test_other_settings_with_equal_bits_are_no_difference(tmp_path: Path) -> None:
    """A loop under no_grad on one side alone computes the same: identical."""
    a, b = (
        one_op(tmp_path / f"{side}.zarr", "ATen", {**UNDER, "grad_mode": side == "a"}, output="y")
        for side in ("a", "b")
    )
    assert compare(a, b).verdict is Verdict.IDENTICAL


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


@pytest.mark.parametrize("missing", ["a", "b", "both"])
def test_computation(record: Record, missing: str) -> None:
    """Kernel evidence missing on a side: computation, saying where it is missing."""
    program = training()
    place = places(program, "aten.mm.default")[2]
    a = record(changed(program, place, kernel=None) if missing != "b" else program)
    b = record(changed(program, place, noise="x", kernel=None if missing != "a" else tuple(KERNEL.items())))
    assert value_of(compare(a.path, b.path)).cause is Cause.COMPUTATION


def test_arguments_shapes(record: Record) -> None:
    """Another shape: arguments, with both shapes; it is the same op all the same."""
    program = training()
    place = places(program, "aten.mul.Tensor")[3]
    a, b = record(program), record(changed(program, place, shape=(8,)))
    comparison = compare(a.path, b.path)
    found = value_of(comparison)
    assert (found.cause, found.a_index, found.b_index) == (Cause.ARGUMENTS, a.rows[place], b.rows[place])
    assert "float32[4]" in found.explanation and "float32[8]" in found.explanation
    assert comparison.first == found


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


def test_generator_elsewhere_from_the_start(record: Record, tmp_path: Path) -> None:
    """Another seed: rng at the first op that draws."""
    for trace, seed in both(tmp_path, 0, 100):
        Machine(trace, generator=seed).run(training())
    found = value_of(compare_in(tmp_path))
    assert (found.cause, found.a_index, found.identical_before) == (Cause.RNG, 0, 0)


def test_untracked_write(record: Record) -> None:
    """Weights changed between steps without any op: untracked-write at their next use, not a fault of that op."""
    program = training()
    step = places(program, "step")[1]
    a = record(program)
    b = record([*program[: step + 1], Do("alias", (), "w2", noise="numpy"), *program[step + 1 :]])
    found = value_of(compare(a.path, b.path))
    place = next(p for p in places(program, "aten.mm.default") if p > step)
    assert (found.cause, found.a_index) == (Cause.UNTRACKED_WRITE, a.rows[place])
    assert "without any recorded op" in found.explanation


def test_receivers_are_not_named(record: Record) -> None:
    """What only passes a difference on is never the finding: everything after the origin differs here."""
    program = training()
    place = places(program, "aten.addmm.default")[0]
    a, b = record(program), record(changed(program, place, noise="x"))
    comparison = compare(a.path, b.path)
    assert value_of(comparison).a_index == a.rows[place]
    assert comparison.curves and comparison.curves[0].step == 0
    assert comparison.curves[0].name == "losses.append(loss.item())"


def test_values_that_become_equal_again(record: Record) -> None:
    """A difference that a comparison swallows one op later is found all the same, and where it was."""
    program = training()
    place = places(program, "aten.mul.Tensor")[0]
    lone = Do("aten.sort.default", ("x0",), "s", 40)
    same = [*program[: place + 1], lone, *program[place + 1 :]]
    other = [*program[: place + 1], replace(lone, noise="x"), *program[place + 1 :]]
    a, b = record(same), record(other)
    found = value_of(compare(a.path, b.path))
    assert (found.cause, found.a_index) == (Cause.SAME_KERNEL, a.rows[place + 1])


# --- causes that need rows by hand ----------------------------------------------------------------------------------


def test_before_window(tmp_path: Path) -> None:
    """A tensor that differs when recording begins: before-window, naming it."""
    for trace, side in both(tmp_path):
        trace.window(5)
        weight = f"weight {side}"
        trace.op("rltrace.state", site=(), kind=Kind.WINDOW, inputs=[("outside", weight)], module="net", scalars=["w"])
        trace.op("aten.mm.default", inputs=[("outside", weight)], outputs=[f"y {side}"])
        trace.end_step()
    found = value_of(compare_in(tmp_path))
    assert (found.cause, found.a_index, found.op) == (Cause.BEFORE_WINDOW, 0, "window")
    assert "net w already differed" in found.explanation


WROTE = In(1, "v")


@pytest.mark.parametrize(
    ("opening", "reads", "cause"),
    [
        (("w", "w"), (("outside", "w"), ("outside", "v")), Cause.UNTRACKED_WRITE),
        (("w", "w"), (("outside", "u"), ("outside", "v")), Cause.OUTSIDE),
        (("w", "v"), (("outside", "w"), ("outside", "v")), Cause.BEFORE_WINDOW),
        (("v", "v"), (("outside", "w"), WROTE), Cause.UNTRACKED_WRITE),
        (("v", "v"), (WROTE, ("outside", "w")), Cause.UNTRACKED_WRITE),
        (("w", "w"), (("outside", "w"), WROTE), Cause.BEFORE_WINDOW),
        (("w", "w"), (WROTE, ("outside", "w")), Cause.BEFORE_WINDOW),
        (("x", "x"), (("outside", "w"), WROTE), Cause.ARGUMENTS),
    ],
)
def test_what_a_window_began_with(
    tmp_path: Path, opening: tuple[str, str], reads: tuple[object, object], cause: Cause
) -> None:
    """Its opening rows distinguish memory that changed since from data that came in, and from what differed before."""
    for trace, side in both(tmp_path):
        k = "ab".index(side)
        trace.window(5)
        trace.op("rltrace.state", (), [("outside", opening[k])], kind=Kind.WINDOW, module="net", scalars=["w"])
        trace.op("aten.add.Tensor", inputs=[("outside", "k")], outputs=["v"])
        trace.op("aten.mm.default", inputs=[reads[k]], outputs=[f"y {side}"])
        trace.end_step()
    assert value_of(compare_in(tmp_path)).cause is cause


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


def test_uninitialised(tmp_path: Path) -> None:
    """A buffer that was not full is averaged: the op that read it is the origin, of unknown cause."""
    for trace, side in both(tmp_path):
        empty = trace.op("aten.empty.memory_format", outputs=[], flags=RowFlag.ALLOCATION)
        trace.op("aten.copy_.default", inputs=["overwritten", ("outside", "x")], outputs=["slice"])
        copied = trace.op("aten.clone.default", inputs=[In(empty)], outputs=[f"junk {side}"], flags=RowFlag.MARKED)
        mean = trace.op("aten.mean.default", inputs=[copied], outputs=[f"mean {side}"], flags=RowFlag.MARKED)
        added = trace.op("aten.add.Tensor", inputs=[mean], outputs=[f"sum {side}"])
        trace.op("aten.add_.Tensor", inputs=[added], outputs=[f"weight {side}"], phase=Phase.OPTIMIZER)
        trace.end_step()
    comparison = compare_in(tmp_path)
    found = value_of(comparison)
    assert (found.cause, found.op, found.a_index) == (Cause.UNKNOWN, "aten.clone.default", 2)
    assert "it reads memory that no recorded op wrote" in found.explanation
    assert comparison.marked.differing >= 1


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


def test_unwritten_memory_alone_is_no_verdict(tmp_path: Path) -> None:
    """Rows that may hold unwritten bytes differ, nothing else does: identical, and the rows are counted."""
    for trace, side in both(tmp_path):
        trace.op(
            "aten.clone.default", inputs=[("mixed", f"junk {side}")], outputs=[f"copy {side}"], flags=RowFlag.MARKED
        )
        trace.op("aten.mm.default", inputs=[("outside", "x")], outputs=["y"])
        trace.end_step()
    comparison = compare_in(tmp_path)
    assert comparison.verdict is Verdict.IDENTICAL
    assert (comparison.marked.rows, comparison.marked.differing) == (1, 1)
    assert comparison.marked.first is not None and "aten.clone.default" in comparison.marked.first


def test_number_read_from_unwritten_memory(tmp_path: Path) -> None:
    """A number that reaches Python from unwritten memory can turn control flow: that is a finding."""
    for trace, side in both(tmp_path):
        number = 1.5 if side == "a" else 2.5
        trace.op("aten._local_scalar_dense.default", inputs=[("mixed", side)], value=number, flags=RowFlag.MARKED)
    assert value_of(compare_in(tmp_path)).cause is Cause.UNKNOWN


def test_bytes_of_another_stream_are_not_guessed_at(tmp_path: Path) -> None:
    """An input that another thread wrote and that differs has no cause that this stream could show."""
    for trace, side in both(tmp_path):
        trace.op("aten.mm.default", inputs=[In(origin=Origin.UNKNOWN, digest=f"x {side}")], outputs=[f"y {side}"])
    found = value_of(compare_in(tmp_path))
    assert (found.cause, found.inputs_match) == (Cause.UNKNOWN, InputsMatch.DIFFER)


def test_overwritten_arguments_are_no_inputs(tmp_path: Path) -> None:
    """An op that only overwrites an argument does not read it: its other inputs decide."""
    for trace, side in both(tmp_path):
        trace.op(
            "aten.copy_.default",
            inputs=[In(origin=Origin.OVERWRITTEN), ("outside", f"x {side}")],
            outputs=[f"copy {side}"],
        )
    found = value_of(compare_in(tmp_path))
    assert (found.cause, found.explanation.split(" ")[1]) == (Cause.OUTSIDE, "1")


def test_a_view_read_before_stands_for_the_bytes(tmp_path: Path) -> None:
    """A link to an earlier row that read the same view is as good as that row's digest."""
    for trace, side in both(tmp_path):
        first = trace.op("aten.mm.default", inputs=[("outside", "w")], outputs=["y"])
        trace.op("aten.mul.Tensor", inputs=[In(first, slot=0, known=True)], outputs=[f"z {side}"])
    assert value_of(compare_in(tmp_path)).inputs_match is InputsMatch.INFERRED


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


@pytest.mark.parametrize("evidence", ["rows", "settings", "none"])
def test_another_kernel_explains_nothing_where_inputs_are_not_known(tmp_path: Path, evidence: str) -> None:
    """Whether the inputs matched is not known: another kernel is a lead then, and the cause is not known."""
    other = {**KERNEL, "isa": "AVX512"} if evidence == "rows" else KERNEL
    for trace, side in both(tmp_path):
        trace.fact("cpu.capability", side if evidence == "settings" else "same")
        kernel = KERNEL if side == "a" else other
        trace.op("aten.mm.default", inputs=["unknown"], outputs=[f"y {side}"], kernel=kernel)
    comparison = compare_in(tmp_path)
    found = value_of(comparison)
    assert (found.cause, found.inputs_match) == (Cause.UNKNOWN, InputsMatch.UNKNOWN)
    assert ("which explains it if they match" in found.explanation) == (evidence != "none")
    assert any("--verify-inputs" in command for command in comparison.advice)


def test_an_op_of_a_program_run_again_is_run_again_with_its_inputs(tmp_path: Path) -> None:
    """Not confirmed, as the other one was not made so: no command is suggested that runs it from its start."""
    for side, isa in (("a", "AVX2"), ("b", "AVX512")):
        trace = TraceBuilder(tmp_path / side, rerun=str(tmp_path / "a") if side == "b" else "")
        trace.fact("env.OMP_NUM_THREADS", "1")
        trace.op("aten.mm.default", outputs=[f"y {side}"], kernel={**KERNEL, "isa": isa})
        trace.finish()
    again, explain, look = compare(tmp_path / "a", tmp_path / "b").advice
    assert again == (
        f"cd ~ && OMP_NUM_THREADS=1 rltrace rerun {tmp_path / 'a'} --process rank0/main --warm-up 2 --values"
        " op=aten.mm.default --values-inputs -o b-values.zarr -- python train.py"
    )
    assert explain == f"rltrace explain {tmp_path / 'a'} b-values.zarr"
    assert look.startswith("rltrace ops")


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


def test_of_a_compiled_region_it_is_said_that_nothing_inside_was_seen(tmp_path: Path) -> None:
    """Inputs match, outputs differ: the kernels are compared as ever, and the way to see more is named."""
    kernel = {"library": "Inductor", "names": ["extern_kernels.mm", "cpp_fused_sin_0"], "code": "aa"}
    for trace, code in both(tmp_path, "aa", "bb"):
        trace.op("aten.ones.default", outputs=["x"])
        trace.op("inductor.compiled_graph", inputs=[0], outputs=[f"y {code}"], kernel={**kernel, "code": code})
    found = value_of(compare_in(tmp_path))
    assert found.cause is Cause.KERNEL
    assert "code aa against bb" in found.explanation
    assert "--compile eager" in found.explanation


@pytest.mark.parametrize("isa", ["AVX2", "AVX512"])
def test_packed_parameters_are_no_inputs(tmp_path: Path, isa: str) -> None:
    """Weights inside an object are in no link: equal inputs prove nothing, and neither the kernel is blamed."""
    for trace, side in both(tmp_path):
        trace.op(
            "quantized.linear_dynamic.default",
            inputs=[("outside", "x")],
            outputs=[f"y {side}"],
            scalars=["T", {"object": "ScriptObject"}, True],
            kernel={**KERNEL, "isa": isa if side == "b" else "AVX2"},
        )
    found = value_of(compare_in(tmp_path))
    assert (found.cause, found.inputs_match) == (Cause.UNKNOWN, InputsMatch.UNKNOWN)
    assert "an object whose content is not recorded" in found.explanation
    assert ("which explains it if they match" in found.explanation) is (isa == "AVX512")


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
