"""The trace format: every array, column, table, flag and journal record, by name. Version log at the end.

Owns the names and numbers that the writer, the reader and ``docs/reference/trace-format.md`` share. No torch.

    TRACE.zarr/
      zarr.json                     a zarr v3 group; attributes {"rltrace": {"format": [major, minor]}}
      journal/log                   framed, checksummed records of the launch (see LAUNCH_RECORD_TYPES)
      starts/TOKEN.json             one per process that started; starts/KEY.name: one per claimed name
      processes/zarr.json
      processes/N/zarr.json         one group per process, N claimed by exclusive mkdir
      processes/N/journal/log       framed records of this process (see RECORD_TYPES)
      processes/N/tables/           uint8  [chunks * TABLE_CHUNK]              JSON lines of interned entries
      processes/N/steps/            uint64 [chunks * STEP_CHUNK, len(Step)]    one row per optimizer attempt
      processes/N/series/           uint64 [chunks * SAMPLE_CHUNK, len(Sample)] one row per sample; only if there is one
      processes/N/streams/K/rows/   uint32 [segments * SEGMENT_ROWS, len(Column)]
      processes/N/streams/K/cells/  uint64 [segments * SEGMENT_CELLS]
      processes/N/values/           a group, where tensor values were requested
      processes/N/values/bytes/     uint8  [chunks * VALUE_CHUNK]              the values, concatenated
      processes/N/values/index/     uint64 [chunks * INDEX_CHUNK, len(ValueIndex)]   where each value is
      processes/N/activations/      a group, where activation rows were requested
      processes/N/activations/calls/    uint64 [chunks * CALL_CHUNK, len(ModuleCallColumn)]  one per call of a module
      processes/N/activations/tensors/  uint64 [chunks * TENSOR_CHUNK, len(ActivationColumn)]  one per tensor
      processes/N/activations/digests/  uint64 [chunks * DIGEST_CHUNK]                 digests of activation rows

A *segment* is the rows that one commit writes of one stream: at most SEGMENT_ROWS rows, one chunk of ``rows`` and one
of ``cells``. A commit of fewer rows leaves the rest of its chunk as padding, where KIND is 0; the number of rows is in
the journal, never in ``array.shape``.

The cells of a segment are four consecutive sections, each in row order: links, integers, floats, digests. The journal's
commit record holds the length of each section; the four count columns of a row hold its number of cells in each. After
them are the notes on links, which no column counts.
"""

import re
from collections.abc import Mapping
from enum import IntEnum, IntFlag
from typing import Final

FORMAT: Final = (4, 7)
"""(major, minor). Readers refuse a newer major version, and ignore unknown fields."""
OLDEST: Final = 3
"""The oldest major version that is read."""

SEGMENT_ROWS: Final = 65_536
SEGMENT_CELLS: Final = 1 << 19
TABLE_CHUNK: Final = 1 << 18
STEP_CHUNK: Final = 1_024
VALUE_CHUNK: Final = 1 << 22
INDEX_CHUNK: Final = 1_024
SAMPLE_CHUNK: Final = 16_384
CALL_CHUNK: Final = 1_024
TENSOR_CHUNK: Final = 4_096
DIGEST_CHUNK: Final = 65_536
MARK_ROWS: Final = 4_096
"""A prefix digest is recorded at every multiple of this many rows of a stream, wherever segments end."""


class Kind(IntEnum):
    """Kinds of rows. 0 is padding."""

    PADDING = 0
    OP = 1  # an op
    WINDOW = 2  # recording of ops begins here: digests of parameters, buffers, optimizer state and RNG states
    ENVIRONMENT_RESET = 3  # an environment, or a vector of them, was reset
    ENVIRONMENT_STEP = 4  # one step of it
    ATTEMPT = 5  # reserved
    CHECKPOINT = 6  # a file was loaded
    ENVIRONMENT_MADE = 7  # an environment, or a vector of them, was constructed
    SEED = 8  # a space was seeded
    VALUE = 9  # reserved
    OBJECT = 10  # an object was sent to other processes by a collective, or received from them


def event_name(kind: int) -> str:
    """``environment-step``; ``kind 99`` for a kind of a newer version of the format."""
    try:
        return Kind(kind).name.lower().replace("_", "-")
    except ValueError:
        return f"kind {kind}"


