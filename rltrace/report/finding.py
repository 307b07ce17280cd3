"""One finding in lines of text, and the few ways in which text is fitted to a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from rltrace.diff.model import Finding, InputsMatch, Pair, Site
from rltrace.report.style import Style

WIDTH = 80
MOST_OUTPUTS = 2

INPUTS = {
    InputsMatch.READ: "read: digested at this op on both sides",
    InputsMatch.LINKED: "linked: written by matching ops of the same step, not read again here",
    InputsMatch.DIFFER: "differ",
    InputsMatch.UNKNOWN: "unknown",
}


def finding_lines(title: str, finding: Finding, style: Style) -> Iterator[str]:
    """A heading, and a line for each thing that is known."""
    yield style.bold(title)
    if finding.op is not None:
        yield f"  op       {style.bold(finding.op)}"
        yield f"  row      {_rows(finding)} of {finding.stream}"
    yield from wrapped(_when(finding), "           ", "  when     ")
    if finding.module:
        yield f"  module   {finding.module}"
    for number, site in enumerate(finding.stack):
        yield from _site_lines(site, "  site     " if number == 0 else "  from     ")
    yield from _evidence(finding)
    yield from wrapped(f"{finding.cause.value}: {sentence(finding.because)}", "           ", "  cause    ")
    if finding.op is not None and (finding.a_index is not None and finding.b_index is not None):
        yield from wrapped(INPUTS[finding.inputs_match], "           ", "  inputs   ")


def _evidence(finding: Finding) -> Iterator[str]:
    """What ran, and the digests of what it returned."""
    if finding.op is None:
        for name, pair in zip(("gradient", "params", "rng", "rng"), finding.outputs, strict=False):
            if pair.a != pair.b:
                yield from _pair(name, pair)
    elif finding.a_index is None or finding.b_index is None:
        kernel = finding.kernel.a or finding.kernel.b
        if kernel:
            yield from wrapped(kernel, "           ", "  kernel   ")
    else:
        yield from _pair("kernel", finding.kernel)
        yield from _outputs(finding.outputs)


def _outputs(outputs: tuple[Pair[str], ...]) -> Iterator[str]:
    """Of several outputs, those that differ, and how many do."""
    differing = [k for k, pair in enumerate(outputs) if pair.a != pair.b]
    if not differing and outputs:
        yield "  output   equal on both sides"
    for k in differing[:MOST_OUTPUTS]:
        yield from _pair("output", outputs[k])
    if len(outputs) > 1 and differing:
        yield f"           ({len(differing):,} of {len(outputs):,} outputs differ)"


def _rows(finding: Finding) -> str:
    a, b = finding.a_index, finding.b_index
    if a is None or b is None:
        return f"{a:,} (A only)" if a is not None else f"{b:,} (B only)" if b is not None else "?"
    return f"{a:,}" if a == b else f"{a:,} (A), {b:,} (B)"


def _when(finding: Finding) -> str:
    if finding.step is None:
        phase = "" if finding.phase == "other" else f"phase {finding.phase}; "
        return f"{phase}no optimizer step in this process"
    details = []
    if finding.optimizer is not None:
        which = finding.optimizer
        name = which.name if which.ordinal == 0 else f"{which.name} #{which.ordinal}"
        count = f"{ordinal(which.count + 1)} attempt"
        details.append(f"{name}'s {count}" if which.owner is None else f"{which.owner}'s {which.name}, {count}")
    if finding.environment_step is not None:
        details.append(f"environment step {finding.environment_step:,}")
    more = f" ({', '.join(details)})" if details else ""
    phase = f", phase {finding.phase}" if finding.op is not None and finding.phase != "other" else ""
    return f"optimizer step {finding.step:,}{more}{phase}"


def ordinal(n: int) -> str:
    """``1st``, ``2nd``, ``11th``, ``2,001st``."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{ending}"


def _site_lines(site: Site, label: str) -> Iterator[str]:
    yield from wrapped(f"{site.file}:{site.line} in {site.function}", "             ", label)
    if site.source:
        yield f"             {cut(site.source, WIDTH - 13)}"


def _pair(label: str, pair: Pair[str]) -> Iterator[str]:
    if pair.a is None and pair.b is None:
        return
    if pair.a == pair.b:
        yield from wrapped(f"{pair.a} on both sides", "           ", f"  {label:<8} ")
        return
    yield from wrapped(f"A  {pair.a or '-'}", "              ", f"  {label:<8} ")
    yield from wrapped(f"B  {pair.b or '-'}", "              ", "           ")


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def wrapped(text: str, indent: str = "  ", first: str | None = None) -> Iterator[str]:
    """Lines of at most WIDTH columns; ``first``: what the first one begins with instead of ``indent``."""
    yield from wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def cut(text: str, width: int) -> str:
    """At most ``width`` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
