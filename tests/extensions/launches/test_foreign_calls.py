"""Calls of C functions and of extensions that take tensors are rows; without tensors they are left alone."""

import ctypes
import importlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import engines
import numpy as np
import pytest
import torch
from recorded import Record

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Finding
from rltrace.extensions.launches.foreign_calls import ExtensionFunction, needed_libraries
from rltrace.trace.format.schema import Origin

COMPILER = shutil.which("cc") or shutil.which("gcc")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

LIBRARY = """
#include <stdint.h>
static float state = 1;
void scale(const float *x, float *out, int64_t n, float factor) {
  for (int64_t i = 0; i < n; i++) out[i] = x[i] * factor + OFFSET;
}
void step(float *x) { x[0] += state; state *= 2; }
void remember(float value) { state = value; }
void fill(float **all, int64_t n) { for (int64_t i = 0; i < n; i++) all[i][0] = i; }
int64_t twice(int64_t n) { return 2 * n; }
"""

EXTENSION = """
#include <Python.h>
static PyObject *scale(PyObject *self, PyObject *args) {
  PyObject *x, *out;
  double factor;
  if (!PyArg_ParseTuple(args, "OOd", &x, &out, &factor)) return NULL;
  PyObject *found[2] = {PyObject_CallMethod(x, "data_ptr", NULL), PyObject_CallMethod(out, "data_ptr", NULL)};
  if (!found[0] || !found[1]) return NULL;
  float *from = PyLong_AsVoidPtr(found[0]), *to = PyLong_AsVoidPtr(found[1]);
  Py_DECREF(found[0]);
  Py_DECREF(found[1]);
  for (int i = 0; i < 4; i++) to[i] = from[i] * (float)factor;
  Py_INCREF(out);
  return out;
}
static PyObject *call(PyObject *self, PyObject *args) {
  PyObject *function, *x;
  if (!PyArg_ParseTuple(args, "OO", &function, &x)) return NULL;
  return PyObject_CallFunctionObjArgs(function, x, NULL);
}
static float *memory(PyObject *tensor) {
  PyObject *address = PyObject_CallMethod(tensor, "data_ptr", NULL);
  float *found = address ? PyLong_AsVoidPtr(address) : NULL;
  Py_XDECREF(address);
  return found;
}
static PyMethodDef methods[] = {
    {"scale", scale, METH_VARARGS, "out = factor * x"}, {"call", call, METH_VARARGS, "function(x)"}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "toy_extension", NULL, -1, methods};

typedef struct { PyObject_HEAD float *kept; float ticks; } Simulator;
static int construct(PyObject *self, PyObject *args, PyObject *kwargs) {
  PyObject *kept;
  if (!PyArg_ParseTuple(args, "O", &kept)) return -1;
  ((Simulator *)self)->kept = memory(kept);
  return 0;
}
static PyObject *step(PyObject *self, PyObject *out) {
  for (int i = 0; i < 4; i++) memory(out)[i] = ((Simulator *)self)->kept[i] + ((Simulator *)self)->ticks;
  Py_RETURN_NONE;
}
static PyObject *tick(PyObject *self, PyObject *keeps) {
  ((Simulator *)self)->ticks += 1;
  if (keeps == Py_True) ((Simulator *)self)->kept[1] += 1;
  Py_RETURN_NONE;
}
static PyObject *observe(PyObject *self, PyObject *unused) {
  PyObject *torch = PyImport_ImportModule("torch"), *out = PyObject_CallMethod(torch, "empty", "i", 4);
  Py_DECREF(torch);
  for (int i = 0; out && i < 4; i++) memory(out)[i] = ((Simulator *)self)->ticks;
  return out;
}
static PyMethodDef of_simulator[] = {
    {"step", step, METH_O, "out = state"}, {"tick", tick, METH_O}, {"observe", observe, METH_NOARGS}, {NULL}};
static PyMethodDef static_step = {"still", scale, METH_VARARGS};
static PyType_Slot slots[] = {{Py_tp_methods, of_simulator}, {Py_tp_init, construct}, {0}};
static PyType_Spec spec = {"toy_extension.Simulator", sizeof(Simulator), 0, Py_TPFLAGS_DEFAULT, slots};
static PyObject *as_method(PyObject *unused, PyObject *args) {  /* pybind11's functions get the object as an argument */
  return step(PyTuple_GetItem(args, 0), PyTuple_GetItem(args, 1));
}
static PyMethodDef pybind_step = {"bound", as_method, METH_VARARGS};

PyMODINIT_FUNC PyInit_toy_extension(void) {
  PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&spec);
  PyObject *inner = PyModule_New("toy_extension.inner");
  PyObject_SetAttrString(type, "bound", PyInstanceMethod_New(PyCFunction_New(&pybind_step, NULL)));
  PyObject_SetAttrString(type, "still", PyStaticMethod_New(PyCFunction_New(&static_step, NULL)));
  PyModule_AddObject(inner, "scale", PyCFunction_New(&methods[0], NULL));
  PyModule_AddObject(made, "Simulator", type);
  PyModule_AddObject(made, "inner", inner);
  return made;
}
"""