class Phase(IntEnum):
    """Phases of a program. Shown and filtered on, never part of identity."""

    OTHER = 0
    INIT = 1
    ROLLOUT = 2
    EVALUATION = 3
    FORWARD = 4
    BACKWARD = 5
    OPTIMIZER = 6


class Column(IntEnum):
    """Columns of ``rows`` (uint32)."""

    KIND = 0  # Kind
    OP = 1  # id in table "ops"
    STRUCTURE = 2  # id in table "structures": layouts of the tensor inputs
    SITE = 3  # id in table "sites": the call stack
    MODULE = 4  # id in table "modules"
    SCALARS = 5  # id in table "scalars": the skeleton of the arguments; numbers are in the cells
    STEP = 6  # optimizer attempts that the process had finished before
    PHASE = 7  # Phase
    KERNEL = 8  # id in table "kernels": what ran the op
    SETTINGS = 9  # id in table "settings"; 0 for an event
    FLAGS = 10  # RowFlag
    LINKS = 11  # number of link cells, one for each tensor input
    INTEGERS = 12  # number of integer cells
    FLOATS = 13  # number of float cells
    DIGESTS = 14  # number of digest cells


class RowFlag(IntFlag):
    """Bits of Column.FLAGS."""

    MARKED = 1  # may read uninitialised memory, or is an event that reports outside data: a difference in its digests
    # only (for an event: in its cells) does not decide the verdict
    RNG = 2  # the digest cell after the reads is the RNG state before the op
    VIEW = 4  # only makes a view: no digest
    ALLOCATION = 8  # returns uninitialised memory: no digest
    VALUE_BOOL = 16  # the last integer cell is the Python number that the op returned
    VALUE_INTEGER = 32  # the same, an int
    VALUE_FLOAT = 64  # the last float cell is that number
    VALUE_COMPLEX = 128  # the last two float cells are that number
    UNORDERED_OUTPUT = 256  # reserved
    OVERLAPPING = 512  # writes memory that another of its inputs shares, such as t[1:].copy_(t[:-1]): the result
    # depends on the order in which the kernel accesses memory


UNTOUCHED: Final = 1
"""In place of a digest: the generator has been neither seeded nor drawn from.

Its state is then random and unused: torch, Python and NumPy all start from a seed of the system.
"""


class Generator(IntEnum):
    """The generator that a row with ``RNG`` drew from: a number in bits 10 to 15 of its flags, unique in the process.

    Evidence, like the kernel, and in no hash: the program's generators are numbered in the order of their first draw.
    """

    UNKNOWN = 0
    TORCH = 1  # torch's default generator, on the CPU
    DEVICE = 2  # the default generator of a device: 2 plus the device's index
    OWN = 16  # from here on, generators that the program created; the number of a deleted one may be reused


# In the row of an event, the same bits are the number of its first digest cells that are evidence, in no hash either.
# Those of them that its skeleton does not name are values of its fields, where these are small: for each a header, then
# its elements, little-endian and padded with zeros to whole cells. Of a header
#
#   bits 0..7    the field: its index among the digests of the skeleton
#   bits 8..15   dtype: index in FIELD_DTYPES
#   bits 16..63  shape: 8 bits for each of up to six dimensions, 0 after the last; none: a number


GENERATOR_SHIFT: Final = 10
GENERATOR_NUMBERS: Final = 64

FIELD_DTYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
MAX_FIELD_ELEMENTS: Final = 24
"""Elements of a field of an event whose value is recorded; BipedalWalker's observation has so many."""
MAX_FIELD_DIMENSIONS: Final = 6

VALUE_FLAGS: Final = RowFlag.VALUE_BOOL | RowFlag.VALUE_INTEGER | RowFlag.VALUE_FLOAT | RowFlag.VALUE_COMPLEX

# --- links: one int64 cell per tensor argument, in the order of the row's structure ---------------------------------
#
#   bit 0        READ: this row digested the input; the digest cells begin with the reads, in input order
#   bit 1        KNOWN: the target row did not write the bytes, it read the same view, and nothing wrote them since
#   bits 2..11   which output of the target row (for KNOWN: which input) holds the bytes; 1023 = unknown. For outside
#                data that a collective brought, how many rows back it is, counting rows in which other processes send
#                (1 = the last); for an unknown origin, the same of what another thread computed the bytes from
#   bits 12..    signed: distance in rows back to the target row (> 0), or an Origin

