"""Calls one op again and again on the same inputs and counts what comes out. Needs torch and NumPy, nothing else.

Part of rltrace, and copied as it is into every folder that ``rltrace repro`` writes; ``main`` is what a ``repro.py``
runs. Inputs are laid into fresh memory for every call, as they lay when they were recorded: the same strides, the same
storage for those that shared one, the same alignment. Nothing of the process is changed that is not put back, but for
the settings that ``main`` is asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

ALIGNMENT = 64


@dataclass(frozen=True)
class Tensor:
    """One tensor argument."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    storage: int = 0
    """Which of the storages it lies in."""
    offset: int = 0
    """Bytes from the beginning of that."""
    device: str = "cpu"
    conjugated: bool = False
    negated: bool = False
    """The storage holds the lazy conjugate, the negative, of what the op sees."""

    @property
    def span(self) -> int:
        """Bytes from its first element to the end of its last."""
        if 0 in self.shape:
            return 0
        itemsize: int = getattr(torch, self.dtype).itemsize
        return itemsize * (1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)))


@dataclass(frozen=True)
class Generator:
    """What an op draws from."""

    device: str
    state: Any
    """As ``torch.Generator.get_state`` gave it before the op, uint8."""
    given: bool
    """It was an argument of the op; False: the one that the device has by itself."""


@dataclass(frozen=True)
class Case:
    """One op, its arguments, and what of it counts as its result."""

    call: Callable[[list[torch.Tensor], torch.Generator | None], Any]
    """Calls the op with these tensors."""
    tensors: Sequence[Tensor]
    storages: Sequence[Any]
    """Bytes of each, uint8."""
    alignments: Sequence[int] = ()
    """Address of each modulo ALIGNMENT; empty: 0."""
    written: tuple[int, ...] = ()
    """Which tensors the op writes: results, too, and the first ones."""
    returned: tuple[int, ...] | None = None
    """Which of several things that it returns are results; None: whatever it returns."""
    generator: Generator | None = None


Outcome = tuple[str, ...]
"""A fingerprint for each result: of a tensor its digest, of a number its ``repr``."""


def repeat(case: Case, times: int, fingerprint: Callable[[torch.Tensor], str]) -> dict[Outcome, int]:
    """Every outcome of ``times`` calls and how often it came, in the order in which they were first seen.

    What the op itself raises is raised. Generators are left as they were.
    """
    found: dict[Outcome, int] = {}
    with torch.no_grad(), _generators_kept(case.generator):
        for _ in range(times):
            tensors = build(case)
            results = _results(case, tensors, case.call(tensors, _ready(case.generator)))
            outcome = tuple(fingerprint(r) if isinstance(r, torch.Tensor) else repr(r) for r in results)
            found[outcome] = found.get(outcome, 0) + 1
    return found


def build(case: Case) -> list[torch.Tensor]:
    """The tensor arguments, in fresh memory."""
    devices = {tensor.storage: tensor.device for tensor in case.tensors}
    alignments = case.alignments or [0] * len(case.storages)
    memory = {number: _memory(case.storages[number], alignments[number], device) for number, device in devices.items()}
    return [_tensor(tensor, memory[tensor.storage]) for tensor in case.tensors]


def _memory(data: Any, alignment: int, device: str) -> torch.Tensor:
    """``data`` at an address that is ``alignment`` modulo ALIGNMENT."""
    room = torch.empty(len(data) + 2 * ALIGNMENT, dtype=torch.uint8, device=device)
    start = (alignment - room.data_ptr()) % ALIGNMENT
    part = room[start : start + len(data)]
    part.copy_(torch.from_numpy(np.array(data)))
    return part


def _tensor(spec: Tensor, memory: torch.Tensor) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if not spec.span:
        return torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device=spec.device)
    plain = torch.empty(0, dtype=dtype, device=spec.device)
    first, rest = divmod(int(memory.storage_offset()) + spec.offset, dtype.itemsize)
    if rest:
        raise ValueError(f"a {spec.dtype} tensor cannot begin {rest} bytes off its own size")
    made = plain.set_(memory.untyped_storage(), first, spec.shape, spec.strides)
    made = made.conj() if spec.conjugated else made
    return torch._neg_view(made) if spec.negated else made