def build(source: str, file: Path, *options: str) -> Path:
    command = (COMPILER, "-x", "c", "-", "-O1", "-shared", "-fPIC", *options, "-o", str(file))
    subprocess.run(command, input=source, text=True, check=True)
    return file


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The library, in which every result has this offset."""
    folder = tmp_path_factory.mktemp("libraries")
    found: dict[int, Path] = {}

    def library(offset: int = 0) -> Path:
        if offset not in found:
            (folder / str(offset)).mkdir()
            found[offset] = build(LIBRARY, folder / str(offset) / "libtoy.so", f"-DOFFSET={offset}")
        return found[offset]

    return library


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extension that needs a library of torch, as those built by ``torch.utils.cpp_extension`` do."""
    folder = tmp_path_factory.mktemp("extension")
    torch_libraries = Path(torch.__file__).parent / "lib"
    options = (f"-I{sysconfig.get_paths()['include']}", "-Wl,--no-as-needed", f"-L{torch_libraries}", "-lc10")
    return build(EXTENSION, folder / "toy_extension.so", *options)


@pytest.fixture
def imported(extension: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Imports the extension anew."""
    monkeypatch.syspath_prepend(extension.parent)
    yield lambda: importlib.import_module("toy_extension")
    sys.modules.pop("toy_extension", None)


def toy(path: Path) -> Any:
    """The library as a program loads it."""
    library = ctypes.CDLL(str(path))
    library.scale.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float)
    library.scale.restype = None
    library.remember.argtypes = (ctypes.c_float,)
    library.twice.restype = ctypes.c_int64
    return library


def scaling(path: Path, factor: float = 2.0, start: float = 1.0) -> None:
    library = toy(path)
    x = torch.full((4,), start)
    out = torch.empty_like(x)
    library.scale(x.data_ptr(), out.data_ptr(), 4, factor)
    assert out[0] == x[0] * factor + (path.parent.name == "1")
    out + 1


def test_a_c_function(record: Record, libraries: Any, engine: str) -> None:
    """Its tensors are found by the addresses that the program asked for; what it wrote, later readers lead to."""
    got = record(lambda: scaling(libraries()), engine=engine)
    row, reader = got.one("libtoy"), got.named("add")[-1]
    assert row.op == "ctypes.libtoy.scale"
    assert row.scalars == ["T", "T", "i", "f"]
    assert (row.integers, row.floats) == ([4], [2.0])
    assert row.kernel["library"] == "libtoy.so"
    assert row.line == "library.scale(x.data_ptr(), out.data_ptr(), 4, factor)"
    assert row.inputs[0].row == got.one("full").index
    assert row.inputs[1].origin is Origin.OVERWRITTEN
    assert len(row.outputs) == 2
    assert (reader.inputs[0].row, reader.inputs[0].slot) == (row.index, 1)
    assert not row.marked
    assert not reader.marked


def test_ways_to_pass_an_address(record: Record, libraries: Any) -> None:
    """As a number, as a pointer, by reference, within a tensor, in an array; what is no address is a number."""
    library = toy(libraries())
    library.fill.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    floats = ctypes.POINTER(ctypes.c_float)
    with record.block() as got:
        x = torch.ones(4)
        library.step(ctypes.c_void_p(x.data_ptr()))
        library.step(ctypes.cast(x.data_ptr(), floats))
        library.step(ctypes.byref(ctypes.c_float.from_address(x.data_ptr())))
        library.step(ctypes.c_void_p(x.data_ptr() + 8))
        handle, number = np.zeros(1).ctypes.data, ctypes.c_int64(5)
        library.scale(x.data_ptr(), x.data_ptr(), 0, 1.0, ctypes.c_void_p(handle), handle, ctypes.byref(number))
        y, z = torch.zeros(1), torch.zeros(1)
        library.fill((ctypes.c_void_p * 2)(y.data_ptr(), z.data_ptr()), 2)
        assert library.twice(ctypes.c_int64(21)) == 42
        assert z.item() == 1
    called = [row.op for row in got.rows if row.op.startswith("ctypes")]
    assert called == [*["ctypes.libtoy.step"] * 4, "ctypes.libtoy.scale", "ctypes.libtoy.fill"]
    unknown = {"object": "Address"}
    assert got.named("libtoy")[4].scalars == ["T", "T", "i", "f", *[unknown] * 3], "they differ from run to run"
    fill = got.rows[-2]
    assert fill.scalars == [["T", "T"], "i"]
    steps = got.named("libtoy")[:4]
    assert [step.inputs[0].row for step in steps[1:]] == [step.index for step in steps[:-1]]


def test_memory_of_a_dead_tensor_is_nobodys(record: Record, libraries: Any) -> None:
    """An address is a tensor's as long as that exists, and keeps no tensor alive."""
    library = toy(libraries())
    memory = np.ones(4, dtype=np.float32)
    with record.block() as got:
        tensor = torch.from_numpy(memory)
        address = tensor.data_ptr()
        del tensor
        library.step(ctypes.c_void_p(address))
    assert "libtoy" not in got.ops


def test_both_engines(tmp_path: Path, libraries: Any, imported: Any, native_library: Any) -> None:
    """They write the same rows."""
    import rltrace

    paths = [tmp_path / f"{engine}.zarr" for engine in ("mode", "native")]
    for path in paths:
        with rltrace.record(path, engine=path.stem):
            scaling(libraries())
            imported().scale(torch.ones(4), torch.empty(4), 3.0).add(1)
            calls_against_schema()
    assert engines.differences(*paths) == []


def first(record: Record, a: Callable[[], object], b: Callable[[], object]) -> Finding:
    return compare(record(a).path, record(b).path).first


def test_planted_differences(record: Record, libraries: Any) -> None:
    """Another argument, another build of the library, state that no argument holds, another input."""
    plain = lambda: scaling(libraries())  # noqa: E731

    def with_state(value: float) -> None:
        library, x = toy(libraries()), torch.zeros(4)
        library.remember(value)
        library.step(ctypes.c_void_p(x.data_ptr()))

    found = first(record, plain, lambda: scaling(libraries(), 3.0))
    assert (found.op, found.cause) == ("ctypes.libtoy.scale", Cause.ARGUMENTS)
    found = first(record, plain, lambda: scaling(libraries(1)))
    assert (found.op, found.cause) == ("ctypes.libtoy.scale", Cause.KERNEL)
    found = first(record, lambda: with_state(1), lambda: with_state(2))
    assert (found.op, found.cause) == ("ctypes.libtoy.step", Cause.SAME_KERNEL)
    assert "it may have read state that is in no argument" in found.explanation
    found = first(record, plain, lambda: scaling(libraries(), start=2.0))
    assert (found.op, found.cause) == ("aten.full.default", Cause.ARGUMENTS)
    assert record(plain).chains == record(plain).chains


def test_an_extension(record: Record, imported: Any, engine: str) -> None:
    """A function of an extension that the program imports is one op, and its result a tensor as any."""
    with record.block(engine=engine) as got:
        module = imported()
        x, out = torch.ones(4), torch.empty(4)
        assert module.scale(x, out, 3.0) is out
        out + 1
        assert module.call(lambda tensor: tensor * 2, x).sum() == 8
        with pytest.raises(TypeError):
            module.scale(x)
    row, reader = got.one("toy_extension"), got.named("add")[0]
    assert row.op == "extension.toy_extension.scale"
    assert row.scalars == ["T", "T", "f"]
    assert row.inputs[1].origin is Origin.OVERWRITTEN
    assert reader.inputs[0].row == row.index
    assert not reader.marked
    assert "mul" in got.ops, "ops in a callback are rows"


def test_methods_of_an_extension(record: Record, imported: Any, engine: str) -> None:
    """Of Python's C API, of pybind11, static ones, the constructor, functions of a submodule: a row each."""
    with record.block(engine=engine) as got:
        module = imported()
        x = torch.ones(4)
        simulator = module.Simulator(x)
        for call in (simulator.step, simulator.bound, lambda out: module.Simulator.still(x, out, 2.0)):
            call(out := torch.empty(4))
            out + 1
        module.inner.scale(x, out, 3.0)
        simulator.tick(True)
        assert simulator.observe().mul(2)[0] == 2
        x - 1
    called = [row for row in got.rows if row.op.startswith("extension.")]
    methods = [f"Simulator.{name}" for name in ("__init__", "step", "bound", "still")]
    names = [*methods, "inner.scale", "Simulator.observe"]
    assert [row.op for row in called] == [f"extension.toy_extension.{name}" for name in names]
    assert [row.inputs[0].row for row in got.named("add")] == [row.index for row in called[1:4]]
    assert got.one("mul").inputs[0].row == called[-1].index, "what a method without tensors returned was written by it"
    assert got.one("sub").inputs[0].digest is not None, "the object may write what it was constructed with"
    assert not any(row.marked for row in got.rows)


@pytest.mark.parametrize(
    ("ticks", "use", "op", "cause"),
    [
        (False, lambda s, x: s.step(torch.empty(4)), "extension.toy_extension.Simulator.step", Cause.SAME_KERNEL),
        (False, lambda s, x: s.observe() @ x, "extension.toy_extension.Simulator.observe", Cause.SAME_KERNEL),
        (True, lambda s, x: x @ x, "aten.dot.default", Cause.UNTRACKED_WRITE),
    ],
    ids=["state", "result", "kept tensor"],
)
def test_state_of_an_object(record: Record, imported: Any, ticks: bool, use: Any, op: str, cause: Cause) -> None:
    """Which no argument holds: the method whose result differs, or the tensor that the object kept and wrote."""

    def program(times: int) -> None:
        x = torch.ones(4)
        simulator = imported().Simulator(x)
        for _ in range(times):
            simulator.tick(ticks)
        use(simulator, x)

    found = first(record, lambda: program(1), lambda: program(2))
    assert (found.op, found.cause) == (op, cause)


def test_functions_are_as_they_were(record: Record, libraries: Any, imported: Any) -> None:
    """While it is recorded a function of an extension shows its name, and afterwards nothing is replaced."""
    library, before = toy(libraries()), torch.Tensor.data_ptr
    with record.block():
        function: Any = imported().scale
        assert type(function) is ExtensionFunction
        assert (function.__name__, function.__doc__) == ("scale", "out = factor * x")
        assert repr(function).startswith("<built-in function scale")

        class Holder:
            scale = function

        x = torch.ones(4)
        assert Holder().scale(x, torch.empty(4), 2.0)[0] == 2
    assert torch.Tensor.data_ptr is before
    assert "__call__" not in vars(library._FuncPtr)
    module = imported()
    assert type(module.scale) is type(module.inner.scale) is BuiltinFunctionType
    kinds = {name: type(value).__name__ for name, value in vars(module.Simulator).items()}
    assert (kinds["step"], kinds["bound"]) == ("method_descriptor", "instancemethod")
    assert (kinds["still"], kinds["__init__"]) == ("staticmethod", "wrapper_descriptor")


def test_needed_libraries(extension: Path, libraries: Any, tmp_path: Path) -> None:
    """Read from the file; what is no library is refused."""
    assert "libc10.so" in needed_libraries(extension)
    assert "libc10.so" not in needed_libraries(libraries())
    (tmp_path / "text").write_text("no library, though long enough to hold a header")
    with pytest.raises(ValueError, match="no 64-bit ELF file"):
        list(needed_libraries(tmp_path / "text"))


# --- custom operators -------------------------------------------------------------------------------------------------


@torch.library.custom_op("rltrace_tests::fill_hidden", mutates_args=())
def fill_hidden(x: torch.Tensor, out: torch.Tensor) -> None:
    """Writes against its schema."""
    out.copy_(x * 2)


def calls_against_schema() -> None:
    for _ in range(2):
        x = torch.ones(4)
        out = torch.empty(4)
        fill_hidden(x, out)
        out + 1


def test_an_operator_that_writes_against_its_schema(record: Record, engine: str) -> None:
    """Memory that no op has written, and that a custom operator gets, is what it writes: its readers lead to it."""
    got = record(calls_against_schema, engine=engine)
    fills, readers = got.named("fill_hidden"), got.named("add")
    for fill, reader in zip(fills, readers, strict=True):
        assert len(fill.outputs) == 1
        assert reader.inputs[0].row == fill.index
        assert not fill.marked
        assert not reader.marked
