"""Runs and calls within this process, recorded and compared: what pytest fails with.

Owns the folder of their traces and of the report, which stay only where a comparison does not agree; and whether two
results have the same bits, which may differ where ``==`` holds (0.0 and -0.0) and not where it does not (NaN and
itself). Knows no pytest.
"""

import contextlib
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass, replace
from itertools import zip_longest
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import rltrace
from rltrace.command_lines import line
from rltrace.diff.base.model import Comparison, Verdict
from rltrace.diff.compare import compare
from rltrace.diff.metrics.distances import measure
from rltrace.extension import extensions
from rltrace.extensions.regression.lock import Lock, compare_locks, lock_of, read_lock, write_lock
from rltrace.extensions.regression.lock_check import LockCheck
from rltrace.extensions.regression.report import lock_document
from rltrace.query.ops import HoleLine, Line, OpLine, list_ops
from rltrace.recorder import current_session
from rltrace.report.diff import distances_text, verdict_document
from rltrace.report.text import document_text
from rltrace.selectors import EVERYTHING
from rltrace.trace.read.reader import open_trace
from rltrace.wording import counted


def copied(result: object) -> object:
    """A copy whose bits stay as they are now: of a module its state, of a dataclass its fields, by name."""
    match result:
        case torch.nn.Module():
            return copied(result.state_dict())
        case torch.Tensor():
            return result.detach().clone()
        case np.ndarray():
            return result.copy()
        case Mapping():
            return {key: copied(value) for key, value in result.items()}
        case list() | tuple():
            return [copied(value) for value in result]
    if is_dataclass(result) and not isinstance(result, type):
        return {field.name: copied(getattr(result, field.name)) for field in fields(result)}
    return result


def difference(a: object, b: object, at: str = "the result") -> str | None:
    """The first place where two copied results differ, and how; None: they have the same bits."""
    if type(a) is not type(b):
        return f"{at} is a {type(a).__name__} and a {type(b).__name__}"
    match a, b:
        case torch.Tensor(), torch.Tensor():
            return _of_arrays(at, _layout(a, a.device.type), _layout(b, b.device.type), *map(_elements, (a, b)))
        case ((np.ndarray() | np.generic()), (np.ndarray() | np.generic())):
            return _of_arrays(at, _layout(a), _layout(b), np.asarray(a), np.asarray(b))
        case ((float() | complex()), (float() | complex())):
            return difference(np.asarray(a), np.asarray(b), at) and f"{at} is {a!r} and {b!r}"
        case dict(), dict():
            if a.keys() != b.keys():
                return f"{at} has other keys: {min(map(repr, a.keys() ^ b.keys()))} on one side only"
            return _first((a[key], b[key], f"{at}[{key!r}]") for key in a)
        case list(), list():
            if len(a) != len(b):
                return f"{at} has {len(a):,} and {len(b):,} elements"
            return _first((x, y, f"{at}[{place}]") for place, (x, y) in enumerate(zip(a, b, strict=True)))
    return None if a == b else f"{at} is {a!r} and {b!r}"


def _first(pairs: Iterable[tuple[object, object, str]]) -> str | None:
    return next(filter(None, (difference(a, b, at) for a, b, at in pairs)), None)


def _layout(array: Any, device: str = "cpu") -> str:
    shape = ",".join(map(str, array.shape))
    return f"{str(array.dtype).removeprefix('torch.')}[{shape}]" + ("" if device == "cpu" else f"@{device}")


def _elements(tensor: torch.Tensor) -> NDArray[Any]:
    """The elements, each as its bytes."""
    flat = tensor.resolve_conj().resolve_neg().to_dense().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().view(f"V{flat.element_size()}")


def _of_arrays(at: str, layout_a: str, layout_b: str, a: NDArray[Any], b: NDArray[Any]) -> str | None:
    if layout_a != layout_b:
        return f"{at} is {layout_a} and {layout_b}"
    if a.tobytes() == b.tobytes():
        return None
    if a.dtype == object:
        return None if np.array_equal(a, b) else f"{at} has other elements"
    return f"{at}: {distances_text(measure(layout_a.partition('[')[0], a, b))}"


# --- runs -------------------------------------------------------------------------------------------------------------


REPORT = "report.html"


def _bottom(function: Callable[[], object]) -> object:
    """Call a function; recorded stacks end here, as its callers are the same or have no meaning."""
    return function()


def call_recorded(function: Callable[[], object], path: Path, level: str = "op") -> object:
    """What ``function`` returns, recorded into a new trace at ``path``."""
    with rltrace.record(path, level=level):
        session = current_session()
        if session is not None:
            session.end_stacks_at(_bottom.__code__)
        return _bottom(function)


