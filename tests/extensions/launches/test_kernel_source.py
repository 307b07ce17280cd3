"""The parameters that a kernel may write, from its source: never too few."""

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

import triton
import triton.language as tl
from triton.language import store as put

from rltrace.extensions.launches.triton_launches import read_source

# Triton reads annotations as types of its own


@triton.jit
def helper(target, value, places):
    tl.store(target + places, value)


@triton.jit
def passing(a, b, n):
    return b + n


def plain(x, out, n):
    tl.store(out + n, tl.load(x + n))


def through_variables(x, out, other, n):
    base = out
    for k in range(n):
        base += k
        pointer, value = base, tl.load(x + k)
        tl.store(pointer, value)
    other + 1


def through_a_function(x, out, n):
    helper(value=tl.load(x), target=out, places=n)


def through_what_a_function_returns(x, out, n):
    tl.store(passing(x, out, n), 1)


def atomically(x, counts, n):
    tl.atomic_add(counts + n, 1)


def by_descriptor(x, out, n):
    source = tl.make_tensor_descriptor(x, [n], [1], [16])
    target = tl.make_tensor_descriptor(out, [n], [1], [16])
    target.store([0], source.load([0]))


def under_another_name(x, out, n):
    put(out, tl.load(x))


def by_keyword(x, out, n):
    tl.store(value=x, pointer=out)


def to_unknown_code(x, out, n, activation):
    activation(out, tl.load(x))


def to_loaded_addresses(x, out, n):
    tl.store(tl.load(x + n).to(tl.pointer_type(tl.float32)), n)


def from_a_list(x, out, n):
    [tl.store(pointer, n) for pointer in (x, out)]


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (plain, {"out"}),
        (through_variables, {"out"}),
        (through_a_function, {"out"}),
        (through_what_a_function_returns, {"x", "out"}),
        (atomically, {"counts"}),
        (by_descriptor, {"out"}),
        (under_another_name, {"out"}),
        (by_keyword, {"x", "out"}),
        (to_unknown_code, {"out"}),
        (to_loaded_addresses, {"x", "out", "n"}),
        (from_a_list, {"x", "out", "n"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_written_parameters(kernel: Any, written: set[str]) -> None:
    """Those that reach the address of a store; all of them where an address comes from no parameter."""
    assert read_source(kernel).written - {"n"} == written - {"n"}


def test_without_a_source_any_may_be_written() -> None:
    names: dict[str, Any] = {}
    exec("def kernel(x, out): pass", names)
    found = read_source(names["kernel"])
    assert (found.written, found.fingerprint) == ({"x", "out"}, "")


def test_the_fingerprint_is_of_the_code() -> None:
    """Not of comments, nor of the configurations to choose from; of the functions that are called, too."""

    def kernel(x, out, n):
        tl.store(out, 1)  # ones

    first = read_source(kernel).fingerprint

    def kernel(x, out, n):
        tl.store(out, 1)

    assert read_source(kernel).fingerprint == first

    def kernel(x, out, n):
        tl.store(out, 2)

    assert read_source(kernel).fingerprint != first
    assert read_source(through_a_function).fingerprint != read_source(plain).fingerprint
