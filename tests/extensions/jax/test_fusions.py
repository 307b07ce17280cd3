"""What is recorded within calls and iterations of JAX: that the program has it, and what a comparison makes of it."""

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from jax_programs import OTHER_ISA, JaxPrograms

from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.base.view import StreamView
from rltrace.diff.compare import CompareOptions, compare
from rltrace.diff.happened_before import calls_with
from rltrace.digest import digest_buffer, seed_of
from rltrace.extensions.archive.verify import verify
from rltrace.extensions.jax import log_library
from rltrace.report.diff import verdict_document
from rltrace.report.text import document_text
from rltrace.trace.format.schema import Column, Phase, is_within
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.stream import StreamTrace

WHOLE_NUMBERS = """
import jax, jax.numpy as jnp, numpy as np

weights = jnp.asarray(np.arange(16).reshape(4, 4) % 3 - 1, jnp.float32)

def inner(total, _):
    total = jax.nn.relu(total @ weights) % 5
    return total, total.sum()

def update(state, _):  # a call, an inner scan, a branch and a loop of unknown length, all exact however XLA fuses them
    total, sums = jax.lax.scan(inner, (state @ weights) % 7, None, 3)
    total = jax.lax.cond(sums[0] > 0, lambda t: jnp.sort(t), lambda t: -t, total)
    total = jax.lax.while_loop(lambda t: t.sum() > 10, lambda t: t - 1, total)
    return total % 5, sums

@jax.jit
def train(state):
    state, sums = jax.lax.scan(update, (state @ weights) % 6, None, 4)
    return (state @ weights) % 3, sums

state, sums = train(jnp.arange(16.0).reshape(4, 4))
print(np.asarray(state).tolist(), np.asarray(sums).tolist())
"""

CALLS = """
import functools, hashlib, os, jax, jax.numpy as jnp, numpy as np

def loss(weights, batch):
    return jnp.mean(jnp.tanh(batch @ weights) ** 2)

@functools.partial(jax.jit, donate_argnums=0)
def update(weights, rate, batch):
    jax.debug.callback(lambda rate: None, rate)
    return weights - RATE * rate * jax.grad(loss)(weights, batch)

weights = jnp.asarray(np.linspace(-1, 1, 256 * 256, dtype=np.float32).reshape(256, 256))
generator = np.random.default_rng(0)
for number in range(6):
    batch = generator.normal(size=(768, 256)).astype(np.float32)
    if number == 3:
        batch[3, 5] += float(os.environ.get("ADDED", 0))
    given, weights = weights, update(weights, np.float32(0.1), batch)
    assert given.is_deleted()
    weights.sum().block_until_ready()
print(hashlib.sha256(np.asarray(weights).tobytes()).hexdigest())
"""

LEARNING = """
import jax, jax.numpy as jnp, numpy as np

def train(key):
    weights = {"first": INITIAL, "second": jnp.linspace(-1, 1, 32).reshape(16, 2)}

    def loss(weights, batch):
        hidden = jnp.tanh(batch @ weights["first"])
        return jnp.mean(jnp.sin(hidden @ weights["second"]) ** 2)

    def update(state, _):
        weights, key = state
        key, own = key * 5 + jnp.uint32(7), key  # random numbers would be most of what XLA compiles
        gradients = jax.grad(loss)(weights, jnp.cos(jnp.arange(256.0).reshape(32, 8) + own[1] % 9))
        return (jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), key), None

    return jax.lax.scan(update, (weights, key), None, 5)[0][0]

weights = jax.jit(train)(jax.random.PRNGKey(0))
print(np.asarray(weights["first"]).tobytes().hex(), np.asarray(weights["second"]).tobytes().hex())
"""

MISREAD = """
import jax, sys
if "rltrace.extensions.jax" in sys.modules:  # a fault of the recorder: it takes values for each other
    from rltrace.extensions.jax.digest_log import LogLibrary
    read = LogLibrary.read
    LogLibrary.read = lambda library, orders, log, *arrays: read(library, orders[::-1], log, *arrays[::-1])
"""


