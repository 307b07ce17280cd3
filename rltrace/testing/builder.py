"""Builders of traces, their processes, streams and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.digest import digest_buffer, seed_of
from rltrace.digest.activation_rows import row_digests
from rltrace.portable_keys import frame_key, portable_key, site_key
from rltrace.trace.format.activation_rows import Part
from rltrace.trace.format.process_start import write_start
from rltrace.trace.format.records import ActivationRequest, LeftOut, ValueRequest, axes_of
from rltrace.trace.format.root import create_trace, end_launch
from rltrace.trace.format.rows import Rows, StepRecord, TableEntry
from rltrace.trace.format.schema import (
    FIRST_ENTRIES,
    GENERATOR_SHIFT,
    SLOT_UNKNOWN,
    TABLES,
    CallFlag,
    Column,
    Generator,
    Kind,
    LinkNote,
    Origin,
    Phase,
    RowFlag,
    Sample,
    ValueKind,
    pack_link,
)
from rltrace.trace.write.packers import TENSOR, NewActivations, NewValue, NewValues, PendingActivations, bits_of
from rltrace.trace.write.writer import ProcessWriter

# --- inputs -----------------------------------------------------------------------------------------------------------
#
# How tests name the inputs of an op: by rows, origins, and texts in place of digests.


def digest(text: object) -> int:
    """A digest made from ``text``, equal for equal texts in every trace; a number is its own digest."""
    return text if isinstance(text, int) else key_of("testing", text)


def key_of(kind: str, payload: object) -> int:
    """``portable_key`` of a payload, cached: nearly every row repeats the same few."""
    written = (kind, repr(payload))  # 1, 1.0 and True are equal, but have different keys
    key = _keys.get(written)
    if key is None:
        if len(_keys) == MAX_KEYS:
            _keys.clear()
        key = _keys[written] = portable_key(kind, payload)
    return key


MAX_KEYS = 1 << 16
_keys: dict[tuple[str, str], int] = {}


@dataclass(frozen=True)
class In:
    """One tensor input. ``In(row)`` links to an output of ``row``; ``digest``: the op digested the input, too."""

    row: int | None = None
    """The row that wrote it; None: see ``origin``."""
    digest: object = None
    slot: int = 0
    known: bool = False
    """``row`` did not write it, but read the same view."""
    origin: Origin = Origin.OUTSIDE
    sent: int = SLOT_UNKNOWN
    """Of outside data: the collective before it that received it from other processes, 1 the last one."""
    offset: int = 0
    """Its storage offset."""
    last_writer: int | None = None
    """Of several writers: the row of the last one; None: not known."""
    from_outside: bool = False
    """Of several writers: the elements that no op wrote came from outside."""

    def notes(self, at: int) -> list[tuple[int, int]]:
        """(``LinkNote``, value) of each note on its link, as seen from row ``at``."""
        offset = [(int(LinkNote.STORAGE_OFFSET), self.offset)] if self.offset else []
        if self.last_writer is None:
            return offset
        return [*offset, (int(LinkNote.LAST_WRITER), (at - self.last_writer) << 1 | self.from_outside)]

    def link(self, at: int) -> int:
        """The link cell, as seen from row ``at``."""
        distance = int(self.origin) if self.row is None else at - self.row
        read = self.digest is not None
        if self.row is None:
            return pack_link(distance, self.sent, read=read)
        return pack_link(distance, self.slot, known=self.known, read=read)


def input_of(given: object) -> In:
    """``5`` (row 5), ``("outside", digest)``, ``("mixed", digest)``, ``"unknown"``, ``"overwritten"``, or an In."""
    if isinstance(given, In):
        return given
    if isinstance(given, int):
        return In(given)
    word, read = given if isinstance(given, tuple) else (given, None)
    return In(origin=Origin[str(word).upper()], digest=read)


# --- interning --------------------------------------------------------------------------------------------------------
#
# The tables of a process, which the ids in its rows refer to.


Frame = tuple[str, int, str, str]
"""(file, line, function, source)."""


class Interned:
    """The tables of one process."""

    def __init__(self) -> None:
        self._ids: dict[str, dict[int, int]] = {name: {} for name in TABLES}
        self._sites: dict[tuple[Frame, ...], int] = {}
        self.new: list[TableEntry] = []
        for table, payload in FIRST_ENTRIES.items():
            self.plain(table, payload)

    def intern(self, table: str, key: int, payload: object) -> int:
        ids = self._ids[table]
        if key not in ids:
            ids[key] = len(ids)
            self.new.append(TableEntry(table, ids[key], key, payload))
        return ids[key]

    def plain(self, table: str, payload: object) -> int:
        return self.intern(table, key_of(table, payload), payload)

    def site(self, frames: Sequence[Frame]) -> int:
        known = self._sites.get(tuple(frames))
        if known is not None:
            return known
        keys, ids = [], []
        for file, line, function, source in frames:
            key = frame_key(file, function, source)
            payload = {"file": file, "path": f"/src/{file}", "line": line, "function": function, "source": source}
            ids.append(self.intern("frames", key, {**payload, "internal": False}))
            keys.append(key)
        number = self._sites[tuple(frames)] = self.intern("sites", site_key(keys), ids)
        return number

    def structure(self, layouts: Sequence[object]) -> int:
        ids = [self.plain("layouts", layout) for layout in layouts]
        return self.intern("structures", key_of("structure", list(layouts)), ids)


# --- processes --------------------------------------------------------------------------------------------------------
#
# What the streams of a process share: its writer, tables, step and settings.


class ProcessBuilder:
    """One process of a trace, with its streams."""

    def __init__(
        self,
        trace: Path,
        name: str,
        level: str,
        engine: str,
        *,
        alive: bool = False,
        argv: Sequence[str] = ("train.py",),
    ) -> None:
        start_record: dict[str, object] = {"name": name, "argv": list(argv), "executable": "python"}
        if not alive:
            start_record["pid"] = 0
        self.writer = ProcessWriter.open(trace, {**start_record, "token": write_start(trace, start_record)})
        self.name = self.writer.name
        self.tables = Interned()
        self.streams: dict[str, StreamBuilder] = {}
        """All so far, by name."""
        self.step = 0
        self.attempts: dict[int, int] = {}
        self._level, self._engine = level, engine
        self._requested_values = False
        self._requested_activations = False
        self.row_axes: tuple[int, ...] | None = None
        self.writer.facts(level, engine, {"testing": True})

    def request_values(
        self, *selectors: str, inputs: bool = True, limit: int = 1 << 30, only_with_rows: bool = False
    ) -> None:
        """Request the values that these select (default: all); only the first call counts."""
        if not self._requested_values:
            self._requested_values = True
            requested = () if only_with_rows else selectors or ("all",)
            self.writer.request_values(ValueRequest(requested, inputs and not only_with_rows, limit))

    def request_activations(self, *selectors: str, axes: tuple[int, ...] | None = None, limit: int = 1 << 30) -> None:
        """Request the activation rows that these select (default: all); only the first call counts."""
        if not self._requested_activations:
            self._requested_activations = True
            self.row_axes = axes
            self.writer.request_activations(ActivationRequest(selectors or ("all",), axes, limit))

    def fact(self, name: str, value: str | int | float | bool | None) -> None:
        self.writer.facts(self._level, self._engine, {name: value})

    def stream(self, name: str | None = None) -> StreamBuilder:
        """The stream of this name (default: the name of the process), created when it is new."""
        name = name or self.name
        if name not in self.streams:
            self.streams[name] = StreamBuilder(self, name)
        return self.streams[name]

    def optimizer(
        self, parameters: object, ordinal: int = 0, state: Sequence[str] = (), kept: Sequence[str] = ()
    ) -> None:
        """Record what the first attempt of an optimizer began with; ``state`` and ``kept``: names of the tensors of its
        state before and after it."""
        record = {"ordinal": ordinal, "parameters": f"{digest(parameters):016x}", "state": state, "kept": kept}
        self.writer.append({"type": "optimizer", **record})

    def finish(
        self,
        state: str = "complete",
        ending: Mapping[str, object] | None = None,
        generators: object = None,
        parameters: Mapping[int, object] | None = None,
        last_state: object = None,
        saved: Sequence[tuple[int, object]] = (),
    ) -> None:
        """Commit all and end: "complete", "stopped", or "killed" (without an end record); ``generators``: as in a step,
        ``parameters``: those of each optimizer by its ordinal; ``last_state``: of all that was trained, None: unknown;
        ``saved``: after which step, and what.
        """
        for stream in self.streams.values():
            stream.commit()
        if state != "killed":
            if last_state is not None:
                saves = [[step, f"{digest(what):016x}"] for step, what in saved]
                last = {"type": "state", "tensors": 1, "digest": f"{digest(last_state):016x}", "saved": saves}
                self.writer.append(last)
            trained = {ordinal: digest(value) for ordinal, value in (parameters or {}).items()}
            self.writer.close(state, ending or {"status": 0}, states_of(generators), trained)


# --- captures ---------------------------------------------------------------------------------------------------------
#
# What a stream has besides its rows: values, activation rows, calls of modules.


Tensor = NDArray[Any] | tuple[NDArray[Any], str]
"""An array, and torch's name of its dtype where NumPy has none for it."""


