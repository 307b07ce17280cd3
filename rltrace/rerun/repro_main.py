"""The command line of a ``repro.py``: applies settings, calls the op and reports which recorded results it gives.

Part of rltrace, and copied into every folder that ``rltrace repro`` writes. Needs torch and NumPy, and ``digest.py``,
``runner.py`` and ``torch_flags.py`` in the same folder.
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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._C._autograd import DeviceType

from rltrace.rerun.runner import (
    SECONDS,
    TIMES,
    OpCase,
    ResultDigests,
    RngState,
    TensorSpec,
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
    """The results of the op in one recorded run, and the settings of that run."""

    results: ResultDigests
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Recorded variables that choose kernels."""
    switches: Mapping[str, Any] = field(default_factory=dict)
    """Switches of torch (``torch_flags``) that differed from those of a fresh process."""
    alignments: tuple[int, ...] | None = None
    """Address of each storage of the inputs modulo 64; None: not known."""
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


def main(
    name: str,
    call: Callable[[list[torch.Tensor], torch.Generator | None], Any],
    tensors: Sequence[TensorSpec],
    *,
    sides: Mapping[str, RecordedSide],
    written: tuple[int, ...] = (),
    returned: tuple[int, ...] | None = None,
    generator: tuple[str, bool] | None = None,
) -> None:
    """Run the op under the options of the command line, on the ``inputs.npz`` beside the script; prints the results."""
    options = _options(sides)
    _restart_under(_environment(options, sides))
    as_ = _chosen(options, sides)
    threads = options.threads or (None if options.omp_threads else as_.threads)
    if threads:
        torch.set_num_threads(threads)
    switches = _switches(options, as_)
    with temporary_switches(switches):
        _run(name, call, tensors, options, sides, switches, written=written, returned=returned, generator=generator)


def _run(
    name: str,
    call: Callable[[list[torch.Tensor], torch.Generator | None], Any],
    tensors: Sequence[TensorSpec],
    options: argparse.Namespace,
    sides: Mapping[str, RecordedSide],
    switches: Mapping[str, Any],
    *,
    written: tuple[int, ...],
    returned: tuple[int, ...] | None,
    generator: tuple[str, bool] | None,
) -> None:
    as_ = _chosen(options, sides)
    _check_devices({tensor.device for tensor in tensors} | ({generator[0]} if generator else set()))
    with np.load(Path(sys.argv[0]).absolute().parent / "inputs.npz") as inputs:
        storages = [inputs[f"storage_{i}"] for i in range(int(inputs["storages"]))]
        spec = None if generator is None else RngState(generator[0], inputs["generator"], generator[1])
        case = OpCase(call, tensors, storages, inputs["alignments"].tolist(), written, returned, spec)
    case = _placed(case, options.alignment, as_)
    seconds = SECONDS if options.times is None else math.inf
    found = repeat(case, options.times or TIMES, _memo(_fingerprint), seconds)  # the first call may give something else
    launched = _launched(case) if options.kernels else []
    if options.kernels:
        _print_library_kernels(case)
    here = _here(switches, case.alignments) | ({"kernels": launched} if launched else {})
    print(json.dumps(_as_json(name, found, sides, here)) if options.json else _as_text(name, found, sides, here))


def _chosen(options: argparse.Namespace, sides: Mapping[str, RecordedSide]) -> RecordedSide:
    """The side whose settings are applied."""
    return sides.get(options.as_ or "", next(iter(sides.values())))


