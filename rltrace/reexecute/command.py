"""What a ``repro.py`` does: reads its command line, takes settings on, calls the op and says whose bits came out.

Part of rltrace, and copied into every folder that ``rltrace repro`` writes; needs torch and NumPy, and ``digest.py``
and ``rerun.py`` beside it. Owns the settings and the words.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rltrace.reexecute.rerun import SECONDS, TIMES, Case, Generator, Outcome, Tensor, in_words, logical_bytes, repeat

SHOWN = 8
"""Results that are named, those that some side recorded aside."""


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
    if options.kernels:
        _let_libraries_speak(case)
    seconds = SECONDS if options.times is None else math.inf
    found = repeat(case, options.times or TIMES, _memo(_fingerprint), seconds)
    print(json.dumps(_as_json(name, found, sides)) if options.json else _as_text(name, found, sides))


def _options(sides: Mapping[str, Side]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the op on the recorded inputs; does it give the recorded bits?")
    parser.add_argument("--times", type=int, metavar="N", help=f"how often; default: {TIMES}, within {SECONDS} seconds")
    parser.add_argument("--as", dest="as_", choices=[*sides], help="under what this run was recorded under")
    parser.add_argument("--threads", type=int, metavar="N", help="torch.set_num_threads; default: as recorded")
    parser.add_argument("--deterministic", action="store_true", help="torch.use_deterministic_algorithms")
    parser.add_argument("--tf32", choices=["on", "off"], help="TF32 in matrix products and convolutions on a GPU")
    for option, variable in VARIABLES.items():
        parser.add_argument(f"--{option.replace('_', '-')}", metavar="VALUE", help=f"{variable}, from the start")
    parser.add_argument("--kernels", action="store_true", help="print first what oneDNN and MKL say of one call")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    if options.times is not None and options.times < 1:
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


def _let_libraries_speak(case: Case) -> None:
    """One call, of which oneDNN and MKL print what they run, to standard output."""
    with ExitStack() as speaking:
        for library in (torch.backends.mkldnn, torch.backends.mkl):
            if library.is_available():
                speaking.enter_context(library.verbose(library.VERBOSE_ON))
        repeat(case, 1, lambda tensor: "")
    ctypes.CDLL(None).fflush(None)  # what C has printed goes before what Python prints


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
    lines = [name, f"  {', '.join(settings)}", f"  {in_words(found)}"]
    recorded = [side.results for side in sides.values()]
    ranked = sorted(found.items(), key=lambda item: (item[0] not in recorded, -item[1]))
    for outcome, count in ranked[:SHOWN]:
        lines.append(f"  {count:>6,} x {_short(outcome)}  {_whose(outcome, sides)}")
    if len(ranked) > SHOWN:
        lines.append(f"         and {len(ranked) - SHOWN:,} more, {_whose((), sides)}")
    return "\n".join(lines)


def _short(outcome: Outcome) -> str:
    more = f" and {len(outcome) - 2} more" if len(outcome) > 2 else ""
    return " ".join(outcome[:2]) + more or "(no result)"


def _whose(outcome: Outcome, sides: Mapping[str, Side]) -> str:
    """``A's``, ``A's and B's``, ``neither A's nor B's``."""
    names = [f"{side.upper()}'s" for side in sides]
    found = [f"{side.upper()}'s" for side in sides if sides[side].results == outcome]
    return " and ".join(found) or f"{'neither' if len(names) > 1 else 'not'} {' nor '.join(names)}"
