"""A warp of a GPU, in NumPy: it runs PTX, what a compiler has made of a kernel, instruction by instruction.

Owns as much of the language as the kernels of ``rltrace.digest.gpu`` come to, and says which instruction it does not
know. All 32 threads go the same way (a branch on which they differ is refused). Memory is this process's own, of which
it touches the memory that it was given and nothing else.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence

import numpy as np

THREADS = 32
Values = np.ndarray[tuple[int], np.dtype[np.uint64]]

_ENTRY = re.compile(r"\.visible \.entry \w+\((?P<parameters>[^)]*)\)[^{]*\{(?P<body>.*?)^\}", re.S | re.M)
_STATEMENT = re.compile(r"(?:@(?P<guard>!?%p\d+)\s+)?(?P<name>[a-z][\w.]*)\s*(?P<operands>.*);")


class Warp:
    """Runs one program at a time of a kernel's grid."""

    def __init__(self, ptx: str) -> None:
        entry = _ENTRY.search(ptx)
        assert entry is not None
        self._parameters = re.findall(r"\.param [^,\n]*?(\w+_param_\d+)", entry["parameters"])
        lines = (line.partition("//")[0].strip() for line in entry["body"].splitlines())
        self._lines = [line for line in lines if line and not line.startswith(".")]
        self._labels = {line[:-1]: place for place, line in enumerate(self._lines) if line.endswith(":")}

    def run(self, program: int, arguments: Sequence[int], memory: Sequence[tuple[int, int]]) -> None:
        """One program, by its number. ``arguments``: as many as the kernel's own parameters, behind which are nulls.

        ``memory``: where what it may touch begins and ends.
        """
        given = [*arguments, *[0] * (len(self._parameters) - len(arguments))]
        thread = _Threads(program, dict(zip(self._parameters, given, strict=True)), memory)
        at = 0
        while True:
            line, at = self._lines[at], at + 1
            if line.endswith(":"):
                continue
            statement = _STATEMENT.fullmatch(line)
            assert statement is not None, f"not understood: {line}"
            guard, name, operands = statement["guard"], statement["name"], statement["operands"]
            live = thread.truth(guard) if guard else np.ones(THREADS, bool)
            if name == "ret":
                return
            if name.partition(".")[0] == "bra":
                assert live.all() or not live.any(), "threads part"
                at = self._labels[operands] if live.all() else at
            else:
                thread.do(name, [each.strip() for each in re.split(r",(?![^{]*\})", operands)], live)


