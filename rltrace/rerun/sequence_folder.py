"""The folder that ``rltrace repro --module`` writes: a script that runs the ops of one module again, and their memory.

Owns what of a recorded step these ops need: the whole step is run once, and what they find in memory that none of them
left there is stored, each content once. ``sequence_main.py``, ``sequence_memory.py``, ``runner.py`` and
``torch_flags.py`` are modules of this package; only their imports are changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from pprint import pformat
from typing import Any

import numpy as np
import torch

from rltrace.digest import digest_buffer
from rltrace.errors import UsageError
from rltrace.recorder.core.op_info import written_places
from rltrace.rerun import runner, sequence_main, sequence_memory, torch_flags
from rltrace.rerun.arguments import arguments_of
from rltrace.rerun.op_sequence import SequenceOp, SequenceRun
from rltrace.rerun.recorded_op import REGISTERED_BY, generator_of, operator_of, returned_places, settings_of
from rltrace.rerun.repro_folder import SCRIPT, WIDTH, changed_switches, side_of, standalone_source
from rltrace.rerun.runner import TensorSpec
from rltrace.rerun.sequence_main import result_digest
from rltrace.rerun.sequence_memory import SequenceTensor, contiguous
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, RowFlag
from rltrace.trace.read.process import ProcessTrace

# --- what the ops need ------------------------------------------------------------------------------------------------


@dataclass
class OpsAlone:
    """The selected ops of a run, as text, and the memory that they need."""

    calls: list[str] = field(default_factory=list)
    """``SequenceCall(…)`` of each."""
    memory: dict[str, Any] = field(default_factory=dict)
    """Bytes by name: contents of storages, states of generators."""
    modules: set[str] = field(default_factory=set)
    """That register operators."""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """Under which settings of the process they ran."""


def take_out(
    process: ProcessTrace, run: SequenceRun, ops: Sequence[SequenceOp], wanted: Collection[SequenceOp]
) -> OpsAlone:
    """Run the ops and return what the wanted ones need to run without the others.

    Raises UsageError where an op gives other bits than were recorded, so that what later ones read is not known.
    """
    alone, left = OpsAlone(), dict[int, int]()
    run.place(ops)
    chosen = {(op.stream.index, op.row) for op in wanted}
    for is_wanted, group in groupby(ops, lambda op: (op.stream.index, op.row) in chosen):
        if not is_wanted:
            _run(run, list(group))
            continue
        for op in group:
            rows = op.stream.read(op.row, op.row + 1)
            if RowFlag.ALLOCATION in rows.flags(0):
                _run(run, [op])
                continue
            run.fill(op)
            contents = dict(_contents(op, run, left, alone.memory))
            _run(run, [op])
            alone.calls.append(_call(process, op, rows, contents, run, alone))
            for tensor in (*op.inputs, *op.outputs):
                if run.memory.size(tensor.spec):
                    left[tensor.spec.storage] = _digest(run, tensor.spec)
            if not alone.recorded:
                alone.recorded = _recorded(process, rows)
    return alone


def _run(run: SequenceRun, ops: Sequence[SequenceOp]) -> None:
    for outcome in run.run(ops):
        if outcome.here != outcome.recorded and outcome.distance is None:
            raise UsageError(
                f"row {outcome.rows.first:,} gives other bits here, so what the ops after it read is not known: write "
                "the folder on a machine that gives the recorded bits, or record with --values all as well"
            )


def _contents(
    op: SequenceOp, run: SequenceRun, left: Mapping[int, int], memory: dict[str, Any]
) -> Iterator[tuple[int, str]]:
    """Number and name of what storages hold that no wanted op left there; added to ``memory``."""
    for spec in {tensor.spec.storage: tensor.spec for tensor in op.inputs}.values():
        if run.memory.size(spec) and left.get(spec.storage) != (digest := _digest(run, spec)):
            name = f"{digest:016x}"
            if name not in memory:
                memory[name] = run.memory.storage(spec).cpu().numpy().copy()
            yield spec.storage, name


def _digest(run: SequenceRun, spec: TensorSpec) -> int:
    return digest_buffer(run.memory.storage(spec).cpu().contiguous().numpy(), 0)


def _recorded(process: ProcessTrace, rows: Rows) -> dict[str, Any]:
    side = side_of(process, rows, (), "")
    return {
        "threads": side.threads,
        "torch": side.torch,
        "processor": side.processor,
        "capability": process.facts.get("cpu.capability"),
        **side.environment,
    }


# --- their text -------------------------------------------------------------------------------------------------------


def _call(
    process: ProcessTrace, op: SequenceOp, rows: Rows, contents: Mapping[int, str], run: SequenceRun, alone: OpsAlone
) -> str:
    func, plan = operator_of(process, rows)
    arguments = arguments_of(process.words.skeleton(int(rows.columns[0, Column.SCALARS])), rows, 0)
    device = op.inputs[0].spec.device if op.inputs else "cpu"
    args, kwargs = arguments.values([torch.empty(0, device="meta")] * len(op.inputs), None)
    written, returned = written_places(plan, args, kwargs).all, returned_places(plan)
    generator = generator_of(process, rows, arguments, device)
    settings = changed_switches({**settings_of(process, rows), "grad_mode": torch.is_grad_enabled()})
    if func.namespace in REGISTERED_BY:
        alone.modules.add(REGISTERED_BY[func.namespace])
    parts = [
        repr(plan.name),
        repr(_where(process, rows)),
        f"lambda t, generator: torch.ops.{plan.name}({arguments.source})",
        _tensors("inputs", op.inputs),
        _tensors("outputs", op.outputs),
        f"results={tuple(map(result_digest, run.results))!r}",
        *([f"contents={dict(contents)!r}"] if contents else []),
        *([f"written={tuple(written)!r}"] if written else []),
        *([f"returned={returned!r}"] if returned is not None else []),
        *([f"settings={settings!r}"] if settings else []),
    ]
    if generator is not None:
        name = f"{digest_buffer(generator.state, 0):016x}"
        alone.memory[name] = generator.state
        parts.append(f"generator={(generator.device, name, generator.is_argument)!r}")
    return "SequenceCall(\n        " + ",\n        ".join(parts) + ",\n    )"


def _where(process: ProcessTrace, rows: Rows) -> str:
    cells, words = rows.columns[0].tolist(), process.words
    stack = words.stack(cells[Column.SITE])
    site = f", {stack[0].file}:{stack[0].line} in {stack[0].function}" if stack else ""
    return f"step {cells[Column.STEP]}, {words.phase(cells[Column.PHASE])}, {words.module(cells[Column.MODULE])}{site}"


def _tensors(name: str, tensors: Sequence[SequenceTensor]) -> str:
    lines = [_tensor(tensor, is_output=name == "outputs") for tensor in tensors]
    short = f"{name}=({', '.join(lines)}{',' * (len(lines) == 1)})"
    if len(short) < WIDTH:
        return short
    return f"{name}=(\n            " + ",\n            ".join(lines) + ",\n        )"


def _tensor(tensor: SequenceTensor, *, is_output: bool) -> str:
    spec = tensor.spec
    parts = [f"{spec.storage}, {spec.dtype!r}, {spec.shape!r}"]
    parts += [repr(spec.strides)] if spec.strides != contiguous(spec.shape) else []
    parts += [f"offset={spec.offset}"] if spec.offset else []
    parts += [f"alignment={tensor.alignment}"] if tensor.alignment else []
    parts += [f"index={tensor.index}"] if tensor.index and is_output else []
    parts += [f"device={spec.device!r}"] if spec.device != "cpu" else []
    parts += ["conjugated=True"] if spec.conjugated else []
    parts += ["negated=True"] if spec.negated else []
    return f"tensor({', '.join(parts)})"


_TEXT = '''\
"""The ops of {what}, run again on what they read in a recorded run.

    python {file}           are these the recorded bits? names the first op that gives others
    python {file} --help    other numbers of threads; variables of libraries are set in the shell

