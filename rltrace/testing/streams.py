"""Rows of a stream that is being built, written through the real writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rltrace.identity import portable_key
from rltrace.testing.inputs import digest, input_of
from rltrace.testing.interning import Frame
from rltrace.testing.keeping import Keeping
from rltrace.testing.processes import Process
from rltrace.trace.rows import Rows, StepRecord
from rltrace.trace.schema import GENERATOR_SHIFT, Column, Generator, Kind, Phase, RowFlag, Sample

SITE: Frame = ("train.py", 12, "train", "loss.backward()")
LAYOUT = ("float32", (4,), (1,), "cpu")


class StreamBuilder(Keeping):
    """Rows of one stream, held until the next ``commit``."""

    def __init__(self, process: Process, name: str) -> None:
        super().__init__(process, process.writer.stream(name))
        self.name = name
        self._first = 0
        self._columns: list[list[int]] = []
        self._cells: tuple[list[Any], list[Any], list[Any], list[Any]] = ([], [], [], [])
        self._steps: list[StepRecord] = []
        self._samples: list[list[int]] = []

    def sample(self, name: str, value: float, kind: str = "watch", *, step: int | None = None) -> None:
        """One more number of a series; ``step``: which it belongs to, the current one unless said."""
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
        layouts: Sequence[object] | None = None,
        scalars: Sequence[object] | None = None,
        kind: Kind = Kind.OP,
    ) -> int:
        """Add a row; returns its index in the stream. Digests may be numbers or any text that stands for one."""
        tables = self.process.tables
        links = [input_of(given) for given in inputs]
        frames: Any = (site,) if site and isinstance(site[0], str) else site
        if layouts is None:
            layouts = [LAYOUT] * len(links)
        if scalars is None:
            scalars = ["T"] * len(links) + ["i"] * len(integers) + ["f"] * len(floats)
        integers, floats, flags = list(integers), list(floats), RowFlag(flags)
        flags |= _put_value(value, integers, floats)
        digests = [digest(link.digest) for link in links if link.digest is not None]
        if rng is not None:
            flags |= RowFlag.RNG
            digests.append(digest(rng))
        digests += [digest(output) for output in outputs]
        row = [0] * len(Column)
        row[Column.KIND] = kind
        row[Column.OP] = tables.plain("ops", name)
        row[Column.STRUCTURE] = tables.structure([list(_jsonable(layout)) for layout in layouts])
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
        """Add a row that is no op, a cell for each name; returns its index in the stream."""
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
        """An optimizer attempt ends here; returns the number of the step it ends.

        ``generators`` stands for the state of torch's own, ``python`` and ``numpy`` for those of the other two.
        """
        process = self.process
        key = portable_key("optimizers", ordinal, optimizer)
        number = process.tables.intern("optimizers", key, {"ordinal": ordinal, "class": optimizer})
        count = process.attempts.get(number, 0)
        process.attempts[number] = count + 1
        written, backward = (None if d is None else digest(d) for d in (parameters, gradients))
        states = states_of(generators, python, numpy)
        self._steps.append(
            StepRecord(
                process.step,
                self.index,
                number,
                count,
                skipped,
                backwards,
                environment_steps,
                self.rows,
                recorded,
                written,
                backward,
                states,
            )
        )
        process.step += 1
        return process.step - 1

    def window(self, first_step: int, end_step: int | None = None) -> None:
        """Recording of ops begins with the next row."""
        self.commit()
        self.process.writer.window(self.index, first_step, end_step, self.rows)

    def commit(self) -> None:
        """Write what is held: a segment ends here."""
        links, integers, floats, digests = self._cells
        rows = Rows(
            self._first,
            np.array(self._columns, np.uint32).reshape(len(self._columns), len(Column)),
            np.array(links, np.int64),
            np.array(integers, np.int64),
            np.array(floats, np.float64),
            np.array(digests, np.uint64),
        )
        tables, steps = self.process.tables, self._steps
        entries, tables.new = tables.new, []
        values, kept = self._take_kept()
        self._columns, self._cells, self._steps = [], ([], [], [], []), []
        samples, self._samples = np.array(self._samples, np.uint64).reshape(-1, len(Sample)), []
        self._first = self.rows
        self.process.writer.commit(self.index, rows if len(rows) else None, entries, steps, values, samples, kept)


def states_of(generators: object, python: object = 0, numpy: object = 0) -> tuple[int, int, int, int] | None:
    """Digests of the states of torch's own generator and of the two beside it; no device has one."""
    return None if generators is None else (digest(generators), 0, digest(python), digest(numpy))


def _put_value(value: bool | int | float | complex | None, integers: list[int], floats: list[float]) -> RowFlag:
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


def _jsonable(layout: Any) -> Sequence[object]:
    return [list(part) if isinstance(part, tuple) else part for part in layout]
