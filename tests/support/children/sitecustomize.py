"""Runs in every Python process that a test starts: the garbage collector goes by less often, and not at the very end;
the compiler of torch and its decompositions are loaded by programs that use them.

Importing torch, and the compiler that its optimizers load, makes more than a million objects. Going through them again
and again, and once more when the interpreter ends, is a third of the processor time of a program of a few ops.

The compiler itself is another third. Optimizers load it only to tell it to keep out of them, which is about nothing as
long as nobody else has loaded it. From then on they tell it as ever.

Not in the process of the tests themselves, where most recordings are made, nor in one of the programs that
``tests/e2e/test_observer.py`` compares with themselves unrecorded, nor where it is tested how processes begin and end
(the fixture ``children_as_ever``): there the collector goes by as ever, and optimizers load the compiler.
"""

import atexit
import gc
import importlib
import sys
from importlib.machinery import PathFinder

gc.set_threshold(500_000, 10, 10)
atexit.register(gc.freeze)  # the first to be registered is the last to run

CHANGES = {
    "torch._compile": """
import sys

def _disable_dynamo(fn=None, recursive=True, _as_ever=_disable_dynamo):
    if fn is None:
        return functools.partial(_disable_dynamo, recursive=recursive)
    disabled = _as_ever(fn, recursive)

    @functools.wraps(fn)
    def inner(*args, **kwargs):
        return (disabled if "torch._dynamo" in sys.modules else fn)(*args, **kwargs)

    return inner
""",
    "torch.optim.optimizer": """
import sys

def _use_grad_for_differentiable(func, _as_ever=_use_grad_for_differentiable):
    with_compiler = _as_ever(func)

    @functools.wraps(func)
    def _use_grad(*args, **kwargs):
        if "torch._dynamo" in sys.modules:
            return with_compiler(*args, **kwargs)
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return _use_grad
""",
    "torch._decomp": """
import torch._meta_registrations

torch._meta_registrations.__spec__.loader.get_ready(torch._meta_registrations)
""",
}
"""Modules of torch, and what is run at the end of each, as if it stood there: no frame of a recorded site is ours."""


LAZY = "torch._meta_registrations"


def allow_generators(module):
    """What the last of these modules does for generators, and all that programs without a compiler need of them."""
    torch = sys.modules["torch"]
    if hasattr(torch._C, "_set_generator_metaclass"):
        torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)


class WithoutCompiler:
    """A finder that leaves each of these modules to the others, and adds to what its loader runs."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch._dynamo":
            importlib.import_module("torch._decomp")  # in the order that torch has
        if name not in CHANGES and name != LAZY:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module
        if name == LAZY:
            spec.loader.get_ready, spec.loader.exec_module = plain, allow_generators
            return spec

        def run(module):
            plain(module)
            exec(compile(CHANGES[name], spec.origin, "exec"), vars(module))

        spec.loader.exec_module = run
        return spec


sys.meta_path.insert(0, WithoutCompiler)