def _results(case: Case, tensors: list[torch.Tensor], out: Any) -> list[Any]:
    """What was written and what was returned, in that order."""
    if case.returned is not None:
        out = [out[i] for i in case.returned] if isinstance(out, (tuple, list)) else [out][: len(case.returned)]
    return [*(tensors[place] for place in case.written), *_flat(out)]


def _flat(out: Any) -> Iterator[Any]:
    if isinstance(out, (tuple, list)):
        for item in out:
            yield from _flat(item)
    elif out is not None:
        yield out


def _default(device: str) -> torch.Generator:
    found = torch.device(device)
    if found.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[found.index or 0]


def _ready(spec: Generator | None) -> torch.Generator | None:
    """The generator in its state; the one to hand to the op, if it is handed one."""
    if spec is None:
        return None
    generator = torch.Generator(spec.device) if spec.given else _default(spec.device)
    generator.set_state(torch.from_numpy(np.array(spec.state)))
    return generator


@contextmanager
def _generators_kept(spec: Generator | None) -> Iterator[None]:
    if spec is None or spec.given:
        yield
        return
    before = _default(spec.device).get_state()
    try:
        yield
    finally:
        _default(spec.device).set_state(before)


# --- what a repro.py runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """What one run recorded of the op, and the settings it ran under."""

    results: Outcome
    threads: int | None = None
    deterministic: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that choose kernels, as they were set."""
    torch: str = ""
    processor: str = ""
    kernel: str = ""


VARIABLES = {
    "cpu_capability": "ATEN_CPU_CAPABILITY",
    "mkl_cbwr": "MKL_CBWR",
    "onednn_isa": "ONEDNN_MAX_CPU_ISA",
    "omp_threads": "OMP_NUM_THREADS",
}
"""Options for what libraries read when they are loaded."""


def main(
    name: str,
    call: Callable[[list[torch.Tensor], torch.Generator | None], Any],
    tensors: Sequence[Tensor],
    *,
    sides: Mapping[str, Side],
    written: tuple[int, ...] = (),
    returned: tuple[int, ...] | None = None,
    generator: tuple[str, bool] | None = None,
) -> None:
    """Run the op as the command line asks and print what came out. ``inputs.npz`` lies beside the script."""
    options = _options(sides)
    _restart_under(_environment(options, sides))
    first = next(iter(sides.values()))
    as_ = sides.get(options.as_ or "", first)
    threads = options.threads or (None if options.omp_threads else as_.threads)
    if threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(options.deterministic or as_.deterministic)
    if options.tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.tf32 == "on"
    _check_devices({tensor.device for tensor in tensors} | ({generator[0]} if generator else set()))
    with np.load(Path(sys.argv[0]).absolute().parent / "inputs.npz") as inputs:
        storages = [inputs[f"storage_{i}"] for i in range(int(inputs["storages"]))]
        spec = None if generator is None else Generator(generator[0], inputs["generator"], generator[1])
        case = Case(call, tensors, storages, inputs["alignments"].tolist(), written, returned, spec)
    found = repeat(case, options.times, _memo(_fingerprint))
    print(json.dumps(_as_json(name, found, sides)) if options.json else _as_text(name, found, sides))


def _options(sides: Mapping[str, Side]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the op on the recorded inputs; does it give the recorded bits?")
    parser.add_argument("--times", type=int, default=20, metavar="N", help="how often; default: %(default)s")
    parser.add_argument("--as", dest="as_", choices=[*sides], help="under what this run was recorded under")
    parser.add_argument("--threads", type=int, metavar="N", help="torch.set_num_threads; default: as recorded")
    parser.add_argument("--deterministic", action="store_true", help="torch.use_deterministic_algorithms")
    parser.add_argument("--tf32", choices=["on", "off"], help="TF32 in matrix products and convolutions on a GPU")
    for option, variable in VARIABLES.items():
        parser.add_argument(f"--{option.replace('_', '-')}", metavar="VALUE", help=f"{variable}, from the start")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    if options.times < 1:
        parser.error("--times: once is the least")
    return options


def _environment(options: argparse.Namespace, sides: Mapping[str, Side]) -> dict[str, str | None]:
    """Variables that are to be set, or (None) not to be."""
    wanted: dict[str, str | None] = {}
    if options.as_ is not None:
        others = {name for side in sides.values() for name in side.environment}
        wanted = {name: sides[options.as_].environment.get(name) for name in sorted(others)}
    asked = {variable: getattr(options, option) for option, variable in VARIABLES.items()}
    return wanted | {variable: value for variable, value in asked.items() if value is not None}


def _restart_under(wanted: Mapping[str, str | None]) -> None:
    """Start anew under these variables, unless they are as they should be: torch and MKL read them when they start."""
    if all(os.environ.get(name) == value for name, value in wanted.items()):
        return
    environment = {name: value for name, value in os.environ.items() if name not in wanted}
    environment |= {name: value for name, value in wanted.items() if value is not None}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _check_devices(devices: set[str]) -> None:
    for device in devices:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            sys.exit(f"the op ran on {device}, which there is not here: {str(error).splitlines()[0]}")


def _fingerprint(tensor: torch.Tensor) -> str:
    from digest import tensor_digest  # type: ignore[import-not-found]  # lies beside this file in a repro folder

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        sys.exit(f"the op returned a tensor of layout {tensor.layout}, whose digest this script cannot compute")
    shape = tuple(map(int, tensor.shape))
    return f"{tensor_digest(str(tensor.dtype).removeprefix('torch.'), shape, logical_bytes(tensor)):016x}"


def logical_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order."""
    if not tensor.numel():
        return b""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    data: bytes = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
    return data


