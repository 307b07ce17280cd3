"""Source files that were edited between two runs, and which of their lines.

Digests of lines say which differ; a moved line is no edit. The text of a line is shown where a call stack or the trace
holds it, or where the file is still there and the line still has that digest.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rltrace.diff.base.model import Finding, SourceEdit
from rltrace.diff.base.sequences import BudgetExceededError, SearchBudget, common_prefix, common_suffix, longest_common
from rltrace.fingerprint.sources import MAX_FILE_BYTES, line_digests
from rltrace.masking import masked_text
from rltrace.trace.format.records import SourceLines
from rltrace.trace.format.root import COMPLETE
from rltrace.trace.format.schema import SOURCE
from rltrace.trace.read.names import Site, parse_site
from rltrace.trace.read.process import ProcessTrace

BUDGET = 200_000
"""Elementary steps of the search for the lines that two versions of a file share."""

MAX_LINES = 1_000
"""Edited lines of one side of a file; a file with more is another file."""

BLANK = 0
"""Digest of a line without text."""


def source_edits(pairs: Iterable[tuple[ProcessTrace, ProcessTrace]], finding: Finding | None) -> tuple[SourceEdit, ...]:
    """Every source file that differs in a pair of processes; the line nearest to ``finding`` first."""
    found: dict[str, SourceEdit] = {}
    for a, b in pairs:
        for edit in _edits_of(a, b):
            found.setdefault(edit.file, edit)
    near = _Nearness(finding)
    edits = [replace(e, only_a=near.ordered(e.only_a), only_b=near.ordered(e.only_b)) for e in found.values()]
    return tuple(sorted(edits, key=near.of_edit))


def nearest_edit(edits: Iterable[SourceEdit], finding: Finding) -> Site | None:
    """The edited line nearest to a finding, as B has it, or else A; None: no line is known to be edited."""
    near = _Nearness(finding)
    lines = [line for edit in edits for line in (*edit.only_b, *edit.only_a)]
    return min(lines, key=near.of, default=None)


def _edits_of(a: ProcessTrace, b: ProcessTrace) -> Iterator[SourceEdit]:
    for file in sorted(a.sources.keys() | b.sources.keys() if a.sources and b.sources else ()):
        if file not in a.sources or file not in b.sources:
            if (a if file in b.sources else b).state == COMPLETE:
                yield SourceEdit(file, (), (), "b" if file in b.sources else "a")
            continue
        lines_a, lines_b = a.sources[file], b.sources[file]
        if lines_a.digests and lines_b.digests and lines_a.digests != lines_b.digests:
            only_a, only_b = _differing(lines_a.digests, lines_b.digests)
            yield SourceEdit(file, _sites(a, file, only_a), _sites(b, file, only_b))
    for name in sorted(name for name in a.facts.keys() & b.facts.keys() if name.startswith(SOURCE)):
        file, hashes = name.removeprefix(SOURCE), (a.facts[name], b.facts[name])
        known = all(file in side.sources and side.sources[file].digests for side in (a, b))
        if None not in hashes and hashes[0] != hashes[1] and not known:
            stacks_a, stacks_b = _lines_in_stacks(a, file), _lines_in_stacks(b, file)
            yield SourceEdit(file, _only(stacks_a, stacks_b), _only(stacks_b, stacks_a))


def _only(own: Mapping[int, Site], others: Mapping[int, Site]) -> tuple[Site, ...]:
    """Lines whose text is in none of the other side's."""
    texts = {site.source for site in others.values()}
    return tuple({site.source: site for site in own.values() if site.source not in texts}.values())


def _differing(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Places of the lines that one side alone has, without those that only moved."""
    own = np.array(a, np.uint64), np.array(b, np.uint64)
    head = common_prefix(*own)
    tail = common_suffix(own[0][head:], own[1][head:])
    inner = own[0][head : len(a) - tail], own[1][head : len(b) - tail]
    try:
        kept = longest_common(*inner, SearchBudget(BUDGET))
    except BudgetExceededError:
        kept = np.empty(0, np.int64), np.empty(0, np.int64)
    left = [head + np.setdiff1d(np.arange(len(lines)), at) for lines, at in zip(inner, kept, strict=True)]
    moved = Counter(a[k] for k in left[0].tolist()) & Counter(b[k] for k in left[1].tolist())
    only: list[list[int]] = []
    for digests, places in zip((a, b), left, strict=True):
        spent = moved.copy()
        only.append([])
        for k in places.tolist():
            if spent[digests[k]]:
                spent[digests[k]] -= 1
            elif digests[k] != BLANK:
                only[-1].append(k)
    return only[0], only[1]


def _sites(process: ProcessTrace, file: str, places: list[int]) -> tuple[Site, ...]:
    source, stacks = process.sources[file], _lines_in_stacks(process, file)
    lines = _present_lines(source.path) if source.text is None else source.text.splitlines()
    return tuple(
        stacks.get(k + 1) or Site(file, k + 1, "", _text(source, lines, k), source.path) for k in places[:MAX_LINES]
    )


def _text(source: SourceLines, lines: list[str], place: int) -> str:
    """The text of a line, of ``lines`` in the trace or in the file as it is now; "" where these hold it no more."""
    at_place = lines[place : place + 1]
    if source.text is not None:
        return "".join(at_place).strip()
    own = source.digests[place].to_bytes(4, "little")
    return masked_text(next((text for text in (*at_place, *lines) if line_digests(text.encode()) == own), "").strip())


def _present_lines(path: str) -> list[str]:
    try:
        file = Path(path).expanduser()
        if not file.is_file() or file.stat().st_size > MAX_FILE_BYTES:
            return []
        return file.read_bytes().decode(errors="replace").splitlines()
    except (OSError, RuntimeError, ValueError):
        return []


def _lines_in_stacks(process: ProcessTrace, file: str) -> Mapping[int, Site]:
    """The lines of a file in the call stacks of a process, by their numbers."""
    payloads = (p for p in process.tables["frames"].payloads if isinstance(p, dict) and p.get("file") == file)
    sites = sorted((parse_site(payload) for payload in payloads), key=lambda site: site.line)
    return {site.line: replace(site, source=site.source.strip()) for site in sites if site.source.strip()}


@dataclass(frozen=True)
class _Nearness:
    """How near lines are to a finding: in its frames, else in a file of these, else elsewhere."""

    finding: Finding | None

    def of(self, line: Site) -> tuple[int, int, str, int]:
        frames = () if self.finding is None else self.finding.stack
        own = [(k, frame) for k, frame in enumerate(frames) if frame.file == line.file]
        exact = [k for k, frame in own if frame.line == line.line]
        if exact:
            return 0, exact[0], line.file, line.line
        if own:
            return 1, abs(own[0][1].line - line.line), line.file, line.line
        return 2, 0, line.file, line.line

    def ordered(self, lines: tuple[Site, ...]) -> tuple[Site, ...]:
        return tuple(sorted(lines, key=self.of))

    def of_edit(self, edit: SourceEdit) -> tuple[int, int, str, int]:
        return min(map(self.of, (*edit.only_a[:1], *edit.only_b[:1])), default=(3, 0, edit.file, 0))