class Runs(JaxPrograms):
    """Each recorded run prints what the unrecorded one does."""

    def recorded(self, name: str, program: str, *options: str, **variables: str) -> Trace:
        trace = super().recorded(name, program, options=options, **variables)
        assert self.printed[name] == self.plain(program, **variables)
        if log_library.find() is None:
            pytest.skip("no compiler has built the library")
        return trace


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    fixed = LEARNING.replace("INITIAL", "jnp.linspace(-1, 1, 128).reshape(8, 16)")
    drawn = LEARNING.replace("INITIAL", "jax.random.orthogonal(key, 16)[:8]")
    sources = {"whole_numbers": WHOLE_NUMBERS, "learning": fixed, "drawn": drawn, "misread": MISREAD + fixed}
    sources["calls"] = CALLS.replace("RATE", "1.01")
    folder = tmp_path_factory.mktemp("fusions")
    (folder / "edited").mkdir()
    sources["edited/calls"] = CALLS.replace("RATE", "1.02")
    return Runs(folder, sources, RLTRACE_LOOPS="*")


def within(trace: Trace, op: str = "jit.train.iteration") -> StreamTrace:
    """What is within the rows of that name."""
    [stream] = [stream for stream in trace.processes[0].streams if f"/{op}@" in stream.name]
    return stream


def ops_of(trace: Trace, stream: StreamTrace) -> list[str]:
    words = trace.processes[0].words
    return [words.op(int(op)) for op in stream.read(0, stream.rows).column(Column.OP)]


def products() -> Iterator[tuple[str, np.ndarray]]:
    """Every product of the program of whole numbers, in its order, and the end of the row that it is within."""
    weights = (np.arange(16).reshape(4, 4) % 3 - 1).astype(np.float32)
    state = np.arange(16, dtype=np.float32).reshape(4, 4) @ weights
    yield "before", state
    state = np.mod(state, 6)
    for _ in range(4):
        total = state @ weights
        yield "iteration", total
        total, sums = np.mod(total, 7), []
        for _ in range(3):
            yield "iteration", total @ weights
            total = np.mod(np.maximum(total @ weights, 0), 5)
            sums.append(total.sum())
        total = np.sort(total) if sums[0] > 0 else -total
        while total.sum() > 10:
            total = total - 1
        state = np.mod(total, 5)
    yield "after", state @ weights


def test_values_are_those_that_are_computed(runs: Runs) -> None:
    """Each product has a row, in the order of the program, inner scans unrolled, with the digest of its value."""
    trace = runs.recorded("whole", "whole_numbers")
    assert verify(trace.path).sound
    seed = seed_of("float32", (4, 4))
    for part in "before", "iteration", "after":
        stream = within(trace, f"jit.train.{part}")
        rows, named = stream.read(0, stream.rows), ops_of(trace, stream)
        found = [rows.outputs(i) for i, op in enumerate(named) if op == "dot_general"]
        assert found == [[digest_buffer(product.tobytes(), seed)] for within, product in products() if within == part]
        assert rows.column(Column.STEP).tolist() == sorted(rows.column(Column.STEP))
    assert set(ops_of(trace, within(trace))) >= {"cond", "while", "scan"}
    after = within(trace, "jit.train.after")
    rows = after.read(0, after.rows)
    returned = np.mod([product for _, product in products()][-1], 3)
    assert [digest_buffer(returned.tobytes(), seed)] in [rows.outputs(i) for i in range(after.rows)]


def test_what_is_within_a_call_precedes_its_row(runs: Runs) -> None:
    """The evidence of the row of a call, or an iteration, has the stream with what is within it, and how many rows."""
    trace = runs.recorded("whole", "whole_numbers")
    process = trace.processes[0]
    view = StreamView(process, process.streams[0])
    assert view.name == "rank0/main"
    calls = ops_of(trace, process.streams[0])
    for part, times in (("before", 1), ("iteration", 4), ("after", 1)):
        stream = within(trace, f"jit.train.{part}")
        around = [i for i, op in enumerate(calls) if op == f"jit.train.{part}"]
        assert len(around) == times
        each = stream.rows // times
        ordered = calls_with(view, stream.name.removeprefix("rank0/main/"))
        assert [ordered.around(row) for row in range(stream.rows)] == [i for i in around for _ in range(each)]
        assert [ordered.within(row) for row in around] == list(range(0, stream.rows, each))
    assert calls_with(view, "jit.train.before@" + "0" * 16).around(0) is None


