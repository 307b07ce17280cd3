"""The next commands after a comparison, the most useful first."""

from rltrace.command_lines import file_name, file_names, line, record, record_both, record_whole
from rltrace.diff.base.model import OF_COMPUTING, Cause, Finding, Hole, Pair
from rltrace.diff.causes.extra_ops import COMPILED
from rltrace.trace.format.schema import has_iterations
from rltrace.trace.kernels.evidence import LAUNCH_ROWS
from rltrace.trace.read.reader import Trace

ON_A_GPU = "cuda"
"""The kernel text of an op on a GPU without a profile."""

OF_VALUES = {*OF_COMPUTING, Cause.OUTSIDE, Cause.RNG}


def settle_inputs(a: Trace, b: Trace, step_a: int, step_b: int) -> tuple[str, ...]:
    """Record a step with every input read, for a finding that rests on links or on inputs that were not compared."""
    if a.has_all_inputs and b.has_all_inputs:
        return ()
    return record_both(a, b, step_a, step_b, "verified", "--verify-inputs")


def check_links(a: Trace, b: Trace) -> tuple[str, ...]:
    """Record both programs with every write noticed, for a finding at memory that no recorded op wrote. From the start:
    in a window, memory from before it counts as written."""
    return record_whole(a, b, "checked", "--check-links")


def run_eagerly(a: Trace, b: Trace, finding: Finding) -> tuple[str, ...]:
    """Record the side that alone runs a compiled region, op by op, and compare that."""
    is_of_a = finding.b_index is None
    if not str(finding.op).startswith(COMPILED) or is_of_a == (finding.a_index is None):
        return ()
    compiled, other = (a, b) if is_of_a else (b, a)
    file = file_name(compiled, "eager")
    pair = (file, b.path) if is_of_a else (a.path, file)
    return record(compiled, file, "--compile", "eager", other=other), line("diff", *pair)


def compare_state(a: Trace, b: Trace, finding: Finding) -> tuple[str, ...]:
    """Compare parameters and gradients step by step, where one program makes the same optimizer steps of smaller
    batches."""
    rows = [sum(stream.rows for process in side.processes for stream in process.streams) for side in (a, b)]
    steps = [sum(len(process.steps) for process in side.processes) for side in (a, b)]
    is_of_one_training = steps[0] == steps[1] != 0
    if finding.cause is not Cause.ARGUMENTS or not is_of_one_training or max(rows) < SMALLER * min(rows):
        return ()
    records = record_whole(a, b, "state", "--level", "step", "--state", "0:")[:-1]
    return *records, line("compare", *file_names(a, b, "state"), "--state")


SMALLER = 1.5
"""So many times the ops of the other run are taken for those of smaller batches."""


def confirm(a: Trace, b: Trace, finding: Finding) -> tuple[str, ...]:
    """Test whether a finding is the cause, where its values can be injected."""
    return (line("confirm", a.path, b.path),) if finding.cause in OF_VALUES else ()


def explain(a: Trace, b: Trace, finding: Finding) -> tuple[str, ...]:
    """Run the op of a finding under other settings, where a trace holds its inputs."""
    if finding.cause not in OF_COMPUTING or finding.a_index is None or finding.b_index is None:
        return ()
    if (finding.op or "").startswith(LAUNCH_ROWS) or has_iterations(a.engine_of(finding.stream)):
        return ()
    sides = (a, finding.a_index), (b, finding.b_index)
    if not any(row is not None and _holds_inputs(trace, finding.stream, row) for trace, row in sides):
        return ()
    return (line("explain", a.path, b.path),)


def _holds_inputs(trace: Trace, name: str, row: int) -> bool:
    """Whether the trace holds inputs of a row."""
    found = ((process, stream) for process in trace.processes for stream in process.streams if stream.name == name)
    return any(process.values.inputs(stream.index, row) for process, stream in found)


def name_kernels(a: Trace, b: Trace, finding: Finding, step_a: int, step_b: int) -> tuple[str, ...]:
    """Record the step with its GPU kernels, where they are not known."""
    if finding.cause is not Cause.COMPUTATION or Pair(ON_A_GPU, ON_A_GPU) != finding.kernel:
        return ()
    return record_both(a, b, step_a, step_b, "kernels", "--kernels", "window")


def look_closer(a: Trace, b: Trace, finding: Finding) -> tuple[str, ...]:
    """List the ops around a finding."""
    trace, row = (b, finding.b_index) if finding.a_index is None else (a, finding.a_index)
    return () if row is None else (line("ops", trace.path, f"stream={finding.stream}", "--around", row),)


def verify(a: Trace, b: Trace, holes: tuple[Hole, ...]) -> tuple[str, ...]:
    """Verify the damaged traces."""
    sides = {hole.side for hole in holes}
    return tuple(line("verify", trace.path) for side, trace in (("a", a), ("b", b)) if side in sides)
