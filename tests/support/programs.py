"""A tiny machine that runs made-up training programs and records them: values follow from inputs, as in a real program.

A program is a list of instructions on named tensors. What an instruction computes is a digest of its inputs, its
arguments and what ran it, so a difference at one place reaches everything that depends on it and nothing else. Links,
reads and generator states are recorded by the recorder's own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rltrace.testing import In, TraceBuilder, digest
from rltrace.trace.format.schema import Origin, RowFlag

KERNEL = {"library": "ATen", "isa": "AVX2", "threads": 4}


@dataclass(frozen=True)
class Do:
    """One instruction."""

    name: str
    """Operator; or "step", "outside" (new bytes in memory that torch does not own), "alias" (bytes changed unseen),
    "seed" (the generator is set, with no op)."""
    reads: tuple[str, ...] = ()
    writes: str = ""
    line: int = 0
    """Line of the call; the source text is made from ``source`` or the line."""
    source: str = ""
    module: str = ""
    floats: tuple[float, ...] = ()
    integers: tuple[int, ...] = ()
    kernel: tuple[tuple[str, object], ...] | None = tuple(KERNEL.items())
    noise: str = ""
    """Changes what is computed without changing what is recorded of how."""
    shape: tuple[int, ...] = (4,)
    file: str = "train.py"
    function: str = "train"
    stack: tuple[tuple[str, int, str, str], ...] = ()
    """Frames around the innermost one."""
    optimizer: str = "Adam"
    ordinal: int = 0
    skipped: bool = False

    @property
    def is_op(self) -> bool:
        return self.name not in ("step", "outside", "alias", "seed")

    @property
    def draws(self) -> bool:
        return "rand" in self.name

    @property
    def reads_number(self) -> bool:
        return "local_scalar" in self.name


COLLAPSING = ("aten.argmax.default", "aten.clamp.default")
"""Operators with two results only: what goes in may differ and what comes out be equal again."""


@dataclass
class Tensor:
    value: str
    row: int | None = None
    step: int = -1
    outside: bool = False
    read_at: tuple[int, int, int] | None = None
    """(row, input, step) of the last read with nothing written since."""


@dataclass(frozen=True)
class Read:
    """What an op truly found in one of its inputs."""

    value: str
    writer: int | None
    """Row that wrote it; None: it is from outside, or nothing wrote it."""
    outside: bool
    digested: bool
    """The bytes were read, here or by an earlier op of the step: the recorder saw what they were."""


@dataclass(frozen=True)
class Done:
    """What truly happened at one op, whatever of it is recorded."""

    do: Do
    reads: tuple[Read, ...]
    state: str | None
    """Of the generator, before the op drew."""
    value: str
    """What it returned or wrote."""


@dataclass
class Machine:
    """Runs programs and records them."""

    trace: TraceBuilder
    tensors: dict[str, Tensor] = field(default_factory=dict)
    generator: int = 0
    seed: str = ""
    step: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    """Row of each instruction, by its place in the program."""
    done: list[Done] = field(default_factory=list)
    """What truly happened, row by row."""

    @property
    def path(self) -> Path:
        return self.trace.path

    def run(self, program: Sequence[Do]) -> Machine:
        for place, do in enumerate(program):
            if do.name == "step":
                parameters = sorted((k, t.value) for k, t in self.tensors.items() if k.startswith("w"))
                self.trace.end_step(
                    do.optimizer,
                    do.ordinal,
                    parameters=str(parameters),
                    gradients=self._value("g"),
                    generators=self._state(),
                    skipped=int(do.skipped),
                )
                self.step += 1
            elif do.name == "seed":
                self.generator, self.seed = 0, do.noise
            elif do.name == "outside":
                self.tensors[do.writes] = Tensor(f"outside {do.noise}", outside=True)
            elif do.name == "alias":
                self.tensors[do.writes] = replace(self.tensors[do.writes], value=f"alias {do.noise}")
            else:
                self.rows[place] = self._op(do)
        return self

    def _value(self, name: str) -> str:
        return self.tensors[name].value if name in self.tensors else "none"

    def _state(self) -> str:
        return f"generator {self.seed}{self.generator}"

    def _op(self, do: Do) -> int:
        row = self.trace.stream().rows
        reads = tuple(self._read(name) for name in do.reads)
        inputs = [self._input(name, row, place) for place, name in enumerate(do.reads)]
        draw = self._state() if do.draws else None
        if do.draws:
            self.generator += 1
        parts = [do.name, do.floats, do.integers, do.shape, do.noise, draw, *(self._value(n) for n in do.reads)]
        kernel = None if do.kernel is None else dict(do.kernel)
        if kernel is not None and kernel != KERNEL:
            parts.append(sorted(kernel.items(), key=str))
        value = f"{digest(str(parts)):016x}"
        if do.name in COLLAPSING:
            value = f"{do.name} {digest(value) % 2}"
        number = float(digest(value) % (1 << 50)) / 8 if do.reads_number else None
        self.done.append(Done(do, reads, draw, value))
        flags = RowFlag.VIEW if do.name == "aten.view.default" else RowFlag(0)
        got = self.trace.op(
            do.name,
            [(do.file, do.line, do.function, do.source or f"line {do.line}"), *do.stack],
            inputs=inputs,
            outputs=[] if do.reads_number or flags else [value],
            layouts=[("float32", do.shape, (1,), "cpu")] * len(inputs),
            module=do.module,
            floats=do.floats,
            integers=do.integers,
            rng=draw,
            value=number,
            kernel=kernel,
            flags=flags,
        )
        assert got == row
        if do.writes and not flags:
            self.tensors[do.writes] = Tensor(value, row, self.step)
        return row

    def _read(self, name: str) -> Read:
        tensor = self.tensors[name]
        return Read(tensor.value, tensor.row, tensor.outside, tensor.outside or tensor.step != self.step)

    def _input(self, name: str, row: int, place: int) -> In:
        tensor = self.tensors[name]
        if tensor.outside:
            return In(origin=Origin.OUTSIDE, digest=tensor.value)
        if tensor.row is not None and tensor.step == self.step:
            return In(tensor.row)
        if tensor.read_at is not None and tensor.read_at[2] == self.step and tensor.read_at[0] != row:
            return In(tensor.read_at[0], slot=tensor.read_at[1], known=True)
        tensor.read_at = (row, place, self.step)
        return In(tensor.row, digest=tensor.value)


Record = Callable[..., Machine]
"""``record(program, state="complete", facts={})``: runs a program; the machine knows its rows and its ``path``."""


def recorded(
    path: Path, program: Sequence[Do], state: str = "complete", facts: Mapping[str, Any] | None = None, **trace: Any
) -> Machine:
    """Run a program and record it; ``trace``: what ``TraceBuilder`` takes besides."""
    builder = TraceBuilder(path, **trace)
    for name, value in (facts or {}).items():
        builder.fact(name, value)
    machine = Machine(builder).run(program)
    builder.finish(state, generators=machine._state())
    return machine


def in_parts(path: Path, parts: Iterable[Sequence[Do]], state: str = "complete") -> Path:
    """Record with a commit after each part."""
    trace = TraceBuilder(path, alive=state == "running")
    machine = Machine(trace)
    for part in parts:
        machine.run(part)
        trace.commit()
    return trace.path if state == "running" else trace.finish(state)


def pieces(program: Sequence[Do], rows: int) -> Iterator[Sequence[Do]]:
    """The parts of a program, of so many instructions each."""
    return (program[start : start + rows] for start in range(0, len(program), rows))


def training(steps: int = 4, actions: int = 2) -> list[Do]:
    """A program: weights, then per step a few observations acted upon, a loss, a backward pass, an optimizer step."""
    program = [Do("aten.randn.default", (), "w1", 1), Do("aten.randn.default", (), "w2", 2)]
    for step in range(steps):
        for action in range(actions):
            program += [
                Do("outside", (), "o", noise=f"{step}.{action}"),
                Do("aten.addmm.default", ("o", "w1"), "h", 10, module="policy.0"),
                Do("aten.view.default", ("h",), "", 10, module="policy.0"),
                Do("aten.rand.default", (), "a", 11),
                Do("aten.mul.Tensor", ("h", "a"), f"x{action}", 12),
            ]
        program += [
            Do("aten.mm.default", ("x0", "w2"), "p", 20, module="critic.0"),
            Do("aten.sub.Tensor", ("p", f"x{actions - 1}"), "e", 21),
            Do("aten.mean.default", ("e",), "l", 22),
            Do("aten._local_scalar_dense.default", ("l",), "", 23, source="losses.append(loss.item())"),
            Do("aten.mm.default", ("e", "w2"), "g", 24),
            Do("aten.add_.Tensor", ("w1", "g"), "w1", 30, floats=(1e-3 * (step + 1),)),
            Do("aten.add_.Tensor", ("w2", "g"), "w2", 31, floats=(1e-3,)),
            Do("step"),
        ]
    return program
