"""One finding in lines of text, and the few ways in which text is fitted to a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from rltrace.diff.model import Finding, Pair, Site
from rltrace.report.style import Style
from rltrace.report.telling import INPUTS, apart, cut, noun, ordinal, rows, sentence, when

__all__ = ["INPUTS", "MOST_OUTPUTS", "WIDTH", "cut", "finding_lines", "ordinal", "sentence", "wrapped"]

WIDTH = 80
MOST_OUTPUTS = 2
MOST_CELLS = 6
"""Of an event that differs."""


def finding_lines(title: str, finding: Finding, style: Style) -> Iterator[str]:
    """A heading, and a line for each thing that is known."""
    yield style.bold(title)
    if finding.op is not None:
        yield f"  {noun(finding):<8} {style.bold(finding.op)}"
        yield f"  row      {rows(finding)} of {finding.stream}"
    yield from wrapped(when(finding), "           ", "  when     ")
    if finding.module:
        yield f"  module   {finding.module}"
    for number, site in enumerate(finding.stack):
        yield from _site_lines(site, "  site     " if number == 0 else "  from     ")
    yield from _evidence(finding)
    yield from wrapped(f"{finding.cause.value}: {sentence(finding.because)}", "           ", "  cause    ")
    both = finding.a_index is not None and finding.b_index is not None
    if finding.op is not None and both and finding.boundary is None:
        yield from wrapped(INPUTS[finding.inputs_match], "           ", "  inputs   ")


def _evidence(finding: Finding) -> Iterator[str]:
    """What ran, and the digests of what it returned."""
    if finding.op is None or finding.boundary is not None:
        for name, pair in apart(finding)[:MOST_CELLS]:
            yield from _pair(name, pair)
    elif finding.a_index is None or finding.b_index is None:
        kernel = finding.kernel.a or finding.kernel.b
        if kernel:
            yield from wrapped(kernel, "           ", "  kernel   ")
    else:
        yield from _pair("kernel", finding.kernel)
        yield from _outputs(finding)


def _outputs(finding: Finding) -> Iterator[str]:
    """Of several outputs, those that differ, and how many do."""
    differing = apart(finding)
    if not differing and finding.outputs:
        yield "  output   equal on both sides"
    for name, pair in differing[:MOST_OUTPUTS]:
        yield from _pair(name, pair)
    if len(finding.outputs) > 1 and differing:
        yield f"           ({len(differing):,} of {len(finding.outputs):,} outputs differ)"


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
    if len(label) > 8:
        yield f"  {label}"
        label = ""
    yield from wrapped(f"A  {pair.a or '-'}", "              ", f"  {label:<8} ")
    yield from wrapped(f"B  {pair.b or '-'}", "              ", "           ")


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
