"""Results of an op under every setting that was tried: text, and an object ``rltrace.explain/1``. Never prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rltrace.experiment.explain import Tried, TriedResult
from rltrace.json import to_json
from rltrace.trace.kernels.evidence import joined, without_reorders
from rltrace.trace.kernels.names import distinct_names
from rltrace.wording import counted

SCHEMA = "rltrace.explain/1"

NO_DETERMINISTIC = "does not have a deterministic implementation"
"""Text of torch's error under ``torch.use_deterministic_algorithms(True)``."""

NEVER_RUN = "It failed under all of these settings, so nothing is known."

LIBRARIES = ("oneDNN ", "MKL ")
"""Prefixes of what a CPU library reports; all other names are GPU kernels."""


def explain_json(
    op: str, at: Mapping[str, str], sides: Sequence[str], tried: Sequence[Tried], left_out: Sequence[str] = ()
) -> dict[str, Any]:
    """``at``: the op's place in each trace; ``left_out``: settings that no rule links with the op."""
    return {
        "schema": SCHEMA,
        "op": op,
        "at": at,
        "settings": [{**to_json(one), "gives": [side for side in sides if one.gives(side)]} for one in tried],
        "left_out": left_out,
        "found": list(conclusions(sides, tried)),
    }


def explain_lines(
    op: str, at: Mapping[str, str], sides: Sequence[str], tried: Sequence[Tried], left_out: Sequence[str] = ()
) -> Iterator[str]:
    """A line for each setting, then the conclusions."""
    yield op
    for side, place in at.items():
        yield f"  {side.upper()}  {place}"
    width = max((len(str(one.setting)) for one in tried), default=0)
    for one in tried:
        yield f"  {one.setting!s:<{width}}  {_outcome(one, sides)}{_kernels(one)}"
    yield ""
    yield from conclusions(sides, tried)
    if left_out:
        yield f"Not tried, as no rule links them with this op (--everything tries them): {', '.join(left_out)}."


def conclusions(sides: Sequence[str], tried: Sequence[Tried]) -> Iterator[str]:
    """What follows from the results, a sentence each."""
    unchanged = next((one for one in tried if not one.setting.name and not one.trouble), None)
    first_differs = [one for one in tried if one.first_differs]
    nondeterministic = [one for one in tried if one.repeats is False]
    if first_differs and first_differs == nondeterministic:
        ran = sum(not one.trouble for one in tried)
        share = f"{len(first_differs)} of {counted(ran, 'process', 'processes')}"
        yield f"In {share} the first call gave a result that no later call gave."
        yield "The later calls repeat, so it is not the work of a setting."
    elif nondeterministic:
        deterministic = [str(one.setting) for one in tried if one.repeats]
        others = f"; deterministic with {', '.join(deterministic)}" if deterministic else ""
        yield f"Nondeterministic ({', '.join(str(one.setting) for one in nondeterministic)}){others}."
    if any(NO_DETERMINISTIC in one.trouble for one in tried):
        yield "PyTorch reports no deterministic implementation (deterministic algorithms raise an error)."
    if tried and all(one.trouble for one in tried):
        yield NEVER_RUN
        return
    for side in sides:
        name = f"{side.upper()}'s bits"
        matching = [str(one.setting) for one in tried if one.setting.name and one.gives(side)]
        if unchanged is not None and unchanged.gives(side):
            yield f"This machine gives {name} without any change."
        elif matching:
            yield f"With {' or '.join(matching)} this machine gives {name}."
        elif any(one.reaches(side) for one in tried):
            yield f"{name} came out in some of the {'first calls' if first_differs == nondeterministic else 'runs'}."
        else:
            yield f"None of the settings tried gives {name}."


def _kernels(one: Tried) -> str:
    names = without_reorders(list(one.kernels))
    of_a_library = any(name.startswith(LIBRARIES) for name in names)
    return f"  [{joined(names if of_a_library else distinct_names(names))}]" if names else ""


def _outcome(one: Tried, sides: Sequence[str]) -> str:
    if one.trouble:
        return f"failed: {one.trouble}"
    if one.first_differs:
        first, later = (_whose(result, sides) for result in one.results)
        return f"first call {first}, later calls {later}"
    if len(one.results) != 1:
        occasional = [f"{side.upper()}'s" for side in sides if one.reaches(side)]
        among = f", {' and '.join(occasional)} among them" if occasional else ""
        return f"nondeterministic: {one.times:,} runs, {len(one.results):,} results{among}"
    return _whose(one.results[0], sides)


def _whose(result: TriedResult, sides: Sequence[str]) -> str:
    more = " …" if len(result.digests) > 1 else ""
    names = [f"{side.upper()}'s" for side in sides if side in result.of]
    return " and ".join(names) or f"neither: {' '.join(result.digests[:1])}{more}"
