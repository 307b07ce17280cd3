"""What each mechanism of the recorder costs: programs that stress one, beside the same program without it.

    python benchmarks/mechanisms.py [--repeats 7]

Every program runs natively and recorded, in turn, in one process with one thread; the lowest time of each counts, by
the clock of that thread alone, so that a busy machine shows less. What recording adds to an op with the mechanism, less
what it adds without, is the mechanism's own. Prints Markdown.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from measure import machine, parse_options, table

import rltrace

SMALL, LARGE = 64, 262_144
"""Floats in a tensor: 256 bytes, 1 MiB."""

Program = Callable[[], int]
"""Runs ops and says how many of those that it is about."""


@dataclass(frozen=True)
class Mechanism:
    """One mechanism: a program that it works on, and the nearest one that it does not."""

    name: str
    size: int
    using: Program
    plain: Program
    options: dict[str, object] = field(default_factory=dict)
    """Of the recording of ``using``."""


def uses(tensor: torch.Tensor, count: int) -> Program:
    """Reads ``tensor``, which was there before, again and again."""

    def program() -> int:
        for _ in range(count):
            torch.neg(tensor)
        return count

    return program


def chain(size: int, count: int) -> Program:
    """Each op reads what the one before has written."""

    def program() -> int:
        x = torch.ones(size)
        for _ in range(count):
            x = torch.neg(x)
        return count

    return program


def fills(allocate: Callable[[int, int], torch.Tensor], size: int, count: int) -> Program:
    """A buffer of 64 rows is filled row by row, by as many ops."""

    def program() -> int:
        for _ in range(count):
            buffer = allocate(64, size // 64)
            for row in buffer.unbind():
                row.fill_(1.0)
        return 64 * count

    return program


def puts(allocate: Callable[[int, int], torch.Tensor], size: int, count: int) -> Program:
    """A buffer is filled by index, half and half."""
    halves = torch.arange(0, 64, 2), torch.arange(1, 64, 2)
    rows = torch.ones(32, size // 64)

    def program() -> int:
        for _ in range(count):
            buffer = allocate(64, size // 64)
            for half in halves:
                buffer.index_put_((half,), rows)
        return 2 * count

    return program


def weights_in_steps(size: int, different: int, count: int) -> Program:
    """Every step uses 32 weights: ``different`` ones."""
    weights = [torch.ones(size) for _ in range(different)]

    def program() -> int:
        for _ in range(count):
            rltrace.step() if recording() else None
            for use in range(32):
                torch.neg(weights[use % different])
        return 32 * count

    return program


def recording() -> bool:
    from rltrace.recorder import current_session

    return current_session() is not None


def makes(op: Callable[[torch.Tensor], object], size: int, count: int) -> Program:
    """One op on what another has just made."""

    def program() -> int:
        x = torch.ones(size)
        for _ in range(count):
            op(torch.neg(x))
        return count

    return program


def draws(op: Callable[[int], object], size: int, count: int) -> Program:
    def program() -> int:
        for _ in range(count):
            op(size)
        return count

    return program


def copies(size: int, count: int, copy: Callable[[torch.Tensor, torch.Tensor], object]) -> Program:
    """One tensor is copied into another."""
    target, source = torch.zeros(size), torch.ones(size)

    def program() -> int:
        for _ in range(count):
            copy(target, source)
        return count

    return program


def c_copy() -> Callable[[torch.Tensor, torch.Tensor], object]:
    memcpy = ctypes.CDLL(None).memcpy
    memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    memcpy.restype = None
    return lambda target, source: memcpy(target.data_ptr(), source.data_ptr(), target.nbytes)


def mechanisms() -> list[Mechanism]:
    found = [m for size, count in ((SMALL, 4_000), (LARGE, 150)) for m in of_size(size, count)]
    rand, ones = draws(torch.rand, SMALL, 4_000), draws(torch.ones, SMALL, 4_000)
    copy, by_op = (copies(SMALL, 4_000, function) for function in (c_copy(), torch.Tensor.copy_))
    array, view = makes(torch.Tensor.numpy, SMALL, 4_000), makes(torch.Tensor.detach, SMALL, 4_000)
    return [
        *found,
        Mechanism("the generator's state before a draw", SMALL, rand, ones),
        Mechanism("`.numpy()` of a result, beside `.detach()`", SMALL, array, view),
        Mechanism("a C function through ctypes on two tensors, beside `copy_`", SMALL, copy, by_op),
    ]


def of_size(size: int, count: int) -> list[Mechanism]:
    """Those whose cost grows with the tensor."""
    outside, own, handed_out = torch.from_numpy(np.ones(size, np.float32)), torch.ones(size), torch.ones(size)
    steps, fill, put = count // 32, max(1, count // 64), max(1, count // 8)
    every, one = weights_in_steps(size, 32, steps), weights_in_steps(size, 1, steps)
    rows = fills(torch.empty, size, fill), fills(torch.zeros, size, fill)
    indices = puts(torch.empty, size, put), puts(torch.zeros, size, put)
    verified: dict[str, object] = {"steps": (0, None), "verify_inputs": True}
    checked: dict[str, object] = {"check_links": True}
    return [
        Mechanism("memory from outside, digested at every use", size, uses(outside, count), uses(own, count)),
        Mechanism("memory with a living NumPy alias, the same", size, aliased(handed_out, count), uses(own, count)),
        Mechanism("first use of a tensor in a step", size, every, one),
        Mechanism("marks: fresh memory filled row by row", size, *rows),
        Mechanism("marks: fresh memory filled by index", size, *indices),
        Mechanism("`--verify-inputs`", size, chain(size, count), chain(size, count), verified),
        Mechanism("`--check-links`", size, chain(size, count), chain(size, count), checked),
    ]


def aliased(tensor: torch.Tensor, count: int) -> Program:
    def program() -> int:
        array = tensor.numpy()
        for _ in range(count):
            torch.neg(tensor)
        return count if len(array) else 0

    return program


def microseconds(program: Program, folder: Path, options: dict[str, object] | None) -> float:
    """Per op; ``options`` None: natively."""
    if options is None:
        return timed(program)
    with rltrace.record(folder / "trace.zarr", force=True, **options):  # type: ignore[arg-type]
        torch.neg(torch.ones(1))
        return timed(program)


def timed(program: Program) -> float:
    begin = time.thread_time()
    count = program()
    return (time.thread_time() - begin) / count * 1e6


IN_PYTHON: dict[str, object] = {"engine": "mode"}
"""Some mechanisms need Python at every op, so all are compared there."""


def measured(mechanism: Mechanism, folder: Path, repeats: int) -> list[object]:
    """A row of the table."""
    arms: list[tuple[Program, dict[str, object] | None]] = [
        (mechanism.plain, None),
        (mechanism.using, None),
        (mechanism.plain, IN_PYTHON),
        (mechanism.using, {**IN_PYTHON, **mechanism.options}),
    ]
    times: list[list[float]] = [[] for _ in arms]
    for _ in range(repeats):
        for found, (program, options) in zip(times, arms, strict=True):
            found.append(microseconds(program, folder, options))
    plain, using, plain_recorded, using_recorded = (min(found) for found in times)
    without, with_it = plain_recorded - plain, using_recorded - using
    size = f"{mechanism.size * 4:,}"
    return [
        mechanism.name,
        size,
        f"{without:.1f}",
        f"{with_it:.1f}",
        f"{with_it - without:+.1f}",
        f"{with_it / without:.2f}",
    ]


def main() -> None:
    given = parse_options(__doc__, repeats=7, only=("", "mechanisms with this in their name"))
    torch.set_num_threads(1)
    header = [
        "mechanism",
        "bytes of a tensor",
        "recording adds without it, µs an op",
        "with it",
        "its own, µs an op",
        "×",
    ]
    with tempfile.TemporaryDirectory() as folder:
        chosen = [mechanism for mechanism in mechanisms() if given.only in mechanism.name]
        rows = [measured(mechanism, Path(folder), given.repeats) for mechanism in chosen]
    print("## What each mechanism costs\n")
    print(f"{machine()}. CPU time of the program's thread, lowest of {given.repeats}.\n")
    print(table(header, rows))


if __name__ == "__main__":
    main()
