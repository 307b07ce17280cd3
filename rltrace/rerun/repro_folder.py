"""The folder that ``rltrace repro`` writes: a script that runs one op again, its inputs, and the modules it needs.

Owns the files in it. ``repro_main.py``, ``runner.py`` and ``torch_flags.py`` are modules of this package, ``digest.py``
is ``rltrace.digest.reference``; only their imports are changed, so that there is one implementation. Tensors are stored
as the bytes of their storages, which reproduces dtypes that NumPy lacks and inputs that share memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from pprint import pformat
from types import ModuleType

import numpy as np

from rltrace.digest import PAGE_BYTES, reference
from rltrace.digest import constants as definition
from rltrace.fingerprint.host import ACTING
from rltrace.rerun import repro_main, runner, torch_flags
from rltrace.rerun.recorded_op import RecordedOp, settings_of
from rltrace.rerun.repro_main import RecordedSide
from rltrace.rerun.runner import TensorSpec
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column
from rltrace.trace.read.process import ProcessTrace

# --- script -----------------------------------------------------------------------------------------------------------
#
# The text of a ``repro.py`` is short and plain, because people read it before they run it.


WIDTH = 110

_TEXT = '''\
"""{name}, run again on the inputs that it had in a recorded run.

    python {file}           runs it 100 times: is it deterministic, are these the recorded bits?
    python {file} --help    other threads, instruction sets, deterministic algorithms, TF32

{notes}
inputs.npz holds the memory of its inputs, the other files beside this one do the work. Needs torch and NumPy.
"""

import torch
{imports}
from repro_main import RecordedSide, main
from runner import TensorSpec

TENSORS = {tensors}

RECORDED = {sides}


def call(t, generator):
    return torch.ops.{name}({arguments})


if __name__ == "__main__":
    main({main})
'''


def script(
    op: RecordedOp, sides: Mapping[str, RecordedSide], notes: Sequence[str], imports: Sequence[str], file: str
) -> str:
    """The text of the script. ``notes``: lines on the recorded op; ``imports``: modules that register the operator."""
    generator = op.case.generator
    parts = [repr(op.name), "call", "TENSORS", "sides=RECORDED"]
    if op.case.written:
        parts.append(f"written={op.case.written}")
    if op.case.returned is not None:
        parts.append(f"returned={op.case.returned}")
    if generator is not None:
        parts.append(f"generator=({generator.device!r}, {generator.is_argument})")
    return _TEXT.format(
        name=op.name,
        file=file,
        notes="\n".join(line.replace("\\", "/").replace('"', "'") for line in notes),
        imports="".join(f"import {module}  # registers the operator\n" for module in imports),
        tensors=_sequence([_tensor(tensor) for tensor in op.case.tensors]),
        sides=_mapping({side: _side(known) for side, known in sides.items()}),
        arguments=op.arguments.source,
        main=", ".join(parts),
    )


def _tensor(tensor: TensorSpec) -> str:
    parts = [repr(tensor.dtype), repr(tensor.shape), repr(tensor.strides), f"storage={tensor.storage}"]
    parts += [f"offset={tensor.offset}"] if tensor.offset else []
    parts += [f"device={tensor.device!r}"] if tensor.device != "cpu" else []
    parts += ["conjugated=True"] if tensor.conjugated else []
    parts += ["negated=True"] if tensor.negated else []
    return f"TensorSpec({', '.join(parts)})"


def _side(side: RecordedSide) -> str:
    parts = [pformat(side.results, width=WIDTH, compact=True)]
    parts += [f"threads={side.threads}"] if side.threads else []
    parts += [f"environment={dict(side.environment)!r}"] if side.environment else []
    parts += [f"switches={dict(side.switches)!r}"] if side.switches else []
    parts += [f"alignments={side.alignments!r}"] if side.alignments is not None and any(side.alignments) else []
    parts += [
        f"{name}={value!r}"
        for name, value in (("torch", side.torch), ("processor", side.processor), ("kernel", side.kernel))
        if value
    ]
    return (
        "RecordedSide(\n        " + ",\n        ".join(part.replace("\n", "\n        ") for part in parts) + ",\n    )"
    )


def _sequence(items: Sequence[str]) -> str:
    return "(\n" + "".join(f"    {item},\n" for item in items) + ")" if items else "()"


def _mapping(items: Mapping[str, str]) -> str:
    return "{\n" + "".join(f"    {name!r}: {item},\n" for name, item in items.items()) + "}"


# --- folder -----------------------------------------------------------------------------------------------------------


SCRIPT = "repro.py"


def write_folder(
    folder: Path, op: RecordedOp, sides: Mapping[str, RecordedSide], notes: Sequence[str], imports: Sequence[str] = ()
) -> None:
    """Write the folder, replacing earlier files. ``notes``, ``imports``: as in ``script``."""
    folder.mkdir(parents=True, exist_ok=True)
    case = op.case
    arrays = {f"storage_{i}": np.asarray(data) for i, data in enumerate(case.storages)}
    arrays |= {"storages": np.array(len(case.storages)), "alignments": np.array(case.alignments, np.int64)}
    if case.generator is not None:
        arrays["generator"] = np.asarray(case.generator.state)
    np.savez_compressed(folder / "inputs.npz", **arrays)  # type: ignore[arg-type]
    (folder / SCRIPT).write_text(script(op, sides, notes, imports, SCRIPT), encoding="utf-8")
    (folder / "repro_main.py").write_text(standalone_source(repro_main, runner, torch_flags), encoding="utf-8")
    (folder / "runner.py").write_text(standalone_source(runner, torch_flags), encoding="utf-8")
    (folder / "torch_flags.py").write_text(standalone_source(torch_flags), encoding="utf-8")
    (folder / "digest.py").write_text(digest_source(), encoding="utf-8")


def side_of(
    process: ProcessTrace,
    rows: Rows,
    results: tuple[str, ...],
    kernel: str,
    alignments: tuple[int, ...] | None = None,
) -> RecordedSide:
    """The recorded results of a row's op, and the settings of its process."""
    facts = process.facts
    threads = process.words.evidence(int(rows.columns[0, Column.KERNEL])).get("threads")
    named = {name.removeprefix("env."): value for name, value in facts.items() if name.startswith("env.")}
    return RecordedSide(
        results,
        threads if isinstance(threads, int) else None,
        {name: str(value) for name, value in sorted(named.items()) if name.startswith(ACTING) and value is not None},
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

def tensor_digest(dtype: str, shape: tuple[int, ...], data: bytes) -> int:
    """Digest of a tensor: ``data`` are its elements in row-major order."""
    return digest(data, xxh3_64(f"{dtype}[{','.join(map(str, shape))}]".encode(), 0))
'''


def digest_source() -> str:
    """The source of ``rltrace.digest.reference`` without imports from rltrace."""
    line = f"from {definition.__name__} import PAGE_BYTES, SECRET\n"
    text = inspect.getsource(reference)
    assert line in text
    secret = definition.SECRET.hex()
    pieces = [secret[i : i + 96] for i in range(0, len(secret), 96)]
    constants = f"PAGE_BYTES = {PAGE_BYTES}\nSECRET = bytes.fromhex(\n"
    constants += "".join(f'    "{piece}"\n' for piece in pieces) + ")\n"
    return text.replace(line, constants) + _TENSOR_DIGEST
