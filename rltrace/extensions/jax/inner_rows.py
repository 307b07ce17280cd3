"""The rows within one call of a program: one for each equation whose values it has in memory.

Owns what such a row says. It is a fusion, named by the equation whose value it is; its inputs are the values that the
equations fused into it read. All calls have the same rows, so they are laid out once; an iteration calls the body of
its loop. They are in a stream of their own: two traces that have other values in memory have other streams, and their
calls and iterations are compared still.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal

from rltrace.extensions.jax import programs
from rltrace.extensions.jax.fusions import (
    TAGGED,
    Choice,
    Eqn,
    function_of,
    is_reading,
    primitives_by_tag,
    tag_of,
    tags_in,
)
from rltrace.extensions.jax.loops import nested
from rltrace.extensions.jax.programs import ArrayLayout, Instruction
from rltrace.extensions.jax.rows import InnerBlock, JaxRows, RowTemplate, row_template
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.core.call_sites import Sites
from rltrace.trace.format.schema import Column, Origin, Phase, pack_link

Line = tuple[str, str, int]
"""File, function and line of a frame."""


class _Output(NamedTuple):
    """What a row of the call writes."""

    row: int
    slot: int
    layout: ArrayLayout


class _Operand(NamedTuple):
    """What the call reads."""

    number: int
    layout: ArrayLayout


_Source = _Output | _Operand


class _Made(NamedTuple):
    """Of what a value is made that is not read itself."""

    sources: tuple[_Source, ...]
    tags: tuple[int, ...] = ()
    """Of the equations that compute it from these."""


class _Place(NamedTuple):
    """Where an equation is."""

    lines: tuple[Line, ...]
    """Of the calls and scans around it, innermost first."""
    scopes: tuple[str, ...]
    phase: Phase


def rows_within(
    tables: Tables,
    sites: Sites,
    rows: JaxRows,
    choice: Choice,
    arguments: Sequence[int | None],
    operands: Sequence[ArrayLayout],
    lines: Sequence[Line],
) -> InnerBlock:
    """The rows within a call, one for each equation with values that are read or returned, in their order.

    ``arguments``: of the function, which of the operands of a call each is; ``lines``: frames of the call.
    """
    laid = _Rows(tables, sites, rows, choice, len(operands))
    sources = [_NOTHING if n is None else _Made((_Operand(n, operands[n]),)) for n in arguments]
    results = laid.within(choice.tagged.jaxpr, sources, _Place(tuple(lines), (), Phase.OTHER))
    return laid.block(results, [_layout(v.aval) for v in choice.tagged.jaxpr.outvars])


class _Rows:
    def __init__(self, tables: Tables, sites: Sites, rows: JaxRows, choice: Choice, operands: int) -> None:
        self._tables, self._sites, self._rows, self._choice, self._operands = tables, sites, rows, choice, operands
        self._columns: list[list[int]] = []
        self._links: list[int] = []
        self._first: dict[int, tuple[int, int]] = {}
        """By operand, the row that read it first, and as which input."""
        self._cells: list[int] = []
        self._written = 0
        self._logged: dict[tuple[int, int], int] = {}
        """By (row, slot) of a value that is read as an array in row-major order, its place in the log."""
        self._kinds: dict[int, tuple[RowTemplate, int]] = {}
        self._reading: dict[int, bool] = {}
        self._tags: dict[int, tuple[int, ...]] = {}
        self._primitives = primitives_by_tag(choice.tagged.jaxpr)
        self._places: dict[int, list[int]] = {}
        self._returned = {(value.tag, value.place): number for number, value in enumerate(choice.results)}
        """What is not read: the number among those of the results that are rows."""
        self._reordered = {(value.tag, value.place) for value in choice.values if value.axes}
        """What is digested with its axes in another order."""
        for value in (*sorted(choice.values), *choice.results):
            self._places.setdefault(value.tag, []).append(value.place)
        self._instructions: dict[int, list[Instruction]] = {}
        for instruction in choice.instructions:
            for tag in tags_in(instruction.names[0])[-1:]:
                self._instructions.setdefault(tag, []).append(instruction)

    def block(self, results: Sequence[_Made], layouts: Sequence[ArrayLayout]) -> InnerBlock:
        """The rows; ``results``: what the function returns, with these layouts."""
        columns, links = np.array(self._columns, np.uint32), np.array(self._links, np.int64)
        returned = []
        for number, (made, layout) in enumerate(zip(results, layouts, strict=True)):
            source = made.sources[0] if made.sources and not made.tags else None
            if isinstance(source, _Output) and source.layout == layout and source[:2] in self._logged:
                returned.append((self._logged[source[:2]], number))
        pairs = np.array(returned, np.intp).reshape(-1, 2)
        return InnerBlock(columns, links, np.array(self._cells, np.intp), self._written, pairs)

    def within(self, jaxpr: Jaxpr, arguments: Sequence[_Made], place: _Place) -> list[_Made]:
        """Rows for the equations of a function; returns what its results are made of."""
        known: dict[Any, _Made] = dict(zip(jaxpr.invars, arguments, strict=True))

        def sources(v: Any) -> _Made:
            return _NOTHING if isinstance(v, Literal) else known.get(v, _NOTHING)

        for eqn in jaxpr.eqns:
            read = [sources(v) for v in eqn.invars]
            inner = self._within_function(eqn, read, place) if self._is_reading(eqn) else None
            tag = tag_of(eqn)
            made = _union([*read, *([_Made((), self._all_tags(eqn))] if inner is None else inner)])
            chosen = self._places.get(tag, ())
            if chosen:
                template, site = self._kind(eqn, place, made.tags)
                row = self._add(template, site, made.sources, [(tag, number) for number in chosen])
            for number, v in enumerate(eqn.outvars):
                if number in chosen:
                    known[v] = _Made((_Output(row, chosen.index(number), _layout(v.aval)),))
                else:
                    known[v] = made if inner is None else inner[number]
        return [sources(v) for v in jaxpr.outvars]

    def _within_function(self, eqn: Eqn, read: Sequence[_Made], place: _Place) -> list[_Made]:
        function, place = function_of(eqn), _place_of(eqn, place)
        if eqn.primitive.name != "scan":
            return self.within(function, read, place)
        consts, carried = eqn.params["num_consts"], eqn.params["num_carry"]
        results = list(read[consts : consts + carried])
        for _ in range(eqn.params["length"]):
            carry = results[:carried]
            results = self.within(function, [*read[:consts], *carry, *read[consts + carried :]], place)
        return results

    def _is_reading(self, eqn: Eqn) -> bool:
        tag = tag_of(eqn)
        if tag not in self._reading:
            self._reading[tag] = is_reading(eqn, self._places)
        return self._reading[tag]

    def _all_tags(self, eqn: Eqn) -> tuple[int, ...]:
        """Of an equation, and of those in the functions that it calls."""
        tag = tag_of(eqn)
        if tag not in self._tags:
            functions = nested(eqn) if eqn.primitive.name in TAGGED else ()
            self._tags[tag] = (
                tag,
                *(t for function in functions for each in function.eqns for t in self._all_tags(each)),
            )
        return self._tags[tag]

    def _kind(self, eqn: Eqn, place: _Place, tags: Sequence[int]) -> tuple[RowTemplate, int]:
        """What the rows of an equation have in common, and their site; ``tags``: of what computes its value."""
        tag = tag_of(eqn)
        found = self._kinds.get(tag)
        if found is None:
            place = _place_of(eqn, place)
            name, module = eqn.primitive.name, ".".join(place.scopes)
            kernel = self._evidence(() if name == "scan" else [i for t in tags for i in self._instructions.get(t, ())])
            template = row_template(self._tables, name, kernel=kernel, module=module, phase=place.phase)
            found = self._kinds[tag] = template, self._sites.intern_lines(place.lines)
        return found

    def _evidence(self, instructions: Sequence[Instruction]) -> dict[str, object]:
        """Kernel evidence: the code of fusions, and the equations in them. Of an inner scan, that of the whole loop."""
        evidence = dict(self._choice.evidence)
        if instructions:
            evidence["code"] = f"{portable_key('hlo', *sorted(each.text for each in instructions)):016x}"
            tags = (tag for each in instructions for name in each.names for tag in tags_in(name)[-1:])
            evidence["fused"] = ", ".join(dict.fromkeys(filter(None, map(self._primitives.get, tags))))
        return evidence

    def _add(
        self, template: RowTemplate, site: int, sources: Sequence[_Source], written: Sequence[tuple[int, int]]
    ) -> int:
        """Add a row that reads these; returns its index in the call. ``written``: (tag, place) of its values."""
        row = list(template.columns)
        number, reads = len(self._columns), 0
        for place, source in enumerate(sources):
            first = self._first.get(source.number) if isinstance(source, _Operand) else None
            if isinstance(source, _Output):
                self._links.append(pack_link(number - source.row, source.slot))
            elif first is not None:
                self._links.append(pack_link(number - first[0], first[1], known=True))
            else:
                self._first[source.number] = number, place
                self._links.append(pack_link(Origin.UNKNOWN, read=True))
                self._cells.append(source.number)
                reads += 1
        for slot, value in enumerate(written):
            returned = self._returned.get(value)
            self._cells.append(self._operands + (len(self._returned) + self._written if returned is None else returned))
            if returned is None:
                if value not in self._reordered:
                    self._logged[number, slot] = self._written
                self._written += 1
        row[Column.STRUCTURE] = self._rows.structure(tuple(source.layout for source in sources))
        row[Column.SITE] = site
        row[Column.LINKS] = len(sources)
        row[Column.DIGESTS] = reads + len(written)
        self._columns.append(row)
        return number


_NOTHING = _Made(())


def _union(made: Sequence[_Made]) -> _Made:
    sources = dict.fromkeys(source for each in made for source in each.sources)
    return _Made(tuple(sources), tuple(dict.fromkeys(tag for each in made for tag in each.tags)))


def _layout(aval: Any) -> ArrayLayout:
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        aval = jax.eval_shape(jax.random.key_data, aval)
    return programs.layout_of(aval.dtype, aval.shape, "cpu")


def _place_of(eqn: Eqn, around: _Place) -> _Place:
    """Where an equation is, of a function that is called there.

    JAX traces a function once, so the frames kept of its equations are those of the first call: of the frames that
    both have, those of this call count.
    """
    own, shared = programs.lines_of(eqn), 0
    while shared < min(len(own), len(around.lines)) and own[-1 - shared][:2] == around.lines[-1 - shared][:2]:
        shared += 1
    (*scopes, _), transforms = programs.scopes_of(eqn)  # the last one is its tag
    phase = around.phase
    if "transpose" in transforms:
        phase = Phase.BACKWARD
    elif "jvp" in transforms and phase is Phase.OTHER:
        phase = Phase.FORWARD
    return _Place((*own[: len(own) - shared], *around.lines), (*around.scopes, *scopes), phase)