def _options(sides: Mapping[str, RecordedSide]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the op on the recorded inputs; does it give the recorded bits?")
    parser.add_argument(
        "--times", type=int, metavar="N", help=f"number of runs; default: {TIMES}, within {SECONDS} seconds"
    )
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
    for text in options.set:
        name, equals, _ = text.partition("=")
        if not equals or not (name in SWITCHES or name.isupper()):
            parser.error(f"--set {text}: give NAME=VALUE, a variable or one of {', '.join(SWITCHES)}")
    return options


def _switches(options: argparse.Namespace, as_: RecordedSide) -> dict[str, Any]:
    """The switches to set, and their values."""
    switches: dict[str, Any] = {"deterministic_algorithms": "off", **as_.switches}
    if options.deterministic:
        switches["deterministic_algorithms"] = "on"
    if options.tf32:
        switches["tf32"] = options.tf32
    for text in options.set:
        name, _, value = text.partition("=")
        if name in SWITCHES:
            switches[name] = value
    for name, parts in COMPONENTS.items():  # as requested, not as the components were recorded
        if name in switches:
            switches = {key: value for key, value in switches.items() if key not in parts}
    return switches


def _placed(case: OpCase, alignment: int | None, as_: RecordedSide) -> OpCase:
    """The case with its inputs at exactly this alignment, or at that of the run."""
    if alignment is not None:
        return replace(case, alignments=aligned(case, alignment))
    known = as_.alignments
    return case if known is None or len(known) != len(case.storages) else replace(case, alignments=known)


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
            sys.exit(f"the op ran on {device}, which does not exist here: {str(error).splitlines()[0]}")


def _print_library_kernels(case: OpCase) -> None:
    """Make one call during which oneDNN and MKL print their kernels to standard output."""
    with ExitStack() as stack:
        for library in (torch.backends.mkldnn, torch.backends.mkl):
            if library.is_available():
                stack.enter_context(library.verbose(library.VERBOSE_ON))
        repeat(case, 1, lambda tensor: "")
    ctypes.CDLL(None).fflush(None)  # C output before Python output


def _launched(case: OpCase) -> list[str]:
    """Names of the kernels that one call launches on a GPU, in order, from torch's profiler."""
    devices = [tensor.device for tensor in case.tensors] + ([case.generator.device] if case.generator else [])
    if not any(device.startswith("cuda") for device in devices):
        return []
    repeat(case, 1, lambda tensor: "")  # autotuning happens at the first call
    call = prepare_call(case)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    found = [event for event in profiler.profiler.kineto_results.events() if event.device_type() != DeviceType.CPU]
    names = [event.name() for event in sorted(found, key=lambda event: event.start_ns())]
    return [torch._C._demangle(name) if name.startswith("_Z") else name for name in names]


def _fingerprint(tensor: torch.Tensor) -> str:
    from digest import tensor_digest  # type: ignore[import-not-found]  # beside this file in a repro folder

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        sys.exit(f"the op returned a tensor of layout {tensor.layout}, whose digest this script cannot compute")
    shape = tuple(map(int, tensor.shape))
    return f"{tensor_digest(str(tensor.dtype).removeprefix('torch.'), shape, logical_bytes(tensor)):016x}"


def _memo(fingerprint: Callable[[torch.Tensor], str]) -> Callable[[torch.Tensor], str]:
    """``fingerprint``, computed once for equal bytes: the digest in plain Python is slow."""
    known: dict[tuple[Any, ...], str] = {}

    def of(tensor: torch.Tensor) -> str:
        key = (tensor.dtype, tuple(tensor.shape), hash(logical_bytes(tensor)) if tensor.layout is torch.strided else 0)
        if key not in known:
            known[key] = fingerprint(tensor)
        return known[key]

    return of


def _as_json(
    name: str, found: Mapping[ResultDigests, int], sides: Mapping[str, RecordedSide], here: Mapping[str, Any]
) -> dict[str, Any]:
    times = sum(found.values())
    return {
        "schema": "rltrace.rerun/1",
        "op": name,
        "times": times,
        "repeats": len(found) == 1 if times > 1 else None,
        "results": [
            {"digests": outcome, "count": count, "of": [side for side in sides if sides[side].results == outcome]}
            for outcome, count in found.items()
        ],
        "here": dict(here),
    }


def _here(switches: Mapping[str, Any], alignments: Sequence[int]) -> dict[str, Any]:
    """The settings of this process; of the switches, those that were set."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIXES)},
        "switches": read_switches([*switches]),
        "alignments": list(alignments),
    }


PREFIXES = ("ATEN_", "CUBLAS", "CUDNN_", "DISABLE_ADDMM_CUDA_LT", "MKL_", "NVIDIA_TF32_", "OMP_", "ONEDNN_", "TORCH_")
"""Prefixes of the reported variables."""


def _as_text(
    name: str, found: Mapping[ResultDigests, int], sides: Mapping[str, RecordedSide], here: Mapping[str, Any]
) -> str:
    settings = [f"{here['threads']} thread{'s' if here['threads'] != 1 else ''}", f"torch {here['torch']}"]
    settings.append(f"CPU capability {here['cpu_capability']}")
    settings += ["deterministic algorithms"] if here["deterministic"] else []
    switches = {name: value for name, value in here["switches"].items() if name != "deterministic_algorithms"}
    settings += [f"{name}={value}" for name, value in (*here["environment"].items(), *switches.items())]
    settings += [f"inputs {alignment} bytes past a multiple of 64" for alignment in sorted({*here["alignments"]} - {0})]
    lines = [name, f"  {', '.join(settings)}", f"  {summary(found)}"]
    lines += [f"  kernel  {kernel}" for kernel in here.get("kernels", ())]
    recorded = [side.results for side in sides.values()]
    ranked = sorted(found.items(), key=lambda item: (item[0] not in recorded, -item[1]))
    for outcome, count in ranked[:MAX_SHOWN]:
        lines.append(f"  {count:>6,} x {_short(outcome)}  {_recorded_by(outcome, sides)}")
    if len(ranked) > MAX_SHOWN:
        lines.append(f"         and {len(ranked) - MAX_SHOWN:,} more, {_recorded_by((), sides)}")
    return "\n".join(lines)


def _short(outcome: ResultDigests) -> str:
    more = f" and {len(outcome) - 2} more" if len(outcome) > 2 else ""
    return " ".join(outcome[:2]) + more or "(no result)"


def _recorded_by(outcome: ResultDigests, sides: Mapping[str, RecordedSide]) -> str:
    """``A's``, ``A's and B's``, ``neither A's nor B's``."""
    names = [f"{side.upper()}'s" for side in sides]
    found = [f"{side.upper()}'s" for side in sides if sides[side].results == outcome]
    return " and ".join(found) or f"{'neither' if len(names) > 1 else 'not'} {' nor '.join(names)}"