def test_inputs_are_linked_within_the_iteration(runs: Runs) -> None:
    """What a row reads was written by a row before it, or is read with its digest, once; sites end in the loop's."""
    process = runs.recorded("learning", "learning").processes[0]
    stream = within(runs.recorded("learning", "learning"))
    rows = stream.read(0, stream.rows)
    first = int(np.sum(rows.column(Column.STEP) == 0))
    read = [link for i in range(first) for link in rows.inputs(i)]
    assert any(link.known for link in read)
    assert all(link.distance > 0 or link.digest is not None for link in read)
    phases = set(rows.column(Column.PHASE).tolist())
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.OTHER} >= phases > {Phase.OTHER}
    lines = [process.words.stack(int(site))[-1].source for site in rows.column(Column.SITE)]
    assert set(lines) == {"return jax.lax.scan(update, (weights, key), None, 5)[0][0]"}


def digests_by_step(process: ProcessTrace, stream: StreamTrace) -> dict[int, set[int]]:
    """By step, the digests of all that the rows of a stream read or write."""
    rows, found = stream.read(0, stream.rows), defaultdict[int, set[int]](set)
    for i, step in enumerate(rows.column(Column.STEP).tolist()):
        found[step] |= {*rows.outputs(i), *(link.digest for link in rows.inputs(i) if link.digest is not None)}
    return found


@pytest.mark.parametrize("program", ["learning", "drawn", "calls"])
def test_what_is_read_within_is_what_the_call_was_given(runs: Runs, program: str) -> None:
    """Each array that a row within takes from outside of its call has the digest that the row of the call read."""
    process = runs.recorded(program, program).processes[0]
    given = digests_by_step(process, process.streams[0])
    for stream in process.streams[1:]:
        rows = stream.read(0, stream.rows)
        steps = rows.column(Column.STEP).tolist()
        read = [(steps[i], link.digest) for i in range(len(rows)) for link in rows.inputs(i) if link.digest is not None]
        assert read
        assert [each for each in read if each[1] not in given[each[0]]] == []


def test_values_that_were_misread_are_no_rows(runs: Runs) -> None:
    """Where what was read of a value is not what the iteration passes on, a fact says so, and nothing is false."""
    trace = runs.recorded("misread", "misread")
    process = trace.processes[0]
    assert [each.rows for each in process.streams if is_within(each.name)] == [0]
    assert "was read as another one than was returned" in str(process.facts["jax.values"])
    assert verify(trace.path).sound
    found = compare(runs.recorded("learning", "learning"), trace)
    assert found.decisive is None
    assert found.verdict is not Verdict.DIVERGED


def test_the_first_operation_that_computes_otherwise_is_found(runs: Runs) -> None:
    """Another instruction set is found at an operation within the iteration; without these, at the iteration."""
    a = runs.recorded("learning", "learning")
    other = runs.recorded("isa", "learning", XLA_FLAGS=OTHER_ISA)
    if runs.plain("learning", XLA_FLAGS=OTHER_ISA) == runs.plain("learning"):
        pytest.skip("this processor computes the same bits under SSE4.2")
    found = compare(a, other)
    assert is_within(found.decisive.stream)
    assert found.decisive.cause is Cause.KERNEL
    assert not found.unordered
    whole = compare(a, other, CompareOptions(within=False))
    iteration = whole.decisive
    assert (iteration.op, iteration.step) == ("jit.train.iteration", found.decisive.step)
    assert iteration.cause is Cause.KERNEL
    assert re.search(r"instruction set \w+ against SSE4_2", iteration.explanation)
    differs = [name for name, each in zip(iteration.output_names, iteration.outputs, strict=True) if each.a != each.b]
    assert f"{', '.join(differs)} differ" in iteration.explanation
    text = document_text(verdict_document(whole))
    assert f"iteration {iteration.step} (jit.train's" in text
    assert "optimizer step" not in text
    assert re.search(r"kernel   A  XLA \w+ cpu, jaxlib [^,]*, \d+ threads?\n", text)


