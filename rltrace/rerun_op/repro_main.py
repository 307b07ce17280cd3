"""What a ``repro.py`` does: reads its command line, takes settings on, calls the op and says whose bits came out.

Part of rltrace, and copied into every folder that ``rltrace repro`` writes; needs torch and NumPy, and ``digest.py``,
``runner.py`` and ``torch_flags.py`` beside it. Owns the settings and the words.
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

from rltrace.rerun_op.runner import (
    SECONDS,
    TIMES,
    OpCase,
    ResultDigests,
    RngState,
    TensorSpec,
    aligned,
    in_words,
    logical_bytes,
    once,
    repeat,
)
from rltrace.rerun_op.torch_flags import PARTS, SWITCHES, standing, under

SHOWN = 8
"""Results that are named, those that some side recorded aside."""


@dataclass(frozen=True)
class RecordedSide:
    """What one run recorded of the op, and the settings it ran under."""

    results: ResultDigests
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that choose kernels, as they were set."""
    switches: Mapping[str, Any] = field(default_factory=dict)
    """Those of torch that stood otherwise when the op ran than in a fresh process (``torch_flags``)."""
    alignments: tuple[int, ...] | None = None
    """Address of each storage of its inputs modulo 64; None: not known."""
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
    tensors: Sequence[TensorSpec],
    *,
    sides: Mapping[str, RecordedSide],
    written: tuple[int, ...] = (),
    returned: tuple[int, ...] | None = None,
    generator: tuple[str, bool] | None = None,
) -> None:
    """Run the op as the command line asks and print what came out. ``inputs.npz`` lies beside the script."""
    options = _options(sides)
    _restart_under(_environment(options, sides))
    as_ = _chosen(options, sides)
    threads = options.threads or (None if options.omp_threads else as_.threads)
    if threads:
        torch.set_num_threads(threads)
    wanted = _switches(options, as_)
    with under(wanted):
        _run(name, call, tensors, options, sides, wanted, written=written, returned=returned, generator=generator)