class _Threads:
    """Registers of the threads, and what instructions do to them."""

    def __init__(self, program: int, parameters: Mapping[str, int], memory: Sequence[tuple[int, int]]) -> None:
        self._memory = memory
        self._registers: dict[str, Values] = {"%tid.x": np.arange(THREADS, dtype=np.uint64), "%ctaid.x": _all(program)}
        self._parameters = parameters

    def truth(self, guard: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        found = self._registers[guard.removeprefix("!")] != 0
        return ~found if guard.startswith("!") else found

    def do(self, name: str, operands: Sequence[str], live: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        kind, _, form = name.partition(".")
        types = re.findall(r"\b[sub](\d+)\b", form) or [0]
        bits = int(types[0] if kind == "cvt" else types[-1])
        if name.startswith("ld.param"):
            self._set(operands[0], _all(self._parameters[operands[1].strip("[]")]), bits)
        elif name.startswith(("ld.global", "st.global")):
            self._touch(kind, operands, bits, live)
        elif kind == "mov" and "{" in "".join(operands):
            self._take_apart(*operands, bits // 2)
        else:
            given = [self._get(each) for each in operands[1:]]
            result = _computed(kind, form, given, bits)
            assert result is not None, f"an instruction that is not known: {name}"
            self._set(operands[0], result, 64 if ".wide" in name or kind == "setp" else bits)

    def _get(self, operand: str) -> Values:
        if operand in self._registers:
            return self._registers[operand]
        assert re.fullmatch(r"-?(?:0x[0-9a-fA-F]+|\d+)", operand), f"no value: {operand}"
        return _all(int(operand, 0))

    def _set(self, register: str, values: Values, bits: int) -> None:
        self._registers[register] = values & np.uint64(2**bits - 1)

    def _touch(
        self, kind: str, operands: Sequence[str], bits: int, live: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> None:
        """Read or write a cell for each live thread. Its address is to be a multiple of the cell's size."""
        values, address = (operands[0], operands[1]) if kind == "ld" else (operands[1], operands[0])
        base, _, offset = address.strip("[] ").partition("+")
        register = values.strip("{} ")
        places = self._get(base.strip()) + _all(int(offset or 0))
        cell = getattr(ctypes, f"c_uint{bits}")
        found = self._registers.get(register, _all(0)).copy()
        for thread in np.flatnonzero(live):
            place, size = int(places[thread]), bits // 8
            assert place % size == 0, "misaligned"
            assert any(begin <= place and place + size <= end for begin, end in self._memory), (
                "beyond what it was given"
            )
            there = cell.from_address(place)
            if kind == "ld":
                found[thread] = there.value
            else:
                there.value = int(found[thread])
        if kind == "ld":
            self._registers[register] = found

    def _take_apart(self, into: str, out_of: str, half: int) -> None:
        """Halves of so many bits, or what is made of two."""
        if "{" in into:
            for part, shift in zip(into.strip("{} ").split(","), (0, half), strict=True):
                self._set(part.strip(), self._get(out_of) >> np.uint64(shift), half)
        else:
            low, high = (self._get(each.strip()) for each in out_of.strip("{} ").split(","))
            self._set(into, low | high << np.uint64(half), 2 * half)


def _all(value: int) -> Values:
    return np.full(THREADS, value % 2**64, np.uint64)


def _signed(values: Values, bits: int) -> list[int]:
    return [int(v) - (2**bits if int(v) >> (bits - 1) & 1 else 0) for v in values]


def _wide(values: Values, form: str) -> Values:
    low = values & np.uint64(2**32 - 1)
    return low if form.endswith("u32") else np.array([v % 2**64 for v in _signed(low, 32)], np.uint64)


def _computed(kind: str, form: str, given: Sequence[Values], bits: int) -> Values | None:
    """What an instruction makes of these values; None: it is not known. Wider than it is: cut off where it goes."""
    a, b, c = (*given, _all(0), _all(0))[:3]
    if kind == "setp":
        comparison, _, _ = form.partition(".")
        of = {
            "eq": int.__eq__,
            "ne": int.__ne__,
            "gt": int.__gt__,
            "ge": int.__ge__,
            "lt": int.__lt__,
            "le": int.__le__,
        }
        sides = zip(_signed(a, bits), _signed(b, bits), strict=True)
        assert ".u" not in f".{form}"
        return np.array([of[comparison](x, y) for x, y in sides], np.uint64)
    if kind == "shfl":
        threads = np.arange(THREADS, dtype=np.uint64)
        return a[(threads ^ b) if "bfly" in form else b & np.uint64(31)]
    if ".wide" in f".{form}" and kind in ("mad", "mul"):
        return _wide(a, form) * _wide(b, form) + c
    if kind == "mul" and form.startswith("hi.u64"):
        return np.array([int(x) * int(y) >> 64 for x, y in zip(a, b, strict=True)], np.uint64)
    if kind == "shf" and form == "l.wrap.b32":
        return b << c | a >> (np.uint64(32) - c)
    if kind == "bfe" and form == "u32":
        return a >> b & (np.uint64(1) << c) - np.uint64(1)
    if kind == "cvt":
        source = form.rpartition(".")[2]
        narrow = a & np.uint64(2 ** int(source[1:]) - 1)
        return (
            narrow if source[0] == "u" else np.array([v % 2**64 for v in _signed(narrow, int(source[1:]))], np.uint64)
        )
    simple = {
        "mov": lambda: a,
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "neg": lambda: _all(0) - a,
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "shl": lambda: a << b,
        "shr": lambda: a >> b if form.startswith(("u", "b")) else None,
        "mul": lambda: a * b if form.startswith("lo") else None,
        "mad": lambda: a * b + c if form.startswith("lo") else None,
        "selp": lambda: np.where(c != 0, a, b),
    }
    return simple[kind]() if kind in simple else None
