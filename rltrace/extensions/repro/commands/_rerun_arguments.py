"""The options of ``rltrace rerun``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rltrace.commands._option_types import (
    STEP,
    argument,
    color_option,
    command_argument,
    form_option,
    import_option,
    option,
    quiet_option,
    recorded,
)
from rltrace.recorder.base.options import Window

WITH_CMD = "With CMD"
"""The group of options of ``rerun`` that are for a program."""


@dataclass(frozen=True, kw_only=True)
class RerunArguments:
    trace: Path = argument()
    command: tuple[str, ...] = command_argument("[-- CMD …]")
    sized: Window | None = recorded("steps", flag="--size", envvar=None, help="What recording these steps would take.")
    name: str | None = option("--process", metavar="NAME", help="As in rank1/main; default: the only one.")
    imports: tuple[str, ...] = import_option()
    checkpoint: Path | None = option(metavar="PATH", help="Where the checkpoint of record is now.")
    form: str = form_option()
    color: str = color_option()
    output: Path | None = option(
        "-o", "--output", metavar="TRACE", group=WITH_CMD, help="Trace to write; default: a new name."
    )
    warm_up: int | None = option(type=STEP, metavar="STEPS", group=WITH_CMD, help="Steps made before; default: few.")
    until: int | None = recorded("until", group=WITH_CMD)
    verify_inputs: bool = recorded("verify_inputs", group=WITH_CMD, help="Digest every input of every op.")
    values: tuple[str, ...] = recorded("values", group=WITH_CMD)
    values_inputs: bool = recorded("values_inputs", group=WITH_CMD)
    values_limit: int = recorded("values_limit", group=WITH_CMD)
    pause: str | None = option(
        "--break-at", metavar="OP", group=WITH_CMD, help="Begin the debugger before this op of TRACE."
    )
    no_compare: bool = option(group=WITH_CMD, help="End as CMD ends, without a comparison with TRACE.")
    force: bool = option(group=WITH_CMD, help="Replace an existing trace.")
    quiet: bool = quiet_option(group=WITH_CMD)
