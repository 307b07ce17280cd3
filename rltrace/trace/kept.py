"""The rows of tensors of one process that are in a trace: calls of modules, ops, and the digest of each row.

Owns look-up, and what makes sense. What is given out of a call or an op is all that was kept of it, or nothing: one of
which a part cannot be read is left away, and told of. No torch, no zarr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.files import Folder, UnreadableError
from rltrace.trace.keptarrays import NO_SENSE, KeptArrays, NotThereError
from rltrace.trace.keptrecords import MOST_AXES, AskedRows, KeptPart
from rltrace.trace.records import MOST
from rltrace.trace.schema import DIGEST_CHUNK, Called, CallFlag, Kept, Owner, Phase
from rltrace.trace.segment import ChunkFile
from rltrace.trace.tables import Table
from rltrace.trace.tensor_rows import KeptRows, ModuleCall, OpRows, Part
from rltrace.trace.valuerecords import LeftOut


class KeptTensors:
    """Everything kept of tensors' rows in one process. Falsy where nothing was asked for."""

    def __init__(
        self,
        folder: Folder,
        base: str,
        asked: AskedRows | None,
        parts: Sequence[KeptPart],
        tables: Callable[[], Mapping[str, Table]],
        rows: Callable[[int], int],
        miss: Callable[[str], None],
    ) -> None:
        """``rows``: how many rows a stream has, by its number; ``miss`` is told of damage."""
        self.asked = asked
        """What was to be kept; None: nothing was."""
        self.left_out: tuple[LeftOut, ...] = tuple(entry for part in parts for entry in part.left_out)
        """Tensors that were asked for and whose rows are not there, in the order of recording."""
        self.unread = 0
        """Calls and ops that were asked for since and could not be given: damaged, or not in this slice."""
        self._base = base
        self._parts = parts
        self._tables = tables
        self._rows = rows
        self._report = miss
        self._missed: set[str] = set()
        self._arrays = KeptArrays(folder, base, parts, self._miss)
        self._calls: dict[int, tuple[ModuleCall, ...]] = {}
        self._ops: dict[int, Mapping[int, OpRows]] = {}

    def __bool__(self) -> bool:
        return self.asked is not None

    @property
    def chunks_read(self) -> int:
        return self._arrays.counter.chunks

    @property
    def bytes_read(self) -> int:
        return self._arrays.counter.bytes

    @property
    def call_count(self) -> int:
        """Calls that the journal tells of."""
        return sum(part.calls.count for part in self._parts)

    @property
    def tensor_count(self) -> int:
        """Tensors that the journal tells of."""
        return sum(part.tensors.count for part in self._parts)

    @property
    def digest_count(self) -> int:
        """Digests of rows that the journal tells of; equal tensors share theirs."""
        return sum(part.digests.count for part in self._parts)

    def calls(self, stream: int) -> Sequence[ModuleCall]:
        """Calls of modules of one stream, in the order in which they began; those that can be read."""
        if stream not in self._calls:
            table = self._arrays.calls
            own = table[table[:, Called.STREAM] == stream]
            own = own[np.argsort(own[:, Called.NUMBER], kind="stable")]
            made = {row[Called.NUMBER]: self._call(stream, row) for row in own.tolist()}
            if len(made) < len(own):
                self._miss(f"activation rows of stream {stream} of {self._base}: two calls have the same number")
            self._calls[stream] = tuple(call for call in made.values() if call is not None)
        return self._calls[stream]

    def ops(self, stream: int) -> Mapping[int, OpRows]:
        """Ops of one stream whose tensors' rows were kept, by row; those that can be read."""
        if stream not in self._ops:
            self._ops[stream] = _Ops(list(self._arrays.places(Owner.OP, stream)), partial(self._op, stream))
        return self._ops[stream]

    def why_missing(self, stream: int, first: int, stop: int) -> str | None:
        """Why rows of tensors of these rows of the stream may not be there though they were asked for."""
        found = (gap for gap in self.left_out if gap.stream == stream and gap.first < stop and first <= gap.last)
        return next((gap.why for gap in found), None)

    def check_sizes(self) -> None:
        """Find the chunks that are missing or of another length, without reading any."""
        self._arrays.check_sizes()

    @property
    def files(self) -> Iterator[ChunkFile]:
        """All chunks that are here."""
        return self._arrays.files

    def read_all(self, streams: Sequence[int]) -> int:
        """Read everything; returns how many calls and ops could be. Damage is reported."""
        for stream in {
            *streams,
            *self._arrays.calls[:, Called.STREAM].tolist(),
            *self._arrays.tensors[:, Kept.STREAM].tolist(),
        }:
            if stream not in streams:
                self._miss(f"activation rows of stream {stream} of {self._base}: there is no such stream")
        return sum(len(self.calls(stream)) + len(self.ops(stream)) for stream in streams)

    def digest_chunks_of(self, wanted: Callable[[int, int, int], bool]) -> tuple[set[int], NDArray[np.uint64]]:
        """What a part of the trace needs: numbers of chunks of ``kept/digests``, and the digests of the tensors.

        ``wanted(stream, first row, stop)``: whether calls and ops there belong to it.
        """
        spans = {
            (Owner.CALL, *row[:2]): (row[2], max(row[3], row[2] + 1))
            for row in self._arrays.calls[:, [Called.STREAM, Called.NUMBER, Called.FIRST_ROW, Called.END_ROW]].tolist()
        }
        chunks: set[int] = set()
        wholes = []
        for row in self._arrays.tensors.tolist():
            stream, number = row[Kept.STREAM], row[Kept.NUMBER]
            span = (number, number + 1) if row[Kept.OWNER] == Owner.OP else spans.get((Owner.CALL, stream, number))
            if span is not None and wanted(stream, *span):
                first, stop = row[Kept.OFFSET], row[Kept.OFFSET] + row[Kept.COUNT]
                chunks.update(range(first // DIGEST_CHUNK, -(-stop // DIGEST_CHUNK)))
                wholes.append(row[Kept.WHOLE])
        return chunks, np.array(wholes, np.uint64)

    # --- one call, one op ---------------------------------------------------------------------------------------------

    def _call(self, stream: int, row: list[int]) -> ModuleCall | None:
        number = row[Called.NUMBER]
        tensors = self._tensors_of(Owner.CALL, stream, number, row[Called.TENSORS])
        if tensors is None:
            return None
        try:
            if not row[Called.FLAGS] & CallFlag.CALL or not row[Called.PARENT] <= number:
                raise UnreadableError(NO_SENSE)
            if not row[Called.FIRST_ROW] <= row[Called.END_ROW] <= self._rows(stream) or row[Called.STEP] > MOST:
                raise UnreadableError(NO_SENSE)
            return ModuleCall(
                number=number,
                parent=row[Called.PARENT] - 1 if row[Called.PARENT] else None,
                module=self._text("modules", row[Called.MODULE]),
                kind=self._text("names", row[Called.CLASS]),
                step=row[Called.STEP],
                phase=_phase(row[Called.PHASE]),
                grad=bool(row[Called.FLAGS] & CallFlag.GRAD),
                first_row=row[Called.FIRST_ROW],
                end_row=row[Called.END_ROW],
                tensors=tensors,
                raised=bool(row[Called.FLAGS] & CallFlag.RAISED),
            )
        except UnreadableError as error:
            self._lose(Owner.CALL, stream, number, error)
            return None

    def _op(self, stream: int, row: int) -> OpRows | None:
        tensors = self._tensors_of(Owner.OP, stream, row, None)
        if tensors is None:
            return None
        if row >= self._rows(stream):
            self._lose(Owner.OP, stream, row, UnreadableError("there is no such row"))
            return None
        return OpRows(row, tensors)

    def _tensors_of(self, owner: Owner, stream: int, number: int, count: int | None) -> tuple[KeptRows, ...] | None:
        """The tensors of one call or op, of which there are ``count``; None where one of them cannot be had."""
        first, stop = self._arrays.places(owner, stream).get(number, (0, 0))
        rows = self._arrays.by_owner[first:stop].tolist()
        try:
            wanted = count if count is not None else rows[0][Kept.TENSORS]
            if len(rows) != wanted or any(row[Kept.TENSORS] != wanted for row in rows):
                raise UnreadableError(f"{wanted} tensors of it were recorded, but {len(rows)} can be read")
            return tuple(map(self._tensor, rows))
        except NotThereError:
            self.unread += 1
        except UnreadableError as error:
            self._lose(owner, stream, number, error)
        return None

    def _tensor(self, row: list[int]) -> KeptRows:
        """One tensor. Raises UnreadableError, NotThereError."""
        payload: Any = self._payload("layouts", row[Kept.LAYOUT])
        dtype, shape = payload[0], payload[1]
        if row[Kept.PART] not in (Part.INPUT, Part.OUTPUT):
            raise UnreadableError(NO_SENSE)
        if len(shape) > MOST_AXES or row[Kept.AXES] >= 1 << len(shape):
            raise UnreadableError(NO_SENSE)
        if not all(type(size) is int and 0 <= size < MOST for size in shape):
            raise UnreadableError(NO_SENSE)
        axes = tuple(axis for axis in range(len(shape)) if row[Kept.AXES] >> axis & 1)
        lengths = [shape[axis] for axis in axes]
        if prod(lengths) != row[Kept.COUNT]:
            raise UnreadableError(NO_SENSE)
        try:
            digests = self._arrays.digests(row[Kept.OFFSET], row[Kept.COUNT]).reshape(lengths)
        except ValueError:  # no rows of more than an array can have
            raise UnreadableError(NO_SENSE) from None
        name = self._text("names", row[Kept.NAME])
        return KeptRows(Part(row[Kept.PART]), name, dtype, tuple(shape), axes, digests, row[Kept.WHOLE])

    def _lose(self, owner: Owner, stream: int, number: int, error: Exception) -> None:
        what = f"call {number}" if owner is Owner.CALL else f"row {number}"
        self.unread += 1
        self._miss(f"activation rows of {what} of stream {stream} of {self._base} cannot be read: {error}")

    # --- tables -------------------------------------------------------------------------------------------------------

    def _payload(self, table: str, number: int) -> object:
        found = self._tables()[table]
        if not (number < len(found) and found.present[number]):
            raise UnreadableError(f'entry {number} of table "{table}", which it needs, is lost')
        return found.payloads[number]

    def _text(self, table: str, number: int) -> str:
        return str(self._payload(table, number))

    def _miss(self, what: str) -> None:
        if what not in self._missed:
            self._missed.add(what)
            self._report(what)


def _phase(number: int) -> str:
    try:
        return Phase(number).name.lower()
    except ValueError:
        raise UnreadableError(NO_SENSE) from None


class _Ops(Mapping[int, OpRows]):
    """Ops by row, each read when it is asked for: whoever looks into one module needs few of them."""

    def __init__(self, places: Sequence[int], read: Callable[[int], OpRows | None]) -> None:
        self._read = read
        self._found: dict[int, OpRows | None] = {}
        self._places = dict.fromkeys(places)

    def __getitem__(self, row: int) -> OpRows:
        if row in self._places and row not in self._found:
            self._found[row] = self._read(row)
        found = self._found.get(row)
        if found is None:
            raise KeyError(row)
        return found

    def __iter__(self) -> Iterator[int]:
        return (row for row in self._places if row in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and self.get(row) is not None
