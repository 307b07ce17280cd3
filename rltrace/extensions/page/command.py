"""``rltrace report``: a comparison as a page or as Markdown, to attach to an issue.

Owns the options, the format and the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrace.commands._option_types import StartArguments, argument, option, quiet_option, verb
from rltrace.commands.console import (
    ExitCode,
    Progress,
    check_output,
    emit,
    narrate,
    progress_visible,
    readable_size,
    write_output,
)
from rltrace.distribution import own_version
from rltrace.errors import UsageError
from rltrace.trace.format.location import Location

if TYPE_CHECKING:
    from rltrace.diff import Comparison

FORMS = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


@dataclass(frozen=True, kw_only=True)
class ReportArguments(StartArguments):
    a: Location = argument()
    b: Location = argument()
    output: Path = option(
        "-o",
        "--output",
        required=True,
        type=click.Path(path_type=Path, allow_dash=True),
        metavar="FILE",
        help="File to write; - is standard output.",
    )
    form: str | None = option("--format", type=click.Choice(["html", "markdown"]), help="Default: by the name.")
    with_host: bool = option(help="Show the machine's name and folders.")
    with_arguments: bool = option(help="Show the arguments of the recorded commands.")
    confirm: Path | None = option(metavar="FILE", help="Outcome of confirm; default: the one beside B.")
    force: bool = option(help="Replace an existing file.")
    quiet: bool = quiet_option()


@verb(ReportArguments)
def command(arguments: ReportArguments) -> int:
    """Write the comparison of traces A and B as one self-contained page, to attach to an issue.

    The page holds the verdict with its evidence, every optimizer step, the curves of both runs, the ops around the
    first difference and what differs between the machines. It loads nothing and runs nothing. As Markdown (-o FILE.md,
    or -o -) the report is short enough to paste.

    Others will read it: the machine's name, folders and command arguments are left out unless asked for. Source lines
    and logged numbers are in it.

    Ends with 0 when the report was written, whatever the verdict; with 2 when it could not be.

    \b
      rltrace report a.zarr b.zarr -o report.html
      rltrace report a.zarr b.zarr -o - | gh issue create --title "B diverges" --body-file -
    """
    output, form = arguments.output, arguments.form or _form_of(arguments.output)
    if output != Path("-"):
        check_output(output, arguments.force)
    progress = Progress() if progress_visible() else None
    try:
        text, comparison = _report(arguments, form, progress)
    finally:
        if progress:
            progress.clear()
    if output == Path("-"):
        emit(text.removesuffix("\n"))
        return ExitCode.IDENTICAL
    write_output(output, text)
    if not arguments.quiet:
        from rltrace.report.diff import headline

        narrate(f"{output}: {headline(comparison.verdict)}, {readable_size(len(text.encode()))}")
    return ExitCode.IDENTICAL


def _form_of(output: Path) -> str:
    if output == Path("-"):
        return "markdown"
    form = FORMS.get(output.suffix.lower())
    if form is None:
        raise UsageError(f"the format of {output} is unknown: call it .html or .md, or give --format")
    return form


def _report(arguments: ReportArguments, form: str, progress: Progress | None) -> tuple[str, Comparison]:
    from rltrace.report.redaction import Disclosure

    a, b, starts = arguments.a, arguments.b, arguments.starts
    disclosure = Disclosure(arguments.with_host, arguments.with_arguments)
    if form == "markdown":
        from rltrace.diff import compare
        from rltrace.report.markdown import comparison_markdown

        comparison = compare(a, b, starts=starts, progress=progress)
        return comparison_markdown(comparison, disclosure), comparison
    from rltrace.experiment.outcome import find_outcome
    from rltrace.extensions.page.data import gather
    from rltrace.extensions.page.page import html_page

    saved = find_outcome(a, b, arguments.confirm)
    material = gather(a, b, progress, starts)
    outcome = None if saved is None else saved.outcome
    return html_page(material, disclosure, version=own_version(), outcome=outcome), material.comparison
