"""The command line of a ``repro.py``: applies settings, runs the ops and reports which recorded results they give.

Part of rltrace, and copied into every folder that ``rltrace repro`` writes. Needs torch and NumPy, and ``runner.py``
and ``torch_flags.py`` in the same folder.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._C._autograd import DeviceType

from rltrace.rerun.runner import (
    SECONDS,
    TIMES,
    OpCall,
    Outcome,
    ResultDigests,
    aligned,
    logical_bytes,
    prepare_call,
    repeat,
    summary,
)
from rltrace.rerun.torch_flags import COMPONENTS, SWITCHES, read_switches, temporary_switches

MAX_SHOWN = 8
"""Results that are printed, recorded ones first."""


@dataclass(frozen=True)
class RecordedSide:
    """The settings of one recorded run."""

    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Recorded variables that choose kernels."""
    switches: Mapping[str, Any] = field(default_factory=dict)
    """Switches of torch (``torch_flags``) that differed from those of a fresh process."""
    alignments: tuple[int, ...] | None = None
    """Address of each storage modulo 64, of one op; None: those of its inputs."""
    torch: str = ""
    processor: str = ""
    kernel: str = ""


VARIABLES = {
    "cpu_capability": "ATEN_CPU_CAPABILITY",
    "mkl_cbwr": "MKL_CBWR",
    "onednn_isa": "ONEDNN_MAX_CPU_ISA",
    "omp_threads": "OMP_NUM_THREADS",
}
"""Options for variables that libraries read when they are loaded."""


TensorDigest = Callable[[str, tuple[int, ...], bytes], str]
"""The digest of a tensor by dtype, shape and elements in row-major order."""


def short_sha256(dtype: str, shape: tuple[int, ...], data: bytes) -> str:
    """The SHA-256 of dtype, shape and elements, shortened: fast, where rltrace's own digest is not."""
    return sha256(f"{dtype}{list(shape)}".encode() + data).hexdigest()[:16]


def main(
    what: str, ops: Sequence[OpCall], sides: Mapping[str, RecordedSide], digest: TensorDigest = short_sha256
) -> None:
    """Run the ops under the options of the command line, on ``memory.npz`` beside the script, and print the results.

    ``digest``: the one of the recorded results; the trace's for one op, else that of modules. Of a module's ops the
    first that gives other bits is printed; the script ends with 1 if there is one.
    """
    of_module = digest is short_sha256
    options = _options(sides, several=of_module)
    _restart_under(_environment(options, sides))
    as_ = _chosen(options, sides)
    threads = options.threads or (None if options.omp_threads else as_.threads)
    if threads:
        torch.set_num_threads(threads)
    _check_devices({device for op in ops for device in op.devices})
    requested = _requested(options)
    switches = _switches({"deterministic_algorithms": "off", **as_.switches}, requested)
    with temporary_switches(switches):
        ops = [_placed(replace(op, settings=_switches(op.settings, requested)), options.alignment, as_) for op in ops]
        ops = _loaded(ops)
        times, seconds = options.times or (1 if of_module else TIMES), math.inf if options.times else SECONDS
        found = repeat(ops, times, _memo(digest), seconds)  # the first call may give something else
        launched = _launched(ops[0]) if options.kernels else []
        if options.kernels:
            _print_library_kernels(ops)
        here = _here(switches, ops) | ({"kernels": launched} if launched else {})
    if options.json:
        print(json.dumps(_as_json(what, found, ops, here)))
    elif not of_module:
        print(_as_text(what, found, ops[0], here))
    else:
        differing = [i for i, results in enumerate(next(iter(found))) if results not in ops[i].results.values()]
        print(_differences(found, ops, differing, as_, here))
        sys.exit(1 if differing else 0)


def _loaded(ops: Sequence[OpCall]) -> list[OpCall]:
    """The ops with what ``memory.npz`` holds in place of its names there."""
    with np.load(Path(sys.argv[0]).absolute().parent / "memory.npz") as stored:
        memory = {name: stored[name] for name in stored.files}
    return [
        replace(
            op,
            contents={number: memory[name] for number, name in op.contents.items()},
            generator=op.generator and replace(op.generator, state=memory[op.generator.state]),
        )
        for op in ops
    ]


def _chosen(options: argparse.Namespace, sides: Mapping[str, RecordedSide]) -> RecordedSide:
    """The side whose settings are applied."""
    return sides.get(options.as_ or "", next(iter(sides.values())))


