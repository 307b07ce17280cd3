"""Recorded memory in a running program: each op of a step reads what it read when the step was recorded.

Owns which recorded op an op of the program is, and what is written before it runs: the bytes that something else than
the ops of the step had left in its storages, and the state of its generator. So parameters, optimizer state, the batch
and what other processes sent need no rule for each. Also owns that the program calls the collectives that the recorded
process called, in their order.
"""

from __future__ import annotations

import contextlib
import pdb
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import torch

import rltrace
from rltrace.errors import HoleError
from rltrace.extensions.repro.op_sequence import RecordedMemory, SequenceOp, recorded_memory
from rltrace.extensions.repro.process_groups import leave_alone
from rltrace.extensions.repro.program import rank_of
from rltrace.recorder import current_session
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.capture.captures import PastAttempts, ProgramState
from rltrace.recorder.core.calls import flatten_arguments, named_group, op_tensors, payload_of, skeleton
from rltrace.recorder.core.op_info import flat_tensors
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.rng_state import generator_of
from rltrace.rerun.account import Account, MissedInjection
from rltrace.rerun.hook import OpInjection, Provider, RunningOp, StreamProvider
from rltrace.rerun.plan import Attempt, Place
from rltrace.rerun.runner import TensorSpec, memory_with, tensor_in
from rltrace.trace.format.collectives import WAITS, brings_data, is_collective
from rltrace.trace.format.schema import Column, Kind, Step
from rltrace.trace.read.names import Words
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace
from rltrace.wording import counted

# --- what was recorded ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedCall:
    """A collective as it was called: what has to be the same for its record to be the answer."""

    op: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """dtype and shape of each."""
    ranks: tuple[int, ...]
    """Members of its group; empty: not known."""
    arguments: tuple[tuple[str, object], ...] = ()
    """Name and value of those that decide what it gives, in order: reduction, root, peer, sizes."""
    row: int = field(default=-1, compare=False)
    site: str = field(default="", compare=False)
    """``train.py:30 in forward``."""

    def __str__(self) -> str:
        arguments = [f"{dtype}{list(shape)}" for dtype, shape in self.tensors]
        arguments += [f"{name}={value}" for name, value in self.arguments]
        group = f" of ranks {', '.join(map(str, self.ranks))}" if self.ranks else ""
        at = f" at {self.site}" if self.site else ""
        return f"{self.op.removesuffix('.default')}({', '.join(arguments)}){group}{at}"


@dataclass(frozen=True)
class DueMemory:
    """What is written for one op of the program."""

    row: int
    place: Place
    before: tuple[tuple[TensorSpec, int], ...] = ()
    """Of storages that it reads: one of its tensors there, and the digest of the storage's bytes."""
    state: int | None = None
    """Digest of the state of the generator that it draws from."""


@dataclass
class RecordedStep:
    """The ops of one step of a stream."""

    sites: set[tuple[str, int]] = field(default_factory=set)
    """Operator and portable key of the call site of all ops."""
    due: dict[Place, DueMemory] = field(default_factory=dict)
    edited: dict[EditedPlace, DueMemory | None] = field(default_factory=dict)
    """What is due for an op of an edited line; None: the step has several at such a place."""
    calls: list[RecordedCall] = field(default_factory=list)
    """The collectives, in order."""


