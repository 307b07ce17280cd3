"""Launch rows of Triton's kernels.

Owns the patches of Triton. Nothing is imported that the program does not import, and a call gets the arguments that the
program passed. The parameters that a kernel may write follow from its source (``kernel_source.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from rltrace.extensions.launches.kernel_source import KernelSource, read_source
from rltrace.recorder.base.dispatch_mode import current_observer, popped_modes, pushed_modes
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.calls import op_tensors
from rltrace.recorder.core.kernel_launches import UNSEEN, KernelLaunch, without_address
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.regions import RegionName
from rltrace.recorder.core.storages import address_of
from rltrace.trace.kernels.evidence import TRITON

JIT: Final = "triton.runtime.jit"
INTERPRETER: Final = "triton.runtime.interpreter"
AUTOTUNER: Final = "triton.runtime.autotuner"


class _Kernel(NamedTuple):
    """What is known of a kernel before it is launched."""

    name: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, Any]
    source: KernelSource


class TritonLaunches:
    """The patches of Triton, from ``install`` to ``uninstall``.

    A launch is a call of ``JITFunction.run``, or of the interpreter's, to which an autotuner has added what it chose.
    The launches with which it chooses are no rows: how many there are depends on timing.
    """

    def __init__(self, process: ProcessState) -> None:
        self._process = process
        self._storages = process.storages
        self._fail = process.fail
        self._patches = Patches()
        self._kernels: WeakIdDict[Any, _Kernel] = WeakIdDict()
        self._launches: dict[tuple[object, ...], KernelLaunch] = {}
        self._tuning = threading.local()

    def install(self) -> None:
        if not self._patches:
            awaited = {JIT: self._patch("JITFunction"), INTERPRETER: self._patch("InterpretedFunction")}
            self._patches.on_import({**awaited, AUTOTUNER: self._patch_autotuner}, self._fail)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _patch(self, name: str) -> Callable[[Any], None]:
        return lambda module: self._patches.wrap(getattr(module, name), "run", self._run)

    def _patch_autotuner(self, module: Any) -> None:
        self._patches.wrap(module.Autotuner, "run", self._tuned)
        self._patches.wrap(module.Autotuner, "_bench", self._benchmark)

    def _run(self, original: Any, jit: Any, /, *args: Any, **kwargs: Any) -> Any:
        """In place of ``JITFunction.run(*args, grid=…, warmup=…, **kwargs)``."""
        if kwargs.get("warmup") or "grid" not in kwargs or current_observer() is None:
            return original(jit, *args, **kwargs)
        try:
            kernel = self._kernels.get(jit) or self._read(jit)
            bound = _bound(kernel, args, kwargs)
        except Exception as error:  # another version of Triton
            return self._unseen(error, jit, original, args, kwargs)
        if callable(kwargs["grid"]):
            kwargs["grid"] = kwargs["grid"](bound)  # once, as Triton would; it is part of the row
        try:
            launch, arguments = self._launch(jit, kernel, bound, kwargs)
        except Exception as error:  # an invalid call, which is Triton's to refuse, or another version
            return self._unseen(error, jit, original, args, kwargs)
        return launch.run(lambda: original(jit, *args, **kwargs), (), arguments)

    def _unseen(self, error: Exception, jit: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The launch without a row, which is reported where it is valid."""
        result = original(jit, *args, **kwargs)
        self._process.report_missing(UNSEEN, f"triton.{getattr(jit, '__name__', '?')} ({type(error).__name__})")
        return result

    def _read(self, jit: Any) -> _Kernel:
        function = jit.fn
        while not hasattr(function, "__code__"):
            function = function.fn
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        with_default = zip(names[len(names) - len(defaults) :], defaults, strict=True)
        found = _Kernel(function.__name__, names, dict(with_default), read_source(function))
        self._kernels[jit] = found
        return found

    def _launch(
        self, jit: Any, kernel: _Kernel, bound: dict[str, Any], kwargs: dict[str, Any]
    ) -> tuple[KernelLaunch, dict[str, Any]]:
        chosen = self._chosen(kernel, jit)
        options = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup", *kernel.parameters)}
        configuration = {name: _plain(bound[name]) for name in kernel.parameters if name in chosen}
        configuration |= {name: _plain(value) for name, value in options.items() if value is not None}
        configuration["grid"] = "×".join(str(int(side)) for side in kwargs["grid"])
        arguments = {name: _plain(value) for name, value in bound.items() if name not in configuration}
        key = id(jit), *configuration.items()
        launch = self._launches.get(key)
        if launch is None:
            evidence = {"library": TRITON, **configuration, "code": kernel.source.fingerprint}
            launch = self._launches[key] = KernelLaunch(
                RegionName(f"triton.{kernel.name}", evidence, ()),
                dict.fromkeys([name for name in arguments if name in kernel.source.written], False),
                self._storages,
            )
        return launch, arguments

    # --- autotuners -------------------------------------------------------------------------------------------------

    def _tuned(self, original: Any, tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
        outer = getattr(self._tuning, "tuner", None)
        self._tuning.tuner = tuner
        try:
            return original(tuner, *args, **kwargs)
        finally:
            self._tuning.tuner = outer

    def _benchmark(self, original: Any, tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Trial launches in one configuration: no rows, though they may write."""
        if current_observer() is None:
            return original(tuner, *args, **kwargs)
        try:
            with popped_modes() as others, pushed_modes(others):
                return original(tuner, *args, **kwargs)
        finally:
            try:
                self._storages.record_unseen_write(map(address_of, self._written(tuner, args, kwargs)))
            except Exception as error:
                self._fail(error)

    def _written(self, tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors that trials with these arguments may have written; a hook of the program may write any."""
        jit = tuner.fn
        while not hasattr(jit.fn, "__code__"):
            jit = jit.fn
        kernel = self._kernels.get(jit) or self._read(jit)
        hooked = getattr(tuner, "user_defined_pre_hook", True)
        bound = _bound(kernel, args, kwargs).items()
        return op_tensors([_plain(v) for name, v in bound if hooked or name in kernel.source.written], None)

    def _chosen(self, kernel: _Kernel, jit: Any) -> frozenset[str]:
        """The parameters that an autotuner, and not the program, has set for this launch."""
        tuner = getattr(self._tuning, "tuner", None)
        config = getattr(tuner, "best_config", None)
        if config is None or getattr(tuner, "base_fn", None) is not getattr(jit, "fn", None):
            return frozenset()
        return frozenset(config.kwargs).intersection(kernel.parameters)


def _bound(kernel: _Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a launch by name, in the kernel's order; an invalid call is Triton's to refuse."""
    given = {**kernel.defaults, **dict(zip(kernel.parameters, args, strict=False)), **kwargs}
    return {name: given[name] for name in kernel.parameters if name in given}


def _plain(value: Any) -> Any:
    """An argument as a row has it: tensors, numbers, text, and lists of these."""
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, str)):
        return without_address(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "base") and isinstance(value.base, torch.Tensor):  # a descriptor, or another dtype
        return value.base
    if hasattr(value, "value"):  # tl.constexpr
        return _plain(value.value)
    if isinstance(value, torch.dtype) or type(value).__name__ == "dtype":
        return str(value)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else value
