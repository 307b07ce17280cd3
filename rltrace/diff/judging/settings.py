"""Under which other settings of torch an op ran on the other side, and what of that can explain other bits.

Owns which settings of a row ("settings" in the trace) count for every op, and how they read. Which of the others choose
the kernel of an op is in ``rules``. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rltrace.diff.judging.rules import choosing
from rltrace.diff.model import EnvironmentDifference
from rltrace.trace.evidence import Evidence

Settings = Mapping[str, object]

THREADS = "threads"
"""What the kernel evidence says as well."""

OF_ANY_OP: Mapping[str, tuple[str, str]] = {
    "grad_mode": ("with grad mode", "without grad mode"),
    "inference_mode": ("in inference mode", "outside inference mode"),
    "flush_denormal": ("with denormal numbers flushed to zero", "with denormal numbers kept"),
    "deterministic_algorithms": ("with deterministic algorithms", "without deterministic algorithms"),
    "default_dtype": ("", ""),
}
"""What can change the bits of any op, with the words for where it is on and where it is off."""


def settings_differences(a: Settings, b: Settings) -> tuple[EnvironmentDifference, ...]:
    """Every setting that was another one; none where one side's are not known."""
    names = [name for name in dict.fromkeys([*a, *b]) if name != THREADS] if a and b else []
    return tuple(
        EnvironmentDifference(name, _text(a.get(name)), _text(b.get(name)))
        for name in sorted(names, key=lambda name: name not in OF_ANY_OP)
        if a.get(name) != b.get(name)
    )


def settings_text(op: str, kernels: tuple[Evidence, Evidence], differences: Sequence[EnvironmentDifference]) -> str:
    """``B ran it without grad mode``: those of the differences that can change what ``op`` computes; "" for none."""
    chosen = choosing(op, *kernels, [_as_fact(one) for one in differences if one.name not in OF_ANY_OP])
    said = [_in_words(one) for one in differences if one.name in OF_ANY_OP]
    said += [f"{one.name.removeprefix('flag.')} was {one.a} in A and {one.b} in B" for one in chosen]
    return ", and ".join(said[:3]) + (f", and {len(said) - 3} more settings differ" if len(said) > 3 else "")


def _as_fact(one: EnvironmentDifference) -> EnvironmentDifference:
    """Under the name that the facts of a process have for it."""
    return EnvironmentDifference(f"flag.{one.name}", one.a, one.b)


def _in_words(one: EnvironmentDifference) -> str:
    on, off = OF_ANY_OP[one.name]
    if not on:
        return f"{one.name} was {one.a} in A and {one.b} in B"
    return f"B ran it {on if one.b == 'on' else off}"


def _text(value: object) -> str | None:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else None if value is None else str(value)