SLOT_UNKNOWN: Final = 1023


class Origin(IntEnum):
    """Values of a link's distance for an input without a single producer."""

    OUTSIDE = 0  # no recorded op produced it
    MIXED = -1  # several ops wrote the bytes
    UNKNOWN = -2  # not tracked (no storage, or written by another stream)
    OVERWRITTEN = -3  # the op only writes it: not an input


def pack_link(distance: int, slot: int = SLOT_UNKNOWN, *, known: bool = False, read: bool = False) -> int:
    """One link cell. ``distance``: rows back to the target, or an Origin."""
    return (distance << 12) | (min(slot, SLOT_UNKNOWN) << 2) | (known << 1) | int(read)


# --- notes on links: one cell for each, ascending by link -------------------------------------------------------------
#
#   bits 0..39   value
#   bits 40..41  LinkNote
#   bits 42..    links from the one of the note before to its own; of the first note from the segment's first link
#
# They are evidence, and in no hash. An older trace has none.


class LinkNote(IntEnum):
    """What a note says of an input."""

    STORAGE_OFFSET = 0  # elements in its storage before its first one, where that is not 0; not of a view's input
    LAST_WRITER = 1  # of Origin.MIXED: rows back to the last op that wrote in its storage, times two; plus 1 where the
    # elements that no op wrote came from outside


# --- engines ----------------------------------------------------------------------------------------------------------

ITERATIONS: Final = "-iterations"
"""End of the name, before its version, of an engine whose rows are no ops, but calls of functions that a library has
compiled, and iterations of their loops: ``jax-iterations/2``. Its attempts are these iterations, and the "class" of an
optimizer is the function with the loop."""


def has_iterations(engine: str | None) -> bool:
    """Whether rows of an engine are calls and iterations."""
    return engine is not None and engine.partition("/")[0].endswith(ITERATIONS)


WRITES: Final = "writes"
"""Key of a word in a skeleton of such an engine: the names of what the row writes, "" where there is none."""

LINES: Final = "lines"
"""Key of another such word: [[line of the source, fingerprint of the equations from it], …] in their order."""

ITERATION: Final = ".iteration"
"""End of the op of a row of such an engine that is an iteration: ``jit.train.iteration``."""


def within_stream(stream: str, op: str, key: str) -> str:
    """Name of the stream with what is within rows of JAX: ``rank0/main/jit.train.iteration@8b1f…``.

    ``key``: of the values that the program has in memory; where that of another trace differs, so do the rows.
    """
    return f"{stream}/{op}@{key}"


def is_within(stream: str) -> bool:
    """Whether a stream holds what is within rows of another one, of JAX."""
    return parse_within(stream) is not None


def parse_within(stream: str) -> tuple[str, str] | None:
    """Of such a stream, the one with the rows that these are within, and ``OP@KEY``; None: it is another."""
    found = _WITHIN.fullmatch(stream)
    return None if found is None else (found[1], found[2])


_WITHIN: Final = re.compile(r"(.*)/(jit\.[^@/]*@[0-9a-f]{16})", re.DOTALL)

READS_WITHIN: Final = "jax.reads_within"
"""Fact of a process of such an engine: of each program the values within it that are read, as in
``jit.train.before 12.0 15.1``: the number of the equation among those of the program, and which of its results."""

BOUNDARY_ONLY: Final = "jax.boundary_only"
"""Fact of a process of that engine: functions with a loop that is not driven, each with the reason."""

CALLS_BACK: Final = "jax.calls_back"
"""Fact of such a process: functions that use what a callback of the program returns: ``jit.train: observe; …``."""

SOURCE: Final = "source."
"""Start of the facts of a process that hold the hash of a source file."""

# --- tables ---------------------------------------------------------------------------------------------------------
#
# One JSON line per entry: [table, id, "16 hex digits of the portable key", payload]. Ids count from 0 per table; id 0
# of "modules" is "", of "kernels" and "settings" {}, of "scalars" [], of "structures" [], of "sites" [].

