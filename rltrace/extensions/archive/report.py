"""The document of a verification."""

from rltrace.diff.base.model import Verdict
from rltrace.extensions.archive.verify import CheckedProcess, Verification
from rltrace.report.document import Document, Fact
from rltrace.wording import counted


def verification_document(found: Verification) -> Document:
    """Whether the trace is sound, its processes, and each damaged piece."""
    read = f"({found.chunks:,} chunks, {found.bytes:,} bytes read)"
    parts = counted(len(found.damage), "part")
    lead = () if found.sound else (f"The rest can be used; {_remedy(found)}.",)
    facts = (
        *(Fact("process", _process_text(process)) for process in found.processes),
        *(Fact("damaged", what) for what in found.damage),
        *(Fact("note", what) for what in found.notes),
    )
    return Document(
        "SOUND" if found.sound else f"DAMAGED in {parts}",
        Verdict.IDENTICAL if found.sound else Verdict.DIVERGED,
        scope=f"{found.path} {read}",
        lead=lead,
        facts=facts,
    )


def _remedy(found: Verification) -> str:
    """What to do about damage."""
    if not found.lost_steps:
        return "if this is a copy, copy it again"
    first, end = found.lost_steps
    return (
        f"if this is a copy, copy it again; otherwise rltrace record --steps {first}:{end} records the lost ops again"
    )


def _process_text(process: CheckedProcess) -> str:
    line = f"{process.name}  {process.state}  {process.rows:,} ops"
    if process.rows_read != process.rows:
        line += f", {process.rows_read:,} read"
    if process.rows_proved != process.rows_read:
        line += f", {process.rows_proved:,} with their prefix digests checked"
    if process.values:
        line += f", {process.values_read:,} of {process.values:,} values read"
    return line
