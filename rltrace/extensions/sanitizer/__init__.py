"""Ops called again within the run that is recorded, on the inputs that they had: those that give something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rltrace.extension import Extension

if TYPE_CHECKING:
    from rltrace.recorder.base.options import RecordOptions


def _captures(options: RecordOptions) -> str:
    return "rltrace.extensions.sanitizer.repeats:add_repeats" if options.repeat else ""


EXTENSION: Final = Extension(
    {},
    captures=_captures,
    after_recording="rltrace.extensions.sanitizer.report:report_recorded",
    findings="rltrace.extensions.sanitizer.report",
    pytest_plugin="rltrace.extensions.sanitizer.pytest_plugin",
)