{notes}
ops.py lists the ops, memory.npz holds what they read and did not make, each content once under its digest; the other
files beside this one do the work. Needs torch and NumPy.
"""
{imports}
from ops import CALLS
from sequence_main import main

RECORDED = {recorded}


if __name__ == "__main__":
    main(CALLS, RECORDED)
'''

_OPS = '''\
"""{count} ops of {what}, in the order in which they ran.

A tensor is (number of its storage, dtype, shape, strides where it is not contiguous). ``contents`` names in memory.npz
what storages hold that no earlier op of these left there. ``results`` are digests of what was recorded.
"""

import torch

from sequence_main import SequenceCall, tensor

CALLS = (
{calls})
'''


# --- folder -----------------------------------------------------------------------------------------------------------


def write_sequence_folder(
    folder: Path, alone: OpsAlone, what: str, notes: Sequence[str], imports: Sequence[str] = ()
) -> None:
    """Write the folder, replacing earlier files. ``what`` the ops are of; ``imports``: modules that register them."""
    folder.mkdir(parents=True, exist_ok=True)
    what = what.replace("\\", "/").replace('"', "'")
    np.savez_compressed(folder / "memory.npz", **alone.memory)
    text = _TEXT.format(
        what=what,
        file=SCRIPT,
        notes="\n".join(line.replace("\\", "/").replace('"', "'") for line in notes),
        imports="".join(f"\nimport {module}  # registers operators" for module in (*imports, *sorted(alone.modules))),
        recorded=pformat({key: value for key, value in alone.recorded.items() if value}, width=WIDTH, sort_dicts=False),
    )
    calls = "".join(f"    {call},\n" for call in alone.calls)
    (folder / "ops.py").write_text(_OPS.format(count=len(alone.calls), what=what, calls=calls), encoding="utf-8")
    (folder / SCRIPT).write_text(text, encoding="utf-8")
    for module, neighbours in (
        (sequence_main, (runner, sequence_memory, torch_flags)),
        (sequence_memory, (runner,)),
        (runner, (torch_flags,)),
        (torch_flags, ()),
    ):
        file = f"{module.__name__.rpartition('.')[2]}.py"
        (folder / file).write_text(standalone_source(module, *neighbours), encoding="utf-8")