class StepMemory:
    """The recorded memory of one process, by the ops of its steps."""

    def __init__(self, process: ProcessTrace, pause: str = "", recorded: RecordedMemory | None = None) -> None:
        """``pause``: ``rank0/main:12``, a row before which the debugger begins; ``recorded``: what storages held, where
        a checkpoint has some of it. Raises MissingValuesError where bytes were left out, HoleError."""
        self.process = process
        self._recorded = recorded
        self._pause = pause
        self.steps: dict[tuple[str, int], RecordedStep] = {}
        """By stream and number."""
        ops = recorded_memory(process)
        self.received = _received(ops, self._receives)
        """By stream and row of a collective, or of the wait for it: what its tensors hold as an op reads them, or as
        the next op begins: of each, the digest of the storage's bytes, and whether the row returns the tensor."""
        self._before = {(op.stream.name, op.row): before for op, before in _before(ops)}
        self.opening = [op for op in ops if not op.name]
        """Of the rows with which the window began, one for each named tensor."""
        for stream in process.streams:
            own = [op.row for op in ops if op.stream is stream and op.name]
            if own:
                self._read(stream, min(own), max(own))

    def _receives(self, op: SequenceOp) -> list[tuple[TensorSpec, bool]]:
        """The tensors that a collective receives into, and whether it returns them."""
        scalars = int(op.stream.read(op.row, op.row + 1).columns[0, Column.SCALARS])
        arguments = self.process.words.skeleton(scalars)
        if op.name.startswith(WAITS):
            count = len(op.inputs)
        elif not op.name.startswith("c10d."):
            count = len(op.inputs) if op.name.partition(".default")[0].endswith("_") else 0
        else:
            count = _count(arguments[0]) if arguments and not op.name.startswith("c10d.send") else 0
        return [*((tensor, False) for tensor in op.inputs if tensor.index < count), *((t, True) for t in op.outputs)]

    def _read(self, stream: Any, first: int, last: int) -> None:
        words, keys = self.process.words, self.process.tables["sites"].keys
        first = max((row for _, _, row in stream.windows if row <= first), default=first)
        rows = stream.read(first, last + 1)
        seen: dict[tuple[str, int], int] = {}
        recorded, now = RecordedStep(), -1
        for i in np.flatnonzero(rows.columns[:, Column.KIND] == Kind.OP).tolist():
            step, site, number = rows.columns[i, [Column.STEP, Column.SITE, Column.OP]].tolist()
            if step != now:
                recorded, now = self.steps.setdefault((stream.name, step), RecordedStep()), step
                seen.clear()
            name, key = words.op(number), int(keys[site])
            nth = seen.get((name, key), 0)
            seen[name, key] = nth + 1
            recorded.sites.add((name, key))
            if is_collective(name):
                recorded.calls.append(self._call(rows, i, name))
                continue
            before = self._before.get((stream.name, rows.first + i), ())
            due = DueMemory(rows.first + i, (name, key, nth), before, rows.rng(i) or None)
            layouts = words.tensors(int(rows.columns[i, Column.STRUCTURE]))
            edited = _edited_place(name, words, site, _shapes(layouts))
            recorded.edited[edited] = None if edited in recorded.edited else due
            if due.before or due.state or name.startswith(WAITS) or self.pauses_at(stream.name, due.row):
                recorded.due[due.place] = due

    def _call(self, rows: Any, i: int, name: str) -> RecordedCall:
        words = self.process.words
        layouts = words.tensors(int(rows.columns[i, Column.STRUCTURE]))
        scalars = words.skeleton(int(rows.columns[i, Column.SCALARS]))
        integers = rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist()
        site = words.innermost(int(rows.columns[i, Column.SITE]))
        return RecordedCall(
            name,
            _shapes(layouts),
            next((tuple(word["ranks"]) for word in scalars if isinstance(word, dict) and "ranks" in word), ()),
            _deciding(words.arguments(int(rows.columns[i, Column.OP])), scalars, integers),
            rows.first + i,
            f"{site.file}:{site.line} in {site.function}" if site is not None else "",
        )

    def pauses_at(self, stream: str, row: int) -> bool:
        """Whether the debugger begins before this row."""
        return self._pause == f"{stream}:{row}"

    def past(self, step: int) -> PastAttempts:
        """The attempts before a step."""
        payloads: Any = self.process.tables["optimizers"].payloads
        steps = self.process.steps[self.process.steps[:, Step.STEP] < step]
        return PastAttempts(
            [payloads[number]["ordinal"] for number in steps[:, Step.OPTIMIZER].tolist()],
            steps[:, Step.SKIPPED].tolist(),
        )

    def bytes(self, digest: int) -> Any:
        """Raises HoleError."""
        value = self.process.values.get(digest)
        content = None if value is not None or self._recorded is None else self._recorded.read(digest)
        if value is None and content is None:
            raise HoleError(f"the trace lacks the bytes of value {digest:016x}")
        return content if value is None else value.raw


Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""dtype and shape of each tensor of an op."""

EditedPlace = tuple[str, Shapes, tuple[str, ...]]
"""What an op of an edited line keeps: operator, tensors, and the functions on its stack."""


DECIDING: Final = (
    *("reduce_op", "root_rank", "root_tensor", "src", "dst", "tag", "output_split_sizes", "input_split_sizes"),
    *("op_list", "peer_list", "tag_list"),
)
"""Arguments of collectives that decide what a rank receives, beside tensors and members of the group."""


def _deciding(names: Sequence[str], skeleton: Sequence[Any], integers: Iterable[int]) -> tuple[tuple[str, object], ...]:
    """Name and value of those, from a call's entry in table "scalars" and its integers."""
    left = iter(integers)

    def value(item: Any) -> Any:
        match item:
            case "i":
                return next(left)
            case list():
                return [value(inner) for inner in item]
            case {"reduce": text} | {"str": text}:
                return text
        return item

    values = [value(item) for item in skeleton]
    positional = [found for found in values if not _is_named(found)]
    named = [(found[0][:-1], found[1]) for found in values if _is_named(found)]
    return tuple(pair for pair in [*zip(names, positional, strict=False), *named] if pair[0] in DECIDING)


