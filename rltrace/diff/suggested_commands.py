"""The next commands, ready to paste: shell-quoted, the most useful first.

Owns their wording. Only verbs that exist; a trace's own command and folder come from its launch record.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from rltrace.diff.base.model import Cause, Finding, Hole, Pair
from rltrace.trace.read.reader import Trace

OF_COMPUTING = {Cause.KERNEL, Cause.SAME_KERNEL, Cause.COMPUTATION}

ON_A_GPU = "cuda"
"""What is known of the kernel of an op on a GPU where no profiler looked."""

OF_VALUES = {Cause.KERNEL, Cause.SAME_KERNEL, Cause.COMPUTATION, Cause.OUTSIDE, Cause.RNG}


def window_commands(a: Trace, b: Trace, step_a: int, step_b: int) -> tuple[str, ...]:
    """Record the step that differs on both sides, op by op, then compare those recordings."""
    return _window_commands(a, b, step_a, step_b, "window")


def settle_inputs(a: Trace, b: Trace, step_a: int, step_b: int) -> tuple[str, ...]:
    """The same, with every input read: what a verdict that rests on links, or on inputs not compared, needs."""
    if all(_verified(trace) for trace in (a, b)):
        return ()
    return _window_commands(a, b, step_a, step_b, "verified", "--verify-inputs")


def _verified(trace: Trace) -> bool:
    options = trace.launch.get("options")
    return isinstance(options, dict) and bool(options.get("verify_inputs"))


def _window_commands(a: Trace, b: Trace, step_a: int, step_b: int, ending: str, *options: str) -> tuple[str, ...]:
    file_a, file_b = window_names(a, b, ending)
    return (
        record_window(a, step_a, file_a, settings(a, b), *options),
        record_window(b, step_b, file_b, settings(b, a), *options),
        shlex.join(["rltrace", "diff", file_a, file_b]),
    )


def record_window(trace: Trace, step: int, file: str, variables: tuple[str, ...] = (), *options: str) -> str:
    """``rltrace record --steps N:N+1 -o FILE -- CMD`` in the command's own folder, under ``variables``."""
    command = trace.launch.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    record = shlex.join([*variables, "rltrace", "record", "--steps", f"{step}:{step + 1}", *options, "-o", file, "--"])
    return change_folder(trace) + f"{record} {shlex.join(words) if words else 'CMD'}"


def settings(trace: Trace, other: Trace) -> tuple[str, ...]:
    """``NAME=value`` of the recorded variables that the trace ran under and the other did not."""
    own, others = (_variables(t) for t in (trace, other))
    return tuple(f"{name}={value}" for name, value in sorted(own.items()) if others.get(name) != value)


def _variables(trace: Trace) -> dict[str, str]:
    facts = trace.processes[0].facts if trace.processes else {}
    names = [name for name in facts if name.startswith("env.") and name != "env.LD_PRELOAD"]
    return {name.removeprefix("env."): str(facts[name]) for name in names if facts[name] is not None}


def window_names(a: Trace, b: Trace, ending: str = "window") -> tuple[str, str]:
    """``a-window.zarr`` and ``b-window.zarr``; the folder's name in front where both traces are named alike."""
    names = [trace.path.name.removesuffix(".zarr") for trace in (a, b)]
    if names[0] == names[1]:
        names = [f"{trace.path.resolve().parent.name}-{name}" for trace, name in zip((a, b), names, strict=True)]
    if names[0] == names[1]:
        names = [f"a-{names[0]}", f"b-{names[1]}"]
    return f"{names[0]}-{ending}.zarr", f"{names[1]}-{ending}.zarr"


def confirm(a: Trace, b: Trace, finding: Finding) -> tuple[str, ...]:
    """Find out whether a finding is the cause, where it is of values that can be put in."""
    return (shlex.join(["rltrace", "confirm", str(a.path), str(b.path)]),) if finding.cause in OF_VALUES else ()


def explain(a: Trace, b: Trace, finding: Finding) -> tuple[str, ...]:
    """Run the op of a finding under other settings, where a trace holds what it read."""
    if finding.cause not in OF_COMPUTING or finding.a_index is None or finding.b_index is None:
        return ()
    if not any(
        _holds_inputs(*side) for side in ((a, finding.stream, finding.a_index), (b, finding.stream, finding.b_index))
    ):
        return ()
    return (shlex.join(["rltrace", "explain", str(a.path), str(b.path)]),)


def _holds_inputs(trace: Trace, name: str, row: int) -> bool:
    """Whether the trace holds inputs of a row."""
    found = ((process, stream) for process in trace.processes for stream in process.streams if stream.name == name)
    return any(process.values.inputs(stream.index, row) for process, stream in found)


def name_kernels(a: Trace, b: Trace, finding: Finding, step_a: int, step_b: int) -> tuple[str, ...]:
    """Record the step with the kernels of the GPU, where none of its are known."""
    if finding.cause is not Cause.COMPUTATION or Pair(ON_A_GPU, ON_A_GPU) != finding.kernel:
        return ()
    return _window_commands(a, b, step_a, step_b, "kernels", "--kernels", "window")


def look_closer(a: Trace, b: Trace, finding: Finding) -> tuple[str, ...]:
    """List the ops around a finding."""
    on_a = finding.a_index is not None
    words = ["rltrace", "ops", str(a.path if on_a else b.path), f"stream={finding.stream},op={finding.op}"]
    if finding.step is not None:
        words += ["--steps", f"{finding.step}:{finding.step + 1}"]
    return (shlex.join(words),)


def compare_again(a: Trace, b: Trace) -> tuple[str, ...]:
    """For traces that are still being written."""
    return (shlex.join(["rltrace", "diff", str(a.path), str(b.path)]),)


def verify(a: Trace, b: Trace, holes: tuple[Hole, ...]) -> tuple[str, ...]:
    """Look at the damage."""
    sides = {hole.side for hole in holes}
    damaged = [t for side, t in (("a", a), ("b", b)) if side in sides and t.slice is None]
    return tuple(shlex.join(["rltrace", "verify", str(trace.path)]) for trace in damaged)


def change_folder(trace: Trace) -> str:
    """``cd FOLDER && `` unless that is where we are; ``~`` is left for the shell to expand."""
    folder = trace.launch.get("cwd")
    if not isinstance(folder, str) or not folder or Path(folder).expanduser() == Path.cwd():
        return ""
    home, slash, rest = folder.partition("/")
    quoted = home + slash + (shlex.quote(rest) if rest else "") if home == "~" else shlex.quote(folder)
    return f"cd {quoted} && "
