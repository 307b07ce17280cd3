"""What people call in JAX, a program of them: their results and rows, and what a comparison makes of a difference."""

import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest
from jax_programs import JaxPrograms

from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.compare import compare
from rltrace.extensions.archive.verify import verify
from rltrace.query.ops import OpLine, list_ops
from rltrace.selectors import parse_selectors
from rltrace.trace.read.reader import Trace

PROGRAM = """
import contextlib, gc, os, sys, threading, traceback, weakref
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback, pallas as pl
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
like_x = jax.ShapeDtypeStruct(x.shape, x.dtype)
mesh = Mesh(np.array(jax.devices()), ("i",))
halves, copies = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())

@jax.jit
def double(a):
    return jnp.tanh(a) * 2

def gradient(x):
    return jax.jit(jax.value_and_grad(lambda w: jnp.sum(jnp.sin(w) ** 2)))(x)

def pytree(x):
    return jax.jit(lambda a, b: {"product": a @ b.T, "pair": (a + b, None)})(x, x * 2)

def eager(x):
    return jnp.dot(x, x.T)

def eager_derivatives(x):
    value, pull_back = jax.vjp(double, x)
    return value, pull_back(value), jax.vmap(double)(x)

def while_loop(x):
    @jax.jit
    def until(a):
        return jax.lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] * 1.5 + 1, c[1] + 1), (a, 0))
    return until(x)

def branches(x):
    choose = jax.jit(lambda a: jax.lax.cond(a[0, 0] > 0, jnp.sin, jnp.cos, a))
    return choose(x), choose(-x)

def custom_derivatives(x):
    @jax.custom_vjp
    def clip(a):
        return a
    clip.defvjp(lambda a: (a, a), lambda a, g: (jnp.clip(g, -0.5, 0.5) * a,))
    @jax.custom_jvp
    def softplus(a):
        return jnp.log1p(jnp.exp(a))
    softplus.defjvp(lambda a, t: (softplus(a[0]), jax.nn.sigmoid(a[0]) * t[0]))
    return jax.jit(jax.grad(lambda a: (clip(softplus(a)) * 3).sum()))(x)

def remat(x):
    return jax.jit(jax.grad(lambda a: jax.checkpoint(lambda b: jnp.sin(jnp.sin(b)))(a).sum()))(x)

def pmap(x):
    return jax.pmap(lambda row: row - jax.lax.pmean(row, "i"), axis_name="i")(x)

def shard_map(x):
    return jax.jit(jax.shard_map(lambda row: jax.lax.psum(row, "i"), mesh=mesh, in_specs=P("i"), out_specs=P()))(x)

def placed(x):
    first = double(jax.device_put(x, halves))
    return double(first), double(jax.device_put(first, copies)), double(jax.device_put(first, jax.devices()[1]))

def donated(x):
    given = double(x)
    kept = jax.jit(lambda w: w * 0.5 + 1, donate_argnums=0)(given)
    return kept, given.is_deleted()

def compiled(x):
    scale = float(sys.argv[1]) if sys.argv[1:] else 3.0
    function = jax.jit(lambda a, b: a * scale + b["b"], donate_argnums=0).lower(x, {"b": x}).compile()
    given = double(x)
    return function(given, {"b": x}), function(x, {"b": x}), given.is_deleted()

def compiled_loop(x):
    def loop(a):
        return jax.lax.scan(lambda c, row: (jnp.tanh(c + row), c.sum()), a[0], jnp.concatenate([a, a]))
    return jax.jit(loop).lower(x).compile()(x)

def callbacks(x):
    @jax.jit
    def calling(a):
        a = jax.pure_callback(lambda v: np.asarray(double(v)), like_x, a)
        io_callback(lambda v: print("first", v.sum()), None, a, ordered=True)
        total = io_callback(lambda v: np.float32(v.sum()), jax.ShapeDtypeStruct((), np.float32), a)
        io_callback(lambda v: print("second", v.sum()), None, a, ordered=True)
        return a + total
    results = calling(x), calling(x + 1)
    jax.effects_barrier()
    jax.jit(lambda a: jax.debug.print("sum {}", a.sum(), ordered=True))(x)
    jax.effects_barrier()
    return results

def pallas(x):
    def kernel(a, o):
        o[...] = a[...] * 2 + 1
    return jax.jit(lambda a: pl.pallas_call(kernel, out_shape=like_x, interpret=True)(a))(x)

def foreign(x):
    return jax.jit(lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(2)))(x)

def threads(x):
    results = []
    for i in range(2):
        thread = threading.Thread(target=lambda: results.append(double(x * i)), name=f"worker {i}")
        thread.start()
        thread.join()
    return results

def without_jit(x):
    with jax.disable_jit():
        return double(x)

def settings(x):
    product = jax.jit(lambda a: a @ a.T)
    first = product(x)
    with jax.enable_x64(True):
        wide = double(x.astype(np.float64))
    with jax.default_matmul_precision("bfloat16"):
        return first, product(x), wide

def static(x):
    times = jax.jit(lambda a, n: a * n, static_argnums=1)
    return times(x, 2), times(x, 3)

def dtypes(x):
    few, four = jnp.ones(3, jnp.bfloat16), jnp.arange(5, dtype=jnp.int4)
    return jax.jit(lambda *a: a)(np.zeros((0, 3), np.float32), few, four, x * 1j, x > 0, 3, 2.5, True, jnp.uint8(7))

def keys(x):
    one, other = jax.random.split(jax.random.key(7))
    return jax.random.normal(one, (3,)), jax.jit(jax.random.bits)(other), jax.random.bits(jax.random.PRNGKey(1))

def references(x):
    @jax.jit
    def add(total, a):
        total[...] = total[...] + a
    total = jax.new_ref(x)
    add(total, x)
    add(total, 2.0)
    return total[...]

def errors(x):
    def attempt(function, *args):
        try:
            jax.block_until_ready(function(*args))
        except Exception as error:
            files = [os.path.basename(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
            print(type(error).__name__, str(error).splitlines()[0][:60].partition(" at 0x")[0], files)
    @jax.jit
    def undecided(a):
        return a if a.sum() > 0 else -a
    attempt(undecided, x)
    attempt(double, "text")
    with jax.debug_nans(True):
        attempt(jax.jit(jnp.log), x)
    deleted = jax.device_put(x)
    deleted.delete()
    attempt(jax.jit(lambda a: a + 1), deleted)
    attempt(jax.jit(lambda a: a + 1), x[0])
    def fail(value):
        raise ValueError("of a callback")
    with contextlib.redirect_stderr(None):
        try:
            jax.block_until_ready(jax.jit(lambda a: jax.pure_callback(fail, like_x, a))(x))
        except Exception as error:
            print(type(error).__name__)

def many(x):
    dead = []
    for i in range(5):
        function = jax.jit(lambda a, i=i: a + i)
        function(x)
        dead.append(weakref.ref(function.trace(x).jaxpr))
    del function
    jax.clear_caches()
    gc.collect()
    return sum(each() is None for each in dead)

KINDS = [
    gradient, pytree, eager, eager_derivatives, while_loop, branches, custom_derivatives, remat, pmap, shard_map,
    placed, donated, compiled, compiled_loop, callbacks, pallas, foreign, threads, without_jit, settings, static,
    dtypes, keys, references, errors, many,
]  # fmt: skip
for kind in KINDS:
    if sys.argv[2:] and kind.__name__ not in sys.argv[2:]:
        continue
    for leaf in jax.tree.leaves(kind(x)):
        if isinstance(leaf, jax.Array):
            leaf = jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
            print(kind.__name__, leaf.dtype, leaf.shape, leaf.sharding, np.asarray(leaf).tobytes().hex())
        else:
            print(kind.__name__, leaf)
"""

