"""The folder that ``rltrace repro`` writes: a script that runs recorded ops again, their memory, and its modules.

Owns what of a recorded step the ops of a module need, and the files. ``repro_main.py``, ``runner.py`` and
``torch_flags.py`` are modules of rltrace, ``digest.py`` is ``rltrace.digest.reference``; only their imports are
changed, so that there is one implementation. Memory is stored as bytes, which reproduces dtypes that NumPy lacks and
inputs that share a storage.
"""

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pprint import pformat
from types import ModuleType
from typing import Any

import numpy as np
import torch

from rltrace.digest import PAGE_BYTES, SECRET, digest_buffer, reference
from rltrace.errors import UsageError
from rltrace.extensions.repro import repro_main
from rltrace.extensions.repro.op_sequence import SequenceOp, SequenceRun
from rltrace.extensions.repro.repro_main import RecordedSide, short_sha256
from rltrace.fingerprint.host import acting_variables
from rltrace.rerun import runner, torch_flags
from rltrace.rerun.recorded_op import REGISTERED_BY, RecordedOp, settings_of
from rltrace.rerun.runner import TensorSpec, logical_bytes
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column
from rltrace.trace.read.process import ProcessTrace

# --- what is written --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repro:
    """Recorded ops that need nothing else to be run, and under what they ran."""

    name: str
    """Of the op, or of the module."""
    ops: Sequence[RecordedOp]
    sides: Mapping[str, RecordedSide]
    notes: Sequence[str]
    """Lines on where they were recorded."""
    imports: Sequence[str] = ()
    """Modules that register the operators."""
    by_trace: bool = True
    """Whether results have the digests of the trace, and sides all switches; else digests are fast ones, and each op
    has its switches."""


def take_out(
    process: ProcessTrace, run: SequenceRun, ops: Sequence[SequenceOp], wanted: Collection[SequenceOp]
) -> list[RecordedOp]:
    """Run the ops and return the wanted ones with what they need to run without the others.

    Raises UsageError where an op gives other bits than were recorded, so that what later ones read is not known.
    """
    chosen = {(op.stream.index, op.row) for op in wanted}
    taken: list[RecordedOp] = []
    stored: dict[int, Any] = {}
    """Bytes by digest: each content once."""
    left: dict[int, int] = {}
    """By storage: digest of what the last wanted op left there."""
    found: dict[int, Any] = {}
    """By storage: what the op finds that no wanted op left there."""

    def before(op: SequenceOp) -> None:
        found.clear()
        for spec in {spec.storage: spec for spec in op.inputs}.values() if (op.stream.index, op.row) in chosen else ():
            if run.memory.size(spec) and left.get(spec.storage) != (digest := _digest(run, spec)):
                if digest not in stored:
                    stored[digest] = run.memory.storage(spec).cpu().numpy().copy()
                found[spec.storage] = stored[digest]

    names = {stream.name: stream.index for stream in process.streams}
    for outcome in run.run(ops, before):
        if outcome.here != outcome.recorded and outcome.distance is None:
            raise UsageError(
                f"row {outcome.rows.first:,} gives other bits here, so what the ops after it read is not known: write "
                "the folder on a machine that gives the recorded bits, or record with --values all as well"
            )
        if (names[outcome.stream], outcome.rows.first) in chosen:
            assert run.last is not None
            op, results = run.last
            call = replace(op.call, contents={**found}, results={"a": tuple(map(_short_digest, results))})
            taken.append(replace(op, call=call))
            for spec in (*call.inputs, *call.outputs):
                if run.memory.size(spec):
                    left[spec.storage] = _digest(run, spec)
    return taken


def _digest(run: SequenceRun, spec: TensorSpec) -> int:
    return digest_buffer(run.memory.storage(spec).cpu().contiguous().numpy(), 0)


def _short_digest(result: Any) -> str:
    if not isinstance(result, torch.Tensor):
        return repr(result)
    return short_sha256(str(result.dtype).removeprefix("torch."), tuple(result.shape), logical_bytes(result))


def module_side(process: ProcessTrace, ops: Sequence[SequenceOp]) -> RecordedSide:
    """The settings of a process that ran these ops, each of which has its own switches."""
    rows = ops[0].stream.read(ops[0].row, ops[0].row + 1)
    capability = str(process.facts.get("cpu.capability") or "")
    return replace(side_of(process, rows, capability), switches={})