def _is_named(item: Any) -> bool:
    """Whether an argument of a skeleton is a named one, ``["name=", value]``."""
    return isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and item[0].endswith("=")


def _shapes(layouts: Iterable[Any]) -> Shapes:
    return tuple((str(layout[0]), tuple(layout[1])) for layout in layouts)


def _edited_place(name: str, words: Words, site: int, shapes: Shapes) -> EditedPlace:
    return name, shapes, tuple(function for _, function in words.calls(site))


def _before(ops: Sequence[SequenceOp]) -> Iterator[tuple[SequenceOp, tuple[tuple[TensorSpec, int], ...]]]:
    """What each op finds in the storages that it uses. What a collective received is recorded before any op that
    follows, and here it is for the op that uses it."""
    held: dict[int, int] = {}
    for op in ops:
        held |= op.contents
        if op.name and not brings_data(op.name):
            inputs = {tensor.storage: tensor for tensor in reversed(op.inputs)}
            yield op, tuple((inputs[number], held.pop(number)) for number in inputs.keys() & held.keys())


Received = dict[tuple[str, int], tuple[tuple[TensorSpec, int, bool], ...]]


def _count(argument: object) -> int:
    """Number of tensors in an argument of a recorded call."""
    return sum(map(_count, argument)) if isinstance(argument, list) else argument == "T"


def _received(ops: Sequence[SequenceOp], receives: Callable[[SequenceOp], list[tuple[TensorSpec, bool]]]) -> Received:
    """What the tensors of collectives held when an op read them first, or when the next op began."""
    found: Received = {}
    pending: dict[int, int] = {}
    """By storage: what it holds when it is read next, seen from the end."""
    for op in reversed(ops):
        pending |= op.contents
        if brings_data(op.name):
            found[op.stream.name, op.row] = tuple(
                (tensor, pending.pop(tensor.storage), returned)
                for tensor, returned in receives(op)
                if tensor.storage in pending
            )
        else:
            for tensor in op.inputs:
                if tensor.storage not in op.contents:
                    pending.pop(tensor.storage, None)
    return found


# --- the program ------------------------------------------------------------------------------------------------------


