"""The text of a ``repro.py``: what the op is, the call as Python, and what was recorded of it.

Owns that text. It is short and plain because people read it before they run it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pprint import pformat

from rltrace.reexecute.command import Side
from rltrace.reexecute.recorded import RecordedOp
from rltrace.reexecute.rerun import Tensor

WIDTH = 110

_TEXT = '''\
"""{name}, run again on the inputs that it had in a recorded run.

    python {file}           runs it 100 times: does it repeat itself, are these the recorded bits?
    python {file} --help    other threads, instruction sets, deterministic algorithms, TF32

{told}
inputs.npz holds the memory of its inputs, the other files beside this one do the work. Needs torch and NumPy.
"""

import torch
{imports}
from command import Side, main
from rerun import Tensor

TENSORS = {tensors}

RECORDED = {sides}


def call(t, generator):
    return torch.ops.{name}({arguments})


if __name__ == "__main__":
    main({main})
'''


def script(op: RecordedOp, sides: Mapping[str, Side], told: Sequence[str], imports: Sequence[str], file: str) -> str:
    """``told``: where and when it was recorded, a line each; ``imports``: modules that register the operator."""
    generator = op.case.generator
    parts = [repr(op.name), "call", "TENSORS", "sides=RECORDED"]
    if op.case.written:
        parts.append(f"written={op.case.written}")
    if op.case.returned is not None:
        parts.append(f"returned={op.case.returned}")
    if generator is not None:
        parts.append(f"generator=({generator.device!r}, {generator.given})")
    return _TEXT.format(
        name=op.name,
        file=file,
        told="\n".join(line.replace("\\", "/").replace('"', "'") for line in told),
        imports="".join(f"import {module}  # registers the operator\n" for module in imports),
        tensors=_sequence([_tensor(tensor) for tensor in op.case.tensors]),
        sides=_mapping({side: _side(known) for side, known in sides.items()}),
        arguments=op.arguments.source,
        main=", ".join(parts),
    )


def _tensor(tensor: Tensor) -> str:
    parts = [repr(tensor.dtype), repr(tensor.shape), repr(tensor.strides), f"storage={tensor.storage}"]
    parts += [f"offset={tensor.offset}"] if tensor.offset else []
    parts += [f"device={tensor.device!r}"] if tensor.device != "cpu" else []
    parts += ["conjugated=True"] if tensor.conjugated else []
    parts += ["negated=True"] if tensor.negated else []
    return f"Tensor({', '.join(parts)})"


def _side(side: Side) -> str:
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
    return "Side(\n        " + ",\n        ".join(part.replace("\n", "\n        ") for part in parts) + ",\n    )"


def _sequence(items: Sequence[str]) -> str:
    return "(\n" + "".join(f"    {item},\n" for item in items) + ")" if items else "()"


def _mapping(items: Mapping[str, str]) -> str:
    return "{\n" + "".join(f"    {name!r}: {item},\n" for name, item in items.items()) + "}"