TABLES: Final = (
    "ops",  # "aten.addmm.default"; of a launch row "triton.KERNEL", "ctypes.LIBRARY.FUNCTION" or
    # "extension.MODULE.FUNCTION"
    "schemas",  # {"op": id in "ops", "arguments": [names]}: those that may be positional, in order; the key is the
    # op's. Of an op with several results that have names also "results": [names], "" for one without
    "layouts",  # [dtype, shape, strides, device], e.g. ["float32", [64, 4], [4, 1], "cpu"]; of a tensor that is
    # distributed over processes, or by JAX over devices, also its mesh: {"names": ["tp"], "sizes": [2],
    # "placements": ["Shard(0)"]}
    "structures",  # [layout id, …] of the tensor inputs, in argument order
    "frames",  # {"file", "path", "line", "function", "source", "internal"}; internal: in torch or Triton, in no key;
    # where the line reads several numbers also "call": ``loss.item()``
    "sites",  # [frame id, …], innermost first
    "modules",  # module path, "ActorCriticPolicy.mlp_extractor.policy_net.0"
    "scalars",  # skeleton of the arguments: "T" a tensor, "i" an integer cell, "f" a float cell, all else as JSON; a
    # process group is {"group": name, "rank": own, "ranks": [members]}, a reduction {"reduce": "SUM"}; for an event
    # its subject, then ["name=", letter] for each cell, and {"texts": {name: text}}, which is in no key
    "kernels",  # {"library", "isa", "threads", …} on a CPU; on a device {"device": "cuda"}, and where a profiler was
    # active "names" (full names of the launched kernels, in order) and "launches" ([grid, block] of each); of a launch
    # row {"library": "Triton", "num_warps", …, "grid": "4×2", "code": fingerprint}, or the library's file and "threads"
    "settings",  # {"threads", "grad_mode", "inference_mode", "flush_denormal", …} and torch's flags by name
    # ("deterministic_algorithms", "mkldnn.enabled", "cuda.matmul.tf32", …)
    "optimizers",  # {"ordinal", "class"}, which are its key, and "owner": path of the module with its parameters
    "series",  # {"kind", "name"}, and "thread" where the sampling thread has no stream; of kind "item" the id "site" in
    # "sites" instead of a name
    "names",  # text: an argument's name and the path into it ("input_ids", "past.0.1", "mat1"), or a module's class
)

FIRST_ENTRIES: Final[Mapping[str, object]] = {
    "modules": "",
    "kernels": {},
    "settings": {},
    "scalars": [],
    "structures": [],
    "sites": [],
}
"""Payload of the entry with id 0, in the tables that begin with one."""


class Step(IntEnum):
    """Columns of ``steps`` (uint64): one row per finished optimizer attempt, in the order of their end."""

    STEP = 0  # number of the step that the attempt ends; step 0 ends with the first attempt
    STREAM = 1  # K of the stream whose thread made the attempt
    OPTIMIZER = 2  # id in table "optimizers"
    COUNT = 3  # earlier attempts of this optimizer
    SKIPPED = 4  # 0 no, 1 yes (by a GradScaler), 2 not known
    BACKWARDS = 5  # backward passes within the step
    ENVIRONMENT_STEPS = 6  # environment steps so far
    END_ROW = 7  # rows of that stream up to the end of the step
    STRUCTURE = 8  # digest of the step's rows only, not chained (0 without RECORDED)
    VALUES = 9  # the same, of the values that they computed
    PREFIX_STRUCTURE = 10  # chained over all rows of the stream so far
    PREFIX_VALUES = 11  # the same, of the values that they computed
    PARAMETERS = 12  # digest over the optimizer's parameters after the attempt (0 without DIGESTED)
    GRADIENTS = 13  # their gradients before the attempt
    TORCH_GENERATOR = 14  # digest of torch's RNG state on the CPU after the attempt; 1: unchanged since recording began
    DEVICE_GENERATORS = 15  # of torch on all devices together; 0: none is in use, 1: no draw followed a seed
    PYTHON_GENERATOR = 16  # of module random; 1 as in column 14
    NUMPY_GENERATOR = 17  # of numpy.random; 0: not imported, 1 as in column 14
    FLAGS = 18  # StepFlag
    ANY_ORDER = 19  # digest of the step's rows that reordering of independent ops does not change; 0: not computed


GENERATORS: Final = (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS, Step.PYTHON_GENERATOR, Step.NUMPY_GENERATOR)


class StepFlag(IntFlag):
    RECORDED = 1  # every op of the step is a row
    DIGESTED = 2  # PARAMETERS to NUMPY_GENERATOR are set


# --- series ---------------------------------------------------------------------------------------------------------