class MemoryProvider(Provider):
    """The provider of recorded memory for one process: what is left to be written, and what was. Thread-safe."""

    name = "memory"

    def __init__(self, memory: StepMemory, step: int) -> None:
        """``step``: the first of the recorded ones."""
        self.memory = memory
        self.refused: str | None = None
        self.is_left = False
        """The debugger has ended the program."""
        self._step = step
        self._lock = threading.Lock()
        self._taken: set[tuple[str, int]] = set()
        """Stream and row of what is due no longer."""
        self._calls = {key: deque(step.calls) for key, step in memory.steps.items()}
        self._written = self._answered = 0
        self._missed: list[MissedInjection] = []
        self._reached: set[tuple[str, int]] = set()

    def of_stream(self, stream: OpRecorder) -> StreamMemory:
        return StreamMemory(stream, self)

    def wakes(self, state: ProgramState) -> None:
        """The recorded steps begin: with parameters, optimizer state and counts of steps as they were."""
        past = self.memory.past(self._step)
        unknown = set(past.ordinals) - state.ordinals()
        if unknown:
            optimizers = counted(len(unknown), "optimizer") + " of the recorded process"
            state.stop_program(f"{optimizers} made no step before these: raise --warm-up")
            return
        restore(self.memory, state.tensors())
        restore_generator(self.memory)
        state.count_from(past)

    def begin(self, step: tuple[str, int]) -> None:
        """A step begins: name of the stream, and number."""
        self._reached.add(step)

    @property
    def has_begun(self) -> bool:
        """Whether the program has come to a recorded step."""
        return bool(self._reached)

    def refuse(self, why: str) -> None:
        """End the program, which does what the record has no answer to, unless it is in a recorded step."""
        with self._lock:
            if self.has_begun:
                return
            self.refused = self.refused or why
        stop_program(why)

    def take(self, stream: str, due: DueMemory | None) -> DueMemory | None:
        """What is due for an op, once."""
        with self._lock:
            if due is None or (stream, due.row) in self._taken:
                return None
            self._taken.add((stream, due.row))
            return due

    def wrote(self) -> None:
        with self._lock:
            self._written += 1

    def miss(self, stream: str, step: int, row: int, place: Place, why: str) -> None:
        with self._lock:
            self._missed.append(MissedInjection(stream, row, step, place[0], place[2], why))

    def called(self, stream: str, step: int, call: RecordedCall) -> RecordedCall | None:
        """The recorded collective that this is, whose turn it is; None: it is none, and ``refused`` says why."""
        with self._lock:
            if self.refused is not None:
                return None
            left = self._calls.get((stream, step))
            recorded = left.popleft() if left else None
            if recorded == call:
                self._answered += 1
                return recorded
            number = len(self.memory.steps[stream, step].calls if left is not None else ()) - len(left or ())
            if recorded is None:
                was = f"only {number:,} were recorded there"
                number += 1
            else:
                was = f"op {recorded.row:,} was recorded there, {recorded}"
            self.refused = f"collective {number:,} of step {step:,} in {stream} is {call}; {was}"
            return None

    def ended(self, stream: str, step: int) -> None:
        """A step of a stream is over."""
        with self._lock:
            left = self._calls.get((stream, step))
            if left and self.refused is None and (stream, step) in self._reached:
                self.refused = (
                    f"step {step:,} of {stream} ended without a collective that was recorded: op {left[0].row:,},"
                    f" {left[0]}"
                )

    def account(self) -> Account:
        for stream, step in () if self.is_left else list(self._calls):
            self.ended(stream, step)
        for (stream, step), recorded in self.memory.steps.items():
            why = "the program did not run the op" if (stream, step) in self._reached else "it was not reached"
            for due in recorded.due.values():
                if (due.before or due.state) and self.take(stream, due):
                    self.miss(stream, step, due.row, due.place, why)
        return Account(
            self._written + len(self._missed),
            self._written,
            tuple(self._missed),
            reached=bool(self._reached),
            answered=self._answered,
            refused=self.refused,
        )


