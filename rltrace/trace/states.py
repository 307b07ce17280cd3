"""The words for the states that a process of a trace can be in (docs/reference/trace-format.md)."""

from __future__ import annotations

from typing import Final

RUNNING: Final = "running"
COMPLETE: Final = "complete"
STOPPED: Final = "stopped"
KILLED: Final = "killed"
DAMAGED: Final = "damaged"
NEVER_RECORDED: Final = "never-recorded"
