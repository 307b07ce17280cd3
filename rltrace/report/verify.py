"""Text of ``rltrace verify``. Never prints."""

from __future__ import annotations

from pathlib import Path

from rltrace.trace.tools.verify import CheckedProcess, Verification
from rltrace.wording import counted


def unreadable(path: Path, why: str) -> Verification:
    """The result for a trace that cannot be read at all."""
    return Verification(path, (), 0, 0, (why,), ())


def verification_text(found: Verification) -> str:
    """A line for each process and each damaged piece, then the verdict."""
    lines = [_process_line(process) for process in found.processes]
    lines += [f"damaged  {what}" for what in found.damage]
    lines += [f"note     {what}" for what in found.notes]
    read = f"{found.chunks:,} chunks, {found.bytes:,} bytes read"
    if found.sound:
        lines.append(f"{found.path} is sound ({read})")
    else:
        parts = counted(len(found.damage), "part")
        lines.append(f"{found.path} is DAMAGED in {parts} ({read}); the rest can be used")
        lines.append(f"  hint: {_remedy(found)}")
    return "\n".join(lines)


def _remedy(found: Verification) -> str:
    """What to do about damage."""
    if not found.lost_steps:
        return "if this is a copy, copy it again"
    first, end = found.lost_steps
    return (
        f"if this is a copy, copy it again; otherwise rltrace record --steps {first}:{end} records the lost ops again"
    )


def _process_line(process: CheckedProcess) -> str:
    line = f"process  {process.name}  {process.state}  {process.rows:,} ops"
    if process.rows_read != process.rows:
        line += f", {process.rows_read:,} read"
    if process.rows_proved != process.rows_read:
        line += f", {process.rows_proved:,} with their prefix digests checked"
    if process.values:
        line += f", {process.values_read:,} of {process.values:,} values read"
    return line
