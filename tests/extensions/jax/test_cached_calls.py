"""Calls whose executables JAX's cache keeps: what the program sees, and that their rows are those of other calls."""

from pathlib import Path

import numpy as np
from jax_programs import JaxPrograms

from rltrace.trace.format.schema import Column, Origin

CALLS = """
import copy, sys, threading, weakref
import jax, jax.numpy as jnp, numpy as np

def show(*results):
    print(*(np.asarray(each).tobytes().hex()[:64] for each in jax.tree.leaves(results)))

scale = 2.0

@jax.jit
def scaled(x):
    return x * scale

x = jnp.arange(4.0)
for _ in range(3):  # a constant of the text, forgotten when the program says so
    show(scaled(x), scaled(scaled(x)))
scale = 3.0
show(scaled(x))
scaled.clear_cache()
show(scaled(x), scaled(x), copy.copy(scaled)(x))
scale = 4.0
jax.clear_caches()
show(scaled(x), scaled(x))
show(jax.vmap(scaled)(jnp.ones((2, 3))), jax.grad(lambda y: scaled(y).sum())(x), jax.jit(scaled)(x))

batch = np.ones(4, np.float32)
for _ in range(3):  # changed in place between two calls
    show(scaled(batch))
    batch += 1
for array in (batch[::2], np.float64(3), 2, True, np.zeros((0, 3)), jnp.ones((3, 5), jnp.bfloat16)):
    show(scaled(array), scaled(array))

tree = jax.jit(lambda d, n, *, t: {"b": (d["a"] + t[0] * n, t[1]), "a": None}, static_argnums=1)
shifted = jax.jit(lambda v: v + x)  # closes over an array
for n in range(4):
    show(tree({"a": x, "c": 3}, n % 2, t=(2.0, x)), shifted(x), jax.jit(lambda: jnp.ones(3))())

state = scaled(x)
give = jax.jit(lambda a: a + 1, donate_argnums=0)
for _ in range(3):
    state = give(scaled(state))
state, gone = scaled(state), scaled(state)
gone.delete()
key = jax.random.key(0)
split = jax.jit(lambda key: jax.random.split(key))
for _ in range(3):
    key, own = split(key)
    show(state, jax.random.key_data(own))
drawn = jax.jit(lambda k: jax.random.normal(k, (3,)))
mixed = jax.jit(lambda d, n: (d["k"], jax.random.fold_in(own, n), jax.random.key_data(d["k"])))  # closes over a key
wrapped = jax.random.wrap_key_data(np.array([1, 2], np.uint32))
for n, each in enumerate((key, wrapped, jax.random.key(1, impl="rbg"), jax.random.split(key, 2)[n % 2])):
    key_of, folded, data = mixed({"k": each}, n)
    show(drawn(each), drawn(key_of), drawn(folded), data, drawn(wrapped), jax.random.key_data(key_of))
    drawn(jax.random.clone(each)), jax.random.bits(jax.random.split(folded)[0])
smaller = lambda w, g, *, by=2: jax.tree.map(lambda a, b: a - b / by, w, g)
less = jax.jit(smaller, donate_argnums=0, static_argnames="by")
named = jax.jit(lambda n, v, w: (v + n, w * scale), static_argnums=0, donate_argnames=("v", "w"))
weights, own = {"a": scaled(x), "b": jnp.ones(2)}, jnp.asarray(np.ones(4, np.float32))
renewed = jax.jit(lambda k: jax.random.split(k)[1], donate_argnums=0)
for n in range(6):  # given away: what the call before returned, what another one did, what JAX did not compute
    weights = less(weights, {"a": x, "b": x[:2]})
    show(less(scaled(x), x), less(jax.device_put(batch), x), less(jnp.asarray(batch), g=x, by=2 + n % 2), weights)
    own, other = named(n % 2, own, w=scaled(x) if n % 2 else jax.device_put(batch))
    show(give(v) if (v := scaled(other)) is not None else v, v.is_deleted(), jax.vmap(give)(jnp.ones((2, 3))))
    key = renewed(key)
    for v in scaled(x), v:
        try:
            show(give(v))
        except (RuntimeError, ValueError):
            print("was given away")
    try:
        less({"a": scaled(x)}, x)
    except ValueError as error:
        print(error, error.__traceback__.tb_next.tb_frame.f_code.co_name)
scale = 5.0
named.clear_cache()
show(named(1, scaled(x), scaled(x)), copy.copy(named)(1, scaled(x), w=scaled(x)))
print(named._cache_size() > 0)
show(give(scaled(x)))
called = jax.jit(lambda v: jax.pure_callback(lambda u: np.asarray(u) + 1, jax.ShapeDtypeStruct((4,), np.float32), v))
show(called(x), called(x))
large = jnp.zeros((512, 513))
for _ in range(6):  # more than is kept
    large = scaled(large) + 1
show(large[0])

def work():
    y = state
    for _ in range(10):
        y = scaled(y)
    show(y)

for n in range(3):  # eager operations, with numbers and static arguments
    x, y = jnp.tanh(x) + n, x - x[n]
    show(x, y, jnp.where(x > y, x, 2.0), jnp.sum(x, axis=0), x.at[n].set(0), scaled(jnp.stack([x, y])))
memory = np.arange(1024, dtype=np.float32)
array = jnp.asarray(memory)  # perhaps that memory itself
show(scaled(array))
memory[:] = 0
with jax.debug_nans(True):
    show(scaled(x), jnp.tanh(x))
    try:
        jnp.log(-x)
    except FloatingPointError as error:
        print(type(error).__name__)
show(scaled(x), jax.device_put(scaled(x), donate=True))

thread = threading.Thread(target=work)
thread.start()
thread.join()
function = weakref.ref(jax.jit(lambda v: v - 1))
print(function() is None, scaled.__name__, scaled.__wrapped__ is not None, scaled._cache_size() > 0)
show(scaled(x), x + x)
called = []

def note(frame, event, _):
    if event == "call" and frame.f_code.co_name == "cache_miss":
        called.append(frame.f_locals["fun"].__name__)

sys.setprofile(note)
for _ in range(3):
    scaled(x), x + x, drawn(key), split(key), give(state + 0)
sys.setprofile(None)
print(*called)
"""