class StreamMemory(StreamProvider):
    """Recorded memory for the ops of one stream."""

    def __init__(self, stream: OpRecorder, provider: MemoryProvider) -> None:
        self._stream = stream
        self._process = stream.process
        self._provider = provider
        self._step = -1
        self._recorded = RecordedStep()
        self._refused = False

    def begins(self, step: int, attempt: Attempt) -> bool:
        self._provider.ended(self._stream.name, self._step)
        self._step = step
        self._provider.begin(key := (self._stream.name, step))
        self._recorded = self._provider.memory.steps.get(key, RecordedStep())
        return True

    def find(self, op: RunningOp) -> MemoryInjection | None:
        if is_collective(op.plan.name):
            recorded = self._answer(op)
            return None if recorded is None else MemoryInjection(self._provider, op, self._step, recorded.row, None)
        recorded_step = self._recorded
        due = recorded_step.due.get(op.place)
        if due is None and recorded_step.edited and op.place[:2] not in recorded_step.sites:
            words = self._process.tables.words
            edited = _edited_place(op.plan.name, words, self._stream.site, _shapes_here(op.tensors))
            due = recorded_step.edited.get(edited)
        due = self._provider.take(self._stream.name, due)
        return None if due is None else MemoryInjection(self._provider, op, self._step, due.row, due)

    def _answer(self, op: RunningOp) -> RecordedCall | None:
        """The recorded collective that this is; None: it is another one, and the program is to end."""
        arguments = (*op.args, *op.kwargs.values())
        groups = filter(None, map(_group, arguments))
        ranks: Any = next((group["ranks"] for group in groups if "ranks" in group), ())
        site = self._process.tables.words.innermost(self._stream.site)
        where = f"{site.file}:{site.line} in {site.function}" if site is not None else ""
        was_refused = self._provider.refused is not None
        integers = array("q")
        flatten_arguments(arguments, [], [], integers, array("d"))
        deciding = _deciding(op.plan.arguments, skeleton(op.args, op.kwargs), integers)
        call = RecordedCall(op.plan.name, _shapes_here(op.tensors), tuple(ranks), deciding, site=where)
        recorded = self._provider.called(self._stream.name, self._step, call)
        self._refused = recorded is None and not was_refused
        return recorded

    def end(self) -> None:
        if self._refused:
            self._refused = False
            stop_program(str(self._provider.refused))


@dataclass(frozen=True, eq=False)
class MemoryInjection(OpInjection):
    """Recorded memory for one op."""

    provider: MemoryProvider
    op: RunningOp
    step: int
    row: int
    due: DueMemory | None
    """None: it is a collective."""

    def before(self) -> None:
        """Write what the op read, and set its generator."""
        due, op, provider = self.due, self.op, self.provider
        if due is not None and (due.before or due.state):
            for like, digest in due.before:
                self._write(like, digest, op.tensors)
            state = due.state
            if state is not None:
                generator = generator_of(op.args, op.kwargs)
                if generator is not None and state in provider.memory.process.values:
                    generator.set_state(torch.from_numpy(np.array(provider.memory.bytes(state))))
                else:
                    self._miss("its generator's state was not recorded")
                    state = None
            provider.wrote()
            op.inputs_written(range(len(op.tensors)), state)
        if due is not None and provider.memory.pauses_at(op.stream.name, due.row) and debug_program():
            provider.is_left = True
            stop_program("the debugger ended it")

    def after(self, out: Any) -> Any:
        """Write what a collective received, or had received when the program waited."""
        if self.due is None or self.op.plan.name.startswith(WAITS):
            returned = list(flat_tensors(out)) if self.due is None else []
            received = self.provider.memory.received.get((self.op.stream.name, self.row), ())
            for like, digest, is_returned in received:
                self._write(like, digest, returned if is_returned else self.op.tensors)
        return out

    def _write(self, like: TensorSpec, digest: int, tensors: Sequence[torch.Tensor]) -> None:
        try:
            write(tensors[like.index], like, self.provider.memory.bytes(digest))
        except (NotWrittenError, HoleError, IndexError) as error:
            self._miss(str(error))

    def _miss(self, why: str) -> None:
        self.provider.miss(self.op.stream.name, self.step, self.row, self.op.place, why)


def stop_program(why: str) -> None:
    session = current_session()
    if session is not None:
        session.stop_program(why)