OF_X = "float32[2,4]"

ROWS = {
    "gradient": ("<lambda>(outside)",),
    "pytree": ("<lambda>(outside, outside)",),
    "eager": ("dot(outside, outside)",),
    "eager_derivatives": ("double(outside)", "double(double, double, double)", "double(outside)"),
    "while_loop": ("until(outside)",),
    "branches": ("<lambda>(outside)", "<lambda>(outside)"),
    "custom_derivatives": ("<lambda>(outside)",),
    "remat": ("<lambda>(outside)",),
    "pmap": ("_fun(outside)",),
    "shard_map": ("<lambda>(outside)",),
    "placed": (
        "double(outside{i=2: Shard(0)})",
        "double(double{i=2: Shard(0)})",
        "double(double{i=2: Replicate})",
        "double(double@cpu:1)",
    ),
    "donated": ("double(outside)", "<lambda>(double)"),
    "compiled": ("double(outside)", "<lambda>(double, outside)", "<lambda>(outside, outside)"),
    "compiled_loop": ("loop(outside)",),
    "callbacks": ("calling(outside)", "calling(outside)", "<lambda>(outside)"),
    "pallas": ("<lambda>(outside)",),
    "foreign": ("<lambda>(outside)",),
    "threads": ("double(outside)", "double(outside)"),
    "without_jit": ("mul(tanh, convert_element_type)",),
    "settings": ("<lambda>(outside)", "double(outside)", "<lambda>(outside)"),
    "static": ("<lambda>(outside)", "<lambda>(outside)"),
    "dtypes": (f"<lambda>({'outside, ' + 'broadcast_in_dim, iota' + ', outside' * 5}, convert_element_type)",),
    "keys": ("bitwise_xor(threefry2x32, threefry2x32)",),
    "references": ("add(mixed, outside)", "add(add, outside)", "get(add)"),
    "errors": ("<lambda>(outside)",),
    "many": ("<lambda>(outside)",) * 5,
}
"""By kind, the last rows of its calls: each the function, and by whom the arrays were written that it takes."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> JaxPrograms:
    sources = {"kinds": PROGRAM, "other_result": OTHER_RESULT, "refused": REFUSED}
    flags = "--xla_force_host_platform_device_count=2"
    return JaxPrograms(tmp_path_factory.mktemp("calls"), sources, XLA_FLAGS=flags)


def lines(trace: Trace) -> Iterator[tuple[str, OpLine, str]]:
    """(kind, row, the row as text) of all rows."""
    ops: dict[tuple[str, int], str] = {}
    for line in list_ops(trace, parse_selectors(["all"])):
        name = ops[line.stream, line.row] = line.op.removeprefix("jit.")
        takes = (
            (each.origin if each.producer is None else ops[line.stream, each.producer])
            + (each.layout.removeprefix(OF_X) if each.layout.startswith(OF_X) else "")
            for each in line.inputs
        )
        functions = (site.function.partition(".")[0] for site in line.stack)
        yield next(kind for kind in functions if kind in ROWS), line, f"{name}({', '.join(takes)})"


def test_recorded_calls_print_what_unrecorded_ones_do(programs: JaxPrograms) -> None:
    """Results with their dtypes and devices, what callbacks print, in order, and errors with their frames are the same;
    functions that the program forgets are forgotten."""
    programs.recorded("a", "kinds")
    assert programs.printed["a"] == programs.plain("kinds")
    assert "many 5" in programs.printed["a"]


def test_a_call_is_a_row(programs: JaxPrograms) -> None:
    """Its rows have its function, and what they take has its producers and devices."""
    found = defaultdict[str, list[str]](list)
    for kind, _, text in lines(programs.recorded("a", "kinds")):
        found[kind].append(text)
    assert {kind: tuple(found[kind][-len(rows) :]) for kind, rows in ROWS.items()} == ROWS


def test_the_trace_of_all_calls_is_sound(programs: JaxPrograms) -> None:
    """It is complete, and says of loops that are not driven why."""
    trace = programs.recorded("a", "kinds")
    [process] = trace.processes
    assert process.state == "complete"
    assert verify(trace.path).sound
    wanted = "jit.until: its loop is a while_loop; jit.loop: the program compiles it itself"
    assert process.facts["jax.boundary_only"] == wanted


def test_another_number_of_a_compiled_function_is_found(programs: JaxPrograms) -> None:
    """What a function was compiled with by the program itself is named by its line; all other calls are equal."""
    some = "eager_derivatives", "donated", "compiled", "static"
    traces = programs.recorded("three", "kinds", "3", *some), programs.recorded("four", "kinds", "4", *some)
    comparison = compare(*traces)
    found = comparison.decisive
    assert comparison.verdict is Verdict.DIVERGED
    assert (found.cause, found.op) == (Cause.ARGUMENTS, "jit.<lambda>")
    assert "compile() #1=3.0 in A" in found.explanation
    assert "4.0 in B" in found.explanation
    sides = [{(line.stream, line.row): (kind, line.outputs) for kind, line, _ in lines(each)} for each in traces]
    assert [sides[0][at][0] for at in sides[0] if sides[0][at] != sides[1][at]] == ["compiled", "compiled"]


OTHER_RESULT = """
import sys
import jax, jax.numpy as jnp
both = jax.jit(lambda x: (jnp.sin(x), jnp.cos(x)))
double = jax.jit(lambda x: x * 2)
double(both(jnp.arange(4.0))[int(sys.argv[1])]).block_until_ready()
"""


def test_another_result_of_a_call(programs: JaxPrograms) -> None:
    """A function that is called on the second result of another one, and on the first before, was called otherwise."""
    found = compare(*(programs.recorded(which, "other_result", which) for which in ("0", "1"))).first_value
    assert found is not None and found.cause is Cause.ARGUMENTS
    assert "input 0 (float32[4]) is result 0 of jit.<lambda> at other_result.py:6" in found.explanation
    assert found.explanation.endswith("in A, result 1 in B")


REFUSED = """
import os, shutil, sys
import jax, jax.numpy as jnp

shutil.rmtree(sys.argv[1])
print(jax.jit(lambda x: x * 2)(jnp.arange(3.0)), *jnp.arange(2.0))
"""


def test_a_trace_that_cannot_be_written_is_not_the_programs_error(programs: JaxPrograms) -> None:
    """It is gone before the first call, with which its recording would begin."""
    command = sys.executable, "-m", "rltrace", "record", "-o", "gone.zarr", "--", sys.executable, "refused.py"
    ended = programs.start(*command, "gone.zarr")
    assert ended.stdout == "[0. 2. 4.] 0.0 1.0\n", ended.stderr
    assert "Traceback" not in ended.stderr
