"""What every report of a comparison says alike: headlines, titles, counts, places.

Owns words, not how they are laid out. Pure functions over the objects of ``rltrace.diff.base.model``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat

from rltrace.diff.base.model import Cause, Comparison, Finding, Hole, Hunk, InputsMatch, Pair, Side, Structure, Verdict

HEADLINES = {
    Verdict.IDENTICAL: "IDENTICAL",
    Verdict.SAME_VALUES: "SAME VALUES",
    Verdict.DIVERGED: "DIVERGED",
    Verdict.UNKNOWN: "UNKNOWN",
}

INPUTS = {
    InputsMatch.READ: "read: hashed at this op on both sides",
    InputsMatch.INFERRED: "inferred: matched ops of this step wrote them; not hashed again here",
    InputsMatch.DIFFER: "differ",
    InputsMatch.UNKNOWN: "unknown",
}

SIGNS = {"only-a": "<", "only-b": ">", "reordered": "~"}

NO_FACT = "No recorded fact of system, settings, packages or source files differs."

STEP_OUTPUTS = ("gradient", "params", "rng", "rng")
"""What the digests of a finding without an op are of."""


def noun(finding: Finding) -> str:
    """What stands in its row: an op, or an environment's event, a checkpoint."""
    return "op" if finding.boundary is None else "event"


def apart(finding: Finding) -> list[tuple[str, Pair[str]]]:
    """What both sides gave and is not the same, by name: outputs, an event's cells, digests at the end of a step."""
    if finding.boundary is not None:
        return [(cell.name, Pair(cell.a, cell.b)) for cell in finding.boundary.cells]
    if finding.op is not None and (finding.a_index is None or finding.b_index is None):
        return []
    names: Iterable[str] = STEP_OUTPUTS if finding.op is None else repeat("output")
    return [(name, pair) for name, pair in zip(names, finding.outputs, strict=False) if pair.a != pair.b]


def shown_finding(comparison: Comparison) -> Finding | None:
    """The finding that the verdict rests on, or the one most worth looking at."""
    return comparison.decisive or comparison.first_value or comparison.first


def place(finding: Finding) -> str:
    """``op 288, step 0, cause: kernel``."""
    index = finding.a_index if finding.a_index is not None else finding.b_index
    step = f"step {finding.step:,}" if finding.step is not None else finding.stream
    at = f"op {index:,}, {step}" if index is not None else step
    return at if finding.cause is Cause.UNKNOWN else f"{at}, cause: {finding.cause.value}"


def titled_findings(comparison: Comparison) -> Iterator[tuple[str, Finding]]:
    """Every finding once, the one that a verdict of ``diverged`` rests on first, each under its title."""
    shown = shown_finding(comparison) if comparison.verdict is Verdict.DIVERGED else None
    told = [] if shown is None else [shown]
    if shown is not None:
        yield _title(comparison, shown), shown
    for finding in (comparison.first, comparison.first_value, *comparison.unordered, *comparison.later):
        if finding is not None and finding not in told:
            told.append(finding)
            yield _other_title(comparison, finding, shown), finding


def _title(comparison: Comparison, finding: Finding) -> str:
    if finding.cause is Cause.ENDED:
        return "One run ended earlier"
    if finding.op is None:
        return "First step that differs" if finding.phase == "optimizer" else "Final state"
    if finding is comparison.first_value or finding.cause is not Cause.CONTROL_FLOW:
        return "First difference in values"
    return "First difference"


def _other_title(comparison: Comparison, finding: Finding, shown: Finding | None) -> str:
    if finding in comparison.unordered:
        return f"In {finding.stream}, order to the above unknown"
    if finding is comparison.first_value:
        return "First difference in values, after it"
    if finding in comparison.later:
        return f"{'Received by' if finding.received else 'In'} {finding.stream}, after it"
    if shown is None and comparison.verdict is Verdict.UNKNOWN:
        return "First difference"
    return "Before it, the first difference in structure" if shown is not None else "First difference in structure"


def before_it(finding: Finding) -> str:
    """How far the two sides were identical."""
    unit = "op" if finding.op is not None else "step"
    is_origin = finding.op is not None and finding.cause is not Cause.ENDED and finding.boundary is None
    masked = "; later independent differences may be hidden, rltrace confirm finds them" if is_origin else ""
    return f"{counted(finding.identical_before, f'identical {unit}')} before it{masked}."