NODES = """
import jax, jax.numpy as jnp

@jax.tree_util.register_pytree_node_class
class Doubled:  # calls another function where JAX makes it of arrays, the second time at the latest
    calls = False
    def __init__(self, value):
        self.value = value
    def tree_flatten(self):
        return (self.value,), None
    @classmethod
    def tree_unflatten(cls, _, values):
        return cls(values[0] * 2 if cls.calls and isinstance(values[0], jax.Array) else values[0])

x, late, doubled = jnp.arange(4.0), *(jax.jit(lambda v, n=n: Doubled(v + n)) for n in range(2))
late(x * 2)
Doubled.calls = True
for _ in range(3):
    x = doubled(x * 2).value
    x = late(x * 2).value
print(x)
"""


def test_cached_calls_are_seen_as_all_others(tmp_path: Path) -> None:
    """The program prints what it does unrecorded, and each row is, cell by cell, that of a call that Python serves."""
    programs = JaxPrograms(tmp_path, {"calls": CALLS})
    cached = programs.recorded("cached", "calls")
    others = programs.recorded("others", "calls", options=("--values", "op=nothing"))
    lines = [text.splitlines() for text in (programs.plain("calls"), *programs.printed.values())]
    assert lines[0][:-1] == lines[1][:-1] == lines[2][:-1]
    plain, few, all_calls = (each[-1].split() for each in lines)
    assert not plain
    assert not few and len(all_calls) == 18, f"calls that go through Python: {few}"
    assert [trace.processes[0].state for trace in (cached, others)] == ["complete"] * 2
    assert len(cached.processes[0].streams) == 2
    for stream, other in zip(cached.processes[0].streams, others.processes[0].streams, strict=True):
        rows, other_rows = (each.read(0, each.rows) for each in (stream, other))
        assert len(rows) > 9
        for cells in ("columns", "links", "floats", "digests"):
            np.testing.assert_array_equal(getattr(rows, cells), getattr(other_rows, cells))


def test_what_nodes_of_results_call_has_these_as_producer(tmp_path: Path) -> None:
    """Where a class of the program is made of results, a function that it calls reads those of a recorded row."""
    programs = JaxPrograms(tmp_path, {"nodes": NODES})
    trace = programs.recorded("a", "nodes")
    assert programs.printed["a"] == programs.plain("nodes")
    [stream] = trace.processes[0].streams
    rows = stream.read(0, stream.rows)
    ends = rows.columns[:, Column.LINKS].cumsum()
    distances = rows.links[ends[:-1]] >> 12  # of the first array that each row reads, but for the first row
    assert len(distances) > 9
    assert (distances != Origin.OUTSIDE).all()
    assert (distances == Origin.UNKNOWN).sum() <= 3