def _memo(fingerprint: Callable[[torch.Tensor], str]) -> Callable[[torch.Tensor], str]:
    """The digest in plain Python is slow: take it once of each result, told apart by its bytes."""
    known: dict[tuple[Any, ...], str] = {}

    def of(tensor: torch.Tensor) -> str:
        key = (tensor.dtype, tuple(tensor.shape), hash(logical_bytes(tensor)) if tensor.layout is torch.strided else 0)
        if key not in known:
            known[key] = fingerprint(tensor)
        return known[key]

    return of


def _as_json(name: str, found: Mapping[Outcome, int], sides: Mapping[str, Side]) -> dict[str, Any]:
    times = sum(found.values())
    return {
        "schema": "rltrace.rerun/1",
        "op": name,
        "times": times,
        "repeats": len(found) == 1 if times > 1 else None,
        "results": [
            {"digests": outcome, "count": count, "is": [side for side in sides if sides[side].results == outcome]}
            for outcome, count in found.items()
        ],
        "here": _here(),
    }


def _here() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "environment": {name: os.environ[name] for name in VARIABLES.values() if name in os.environ},
    }


def _as_text(name: str, found: Mapping[Outcome, int], sides: Mapping[str, Side]) -> str:
    here = _here()
    settings = [f"{here['threads']} thread{'s' if here['threads'] != 1 else ''}", f"torch {here['torch']}"]
    settings.append(f"CPU capability {here['cpu_capability']}")
    settings += ["deterministic algorithms"] if here["deterministic"] else []
    settings += [f"{variable}={value}" for variable, value in here["environment"].items()]
    times = sum(found.values())
    if times == 1:
        verdict = "it ran once"
    elif len(found) == 1:
        verdict = f"it repeats itself: {times} runs, one result"
    else:
        verdict = f"it DOES NOT REPEAT itself: {times} runs, {len(found)} results"
    lines = [name, f"  {', '.join(settings)}", f"  {verdict}"]
    for outcome, count in sorted(found.items(), key=lambda item: -item[1]):
        whose = " and ".join(f"{side.upper()}'s" for side in sides if sides[side].results == outcome)
        none = f"not {' nor '.join(f'{side.upper()}' + chr(39) + 's' for side in sides)}"
        lines.append(f"  {count:>6} x {' '.join(outcome)[:80] or '(no result)'}  {whose or none}")
    return "\n".join(lines)
