"""What oneDNN and MKL print when they are asked to tell what they run: from their lines to names and full words.

Owns the two forms of line (oneDNN's run-time controls, "verbose"; oneMKL's ``MKL_VERBOSE``). Pure; what differs from
one call of the same thing to the next (times, addresses, which thread) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

_MKL_CALL = re.compile(r"MKL_VERBOSE (\w+)\((.*)\) [\d.]+[nmu]?s (.*)")
_MKL_ITSELF = re.compile(r"MKL_VERBOSE (\S*MKL .*)")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_UP_TO_ADDRESS = re.compile(r"(,?\w+:|,?)0x[0-9a-fA-F]+.*")
_SETTING = re.compile(r"(\w+):(\S+)")

KEPT = ("CNR", "NThr")
"""Of MKL's settings: the code path that is asked for, and how many threads may take part."""


@dataclass(frozen=True)
class LibraryOutput:
    """What the libraries said of one call of an op, in order."""

    names: tuple[str, ...] = ()
    """``oneDNN matmul brg_matmul:avx512_core_bf16``, ``MKL SGEMM(N,N,256,64,784)``."""
    reported: tuple[str, ...] = ()
    """The whole line of each, without what changes from call to call."""
    libraries: dict[str, str] = field(default_factory=dict)
    """What a library said of itself, which it does once in a process."""


def parse(lines: Iterable[str]) -> LibraryOutput:
    """Lines of any kind, in the order in which they were printed. Lines of nobody's are passed over."""
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
        told = fields[fields.index("exec") + 1 : -1]
        if len(told) > 3 and told[0] == "cpu":
            found.append((0, f"oneDNN {told[1]} {told[2]}", ",".join(told[1:])))
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
    said = dict(_SETTING.findall(settings))
    plain = _ADDRESS.sub("*", arguments)
    start = _UP_TO_ADDRESS.sub("", arguments)
    path = said.get("CNR", "OFF")
    name = f"MKL {function}({start})" + ("" if path == "OFF" else f" CNR:{path}")
    rest = " ".join(f"{key}:{said[key]}" for key in KEPT if key in said)
    found.append((int(said.get("TID", "0")), name, f"{function}({plain}) {rest}"))
