"""Marks against a model: random programs on small buffers, followed byte by byte in NumPy beside the recorder.

The model knows of every element whether a program has written it. A row must be marked exactly if it read an element
that the program had not, whatever views the writes went through.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from recorded import Record

Places = NDArray[np.int64]
Numbers = Sequence[int]
Instruction = tuple[str, tuple[int, int, int, int]]


@dataclass
class Known:
    """A tensor and, for each of its elements, which element of its buffer that is."""

    tensor: torch.Tensor
    buffer: NDArray[np.bool_]
    """Which elements of the memory have been written."""
    places: Places

    @property
    def unwritten(self) -> bool:
        return not bool(self.buffer[self.places].all())

    @property
    def overlaps(self) -> bool:
        return len(np.unique(self.places)) < self.places.size


@dataclass
class Machine:
    """Runs instructions on torch and on the model alike."""

    known: list[Known] = field(default_factory=list)
    expected: list[bool] = field(default_factory=list)
    """For each read, whether its row must be marked."""

    def run(self, program: Sequence[Instruction]) -> None:
        for name, numbers in [("empty", (3, 2, 0, 0)), *program]:
            INSTRUCTIONS[name](self, numbers)
        for known in list(self.known):
            self.read(known)

    def pick(self, number: int) -> Known:
        """One of the latest tensors, mostly."""
        return self.known[-1 - number % (len(self.known) if number > 50 else min(len(self.known), 4))]

    def read(self, known: Known) -> None:
        self.expected.append(known.unwritten)
        torch.sum(known.tensor)

    def add(self, tensor: torch.Tensor, written: bool) -> None:
        """A tensor with memory of its own, as ops return it."""
        places = _places_of(tensor)
        size = int(places.max()) + 1 if places.size else 0
        self.known.append(Known(tensor, np.full(size, written), places))

    def view(self, of: Known, tensor: torch.Tensor, places: Places) -> None:
        assert tensor.shape == places.shape
        self.known.append(Known(tensor, of.buffer, places))


def _places_of(tensor: torch.Tensor) -> Places:
    """Of a tensor that begins where its memory does."""
    size = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1 if tensor.numel() else 0
    return _strided(np.arange(size), tuple(tensor.shape), tuple(tensor.stride()), 0)


def _strided(base: Places, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Places:
    view = np.lib.stride_tricks.as_strided(base[offset:], shape, [8 * s for s in strides])
    return np.array(view, dtype=np.int64)


# --- instructions -------------------------------------------------------------------------------------------------


def empty(machine: Machine, n: Numbers) -> None:
    shape = (n[0] % 4 + 1, n[1] % 4 + 1)
    if n[2] % 4 == 0:
        machine.add(torch.empty(shape), False)
    elif n[2] % 4 == 1:
        machine.add(torch.empty_strided(shape, (1, shape[0])), False)
    elif n[2] % 4 == 2:
        machine.add(machine.pick(n[3]).tensor.new_empty(shape), False)
    else:
        machine.add(torch.zeros(shape), True)


def view(machine: Machine, n: Numbers) -> None:
    """One of the ways to look at a part of a tensor, or at all of it otherwise."""
    known = machine.pick(n[0])
    t, p = known.tensor, known.places
    if t.dim() == 0 or t.numel() == 0:
        return
    match n[1] % 10:
        case 0:
            machine.view(known, t[n[2] % len(t) :], p[n[2] % len(t) :])
        case 1:
            machine.view(known, t.transpose(0, -1), p.swapaxes(0, -1))
        case 2:
            machine.view(known, t[n[2] % len(t)], p[n[2] % len(t)])
        case 3:
            size = n[2] % len(t) + 1
            step = n[3] % 2 + 1
            windows = np.lib.stride_tricks.sliding_window_view(p, size, axis=0)[::step]
            machine.view(known, t.unfold(0, size, step), np.array(windows))
        case 4:
            machine.view(known, t[..., n[2] % 2 :: 2], p[..., n[2] % 2 :: 2])
        case 5:
            if t.is_contiguous():
                machine.view(known, t.view(-1), p.reshape(-1))
        case 6:
            if t.dim() == 2:
                machine.view(known, t.diagonal(), p.diagonal())
        case _:
            of = len(known.buffer)
            shape, strides = (n[2] % 4 + 1, n[3] % 4 + 1), (n[3] // 4 % 3 + 1, n[2] // 4 % 2 + 1)
            if (shape[0] - 1) * strides[0] + (shape[1] - 1) * strides[1] < of:
                places = _strided(np.arange(of), shape, strides, 0)
                machine.view(known, t.as_strided(shape, strides, 0), places)


def write(machine: Machine, n: Numbers) -> None:
    """Overwrite a view whole."""
    known = machine.pick(n[0])
    if known.overlaps and n[1] % 6 >= 3:
        return  # out= refuses some of them
    t = known.tensor
    ways: list[Callable[[], Any]] = [
        lambda: t.fill_(1.0),
        lambda: t.zero_(),
        lambda: t.copy_(torch.ones(t.shape)),
        lambda: torch.mul(torch.ones(t.shape), 2.0, out=t),
        lambda: torch._foreach_copy_([t], [torch.ones(t.shape)]),
        lambda: t.normal_(),
    ]
    ways[n[1] % 6]()
    known.buffer[known.places] = True


def write_through(machine: Machine, n: Numbers) -> None:
    """Overwrite a view that was made for it."""
    before = len(machine.known)
    view(machine, n)
    if len(machine.known) > before:
        write(machine, (0, n[3], 0, 0))


def write_some(machine: Machine, n: Numbers) -> None:
    """Overwrite what an index, a mask or a diagonal chooses."""
    known = machine.pick(n[0])
    t, p = known.tensor, known.places
    if t.dim() == 0 or t.numel() == 0 or known.overlaps:
        return
    rows = np.array([n[2] % len(t), n[3] % len(t)])
    chosen = (np.arange(t.numel()).reshape(p.shape) * (n[2] + 1)) % 3 == n[3] % 3
    match n[1] % 6:
        case 0:
            t[torch.from_numpy(rows)] = 1.0
            known.buffer[p[rows]] = True
        case 1:
            t.index_fill_(0, torch.from_numpy(rows), 2.0)
            known.buffer[p[rows]] = True
        case 2:
            t.masked_fill_(torch.from_numpy(chosen), 3.0)
            known.buffer[p[chosen]] = True
        case 3:
            t[torch.from_numpy(chosen)] = 4.0
            known.buffer[p[chosen]] = True
        case 4:
            t.masked_scatter_(torch.from_numpy(chosen), torch.ones(t.numel()))
            known.buffer[p[chosen]] = True
        case _:
            t.scatter_(0, torch.from_numpy(np.full((1, *t.shape[1:]), rows[0])), 5.0)
            known.buffer[p[rows[0]]] = True


def change(machine: Machine, n: Numbers) -> None:
    """Compute in place: reads what is there, which is then written, if only as the result of a marked row."""
    known = machine.pick(n[0])
    if known.overlaps:
        return
    known.tensor.add_(1) if n[1] % 2 else known.tensor.nan_to_num_()
    known.buffer[known.places] = True


def duplicate(machine: Machine, n: Numbers) -> None:
    """Copies compute nothing: what is uninitialised in the source is uninitialised in the copy."""
    known = machine.pick(n[0])
    if known.overlaps or known.tensor.numel() == 0:
        return
    if n[1] % 3 == 0:
        tensor = known.tensor.clone()
    elif n[1] % 3 == 1:
        tensor = known.tensor.to(torch.float64).to(torch.float32)
    else:
        tensor = known.tensor.contiguous()
        if tensor is known.tensor:
            return
    places = _places_of(tensor)
    buffer = np.ones(int(places.max()) + 1, dtype=bool)
    buffer[places] = known.buffer[known.places]
    machine.known.append(Known(tensor, buffer, places))


def move(machine: Machine, n: Numbers) -> None:
    """``copy_`` from one view into another of the same shape, of other memory."""
    target = machine.pick(n[0])
    fitting = [k for k in machine.known if k.tensor.shape == target.tensor.shape and k.buffer is not target.buffer]
    if target.overlaps or not fitting:
        return
    source = fitting[n[1] % len(fitting)]
    target.tensor.copy_(source.tensor)
    target.buffer[target.places] = source.buffer[source.places]


def deep(machine: Machine, n: Numbers) -> None:
    """A deep copy has memory of its own, all of it, and looks at the same part."""
    known = machine.pick(n[0])
    twin = copy.deepcopy(known.tensor)
    machine.known.append(Known(twin, known.buffer.copy(), known.places))


def read(machine: Machine, n: Numbers) -> None:
    machine.read(machine.pick(n[0]))


INSTRUCTIONS: dict[str, Callable[[Machine, Numbers], None]] = {
    "empty": empty,
    "view": view,
    "write": write,
    "write_through": write_through,
    "write_some": write_some,
    "change": change,
    "duplicate": duplicate,
    "move": move,
    "deep": deep,
    "read": read,
}

PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(INSTRUCTIONS)), st.tuples(*[st.integers(0, 64)] * 4)), min_size=1, max_size=25
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs=st.lists(PROGRAMS, min_size=1, max_size=12))
def test_marks_are_those_of_the_model(record: Record, programs: list[list[Instruction]]) -> None:
    """Never less than the model, or a difference of garbage would be a verdict; never more, or it would hide one."""
    machines = [Machine() for _ in programs]
    with record.block() as got:
        for machine, program in zip(machines, programs, strict=True):
            machine.run(program)
    marks = iter([row.marked for row in got.named("sum")])
    for machine in machines:
        assert list(islice(marks, len(machine.expected))) == machine.expected