def _options(sides: Mapping[str, RecordedSide], *, several: bool) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the ops on the recorded memory; do they give the recorded bits?")
    default = "once" if several else f"{TIMES}, within {SECONDS} seconds"
    parser.add_argument("--times", type=int, metavar="N", help=f"number of runs; default: {default}")
    parser.add_argument("--as", dest="as_", choices=[*sides], help="with all settings of this recorded run")
    parser.add_argument("--threads", type=int, metavar="N", help="torch.set_num_threads; default: as recorded")
    parser.add_argument("--deterministic", action="store_true", help="torch.use_deterministic_algorithms")
    parser.add_argument("--tf32", choices=["on", "off"], help="TF32 in matrix products and convolutions on a GPU")
    for option, variable in VARIABLES.items():
        parser.add_argument(f"--{option.replace('_', '-')}", metavar="VALUE", help=f"{variable}, set before the start")
    more = f"any other variable, or a switch of torch: {', '.join(SWITCHES)}"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=more)
    parser.add_argument("--alignment", type=int, choices=(4, 8, 16, 32, 64), help="of inputs; default: as recorded")
    parser.add_argument("--kernels", action="store_true", help="report what ran: from oneDNN and MKL, GPU kernels")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.times is not None and options.times < 1:
        parser.error("--times: at least once")
    if options.kernels and several:
        parser.error("--kernels: of one op")
    for text in options.set:
        name, equals, _ = text.partition("=")
        if not equals or not (name in SWITCHES or name.isupper()):
            parser.error(f"--set {text}: give NAME=VALUE, a variable or one of {', '.join(SWITCHES)}")
    return options


def _requested(options: argparse.Namespace) -> dict[str, Any]:
    """The switches that the command line sets."""
    found = {"deterministic_algorithms": "on"} if options.deterministic else {}
    found |= {"tf32": options.tf32} if options.tf32 else {}
    given = (text.partition("=")[::2] for text in options.set)
    return found | {name: value for name, value in given if name in SWITCHES}


def _switches(recorded: Mapping[str, Any], requested: Mapping[str, Any]) -> dict[str, Any]:
    """The switches to set: recorded ones, but for those that are requested, or that a requested one sets."""
    replaced = {*requested, *(part for name in requested for part in COMPONENTS.get(name, ()))}
    return {name: value for name, value in recorded.items() if name not in replaced} | {**requested}


def _placed(op: OpCall, alignment: int | None, as_: RecordedSide) -> OpCall:
    """The op with its inputs at exactly this alignment, or at that of the run."""
    known = as_.alignments or ()
    chosen = dict(enumerate(known)) if len(known) == len(_alignments([op])) else {}
    chosen = chosen if alignment is None else aligned(op, alignment)
    inputs = (replace(spec, alignment=chosen.get(spec.storage, spec.alignment)) for spec in op.inputs)
    return replace(op, inputs=tuple(inputs))


def _alignments(ops: Sequence[OpCall]) -> list[int]:
    """That of each storage."""
    return list({spec.storage: spec.alignment for op in ops for spec in op.inputs}.values())


def _environment(options: argparse.Namespace, sides: Mapping[str, RecordedSide]) -> dict[str, str | None]:
    """Variables to set; None: to unset."""
    environment: dict[str, str | None] = {}
    if options.as_ is not None:
        others = {name for side in sides.values() for name in side.environment}
        environment = {name: sides[options.as_].environment.get(name) for name in sorted(others)}
    requested = {variable: getattr(options, option) for option, variable in VARIABLES.items()}
    more = (text.partition("=")[::2] for text in options.set)
    requested |= {name: value for name, value in more if name not in SWITCHES}
    return environment | {variable: value for variable, value in requested.items() if value is not None}


def _restart_under(changes: Mapping[str, str | None]) -> None:
    """Restart with these variables, unless they are set: torch and MKL read them at the start."""
    if all(os.environ.get(name) == value for name, value in changes.items()):
        return
    environment = {name: value for name, value in os.environ.items() if name not in changes}
    environment |= {name: value for name, value in changes.items() if value is not None}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _check_devices(devices: set[str]) -> None:
    for device in devices:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            sys.exit(f"it ran on {device}, which does not exist here: {str(error).splitlines()[0]}")


def _print_library_kernels(ops: Sequence[OpCall]) -> None:
    """Make one call during which oneDNN and MKL print their kernels to standard output."""
    with ExitStack() as stack:
        for library in (torch.backends.mkldnn, torch.backends.mkl):
            if library.is_available():
                stack.enter_context(library.verbose(library.VERBOSE_ON))
        repeat(ops, 1, lambda tensor: "")
    ctypes.CDLL(None).fflush(None)  # C output before Python output


def _launched(op: OpCall) -> list[str]:
    """Names of the kernels that one call launches on a GPU, in order, from torch's profiler."""
    if not any(device.startswith("cuda") for device in op.devices):
        return []
    repeat([op], 1, lambda tensor: "")  # autotuning happens at the first call
    call = prepare_call(op)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    found = [event for event in profiler.profiler.kineto_results.events() if event.device_type() != DeviceType.CPU]
    names = [event.name() for event in sorted(found, key=lambda event: event.start_ns())]
    return [torch._C._demangle(name) if name.startswith("_Z") else name for name in names]


