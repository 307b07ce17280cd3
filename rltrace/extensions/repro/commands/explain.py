"""``rltrace explain``: the results of one op under every setting of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.commands._option_types import (
    COUNT,
    argument,
    brief_option,
    form_option,
    import_option,
    option,
    quiet_option,
    verb,
)
from rltrace.commands.console import ExitCode, emit_result, narrate, run_counter
from rltrace.errors import RltraceError
from rltrace.extensions.repro.commands.repro import find, prepare
from rltrace.trace.format.location import Location

if TYPE_CHECKING:
    from rltrace.extensions.repro.kernel_settings import OpProfile
    from rltrace.extensions.repro.repro_main import RecordedSide
    from rltrace.rerun.recorded_op import RecordedOp


@dataclass(frozen=True, kw_only=True)
class ExplainArguments:
    trace: Location = argument()
    other: Location | None = argument(metavar="[B]")
    at: str | None = option(metavar="OP", help="A row, as diff and ops print it, or a selector.")
    times: int = option(type=COUNT, default=50, metavar="N", help="Runs under each setting.")
    asked: tuple[str, ...] = option("--setting", metavar="NAME=VALUE", help="Only this; A=1,B=2: both; repeatable.")
    everything: bool = option(help="On a GPU, all settings that there are.")
    imports: tuple[str, ...] = import_option()
    form: str = form_option()
    brief: bool = brief_option()
    quiet: bool = quiet_option()


@verb(ExplainArguments)
def command(arguments: ExplainArguments) -> None:
    """Run one op on its recorded inputs under every setting that can change its kernel here, and report whose bits it
    gives.

    With TRACE and B it is the first op that differs, or the one that --at names. Each setting runs in a separate
    process: threads, instruction sets of ATen, MKL and oneDNN, deterministic algorithms, the alignment of its inputs;
    on a GPU, precision, libraries, workspaces and back ends, as far as they are linked with the op. Where none gives a
    side's bits, pairs of those that changed something are tried, 24 at most. One of the traces must hold what the op
    read (rltrace record --values SELECTOR --values-inputs, or rltrace record --against).

    \b
      rltrace explain a.zarr b.zarr
      rltrace explain a.zarr --at 'op=addmm,step=3,nth=0'
    """
    from rltrace.extensions.repro.explain import explain, is_missing, pairs
    from rltrace.extensions.repro.folder import SCRIPT, write_folder
    from rltrace.extensions.repro.kernel_settings import KernelSetting, SettingsGrid, parse_setting, settings
    from rltrace.extensions.repro.report import brief_explanation, explanation, explanation_document
    from rltrace.fingerprint.host import machine

    trace, other, times, imports = arguments.trace, arguments.other, arguments.times, arguments.imports
    chosen = [parse_setting(setting) for setting in arguments.asked]
    a, b = find(trace, arguments.at, other)
    repro = prepare(a, b, imports, "explain")
    op, sides = repro.ops[0], repro.sides
    with tempfile.TemporaryDirectory(prefix="rltrace-explain-") as folder:
        if chosen:
            grid = SettingsGrid([KernelSetting(), *chosen])
        else:
            has = str(machine()["host.isa"] or "").split()
            threads = [side.threads for side in sides.values()]
            other_side = _differing_side(sides)
            grid = settings(_profile(op), has, threads, other=other_side, everything=arguments.everything)
        count = run_counter(len(grid.tries))

        def narrate_setting(setting: KernelSetting) -> None:
            if not arguments.quiet:
                narrate(f"{op.name}: {setting}{count()}")

        write_folder(Path(folder), repro)
        tried = list(explain(Path(folder) / SCRIPT, grid.tries, times, narrate_setting))
        if not chosen and any(is_missing(side, tried) for side in sides):
            tried += explain(Path(folder) / SCRIPT, pairs(tried), times, narrate_setting)
    places = {"a": str(a)} | ({} if b is None else {"b": str(b)})
    traces = {"a": str(trace)} | ({} if other is None else {"b": str(other)})
    failed = all(one.trouble for one in tried)
    found = explanation(op.name, places, tried, grid.left_out)
    status = ExitCode.TROUBLE if failed else ExitCode.IDENTICAL
    emit_result(arguments, found, lambda: explanation_document(found, traces), lambda: brief_explanation(found, status))
    if failed:
        raise RltraceError(f"{op.name} could be run under none of the settings: {tried[0].trouble}")


def _profile(op: RecordedOp) -> OpProfile:
    from rltrace.extensions.repro.kernel_settings import OpProfile

    tensors, settings = op.call.inputs, op.call.settings
    return OpProfile(
        op.name,
        frozenset(tensor.dtype for tensor in tensors),
        on_gpu=any(tensor.device != "cpu" for tensor in tensors),
        has_inputs=any(tensor.span for tensor in tensors),
        aligned=not any(tensor.alignment for tensor in tensors),
        grad_mode=bool(settings.get("grad_mode", True)),
        flush_denormal=bool(settings.get("flush_denormal", False)),
    )


def _differing_side(sides: Mapping[str, RecordedSide]) -> str:
    """The other side, if its settings differ from those of the first; otherwise ""."""
    first, *rest = sides

    def under(side: RecordedSide) -> tuple[object, ...]:
        alignments = side.alignments if side.alignments is not None else sides[first].alignments
        return side.threads, dict(side.environment), dict(side.switches), alignments

    return next((name for name in rest if under(sides[name]) != under(sides[first])), "")
