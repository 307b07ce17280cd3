"""The documents of ops that were run again: one under every setting that was tried, with its JSON, or all of steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rltrace.diff.base.model import Verdict
from rltrace.extensions.repro.explain import Tried, TriedResult
from rltrace.extensions.repro.rerun_result import DifferingKind, DifferingOp, RerunResult
from rltrace.report.brief import Brief, fitted
from rltrace.report.document import Code, Document, Fact, Section
from rltrace.trace.kernels.evidence import joined as joined_kernels
from rltrace.trace.kernels.evidence import without_reorders
from rltrace.trace.kernels.names import distinct_names
from rltrace.wording import counted, joined, sentences

NO_DETERMINISTIC = "does not have a deterministic implementation"
"""Text of torch's error under ``torch.use_deterministic_algorithms(True)``."""

NEVER_RUN = "It failed under all of these settings, so nothing is known."

LIBRARIES = ("oneDNN ", "MKL ")
"""Prefixes of what a CPU library reports; all other names are GPU kernels."""


@dataclass(frozen=True)
class Explanation:
    """One op under every setting that was tried."""

    SCHEMA: ClassVar = "rltrace.explain/1"

    op: str
    at: Mapping[str, str]
    """Its place in each trace, by side."""
    settings: tuple[Tried, ...]
    left_out: tuple[str, ...]
    """Settings that no rule links with the op."""
    found: tuple[str, ...]
    """What follows, a sentence each."""


def explanation(op: str, at: Mapping[str, str], tried: Sequence[Tried], left_out: Sequence[str] = ()) -> Explanation:
    """``at``: the op's place in each trace, of which the results are known."""
    return Explanation(op, at, tuple(tried), tuple(left_out), tuple(conclusions(list(at), tried)))


def explanation_document(found: Explanation, traces: Mapping[str, str]) -> Document:
    """A line for each setting, then the conclusions. ``traces``: their paths by side."""
    left_out = f"not tried, as no rule links them with this op (--everything tries them): {', '.join(found.left_out)}"
    rows = ((str(one.setting), f"{_outcome(one, list(found.at))}{_kernels(one)}") for one in found.settings)
    sections = (
        Section("settings", "Under each setting it gives", columns=("setting", "result"), rows=tuple(rows)),
        Section("found", "What follows", (*found.found, *sentences(left_out if found.left_out else ""))),
    )
    places = (Fact(side.upper(), f"{place} of {traces[side]}") for side, place in found.at.items())
    return Document(found.op, facts=tuple(places), sections=tuple(filter(None, sections)))


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
        matching = [str(one.setting) for one in tried if one.setting.name and side in one.gives]
        if unchanged is not None and side in unchanged.gives:
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
    return f"  [{joined_kernels(names if of_a_library else distinct_names(names))}]" if names else ""


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


def brief_explanation(found: Explanation, status: int) -> Brief:
    """The same in at most 2 kB of JSON; ``status``: the exit status."""
    known = all(any(side in one.gives for one in found.settings) for side in found.at)
    word = "failed" if status else ("explained" if known else "unexplained")
    return fitted(Brief("explain", word, status, " ".join(found.found)))


# --- ops run again ----------------------------------------------------------------------------------------------------


def rerun_document(result: RerunResult, steps: Sequence[int]) -> Document:
    """Of the recorded ops of ``steps``."""
    of = f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
    ops = f"{counted(result.ops, 'op')} of {of}, {result.process}"
    unsettled = counted(result.unsettled, "op")
    reached = f"memory that nothing had written, or that a collective was writing, reached {unsettled}"
    names = joined(f"{count:,} {name}" for name, count in result.from_record) if result.from_record else ""
    notes = (
        f"not compared: {reached}" if result.unsettled else "",
        f"not run, what they wrote is as it was recorded: {names}" if names else "",
    )
    sections = (
        Section("first", "First op that differs", facts=tuple(_facts(result.first)) if result.first else ()),
        Section("kinds", "Give other bits here on recorded inputs", columns=KINDS, rows=tuple(map(_row, result.kinds))),
        Section("notes", "Notes", sentences(*notes)),
    )
    return Document(
        "BITWISE" if result.bitwise else "DIFFERS",
        Verdict.IDENTICAL if result.bitwise else Verdict.DIVERGED,
        scope=f"{ops}: the recorded bits" if result.bitwise else f"{result.differing:,} of {ops}, give other bits here",
        sections=tuple(filter(None, sections)),
    )


KINDS = ("op", "differ", "largest distance", "first")


def _row(kind: DifferingKind) -> tuple[str, ...]:
    distance = "" if kind.distance is None else f"{kind.distance:.3g}"
    return kind.op, f"{kind.count:,} of {kind.of:,}", distance, _place(kind.first)


def _facts(first: DifferingOp) -> Iterator[Fact]:
    yield Fact("op", Code(first.op))
    yield Fact("row", f"{_place(first)}, step {first.step:,}")
    if first.module:
        yield Fact("module", Code(first.module))
    if first.site:
        yield Fact("site", Code(str(first.site)))
    yield Fact("recorded", Code(" ".join(first.recorded)))
    yield Fact("here", Code(" ".join(first.here)))


def _place(op: DifferingOp) -> str:
    return f"op {op.row:,} of {op.stream}"
