"""``rltrace explain``: which settings of this machine give whose bits at one op."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from rltrace.commands.console import emit, narrate
from rltrace.commands.repro import find, prepare, told


@click.command(name="explain")
@click.argument("trace", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path), required=False, metavar="[B]")
@click.option("--at", "text", metavar="OP", help="A row as diff and ops print it, or a selector that finds one op.")
@click.option("--times", type=click.IntRange(min=1), default=50, show_default=True, help="Runs under each setting.")
@click.option(
    "--setting", "asked", multiple=True, metavar="NAME=VALUE", help="Try this only; A=1,B=2 sets both; repeatable."
)
@click.option("--import", "imports", multiple=True, metavar="MODULE", help="Registers the op, if torch does not.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--quiet", is_flag=True, help="No narration; errors are still shown.")
def command(
    trace: Path,
    other: Path | None,
    text: str | None,
    times: int,
    asked: tuple[str, ...],
    imports: tuple[str, ...],
    form: str,
    quiet: bool,
) -> None:
    """Run one op on its recorded inputs under every setting that can change its kernel here, and say whose bits come.

    Of TRACE and B it is the first op that differs, or the one that --at names. Each setting gets a process of its own:
    threads, instruction sets of ATen, MKL and oneDNN, deterministic algorithms; on a GPU, TF32. Where none gives a
    side's bits, pairs of those that changed something are tried, 24 at most. One of the traces must hold what the op
    read (rltrace record --values SELECTOR --values-inputs, or rltrace record --against).

    \b
      rltrace explain a.zarr b.zarr
      rltrace explain a.zarr --at 'op=addmm,step=3,nth=0'
    """
    from rltrace.experiment.explain import Setting, explain, is_missing, pairs, parse_setting, settings
    from rltrace.fingerprint.host import machine
    from rltrace.reexecute.folder import SCRIPT, write_folder
    from rltrace.report.explain import explain_json, explain_lines

    chosen = [parse_setting(setting) for setting in asked]
    a, b = find(trace, text, other)
    op, sides = prepare(a, b, imports)
    on_gpu = any(tensor.device != "cpu" for tensor in op.case.tensors)
    has = str(machine()["host.isa"] or "").split()
    tries = [Setting(), *chosen] if chosen else settings(has, [s.threads for s in sides.values()], on_gpu=on_gpu)

    def tell(setting: Setting) -> None:
        if not quiet:
            narrate(f"{op.name}: {setting}")

    with tempfile.TemporaryDirectory(prefix="rltrace-explain-") as folder:
        write_folder(Path(folder), op, sides, told(a, b), imports)
        tried = list(explain(Path(folder) / SCRIPT, tries, times, tell))
        if not chosen and any(is_missing(side, tried) for side in sides):
            tried += explain(Path(folder) / SCRIPT, pairs(tried), times, tell)
    places = {"a": str(a)} | ({} if b is None else {"b": str(b)})
    if form == "json":
        emit(json.dumps(explain_json(op.name, places, list(sides), tried), indent=2))
    else:
        emit("\n".join(explain_lines(op.name, places, list(sides), tried)))