# --- script -----------------------------------------------------------------------------------------------------------
#
# The text of a ``repro.py`` is plain, because people read it before they run it.


WIDTH = 110

_TEXT = '''\
"""{title}, run again on the memory that {they} read in a recorded run.

    python {file}           {question}
    python {file} --help    other threads, instruction sets, deterministic algorithms, TF32

{notes}
memory.npz holds what {they} read and did not make, each content once; the other files beside this one do the work.
Needs torch and NumPy.
"""

import torch
{imports}
from repro_main import RecordedSide, main
from runner import OpCall, RngState, TensorSpec

RECORDED = {sides}

OPS = {ops}


if __name__ == "__main__":
    main({name!r}, OPS, RECORDED{digest})
'''


def script(repro: Repro, stored: dict[str, Any]) -> str:
    """The text of the script; what it needs in ``memory.npz`` is added to ``stored``."""
    one, count = repro.by_trace, len(repro.ops)
    aligned = not any(any(side.alignments or ()) for side in repro.sides.values())
    name = repro.name.replace("\\", "/").replace('"', "'")
    registering = {REGISTERED_BY[space] for op in repro.ops if (space := op.name.partition(".")[0]) in REGISTERED_BY}
    imports = [f"import {module}  # registers operators\n" for module in (*repro.imports, *sorted(registering))]
    imports += ["from digest import tensor_digest\n"] if repro.by_trace else []
    return _TEXT.format(
        name=name,
        title=name if one else f"The {count:,} ops of {name}",
        they="it" if one else "they",
        question="runs it 100 times: is it deterministic, are these the recorded bits?"
        if one
        else "are these the recorded bits? names the first op that gives others",
        file=SCRIPT,
        notes="\n".join(line.replace("\\", "/").replace('"', "'") for line in repro.notes),
        imports="".join(imports),
        sides=_mapping({side: _side(known, aligned=aligned) for side, known in repro.sides.items()}),
        ops=_sequence(
            [_op(op, stored, {} if repro.by_trace else changed_switches(op.call.settings)) for op in repro.ops]
        ),
        digest=", tensor_digest" if repro.by_trace else "",
    )


def _op(op: RecordedOp, stored: dict[str, Any], settings: Mapping[str, Any]) -> str:
    def name(data: Any) -> str:
        digest = f"{digest_buffer(np.ascontiguousarray(data), 0):016x}"
        stored[digest] = data
        return digest

    call, generator = op.call, op.call.generator
    named = {
        "contents": {number: name(data) for number, data in call.contents.items()},
        "written": call.written,
        "generator": generator and replace(generator, state=name(generator.state)),
        "settings": dict(settings),
        "results": dict(call.results),
        "where": call.where,
    }
    texts = {
        "inputs": _tensors(call.inputs),
        "outputs": _tensors(call.outputs, is_output=True) if call.outputs else "",
        "returned": repr(call.returned) if call.returned is not None else "",
        **{key: pformat(value, width=WIDTH, compact=True, sort_dicts=False) for key, value in named.items() if value},
    }
    function = f"lambda t, generator: torch.ops.{op.name}({op.arguments.source})"
    return _constructor("OpCall", [repr(op.name), function, *(f"{key}={text}" for key, text in texts.items() if text)])


def _tensors(tensors: Sequence[TensorSpec], *, is_output: bool = False) -> str:
    lines = [_tensor(tensor, is_output=is_output) for tensor in tensors]
    short = f"({', '.join(lines)}{',' * (len(lines) == 1)})"
    return short if len(short) < WIDTH else _sequence(lines)


def _tensor(tensor: TensorSpec, *, is_output: bool) -> str:
    parts = [repr(tensor.dtype), repr(tensor.shape), repr(tensor.strides), f"storage={tensor.storage}"]
    parts += [f"offset={tensor.offset}"] if tensor.offset else []
    parts += [f"alignment={tensor.alignment}"] if tensor.alignment else []
    parts += [f"device={tensor.device!r}"] if tensor.device != "cpu" else []
    parts += ["conjugated=True"] if tensor.conjugated else []
    parts += ["negated=True"] if tensor.negated else []
    parts += [f"index={tensor.index}"] if tensor.index and is_output else []
    return f"TensorSpec({', '.join(parts)})"