def memory_provider(options: RecordOptions) -> Callable[[str], MemoryProvider | None]:
    """What makes the provider of a process of that name; it makes none of another than the recorded one."""
    trace = open_trace(options.rerun)

    def make(name: str) -> MemoryProvider | None:
        if name != options.process:
            return None
        process = next(process for process in trace.processes if process.name == name)
        memory = StepMemory(process, options.pause, RecordedMemory(trace, process))
        provider = MemoryProvider(memory, options.first_step)
        place = rank_of(process)
        if place is not None:
            leave_alone(*place, provider.refuse, lambda: provider.has_begun)
        return provider

    return make


def _shapes_here(tensors: Iterable[torch.Tensor]) -> Shapes:
    return tuple((str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in tensors)


LIBRARIES: Final = tuple(f"{Path(file).resolve().parent}/" for file in (torch.__file__, rltrace.__file__))
"""Folders whose frames are not the program's."""


def debug_program() -> bool:
    """The debugger, in the program's innermost frame; returns whether it was left to end the program."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    debugger = pdb.Pdb(nosigint=True)
    debugger.reset()
    debugger.interaction(frame, None)
    return bool(debugger.quitting)


def _group(argument: Any) -> dict[str, object] | None:
    return named_group(argument) if isinstance(argument, str) else payload_of(argument)


# --- writes -----------------------------------------------------------------------------------------------------------


class NotWrittenError(Exception):
    """Recorded memory does not fit; the text says why."""


def write(tensor: torch.Tensor, spec: TensorSpec, content: Any) -> None:
    """Write the bytes of a recorded storage to that of ``tensor``, which corresponds to the recorded tensor ``spec``.

    Where the storages have other sizes, only the tensor itself is written. Raises NotWrittenError.
    """
    with torch_function_disabled(), torch.no_grad():
        if not address_of(tensor):
            raise NotWrittenError("the tensor has no memory here")
        raw = tensor.untyped_storage()
        if raw.nbytes() == len(content):
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(raw, 0, (raw.nbytes(),), (1,))
            whole.copy_(torch.from_numpy(np.array(content)))
            return
        here = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        if here != (spec.dtype, spec.shape):
            raise NotWrittenError(
                f"a tensor is {here[0]}{list(here[1])} here, and {spec.dtype}{list(spec.shape)} was recorded"
            )
        tensor.detach().copy_(tensor_in(memory_with(content, 0, "cpu"), replace(spec, device="cpu")))


def restore(memory: StepMemory, tensors: Iterable[tuple[str, str, torch.Tensor]]) -> None:
    """Write what named tensors held as the recorded window began."""
    words, held = memory.process.words, dict[int, int]()
    wanted: dict[tuple[str, str], tuple[TensorSpec, int]] = {}
    for op in memory.opening:
        cells = op.stream.read(op.row, op.row + 1).columns[0].tolist()
        held |= op.contents
        [tensor] = op.inputs
        name = str(words.skeleton(cells[Column.SCALARS])[0])
        if tensor.storage in held:
            wanted[words.module(cells[Column.MODULE]), name] = tensor, held[tensor.storage]
    for owner, name, whole in tensors:
        if (owner, name) in wanted:
            spec, digest = wanted[owner, name]
            with contextlib.suppress(NotWrittenError):  # the run then differs from its beginning on
                write(op_tensors((whole,), None)[0], spec, memory.bytes(digest))


def restore_generator(memory: StepMemory) -> None:
    """Set torch's generator to its state as the recorded window began, where an op drew from it then."""
    for stream in memory.process.streams:
        for _, _, row in stream.windows:
            rows = stream.read(row, stream.rows)
            for i in np.flatnonzero(rows.columns[:, Column.KIND] == Kind.WINDOW).tolist():
                if memory.process.words.skeleton(int(rows.columns[i, Column.SCALARS])) == ["generator torch"]:
                    [digest] = rows.outputs(i)
                    if digest in memory.process.values:
                        torch.set_rng_state(torch.from_numpy(np.array(memory.bytes(digest))))