def _memo(digest: TensorDigest) -> Callable[[torch.Tensor], str]:
    """The digest of a tensor, computed once for equal bytes: in plain Python it is slow."""
    known: dict[tuple[Any, ...], str] = {}

    def of(tensor: torch.Tensor) -> str:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            sys.exit(f"an op returned a tensor of layout {tensor.layout}, whose digest this script cannot compute")
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(map(int, tensor.shape))
        data = logical_bytes(tensor)
        key = dtype, shape, hash(data)
        if key not in known:
            known[key] = digest(dtype, shape, data)
        return known[key]

    return of


def _as_json(what: str, found: Mapping[Outcome, int], ops: Sequence[OpCall], here: Mapping[str, Any]) -> dict[str, Any]:
    times = sum(found.values())
    return {
        "schema": "rltrace.rerun/1",
        "op": what,
        "times": times,
        "repeats": len(found) == 1 if times > 1 else None,
        "results": [
            {"digests": [text for results in outcome for text in results], "count": count, "of": _sides(ops, outcome)}
            for outcome, count in found.items()
        ],
        "here": dict(here),
    }


def _sides(ops: Sequence[OpCall], outcome: Outcome) -> list[str]:
    """The recorded runs that gave all of these results."""
    return [side for side in ops[0].results if outcome == tuple(op.results.get(side) for op in ops)]


def _here(switches: Mapping[str, Any], ops: Sequence[OpCall]) -> dict[str, Any]:
    """The settings of this process; of the switches, those that were set."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIXES)},
        "switches": read_switches([*switches]),
        "alignments": _alignments(ops),
    }


PREFIXES = ("ATEN_", "CUBLAS", "CUDNN_", "DISABLE_ADDMM_CUDA_LT", "MKL_", "NVIDIA_TF32_", "OMP_", "ONEDNN_", "TORCH_")
"""Prefixes of the reported variables."""


def _as_text(what: str, found: Mapping[Outcome, int], op: OpCall, here: Mapping[str, Any]) -> str:
    """The report on one op."""
    lines = [what, f"  {', '.join(_settings(here))}", f"  {summary(found)}"]
    lines += [f"  kernel  {kernel}" for kernel in here.get("kernels", ())]
    ranked = sorted(found.items(), key=lambda item: (not _sides([op], item[0]), -item[1]))
    for outcome, count in ranked[:MAX_SHOWN]:
        lines.append(f"  {count:>6,} x {_short(outcome[0])}  {_recorded_by(op, outcome)}")
    if len(ranked) > MAX_SHOWN:
        lines.append(f"         and {len(ranked) - MAX_SHOWN:,} more, {_recorded_by(op, ())}")
    return "\n".join(lines)


def _differences(
    found: Mapping[Outcome, int],
    ops: Sequence[OpCall],
    differing: Sequence[int],
    as_: RecordedSide,
    here: Mapping[str, Any],
) -> str:
    """The report on several ops; ``differing``: which of them gave other bits in the first run."""
    repeats = [summary(found)] if sum(found.values()) > 1 else []
    if not differing:
        return "\n".join([f"BITWISE  {len(ops):,} ops: the recorded bits", *repeats])
    first = ops[differing[0]]
    recorded = {"threads": as_.threads, "torch": as_.torch, "processor": as_.processor, **as_.environment}
    return "\n".join(
        [
            f"DIFFERS  {len(differing):,} of {len(ops):,} ops give other bits here",
            *repeats,
            f"first     {first.name}, op {differing[0]} of these",
            f"at        {first.where}",
            f"recorded  {' '.join(next(iter(first.results.values())))}",
            f"here      {' '.join(next(iter(found))[differing[0]])}",
            f"recorded with  {', '.join(f'{name} {value}' for name, value in recorded.items() if value)}",
            f"here with      {', '.join(_settings(here))}",
        ]
    )


def _settings(here: Mapping[str, Any]) -> list[str]:
    settings = [f"{here['threads']} thread{'s' if here['threads'] != 1 else ''}", f"torch {here['torch']}"]
    settings.append(f"CPU capability {here['cpu_capability']}")
    settings += ["deterministic algorithms"] if here["deterministic"] else []
    switches = {name: value for name, value in here["switches"].items() if name != "deterministic_algorithms"}
    settings += [f"{name}={value}" for name, value in (*here["environment"].items(), *switches.items())]
    odd = sorted({*here["alignments"]} - {0})
    return settings + [f"inputs {alignment} bytes past a multiple of 64" for alignment in odd]


def _short(results: ResultDigests) -> str:
    more = f" and {len(results) - 2} more" if len(results) > 2 else ""
    return " ".join(results[:2]) + more or "(no result)"


def _recorded_by(op: OpCall, outcome: Outcome) -> str:
    """``A's``, ``A's and B's``, ``neither A's nor B's``."""
    names = [f"{side.upper()}'s" for side in op.results]
    found = [f"{side.upper()}'s" for side in _sides([op], outcome)]
    return " and ".join(found) or f"{'neither' if len(names) > 1 else 'not'} {' nor '.join(names)}"