class CaptureBuilder:
    """Values and activation rows of one stream, held until its next commit."""

    def __init__(self, process: ProcessBuilder, index: int) -> None:
        self.process = process
        self.index = index
        self.rows = 0
        """Rows so far, committed or not."""
        self._values: list[NewValue] = []
        self._left_out: list[LeftOut] = []
        self.activations = PendingActivations(self.index)
        self._rows_left_out: list[LeftOut] = []
        self._calls = 0
        self._open_calls: list[int] = []

    def value(self, array: NDArray[Any], dtype: str = "", *, kind: ValueKind = ValueKind.OUTPUT, place: int = 0) -> int:
        """Capture a value of the next row; returns its digest. ``dtype``: torch's name, where NumPy has none for it.

        A generator's state is an array of bytes of kind GENERATOR.
        """
        self.process.request_values()
        data, dtype = np.ascontiguousarray(array).tobytes(), dtype or str(array.dtype)
        if kind is ValueKind.GENERATOR:
            layout, seed = 0, 0
        else:
            layout = self.process.tables.plain("layouts", [dtype, list(array.shape), [], "cpu"])
            seed = seed_of(dtype, array.shape)
        new = NewValue(kind, digest_buffer(data, seed), self.index, self.rows, place, layout, data)
        self._values.append(new)
        return new.digest

    def left_out(self, why: str, values: int = 1, size: int = 0) -> None:
        """Requested values of the next row are left out."""
        self.process.request_values()
        self._left_out.append(LeftOut(why, self.index, self.rows, self.rows, values, size))

    @contextmanager
    def call(
        self,
        module: str,
        inputs: Mapping[str, Tensor] | None = None,
        kind: str = "Module",
        phase: Phase | str = Phase.OTHER,
        *,
        grad: bool = False,
        values: bool = False,
    ) -> Iterator[dict[str, Tensor]]:
        """A call of a module around the ops of the block, which adds its outputs to the mapping.

        A tensor is an array, or a pair of one and torch's name of its dtype. Their rows are captured; their values
        where ``values`` is true, or where they are integers or booleans.
        """
        number, parent, first = self._calls, self._open_calls[-1] + 1 if self._open_calls else 0, self.rows
        step = self.process.step
        self._calls += 1
        self._open_calls.append(number)
        tensors = b""
        for name, tensor in (inputs or {}).items():
            tensors += self._tensor(Part.INPUT, name, tensor, values)
        outputs: dict[str, Tensor] = {}
        yield outputs
        for name, tensor in outputs.items():
            tensors += self._tensor(Part.OUTPUT, name, tensor, values)
        self._open_calls.pop()
        intern = self.process.tables.plain
        phase = Phase[phase.upper()] if isinstance(phase, str) else phase
        flags = CallFlag.CALL | (CallFlag.GRAD if grad else 0)
        ids = intern("modules", module), intern("names", kind)
        self.activations.add_call((flags, self.index, number, parent, *ids, step, phase, first, self.rows), tensors)

    def op_rows(
        self,
        row: int,
        inputs: Mapping[str, Tensor] | None = None,
        outputs: Mapping[str, Tensor] | None = None,
        *,
        values: bool = False,
    ) -> None:
        """Activation rows of an op; called before the commit of its row, or of a later one."""
        tensors = b""
        for part, tensors_of in ((Part.INPUT, inputs or {}), (Part.OUTPUT, outputs or {})):
            for name, tensor in tensors_of.items():
                tensors += self._tensor(part, name, tensor, values, is_key=False)
        self.activations.add_op(row, tensors)

    def rows_left_out(self, why: str, rows: int = 1) -> None:
        """Requested activation rows at the next row of the stream are left out."""
        self.process.request_activations()
        self._rows_left_out.append(LeftOut(why, self.index, self.rows, self.rows, 1, 8 * rows))

    def _tensor(self, part: Part, name: str, tensor: Tensor, values: bool, *, is_key: bool = True) -> bytes:
        self.process.request_activations()
        array, dtype = tensor if isinstance(tensor, tuple) else (tensor, str(tensor.dtype))
        data, shape = np.ascontiguousarray(array).tobytes(), array.shape
        axes = axes_of(self.process.row_axes, array.ndim)
        layout = self.process.tables.plain("layouts", [dtype, list(shape), [], "cpu"])
        whole = digest_buffer(data, seed_of(dtype, shape))
        if values or (is_key and array.dtype.kind in "iub"):
            self.process.request_values(only_with_rows=True)
            self._values.append(NewValue(ValueKind.WITH_ROWS, whole, self.index, self.rows, 0, layout, data))
        digests = row_digests(data, dtype, shape, array.itemsize, axes)
        place, named = self.activations.add_digests(digests.tobytes()), self.process.tables.plain("names", name)
        return TENSOR.pack(part, named, layout, bits_of(axes), whole, place, digests.size)

    def _take_captures(self) -> tuple[NewValues, NewActivations]:
        """Remove and return all, for a commit."""
        values, self._values, self._left_out = NewValues(self._values, self._left_out), [], []
        activations = self.activations.take(1 << 62, self._rows_left_out)
        self._rows_left_out = []
        return values, activations


