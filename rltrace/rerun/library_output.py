"""The verbose output of oneDNN and MKL, parsed into names and full lines.

Owns the two forms of line (oneDNN's run-time controls, "verbose"; oneMKL's ``MKL_VERBOSE``). Times, addresses and
threads, which differ between equal calls, are left out.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

_MKL_CALL = re.compile(r"MKL_VERBOSE (\w+)\((.*)\) [\d.]+[nmu]?s (.*)")
_MKL_ITSELF = re.compile(r"MKL_VERBOSE (\S*MKL .*)")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_UP_TO_ADDRESS = re.compile(r"(,?\w+:|,?)0x[0-9a-fA-F]+.*")
_SETTING = re.compile(r"(\w+):(\S+)")

SETTINGS = ("CNR", "NThr")
"""MKL's settings in a reported line: the requested code path, and the maximum number of threads."""


@dataclass(frozen=True)
class LibraryOutput:
    """The output of the libraries during one call of an op, in order."""

    names: tuple[str, ...] = ()
    """``oneDNN matmul brg_matmul:avx512_core_bf16``, ``MKL SGEMM(N,N,256,64,784)``."""
    reported: tuple[str, ...] = ()
    """The full line of each, without what changes from call to call."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Version and settings of a library, which it prints once in a process."""


def parse(lines: Iterable[str]) -> LibraryOutput:
    """Parse lines in printed order; lines of other origin are skipped."""
    found: list[tuple[int, str, str]] = []
    libraries: dict[str, str] = {}
    for line in map(str.strip, lines):
        if line.startswith(("onednn_verbose,", "dnnl_verbose,")):
            _onednn(line.split(","), found, libraries)
        elif line.startswith("MKL_VERBOSE "):
            _mkl(line, found, libraries)
    found.sort(key=lambda each: each[0])  # threads of one call print as they come
    merged = [(key, len(list(same))) for key, same in groupby(each[1:] for each in found)]
    names = tuple(f"{name} ×{count}" if count > 1 else name for (name, _), count in merged)
    return LibraryOutput(names, tuple(line for (_, line), _ in merged), libraries)


def _onednn(fields: list[str], found: list[tuple[int, str, str]], libraries: dict[str, str]) -> None:
    """``onednn_verbose,v1,primitive,exec,cpu,PRIMITIVE,IMPLEMENTATION,…,TIME``; "v1" and "primitive" are newer."""
    if "exec" in fields:
        values = fields[fields.index("exec") + 1 : -1]
        if len(values) > 3 and values[0] == "cpu":
            found.append((0, f"oneDNN {values[1]} {values[2]}", ",".join(values[1:])))
        return
    if "info" in fields:
        text = ",".join(fields[fields.index("info") + 1 :])
        if text.startswith(("oneDNN v", "DNNL v", "cpu,isa:")):
            text = text.partition(" (commit")[0].removeprefix("oneDNN ").removeprefix("cpu,")
            libraries["oneDNN"] = ", ".join(filter(None, [libraries.get("oneDNN"), text]))


def _mkl(line: str, found: list[tuple[int, str, str]], libraries: dict[str, str]) -> None:
    called = _MKL_CALL.fullmatch(line)
    if called is None:
        itself = _MKL_ITSELF.fullmatch(line)
        if itself is not None:
            libraries["MKL"] = itself[1]
        return
    function, arguments, settings = called.groups()
    known = dict(_SETTING.findall(settings))
    plain = _ADDRESS.sub("*", arguments)
    start = _UP_TO_ADDRESS.sub("", arguments)
    path = known.get("CNR", "OFF")
    name = f"MKL {function}({start})" + ("" if path == "OFF" else f" CNR:{path}")
    rest = " ".join(f"{key}:{known[key]}" for key in SETTINGS if key in known)
    found.append((int(known.get("TID", "0")), name, f"{function}({plain}) {rest}"))