def _side(side: RecordedSide, *, aligned: bool) -> str:
    named = {
        "threads": side.threads,
        "environment": dict(side.environment),
        "switches": dict(side.switches),
        "alignments": None if aligned else side.alignments,
        "torch": side.torch,
        "processor": side.processor,
        "kernel": side.kernel,
    }
    return _constructor("RecordedSide", [f"{name}={value!r}" for name, value in named.items() if value])


def _constructor(name: str, parts: Sequence[str]) -> str:
    return f"{name}(\n        " + ",\n        ".join(part.replace("\n", "\n        ") for part in parts) + ",\n    )"


def _sequence(items: Sequence[str]) -> str:
    return "(\n" + "".join(f"    {item},\n" for item in items) + ")" if items else "()"


def _mapping(items: Mapping[str, str]) -> str:
    return "{\n" + "".join(f"    {name!r}: {item},\n" for name, item in items.items()) + "}"


# --- folder -----------------------------------------------------------------------------------------------------------


SCRIPT = "repro.py"


def write_folder(folder: Path, repro: Repro) -> int:
    """Write the folder, replacing earlier files; returns the bytes of memory in it."""
    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Any] = {}
    (folder / SCRIPT).write_text(script(repro, stored), encoding="utf-8")
    np.savez_compressed(folder / "memory.npz", **stored)
    for module, neighbours in ((repro_main, (runner, torch_flags)), (runner, (torch_flags,)), (torch_flags, ())):
        name = module.__name__.rpartition(".")[2]
        (folder / f"{name}.py").write_text(standalone_source(module, *neighbours), encoding="utf-8")
    if repro.by_trace:
        (folder / "digest.py").write_text(digest_source(), encoding="utf-8")
    return sum(map(len, stored.values()))


def side_of(
    process: ProcessTrace,
    rows: Rows,
    kernel: str,
    alignments: tuple[int, ...] | None = None,
) -> RecordedSide:
    """The settings of a row's op, and of its process."""
    facts = process.facts
    threads = process.words.evidence(int(rows.columns[0, Column.KERNEL])).get("threads")
    return RecordedSide(
        threads if isinstance(threads, int) else None,
        acting_variables(facts),
        changed_switches({**_facts_of_flags(facts), **settings_of(process, rows)}),
        alignments,
        str(facts.get("torch.version") or ""),
        str(facts.get("host.cpu") or ""),
        kernel,
    )


def _facts_of_flags(facts: Mapping[str, object]) -> dict[str, object]:
    """The recorded switches of the process, for a row without settings."""
    flags = {name: facts.get(f"flag.{name}") for name in torch_flags.SWITCHES}
    return {name: value for name, value in flags.items() if torch_flags.fits(name, value)}


def changed_switches(recorded: Mapping[str, object]) -> dict[str, object]:
    """The switches that differ from their values in this process, which has changed none."""
    return {name: value for name, value in recorded.items() if not torch_flags.is_set(name, value)}


def standalone_source(module: ModuleType, *neighbours: ModuleType) -> str:
    """The source of a module with its imports of neighbours changed to the same folder."""
    text = inspect.getsource(module)
    for neighbour in neighbours:
        line = f"from {neighbour.__name__} import "
        assert line in text
        text = text.replace(line, f"from {neighbour.__name__.rpartition('.')[2]} import ")
    return text


_TENSOR_DIGEST = '''

def tensor_digest(dtype: str, shape: tuple[int, ...], data: bytes) -> str:
    """Digest of a tensor: ``data`` are its elements in row-major order."""
    seed = xxh3_64(f"{dtype}[{','.join(map(str, shape))}]".encode(), 0)
    return f"{digest(data, seed):016x}"
'''


def digest_source() -> str:
    """The source of ``rltrace.digest.reference`` without imports from rltrace."""
    line = "from rltrace.digest import PAGE_BYTES, SECRET\n"
    text = inspect.getsource(reference)
    assert line in text
    secret = SECRET.hex()
    pieces = [secret[i : i + 96] for i in range(0, len(secret), 96)]
    constants = f"PAGE_BYTES = {PAGE_BYTES}\nSECRET = bytes.fromhex(\n"
    constants += "".join(f'    "{piece}"\n' for piece in pieces) + ")\n"
    return text.replace(line, constants) + _TENSOR_DIGEST