# --- streams ----------------------------------------------------------------------------------------------------------
#
# Rows of a stream, written through the real writer.


SITE: Frame = ("train.py", 12, "train", "loss.backward()")
LAYOUT = ("float32", (4,), (1,), "cpu")


class StreamBuilder(CaptureBuilder):
    """Rows of one stream, held until the next ``commit``."""

    def __init__(self, process: ProcessBuilder, name: str) -> None:
        super().__init__(process, process.writer.stream(name))
        self.name = name
        self._first = 0
        self._columns: list[list[int]] = []
        self._cells: tuple[list[Any], list[Any], list[Any], list[Any]] = ([], [], [], [])
        self._notes: list[tuple[int, int, int]] = []
        self._steps: list[StepRecord] = []
        self._samples: list[list[int]] = []

    def sample(self, name: str, value: float, kind: str = "watch", *, step: int | None = None) -> None:
        """Add a number to a series; ``step``: the step that it belongs to, None: the current one."""
        tables = self.process.tables
        key = portable_key("series", kind, name)
        number = tables.intern("series", key, {"kind": kind, "name": name})
        bits = int(np.float64(value).view(np.uint64))
        self._samples.append([number, self.index, self.process.step if step is None else step, self.rows, bits])

    def op(
        self,
        name: str,
        site: Frame | Sequence[Frame] = SITE,
        inputs: Sequence[object] = (),
        outputs: Sequence[object] = (),
        module: str = "",
        phase: Phase | str = Phase.OTHER,
        floats: Sequence[float] = (),
        integers: Sequence[int] = (),
        rng: object = None,
        generator: int = Generator.TORCH,
        value: bool | int | float | complex | None = None,
        kernel: Mapping[str, object] | None = None,
        settings: Mapping[str, object] | None = None,
        flags: RowFlag | int = 0,
        layouts: Sequence[Any] | None = None,
        scalars: Sequence[object] | None = None,
        kind: Kind = Kind.OP,
    ) -> int:
        """Add a row; returns its index in the stream. Digests may be numbers or texts."""
        tables = self.process.tables
        links = [input_of(given) for given in inputs]
        frames: Any = (site,) if site and isinstance(site[0], str) else site
        if layouts is None:
            layouts = [LAYOUT] * len(links)
        if scalars is None:
            scalars = ["T"] * len(links) + ["i"] * len(integers) + ["f"] * len(floats)
        integers, floats, flags = list(integers), list(floats), RowFlag(flags)
        flags |= _append_value(value, integers, floats)
        digests = [digest(link.digest) for link in links if link.digest is not None]
        if rng is not None:
            flags |= RowFlag.RNG
            digests.append(digest(rng))
        digests += [digest(output) for output in outputs]
        row = [0] * len(Column)
        row[Column.KIND] = kind
        row[Column.OP] = tables.plain("ops", name)
        plain = [[list(part) if isinstance(part, tuple) else part for part in layout] for layout in layouts]
        row[Column.STRUCTURE] = tables.structure(plain)
        row[Column.SITE] = tables.site(frames)
        row[Column.MODULE] = tables.plain("modules", module)
        row[Column.SCALARS] = tables.plain("scalars", list(scalars))
        row[Column.STEP] = self.process.step
        row[Column.PHASE] = Phase[phase.upper()] if isinstance(phase, str) else phase
        row[Column.KERNEL] = tables.plain("kernels", dict(kernel or {}))
        row[Column.SETTINGS] = tables.plain("settings", dict(settings or {}))
        row[Column.FLAGS] = int(flags) | (generator << GENERATOR_SHIFT if rng is not None else 0)
        row[Column.LINKS], row[Column.INTEGERS] = len(links), len(integers)
        row[Column.FLOATS], row[Column.DIGESTS] = len(floats), len(digests)
        self._columns.append(row)
        cells: tuple[list[Any], ...] = ([link.link(self.rows) for link in links], integers, floats, digests)
        for place, link in enumerate(links, len(self._cells[0])):
            self._notes += [(place, *note) for note in link.notes(self.rows)]
        for section, more in zip(self._cells, cells, strict=True):
            section.extend(more)
        self.rows += 1
        return self.rows - 1

    def event(
        self,
        kind: Kind,
        what: str,
        site: Frame | Sequence[Frame] = SITE,
        owner: str = "",
        phase: Phase | str = Phase.OTHER,
        counts: Mapping[str, int] | None = None,
        evidence: Mapping[str, object] | None = None,
        digests: Mapping[str, object] | None = None,
        integers: Mapping[str, int] | None = None,
        floats: Mapping[str, float] | None = None,
    ) -> int:
        """Add an event, with a cell for each name; returns its index in the stream."""
        cells = {"n": counts or {}, "e": evidence or {}, "d": digests or {}, "i": integers or {}, "f": floats or {}}
        row = self.op(
            "",
            site,
            outputs=[*cells["n"].values(), *cells["e"].values(), *cells["d"].values()],
            module=owner,
            phase=phase,
            integers=list((integers or {}).values()),
            floats=list((floats or {}).values()),
            flags=RowFlag.MARKED,
            scalars=[what, *([f"{name}=", letter] for letter, named in cells.items() for name in named)],
            kind=kind,
        )
        self._columns[-1][Column.FLAGS] |= (len(cells["n"]) + len(cells["e"])) << GENERATOR_SHIFT
        return row

    def end_step(
        self,
        optimizer: str = "Adam",
        ordinal: int = 0,
        skipped: int = 0,
        backwards: int = 1,
        environment_steps: int = 0,
        parameters: object = None,
        gradients: object = None,
        generators: object = None,
        recorded: bool = True,
        python: object = 0,
        numpy: object = 0,
    ) -> int:
        """End an optimizer attempt; returns the number of its step.

        ``generators``, ``python`` and ``numpy``: digests of the states of torch's, Python's and NumPy's generators.
        """
        process = self.process
        identity = {"ordinal": ordinal, "class": optimizer}
        number = process.tables.intern("optimizers", portable_key("optimizers", identity), identity)
        count = process.attempts.get(number, 0)
        process.attempts[number] = count + 1
        counts = count, skipped, backwards, environment_steps, self.rows
        written, backward = (None if d is None else digest(d) for d in (parameters, gradients))
        states = states_of(generators, python, numpy)
        self._steps.append(StepRecord(process.step, self.index, number, *counts, recorded, written, backward, states))
        process.step += 1
        return process.step - 1

    def window(self, first_step: int, end_step: int | None = None) -> None:
        """Begin a window with the next row."""
        self.commit()
        self.process.writer.window(self.index, first_step, end_step, self.rows)

    def commit(self) -> None:
        """Write what is held as a segment."""
        links, integers, floats, digests = self._cells
        rows = Rows(
            self._first,
            np.array(self._columns, np.uint32).reshape(len(self._columns), len(Column)),
            np.array(links, np.int64),
            np.array(integers, np.int64),
            np.array(floats, np.float64),
            np.array(digests, np.uint64),
            np.array(self._notes, np.int64).reshape(-1, 3),
        )
        tables, steps = self.process.tables, self._steps
        entries, tables.new = tables.new, []
        values, activations = self._take_captures()
        self._columns, self._cells, self._notes, self._steps = [], ([], [], [], []), [], []
        samples, self._samples = np.array(self._samples, np.uint64).reshape(-1, len(Sample)), []
        self._first = self.rows
        self.process.writer.commit(
            self.index, rows if len(rows) else None, entries, steps, values, samples, activations
        )