def counted(number: int, noun: str) -> str:
    """``1 op``, ``12,345 ops``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def extent(side: Side) -> str:
    """``35,965 ops, 32 optimizer steps``."""
    return f"{counted(side.ops, 'op')}, {counted(side.steps, 'optimizer step')}"


def rows(finding: Finding) -> str:
    """``288``; both sides where they differ."""
    a, b = finding.a_index, finding.b_index
    if a is None or b is None:
        return f"{a:,} (A only)" if a is not None else f"{b:,} (B only)" if b is not None else "?"
    return f"{a:,}" if a == b else f"{a:,} (A), {b:,} (B)"


def when(finding: Finding) -> str:
    """``optimizer step 37 (critic's Adam, 2,001st attempt, after 12,100 environment steps), phase forward``."""
    if finding.step is None:
        phase = "" if finding.phase == "other" else f"phase {finding.phase}; "
        return f"{phase}no optimizer step in this process"
    details = []
    if finding.optimizer is not None:
        which = finding.optimizer
        name = which.name if which.ordinal == 0 else f"{which.name} #{which.ordinal}"
        count = f"{ordinal(which.count + 1)} attempt"
        details.append(f"{name}'s {count}" if which.owner is None else f"{which.owner}'s {which.name}, {count}")
    if finding.environment_step is not None and finding.phase != "init":  # all of them were made later
        made_after = finding.environment_step  # the attempt that ends the op's step, not the op
        details.append(f"after {made_after:,} environment step{'s' * (made_after != 1)}")
    more = f" ({', '.join(details)})" if details else ""
    phase = f", phase {finding.phase}" if finding.op is not None and finding.phase != "other" else ""
    return f"optimizer step {finding.step:,}{more}{phase}"


def structure_counts(structure: Structure) -> list[str]:
    """``3 only in B (>)`` for each kind of op that stands on one side, or at another place."""
    counts = [
        f"{count:,} {words}"
        for count, words in (
            (structure.only_a, "only in A (<)"),
            (structure.only_b, "only in B (>)"),
            (structure.reordered, "reordered (~)"),
        )
        if count
    ]
    steps = structure.reordered_steps
    if steps:
        more = " more" if structure.reordered else ""
        counts.append(f"{steps:,}{more} {'step holds' if steps == 1 else 'steps hold'} the same ops in another order")
    return counts


def structure_remarks(structure: Structure) -> list[str]:
    """What has to be known to read those counts right."""
    told = ["their digests prove it; which ops moved was not read"] if structure.reordered_steps else []
    return told if structure.whole else [*told, "counted up to the first difference in values"]


def alike(hunks: Iterable[Hunk]) -> list[list[Hunk]]:
    """Hunks of one kind, length and first op together, in the order of their first."""
    groups: dict[tuple[object, ...], list[Hunk]] = {}
    for hunk in hunks:
        groups.setdefault((hunk.kind, hunk.stream, hunk.a_count, hunk.b_count, hunk.first), []).append(hunk)
    return list(groups.values())


def hunks_text(group: list[Hunk]) -> str:
    """``3 times 1 op from aten.mean.default at train.py:50 (train); the first at row 12, step 0``."""
    hunk = group[0]
    at, count = (hunk.b_start, hunk.b_count) if hunk.kind == "only-b" else (hunk.a_start, hunk.a_count)
    times = f"{len(group):,} times " if len(group) > 1 else ""
    ops = "1 op" if count == 1 else f"{count:,} ops"
    first = "the first " if len(group) > 1 else ""
    step = "" if hunk.step is None else f", step {hunk.step:,}"
    return f"{times}{ops} from {hunk.first}; {first}at row {at:,}{step}"


def lag(values: int, seen: int) -> str:
    """How long after the values the numbers part that somebody can see."""
    if seen <= values:
        return f"Tensors and logged scalars diverge at step {values:,}."
    later = "1 step" if seen == values + 1 else f"{seen - values:,} steps"
    return f"Tensors diverge at step {values:,}; the first logged scalar differs {later} later."


def marked_text(comparison: Comparison) -> str:
    """What became of memory that no op had written; "" where no such op differs."""
    marked = comparison.marked
    if not marked.differing:
        return ""
    least = "" if marked.whole else "at least "
    first = f", the first at {marked.first}" if marked.first else ""
    verb = "differs" if marked.differing == 1 else "differ"
    text = f"{least}{marked.differing:,} of the ops that may read such memory {verb}{first}."
    shown = shown_finding(comparison)
    origin = shown is not None and shown.cause is Cause.UNINITIALISED
    return text if origin else f"{text} It does not decide the verdict."


def told_text(comparison: Comparison) -> str:
    """What became of events that differ; "" where none does, or the finding tells of it."""
    told, shown = comparison.events, shown_finding(comparison)
    if not told.differing or (shown is not None and shown.boundary is not None):
        return ""
    least = "" if told.whole else "at least "
    events = "1 event differs" if told.differing == 1 else f"{told.differing:,} events differ"
    first = f", the first is the {told.first}" if told.first else ""
    text = f"{least}{events} in data from outside torch{first}."
    return text if comparison.verdict is Verdict.DIVERGED else f"{text} It does not decide the verdict."


def hole_text(hole: Hole) -> str:
    """``rank0/main rows 4,096 to 8,191: the chunk is missing``."""
    span = ""
    if hole.first is not None:
        span = f" rows {hole.first:,} to {hole.first + (hole.rows or 1) - 1:,}:"
    return f"{hole.stream or hole.process or 'the trace'}{span} {hole.why}"


def ordinal(n: int) -> str:
    """``1st``, ``2nd``, ``11th``, ``2,001st``."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{ending}"


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def cut(text: str, width: int) -> str:
    """At most ``width`` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
