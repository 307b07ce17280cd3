"""Recorded rows in words: what tests of the recorder ask of a trace, read back through the real reader."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rltrace
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.digests.layouts import Layouts
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.trace.format.row_hashes import row_hashes
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Origin, Phase, RowFlag, Sample, Step
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, open_trace
from rltrace.trace.read.stream import StreamTrace


@dataclass(frozen=True)
class Input:
    """One tensor input of a row, its link resolved."""

    row: int | None
    """The row it leads to; None: see ``origin``."""
    origin: Origin | None
    slot: int | None
    known: bool
    digest: int | None
    """Digest of what this row read; None: not read here."""
    offset: int = 0
    """Its storage offset."""
    last_writer: int | None = None
    """Of several writers: the row of the last one; None: not known."""
    from_outside: bool = False
    """Of several writers: elements that none of them wrote came from outside."""


@dataclass(frozen=True)
class Row:
    """One row in words."""

    index: int
    op: str
    kind: Kind
    phase: Phase
    step: int
    module: str
    stack: tuple[dict[str, Any], ...]
    """Frames of the site outside torch and rltrace, innermost first."""
    site_key: int
    scalars: object
    integers: list[int]
    floats: list[float]
    layouts: list[Any]
    inputs: list[Input]
    outputs: list[int]
    rng: int | None
    value: object
    kernel: dict[str, Any]
    settings: dict[str, Any]
    flags: RowFlag

    @property
    def name(self) -> str:
        """``addmm`` of ``aten.addmm.default``."""
        return self.op.split(".")[1] if "." in self.op else self.op

    @property
    def line(self) -> str:
        """Source of the innermost user frame."""
        return str(self.stack[0]["source"]) if self.stack else ""

    @property
    def marked(self) -> bool:
        return bool(self.flags & RowFlag.MARKED)


class Recorded:
    """One stream of a trace: the main one unless another is asked for."""

    returned: Any
    """By the program, where a function was recorded."""

    def __init__(self, path: Path, stream: int | str = 0, process: int = 0) -> None:
        self.path = path
        self.trace: Trace = open_trace(path)
        self.process: ProcessTrace = self.trace.processes[process]
        found = [s for s in self.process.streams if stream in (s.index, s.name)]
        self.stream: StreamTrace = found[0]
        self.raw: Rows = self.stream.read(0, self.stream.rows)
        assert self.trace.holes == ()
        self.rows = [self._row(i) for i in range(len(self.raw))]

    def _row(self, i: int) -> Row:
        raw, tables = self.raw, self.process.tables
        cell = {column: int(raw.columns[i, column]) for column in Column}
        frames = [tables["frames"].payloads[n] for n in tables["sites"].payloads[cell[Column.SITE]]]
        integers = raw.integers[raw.integer_offsets[i] : raw.integer_offsets[i + 1]].tolist()
        floats = raw.floats[raw.float_offsets[i] : raw.float_offsets[i + 1]].tolist()
        layouts = tables["structures"].payloads[cell[Column.STRUCTURE]]
        inputs = [
            Input(
                i - link.distance if link.distance > 0 else None,
                None if link.distance > 0 else Origin(link.distance),
                link.slot,
                link.known,
                link.digest,
                link.offset,
                i - link.last_writer if link.last_writer else None,
                link.from_outside,
            )
            for link in raw.inputs(i)
        ]
        return Row(
            index=i,
            op=tables["ops"].payloads[cell[Column.OP]],
            kind=Kind(cell[Column.KIND]),
            phase=Phase(cell[Column.PHASE]),
            step=cell[Column.STEP],
            module=tables["modules"].payloads[cell[Column.MODULE]],
            stack=tuple(frame for frame in frames if not frame["internal"]),
            site_key=int(tables["sites"].keys[cell[Column.SITE]]),
            scalars=tables["scalars"].payloads[cell[Column.SCALARS]],
            integers=integers,
            floats=floats,
            layouts=[tables["layouts"].payloads[n] for n in layouts],
            inputs=inputs,
            outputs=raw.outputs(i),
            rng=raw.rng(i),
            value=raw.value(i),
            kernel=tables["kernels"].payloads[cell[Column.KERNEL]],
            settings=tables["settings"].payloads[cell[Column.SETTINGS]],
            flags=raw.flags(i),
        )

    @property
    def ops(self) -> list[str]:
        """Names of all rows: ``["randn", "add"]``."""
        return [row.name for row in self.rows]

    def named(self, name: str) -> list[Row]:
        """Rows of one operator, by its name without namespace and overload."""
        return [row for row in self.rows if row.name == name]

    def one(self, name: str) -> Row:
        """The only row of that operator."""
        rows = self.named(name)
        assert len(rows) == 1, (name, self.ops)
        return rows[0]

    def table(self, name: str) -> list[Any]:
        return list(self.process.tables[name].payloads)

    @property
    def steps(self) -> list[dict[Step, int]]:
        """The steps table, a mapping each."""
        return [{column: int(row[column]) for column in Step} for row in self.process.steps]

    def column(self, name: Step) -> list[int]:
        """One column of it."""
        return [step[name] for step in self.steps]

    @property
    def optimizers(self) -> list[tuple[str, int, int]]:
        """(class and ordinal of the optimizer, its own count, skipped) of each attempt."""
        names = [f"{entry['class']}#{entry['ordinal']}" for entry in self.table("optimizers")]
        return [(names[step[Step.OPTIMIZER]], step[Step.COUNT], step[Step.SKIPPED]) for step in self.steps]

    def said(self, link: Input) -> int | None:
        """The digest of an input, by its own reading or by what its link leads to; None: neither says."""
        if link.digest is not None or link.row is None:
            return link.digest
        target = self.rows[link.row]
        if link.known:
            return self.said(target.inputs[link.slot])
        return target.outputs[link.slot] if target.outputs else None

    @property
    def chains(self) -> tuple[int, int, int]:
        """The three prefix digests at the end of the stream."""
        return tuple(self.stream.marks[-1, 1:].tolist())  # type: ignore[return-value]

    def hashes(self) -> list[list[int]]:
        """Structure, value and marked hash of every row."""
        return [part.tolist() for part in row_hashes(self.raw, self.process.tables)[:3]]


class Record:
    """Records functions or blocks of a test, each into a fresh trace under a folder."""

    def __init__(self, folder: Path) -> None:
        self._paths = (folder / f"{i}.zarr" for i in range(1_000))

    def __call__(self, program: Callable[[], object], *, stream: int | str = 0, **options: Any) -> Recorded:
        """Run ``program()`` under the recorder and read back what was recorded."""
        with self.block(stream=stream, **options) as got:
            returned = program()
        got.returned = returned
        return got

    @contextmanager
    def block(self, *, stream: int | str = 0, **options: Any) -> Iterator[Recorded]:
        """Record what runs in the block; the trace that this yields can be read after it."""
        path = next(self._paths)
        got = Recorded.__new__(Recorded)
        with rltrace.record(path, **options):
            yield got
        got.__init__(path, stream)  # type: ignore[misc]


def recorder(folder: Path) -> Record:
    """Records into fresh traces under ``folder``."""
    return Record(folder)


class PassingMode(TorchDispatchMode):
    """A mode of the program's own that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def memory_filled(byte: int) -> Iterator[None]:
    """What the C library allocates holds this byte (or its complement): it differs from run to run for certain."""
    libc, perturb = ctypes.CDLL(None), -6  # M_PERTURB of glibc
    if not hasattr(libc, "mallopt"):
        pytest.skip("needs glibc")
    assert libc.mallopt(perturb, byte)
    try:
        yield
    finally:
        libc.mallopt(perturb, 0)


def digest_of(tensor: torch.Tensor) -> int:
    """By the recorder's own rules, with layouts that know of no other tensor."""
    return TensorDigests(Layouts(Tables())).of(tensor)


@pytest.fixture
def inductor() -> None:
    """Inductor has the compiler that it needs for a CPU."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        pytest.skip("Inductor finds no C++ compiler")


def series_of(recorded: Recorded) -> dict[str, list[tuple[int, float]]]:
    """(step, number) of every sample, by the name of its series."""
    payloads: Any = recorded.table("series")
    found: dict[str, list[tuple[int, float]]] = {}
    values = recorded.process.samples[:, Sample.VALUE].copy().view(np.float64).tolist()
    for sample, value in zip(recorded.process.samples.tolist(), values, strict=True):
        payload = payloads[sample[Sample.SERIES]]
        name = payload["name"] + (f" in {payload['thread']}" if "thread" in payload else "")
        found.setdefault(name, []).append((sample[Sample.STEP], value))
    return found