def _run(
    name: str,
    call: Callable[[list[torch.Tensor], torch.Generator | None], Any],
    tensors: Sequence[TensorSpec],
    options: argparse.Namespace,
    sides: Mapping[str, RecordedSide],
    wanted: Mapping[str, Any],
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
    case = _lying(case, options.alignment, as_)
    launched = _launched(case) if options.kernels else []
    if options.kernels:
        _let_libraries_speak(case)
    seconds = SECONDS if options.times is None else math.inf
    found = repeat(case, options.times or TIMES, _memo(_fingerprint), seconds)
    here = _here(wanted, case.alignments) | ({"kernels": launched} if launched else {})
    print(json.dumps(_as_json(name, found, sides, here)) if options.json else _as_text(name, found, sides, here))


def _chosen(options: argparse.Namespace, sides: Mapping[str, RecordedSide]) -> RecordedSide:
    """The side whose settings are taken on."""
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
    """All that are thrown, with what they are thrown to."""
    wanted: dict[str, Any] = {"deterministic_algorithms": "off", **as_.switches}
    if options.deterministic:
        wanted["deterministic_algorithms"] = "on"
    if options.tf32:
        wanted["tf32"] = options.tf32
    for text in options.set:
        name, _, value = text.partition("=")
        if name in SWITCHES:
            wanted[name] = value
    for name, parts in PARTS.items():  # as it is asked for, not as the parts were recorded
        if name in wanted:
            wanted = {key: value for key, value in wanted.items() if key not in parts}
    return wanted


def _lying(case: OpCase, alignment: int | None, as_: RecordedSide) -> OpCase:
    """Its inputs where they are to lie: at that alignment and no higher one, or as they lay in that run."""
    if alignment is not None:
        return replace(case, alignments=aligned(case, alignment))
    known = as_.alignments
    return case if known is None or len(known) != len(case.storages) else replace(case, alignments=known)


def _environment(options: argparse.Namespace, sides: Mapping[str, RecordedSide]) -> dict[str, str | None]:
    """Variables that are to be set, or (None) not to be."""
    wanted: dict[str, str | None] = {}
    if options.as_ is not None:
        others = {name for side in sides.values() for name in side.environment}
        wanted = {name: sides[options.as_].environment.get(name) for name in sorted(others)}
    asked = {variable: getattr(options, option) for option, variable in VARIABLES.items()}
    more = (text.partition("=")[::2] for text in options.set)
    asked |= {name: value for name, value in more if name not in SWITCHES}
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
            sys.exit(f"the op ran on {device}, which does not exist here: {str(error).splitlines()[0]}")


def _let_libraries_speak(case: OpCase) -> None:
    """One call, of which oneDNN and MKL print what they run, to standard output."""
    with ExitStack() as speaking:
        for library in (torch.backends.mkldnn, torch.backends.mkl):
            if library.is_available():
                speaking.enter_context(library.verbose(library.VERBOSE_ON))
        repeat(case, 1, lambda tensor: "")
    ctypes.CDLL(None).fflush(None)  # what C has printed goes before what Python prints


def _launched(case: OpCase) -> list[str]:
    """Names of the kernels that one call launches on a GPU, in order, as torch's profiler has them."""
    devices = [tensor.device for tensor in case.tensors] + ([case.generator.device] if case.generator else [])
    if not any(device.startswith("cuda") for device in devices):
        return []
    repeat(case, 1, lambda tensor: "")  # what is tried out at the first call is no part of the others
    call = once(case)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    found = [event for event in profiler.profiler.kineto_results.events() if event.device_type() != DeviceType.CPU]
    names = [event.name() for event in sorted(found, key=lambda event: event.start_ns())]
    return [torch._C._demangle(name) if name.startswith("_Z") else name for name in names]


def _fingerprint(tensor: torch.Tensor) -> str:
    from digest import tensor_digest  # type: ignore[import-not-found]  # lies beside this file in a repro folder

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        sys.exit(f"the op returned a tensor of layout {tensor.layout}, whose digest this script cannot compute")
    shape = tuple(map(int, tensor.shape))
    return f"{tensor_digest(str(tensor.dtype).removeprefix('torch.'), shape, logical_bytes(tensor)):016x}"


def _memo(fingerprint: Callable[[torch.Tensor], str]) -> Callable[[torch.Tensor], str]:
    """The digest in plain Python is slow: take it once of each result, told apart by its bytes."""
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
    """What it ran under: of the switches those that were thrown, as they stand."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(CHOOSING)},
        "switches": standing([*switches]),
        "alignments": list(alignments),
    }


CHOOSING = ("ATEN_", "CUBLAS", "CUDNN_", "DISABLE_ADDMM_CUDA_LT", "MKL_", "NVIDIA_TF32_", "OMP_", "ONEDNN_", "TORCH_")
"""How variables begin that are told of."""


def _as_text(
    name: str, found: Mapping[ResultDigests, int], sides: Mapping[str, RecordedSide], here: Mapping[str, Any]
) -> str:
    settings = [f"{here['threads']} thread{'s' if here['threads'] != 1 else ''}", f"torch {here['torch']}"]
    settings.append(f"CPU capability {here['cpu_capability']}")
    settings += ["deterministic algorithms"] if here["deterministic"] else []
    switches = {name: value for name, value in here["switches"].items() if name != "deterministic_algorithms"}
    settings += [f"{name}={value}" for name, value in (*here["environment"].items(), *switches.items())]
    settings += [f"inputs {alignment} bytes past a multiple of 64" for alignment in sorted({*here["alignments"]} - {0})]
    lines = [name, f"  {', '.join(settings)}", f"  {in_words(found)}"]
    lines += [f"  kernel  {kernel}" for kernel in here.get("kernels", ())]
    recorded = [side.results for side in sides.values()]
    ranked = sorted(found.items(), key=lambda item: (item[0] not in recorded, -item[1]))
    for outcome, count in ranked[:SHOWN]:
        lines.append(f"  {count:>6,} x {_short(outcome)}  {_whose(outcome, sides)}")
    if len(ranked) > SHOWN:
        lines.append(f"         and {len(ranked) - SHOWN:,} more, {_whose((), sides)}")
    return "\n".join(lines)


def _short(outcome: ResultDigests) -> str:
    more = f" and {len(outcome) - 2} more" if len(outcome) > 2 else ""
    return " ".join(outcome[:2]) + more or "(no result)"


def _whose(outcome: ResultDigests, sides: Mapping[str, RecordedSide]) -> str:
    """``A's``, ``A's and B's``, ``neither A's nor B's``."""
    names = [f"{side.upper()}'s" for side in sides]
    found = [f"{side.upper()}'s" for side in sides if sides[side].results == outcome]
    return " and ".join(found) or f"{'neither' if len(names) > 1 else 'not'} {' nor '.join(names)}"