class Sample(IntEnum):
    """Columns of ``series`` (uint64): one row for each number of a series, in the order of sampling.

    In no digest of the ops: logging must not decide whether two runs diverge.
    """

    SERIES = 0  # id in table "series"
    STREAM = 1  # K of the stream of the sampling thread; 0 where that thread has none
    STEP = 2  # for learning rates and scalers the step that the attempt ended; else the current step
    ROW = 3  # rows of the stream at that time
    VALUE = 4  # float64, as bits


SERIES_KINDS: Final = (
    "watch",  # rltrace.watch(name, value)
    "learning-rate",  # "optimizer:0/group:0/lr", at the first attempt and at each change
    "item",  # at level "step": what a call site of the program read with .item(), the first 16 of each step
    "stacked",  # of a JAX loop ("place"): what an iteration stacked, an array by its mean
    "callback",  # of a JAX program: what a callback of this name ("place") was given, the first 16 of each step
    "scaler",  # "scaler:0/scale", "/growth", "/found_inf" at each update, "/skipped:0" at each attempt of optimizer 0
    "state",  # "LambdaLR 0/last_epoch", "VecNormalize.obs_rms/count": first and changed numbers as attempts end
)

# --- values ---------------------------------------------------------------------------------------------------------


class ValueIndex(IntEnum):
    """Columns of ``values/index`` (uint64): a row for each value, and for each requested input."""

    KIND = 0  # ValueKind
    DIGEST = 1  # of the value; for kind 2 of the bytes of the state, with seed 0; kind 10: see below
    STREAM = 2  # K of the stream
    ROW = 3  # of the first occurrence; kind 4: the row that read it; kind 6: rows of the stream at that time
    PLACE = 4  # index of the input or output of that row; kinds 8 and 9: number of the storage
    LAYOUT = 5  # id in table "layouts", for dtype and shape; 0 for kinds 2 and 4
    OFFSET = 6  # in ``values/bytes``; 0 for kind 4, and for a value without elements
    LENGTH = 7  # of its logical bytes


class ValueKind(IntEnum):
    """Kinds of rows of ``values/index``. 0 is padding."""

    PADDING = 0
    OUTPUT = 1  # a result of an op; its bytes are here
    GENERATOR = 2  # an RNG state before an op; its bytes are here
    INPUT = 3  # an input of an op; its bytes are here
    SAME_INPUT = 4  # an input of an op; another row of this index has its bytes
    PLACEMENT = 5  # placement of a tensor in memory, where it is not that of a fresh allocation; no bytes
    WITH_ROWS = 6  # a tensor whose activation rows were recorded; its bytes are here
    SHARD = 7  # a tensor that a record shards names; its bytes are here
    STORAGE = 8  # what a storage held before the row, written by no selected op; its bytes are here
    CONTENT = 9  # the same; another row of this index has its bytes
    TENSOR = 10  # a tensor of a row that can be run again, in memory; no bytes


WITHOUT_BYTES: Final = (
    ValueKind.PADDING,
    ValueKind.SAME_INPUT,
    ValueKind.PLACEMENT,
    ValueKind.CONTENT,
    ValueKind.TENSOR,
)

PLACEMENT_ALIGNMENT: Final = 64
"""Alignment in bytes of CPU memory in torch; ``ValueKind.PLACEMENT`` has addresses modulo this."""


class PlacementBit(IntFlag):
    """Low bits of LAYOUT for ``ValueKind.PLACEMENT``, of PLACE for ``TENSOR``; the higher bits are the alignment."""

    CONJUGATED = 1
    NEGATED = 2
    OUTPUT = 4  # ``ValueKind.TENSOR`` only: returned by the op, in a storage that its arguments are not in


PLACEMENT_SHIFT: Final = 8

TENSOR_SHIFT: Final = 16
"""In PLACE of ``ValueKind.TENSOR`` the index among the arguments, or the returned values, is above this bit; below it
are the alignment of the storage and PlacementBit."""


LIMIT: Final = "the limit was reached"
"""Reason for a value left out because of the limit."""

OVER_LIMIT: Final = "parameters, buffers and optimizer state alone are over the limit, so no memory was recorded"
"""Reason for these, where ops were to be run again."""

# --- activations ------------------------------------------------------------------------------------------------------