def test_a_window_is_compared_with_a_whole_trace(runs: Runs) -> None:
    """What is within the iterations that both have, too; where another window's carry differs, that is found."""
    whole, window = runs.recorded("learning", "learning"), runs.recorded("window", "learning", "--steps", "2:4")
    for pair in (whole, window), (window, whole):
        compared = compare(*pair)
        assert (compared.verdict, compared.notes) == (Verdict.IDENTICAL, ())
        assert compared.compared == {"rank0/main": 2, within(window).name: within(window).rows}
    if runs.plain("learning", XLA_FLAGS=OTHER_ISA) == runs.plain("learning"):
        pytest.skip("this processor computes the same bits under SSE4.2")
    other = compare(runs.recorded("isa", "learning", XLA_FLAGS=OTHER_ISA), window)
    assert (other.verdict, other.level, other.notes) == (Verdict.DIVERGED, "op", ())
    first, value = other.first, other.first_value
    assert first.op is None
    assert (value.op, value.step, value.cause) == ("jit.train.iteration", 2, Cause.BEFORE_WINDOW)


def test_a_difference_before_the_loop_is_found_at_an_operation(runs: Runs) -> None:
    """Initial weights that another instruction set computes otherwise; the row of what precedes the loop comes next."""
    if runs.plain("drawn", XLA_FLAGS=OTHER_ISA) == runs.plain("drawn"):
        pytest.skip("this processor computes the same bits under SSE4.2")
    a, b = runs.recorded("drawn", "drawn"), runs.recorded("drawn_isa", "drawn", XLA_FLAGS=OTHER_ISA)
    found, whole = compare(a, b), compare(a, b, CompareOptions(within=False))
    assert found.decisive.stream == within(a, "jit.train.before").name
    assert found.decisive.cause is Cause.KERNEL
    assert "erf_inv" in str(found.decisive.kernel.a)
    assert (whole.decisive.op, whole.decisive.cause) == ("jit.train.before", Cause.KERNEL)
    assert not found.unordered


def test_a_large_function_without_a_loop_is_read_into(runs: Runs) -> None:
    """Each of its calls, here with donated arrays and a callback; small functions have no rows within."""
    trace = runs.recorded("calls", "calls")
    assert verify(trace.path).sound
    stream = within(trace, "jit.update")
    ops = ops_of(trace, stream)
    assert "dot_general" in ops
    assert ops == ops[: stream.rows // 6] * 6
    assert [each.name for each in trace.processes[0].streams if is_within(each.name)] == [stream.name]


def test_what_a_call_is_given_comes_before_what_is_within(runs: Runs) -> None:
    """An array from outside in the fourth call, and a number of the program: the row of the call has the cause."""
    a = runs.recorded("calls", "calls")
    for b, cause, call in (
        (runs.recorded("calls_added", "calls", ADDED="0.5"), Cause.OUTSIDE, 3),
        (runs.recorded("calls_edited", "edited/calls"), Cause.ARGUMENTS, 0),
    ):
        found = compare(a, b)
        assert (found.decisive.stream, found.decisive.op, found.decisive.cause) == ("rank0/main", "jit.update", cause)
        calls = ops_of(a, a.processes[0].streams[0])[: found.decisive.a_index]
        assert calls.count("jit.update") == call
        assert not found.unordered


def test_other_fusions_are_compared_by_iterations(runs: Runs) -> None:
    """Two programs with other values in memory agree where their carries do."""
    a = runs.recorded("whole", "whole_numbers")
    flags = {"XLA_FLAGS": "--xla_disable_hlo_passes=fusion"}
    unfused = runs.recorded("unfused", "whole_numbers", **flags)
    assert within(unfused).name != within(a).name
    compared = compare(a, unfused)
    assert compared.verdict is Verdict.IDENTICAL
    assert any("other values in memory" in note for note in compared.notes)
    both = [word for trace in (a, unfused) for word in ("--fusions-of", str(trace.path))]
    limited = runs.recorded("limited", "whole_numbers", *both)
    limited_unfused = runs.recorded("limited_unfused", "whole_numbers", *both, **flags)
    assert 0 < within(limited).rows < within(unfused).rows
    again = compare(limited, limited_unfused)
    assert again.verdict is Verdict.IDENTICAL
    assert not again.notes