class RecordedRuns:
    """Runs of one body: each is recorded, and compared with the first."""

    def __init__(self, folder: Path, runs: int, level: str) -> None:
        """``folder`` is replaced."""
        self._folder = folder
        self._runs = runs
        self._level = level
        self._number = 0
        self._diverged = False
        _replace(folder)

    def run(self, body: Callable[[], object]) -> None:
        """Run the body once more."""
        self._number += 1
        call_recorded(body, self._trace(self._number), self._level)

    def finding(self) -> str | None:
        """How the last run, which was not the first, differs from the first, and where the report is; None: it does
        not."""
        comparison = compare(self._trace(1), self._trace(self._number))
        if comparison.agrees:
            shutil.rmtree(self._trace(self._number))
            return None
        self._diverged = True
        return _finding(_diff_text(f"Runs 1 and {self._number} of {self._runs}", comparison), comparison, self._folder)

    def lock_finding(self, path: Path, command: tuple[str, ...]) -> str | None:
        """How the steps of the first run differ from those of a lock; None: they do not. Raises RltraceError."""
        comparison = compare_locks(read_lock(path), self._lock(command))
        if comparison.agrees:
            return None
        self._diverged = True
        again = line("lock", "--check", path, "--", *command)
        text = document_text(lock_document(LockCheck(path, comparison, 0, advice=(again,))))
        return f"{text}\n\nThis run\n  {self._trace(1)}"

    def write_lock(self, path: Path, command: tuple[str, ...]) -> None:
        """Write the lock of the first run. Raises RltraceError."""
        write_lock(path, self._lock(command))

    def _lock(self, command: tuple[str, ...]) -> Lock:
        return replace(lock_of(open_trace(self._trace(1))), command=command)

    def clean_up(self) -> None:
        """Remove the folder, unless runs diverged."""
        if not self._diverged:
            _remove(self._folder)

    def _trace(self, number: int) -> Path:
        return self._folder / f"run-{number}.zarr"


def compare_calls(
    folder: Path,
    f: Callable[[], object],
    g: Callable[[], object],
    under: AbstractContextManager[object] | None,
) -> str | None:
    """How what ``g`` returns, called within ``under``, differs from what ``f`` does; None: not in a bit."""
    _replace(folder)
    path_a, path_b = folder / "a.zarr", folder / "b.zarr"
    finding = None
    try:
        with _same_generators():
            a = copied(call_recorded(f, path_a))
        with under or nullcontext():
            b = copied(call_recorded(g, path_b))
        differs = difference(a, b)
        if differs is not None or (a is None and not compare(path_a, path_b).agrees):
            finding = _calls_finding(path_a, path_b, differs)
    finally:
        if finding is None:
            _remove(folder)
    return finding


@contextlib.contextmanager
def _same_generators() -> Iterator[None]:
    """Return Python's, NumPy's and torch's global generators to their states afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


# --- texts ------------------------------------------------------------------------------------------------------------


def _finding(text: str, comparison: Comparison, folder: Path) -> str:
    """``text`` and where to find more. Writes the report."""
    path_a, path_b = comparison.a.path, comparison.b.path
    diff = line("diff", path_a, path_b)
    found = f"{text}\n\nNext\n  {diff}"
    for name in filter(None, (extension.page for extension in extensions())):
        report = folder / REPORT
        report.write_text(resolve_name(name)(path_a, path_b, (diff,)), encoding="utf-8")
        found += f"\n\nReport\n  {report}"
    return found


def _calls_finding(a: Path, b: Path, differs: str | None) -> str:
    comparison = compare(a, b)
    is_matched = comparison.verdict is Verdict.DIVERGED
    how = _diff_text("The two calls", comparison) if is_matched else _first_in_order(a, b)
    return _finding("\n\n".join(filter(None, (differs, how))), comparison, a.parent)


def _diff_text(names: str, comparison: Comparison) -> str:
    """The words of ``rltrace diff``. Commands that run a program again are left out: that would be all of pytest."""
    return f"{names}: {document_text(verdict_document(replace(comparison, advice=())))}"


def _first_in_order(a: Path, b: Path) -> str:
    """The first op of two programs that differs, both read in order; for programs whose call sites differ."""
    lines = zip_longest(*(list_ops(open_trace(path), EVERYTHING) for path in (a, b)))
    for number, (of_a, of_b) in enumerate(lines):
        if _bits(of_a) != _bits(of_b):
            first = f"Both calls' ops in order: {counted(number, 'op')} of equal results, then"
            return "\n".join([first, *(f"  {side}  {_text(found)}" for side, found in (("A", of_a), ("B", of_b)))])
    return "Both calls' ops in order: all have equal results."


def _bits(found: Line | None) -> object:
    return (found.op, found.outputs) if isinstance(found, OpLine) else found


def _text(found: Line | None) -> str:
    if found is None:
        return "no further op"
    if isinstance(found, HoleLine):
        return found.why
    words = [found.op, " ".join(tensor.layout for tensor in found.inputs), f"({found.kernel})" if found.kernel else ""]
    at = f"at {found.site.file}:{found.site.line} in {found.site.function}" if found.site else ""
    return " ".join(filter(None, [*words, at]))


def _replace(folder: Path) -> None:
    """Make an empty folder."""
    _remove(folder)
    folder.mkdir(parents=True)


def _remove(folder: Path) -> None:
    """Remove a folder, and the one above it where that is empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