class ModuleCallColumn(IntEnum):
    """Columns of ``activations/calls`` (uint64): one row per call of an ``nn.Module``, in the order of their end."""

    FLAGS = 0  # CallFlag
    STREAM = 1  # K of the stream of the calling thread
    NUMBER = 2  # index among the calls of the stream, in the order of their start; calls that were not recorded count
    PARENT = 3  # 1 plus the number of the enclosing call; 0: none
    MODULE = 4  # id in table "modules"
    CLASS = 5  # id in table "names": the module's class
    STEP = 6  # optimizer attempts finished at its start
    PHASE = 7  # Phase
    FIRST_ROW = 8  # rows of the stream at its start
    END_ROW = 9  # rows of the stream at its end
    TENSORS = 10  # number of its rows in ``activations/tensors``


class CallFlag(IntFlag):
    CALL = 1  # always; a row of padding has 0
    GRAD = 2  # gradients were recorded
    RAISED = 4  # it raised an exception: there are no outputs


class ActivationColumn(IntEnum):
    """Columns of ``activations/tensors`` (uint64): one row per tensor; those of one call, or op, are adjacent."""

    OWNER = 0  # Owner
    STREAM = 1  # K of the stream
    NUMBER = 2  # number of the call, or row of the op
    TENSORS = 3  # number of rows of that call or op in this array
    PART = 4  # 0 an input, 1 an output
    NAME = 5  # id in table "names": an argument's name and the path into it; for a result only the path
    LAYOUT = 6  # id in table "layouts", for dtype and shape
    AXES = 7  # axes along which activation rows are counted, a bit each
    WHOLE = 8  # digest of the whole tensor, which is also that of its value, if recorded
    OFFSET = 9  # of its rows' digests in ``activations/digests``; tensors with equal WHOLE and AXES may share them
    COUNT = 10  # number of its rows, in row-major order along those axes


class TensorOwner(IntEnum):
    """Owner of the tensor in a row of ``activations/tensors``. 0 is padding."""

    PADDING = 0
    CALL = 1
    OP = 2


# --- journal records ------------------------------------------------------------------------------------------------
#
# Frame: b"RLJ1" | uint32 length | payload (JSON, UTF-8) | uint64 XXH3 over the previous frame's digest and the payload.
# Every payload has "type". Of a process "start" always comes first, of a launch "launch".

LAUNCH_RECORD_TYPES: Final = {
    "launch": "format, created, id (drawn for each launch), and facts of it: command, cwd, host, options, …",
    "journals": "before exit; heads: [[process, size, digest], …], the end and the digest of the last frame of each"
    " process's journal (0 without a frame); starts: names of the files in starts",
    "exit": "time, and how the command ended",
    "library_reports": "after exit, any number of times: kernels that libraries reported for process number process."
    " libraries: {name: version}; said: [[names, lines], …]; calls: [[key of a call, id in table kernels of its rows,"
    " stream, first row, rows, entry of said], …]; unknown: [[why, kinds of call], …]. For a call in two records the"
    " later one counts",
}
"""The launch's journal: type to fields."""