def states_of(generators: object, python: object = 0, numpy: object = 0) -> tuple[int, int, int, int] | None:
    """Digests of the generator states of torch, Python and NumPy; devices have none."""
    return None if generators is None else (digest(generators), 0, digest(python), digest(numpy))


def _append_value(value: bool | int | float | complex | None, integers: list[int], floats: list[float]) -> RowFlag:
    if value is None:
        return RowFlag(0)
    if isinstance(value, bool):
        integers.append(int(value))
        return RowFlag.VALUE_BOOL
    if isinstance(value, int):
        integers.append(value)
        return RowFlag.VALUE_INTEGER
    if isinstance(value, float):
        floats.append(value)
        return RowFlag.VALUE_FLOAT
    floats.extend([value.real, value.imag])
    return RowFlag.VALUE_COMPLEX


# --- traces -----------------------------------------------------------------------------------------------------------


class TraceBuilder:
    """A whole trace. Its ``op``, ``end_step`` … are those of the main stream of process ``rank0/main``."""

    def __init__(
        self,
        path: Path,
        level: str = "op",
        engine: str = "testing",
        process: str = "rank0/main",
        *,
        alive: bool = False,
        nodes: int = 1,
        first_step: int = 0,
    ) -> None:
        """``nodes``: machines that record the run, of which this is one. ``first_step``: that of ``record --steps``."""
        self.path = Path(path)
        self.level, self.engine = level, engine
        options = {"level": level} | ({"first_step": first_step} if first_step else {})
        launch = {"command": ["python", "train.py"], "cwd": "~", "options": options}
        if nodes > 1:
            options |= {"nodes": nodes}
            launch |= {"created": datetime.now(UTC).isoformat(timespec="seconds"), "id": self.path.name}
        create_trace(self.path, launch)
        self.processes: dict[str, ProcessBuilder] = {}
        main = self.main = self.process(process, alive=alive)
        self.stream, self.fact, self.optimizer = main.stream, main.fact, main.optimizer
        stream = main.stream()
        self.op, self.event, self.end_step = stream.op, stream.event, stream.end_step
        self.window, self.commit, self.value, self.sample = stream.window, stream.commit, stream.value, stream.sample
        self.call, self.op_rows = stream.call, stream.op_rows
        self.left_out, self.rows_left_out = stream.left_out, stream.rows_left_out

    def process(self, name: str, *, alive: bool = False) -> ProcessBuilder:
        """The process of this name, created when it is new. ``alive``: unfinished it is "running", not "killed"."""
        return self.processes.get(name) or self.create_process(name, alive=alive)

    def create_process(self, name: str, argv: Sequence[str] = ("train.py",), *, alive: bool = False) -> ProcessBuilder:
        """A process of this name, with a number added where another one has it."""
        process = ProcessBuilder(self.path, name, self.level, self.engine, alive=alive, argv=argv)
        self.processes[process.name] = process
        return process

    def finish(
        self,
        state: str = "complete",
        ending: Mapping[str, object] | None = None,
        generators: object = None,
        parameters: Mapping[int, object] | None = None,
        last_state: object = None,
        saved: Sequence[tuple[int, object]] = (),
    ) -> Path:
        """End every process and the launch; returns the path."""
        for process in self.processes.values():
            process.finish(state, ending, generators, parameters, last_state, saved)
        if state != "killed":
            end_launch(self.path, {"status": 0})
        return self.path