RECORD_TYPES: Final = {
    "start": "name, requested, token, launch (digest of the first frame of the launch's journal), pid, parent, host,"
    " boot, started, time, argv, …",
    "facts": "level, engine, facts: {name: value} of the machine and the process; the later of one name counts",
    "sources": "listed: [{file: as in table frames, path, lines: base64 of the CRC-32 of each line, little-"
    "endian, text: with --sources}, …] of the program, and of libraries outside of package folders",
    "stream": "stream, name",
    "window": "stream, first_step, end_step (null: to the end), row at which recording of ops began",
    "interleaving": "stream, other: number of the stream of the same thread in the process with the same token, runs:"
    " [[rows of stream, rows of other since the last call, rows of other during the call, times], …], each since the"
    " last one before. Of what JAX computes in a process that also runs torch",
    "messages": "what a stream sent on one channel, or received: channel, sent, stream, rows: of each the rows that the"
    " stream had before it (in a trace of steps, the attempts of the process), numbers: by which those of a stream"
    " follow each other, digests",
    "channel": "channel, peer: the names of the two ends of a connection",
    "asleep": "first_step, end_step: steps of which nothing but their optimizer is recorded, as the run was not armed"
    " for them",
    "tables": "chunk: number of the first, entries: {table: entries so far}, files",
    "commit": "stream, segment (number of the chunk), first, rows, sections: cells of each kind, link_notes: number of"
    " notes on links (none: 0), marks: [[row, structure, values, marked], …], end: [structure, values, marked], files:"
    " those of rows and cells",
    "steps": "first, steps (number of them), and either chunk and files, or rows: base64 of a chunk of just these",
    "series": "first, samples (number of them), and either chunk and files, or rows, as of steps",
    "value_request": "before the first of values: selectors, inputs (whether inputs are recorded), limit in bytes",
    "values": "before the commit of its rows: count rows of values/index, from chunk chunk on, in files; chunks of"
    " values/bytes from bytes_chunk on in bytes_files; left_out: [{why, stream, first, last, values, bytes}, …]",
    "activation_request": "before the first of activations: selectors, axes (null: all but the last), limit in bytes",
    "activations": "before the commit of its rows: calls, tensors, digests: of each of the three arrays count rows,"
    " from chunk chunk on, in files; left_out: as of values",
    "launches": "after the commit of its rows: stream, first, rows, ids: base64 of a chunk of uint32, for each row the"
    " id in table kernels of what it launched (0: no more is known than its row says); unknown: [[why, stream, first,"
    " rows], …]; strays: [[name, what launched it, times], …] of what was launched for no row",
    "link_checks": "links are checked: memory is compared between its uses",
    "link_fault": "kind: write, op, link or call; found, used, writer, allocation: [stream, row] of ops, or null;"
    " input: which tensor of found, or null; step, handed_out, bytes: size of the storage, digest: of its content as"
    " far as ops used it",
    "repeats": "ops called again on the inputs that they had, so far; the last one counts: times (more that each was"
    " called), calls, kinds: [{stream, row: of the first call that gave something else, calls, differing, results:"
    " which, of: how many it has, dtype, elements, unequal, ulp, absolute: of the largest difference, or null}, …],"
    " left_out: [[op, why, calls], …], at_once: ops of which calls were made two at once",
    "optimizer": "after the first attempt of an optimizer, of what it began with: ordinal, parameters: their digest,"
    " state: names of the tensors of its state then, kept: the same after the attempt",
    "injection": "in a process of a program that ran again, so far; the last one of a provider counts: provider;"
    " selected, injected, propagated, missed, other, reached, answered, refused: what it was given",
    "shards": "step, optimizer: its ordinal, rank, world_size, tensors: [{kind, name, key, shape (of the whole),"
    " digest (of the value) or why there is none, placements, mesh, coordinate}, …]: what the rank held of parameters,"
    " gradients and optimizer state at a step",
    "state": "tensors: their number, digest: of parameters, buffers and optimizer state at the end of the process;"
    " saved: [[attempts before, digest of the tensors], …] of what its main thread wrote with torch.save and"
    " safetensors",
    "provisional_end": "state and exit as of end: how the process ends unless commit or steps follow; written before an"
    " exec and before its parent terminates it. state null revokes the previous one",
    "end": "state: complete, stopped or damaged (the recorder failed), exit: facts of the process's end,"
    " generators: RNG digests as in columns 14 to 17 of steps, parameters: [[ordinal of an optimizer, digest], …]",
}
"""A process's journal: type to fields."""

# --- version log ----------------------------------------------------------------------------------------------------
#
# 1.0  before the first release
# 2.0  column SETTINGS and table "settings": what torch was set to when an op ran
# 3.0  folder starts and record type "start" (were births, "birth"), its key requested (was wanted); keys of replay,
#      patching and against records are those of the JSON reports
# 3.1  record type "optimizer": what an optimizer began with, by which a resumed run is recognized
# 3.2  record type "shards", and values of kind SHARD
# 3.3  table "schemas": names of the positional arguments of ops
# 3.4  record type "asleep": steps of which nothing was recorded, as the run was not armed for them
# 4.0  values of small fields of events, among their evidence; series of kind "item"; values of kinds 8 to 10, for
#      rltrace rerun; traces of 3.x are read too
# 4.1  record type "interleaving": the order of JAX's rows and torch's in one thread
# 4.2  notes on links, after the cells of a segment
# 4.3  record types "messages" and "channel": what passes between processes
# 4.4  record type "sources": which lines of the program's files were edited
# 4.5  record type "repeats": ops that were called again
# 4.6  states of Python's and NumPy's generators in events have their position in the last bits, under other names
# 4.7  rows of kind OBJECT; field saved of record type "state"
