"""The command ``rltrace``: runs a verb and returns its exit status.

Owns the handling of exceptions: click would exit with 1, which a script would read as "diverged". Verbs are imported
when they are called, never for ``--help``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any

import click

from rltrace.commands.console import ExitCode, complain, output_errors
from rltrace.errors import RltraceError

VERBS = {
    "record": "Run a command and record every op it runs.",
    "diff": "Compare two traces: where they first differ, and why.",
    "compare": "Compare two programs that should compute the same, row by row: generator and trainer.",
    "replay": "Run a command with values of another run injected.",
    "confirm": "Run two traces' programs again: is where they first differ the cause?",
    "capture": "Run a trace's program again, with its values in one file for another machine.",
    "check": "Run a command several times, and group the runs that computed the same.",
    "lock": "Run a command, and write the digests of its steps into a file to commit.",
    "repro": "Write one recorded op as a small script that runs it.",
    "rerun": "Run the ops of a recorded step again, alone, on what the step read.",
    "explain": "Run one recorded op under every setting of this machine, to find whose bits it gives.",
    "report": "Write a comparison as a page or Markdown, to attach to an issue.",
    "show": "Look through one trace in the terminal: steps, curves, ops.",
    "info": "What a trace holds: machine, versions, streams, states.",
    "ops": "List the recorded ops, one line each.",
    "kernels": "What ran for each kind of call, as oneDNN and MKL report it; of one run or two.",
    "series": "Logged scalars, learning rates and gradient scalers over time; of one run or two.",
    "doctor": "What selects kernels here, and sources of nondeterminism.",
    "verify": "Check every byte of a trace.",
    "slice": "Cut a window out of a trace, to copy elsewhere.",
    "build-engine": "Compile the native engine, which records small ops in about half the time.",
}
"""The help line of each verb, a module of this package with a click command named ``command``."""


def _module(verb: str) -> str:
    return f"rltrace.commands.{verb.replace('-', '_')}"


class ReaderLeftError(Exception):
    """Standard output was closed before everything was written."""


@contextmanager
def _pipe_errors() -> Iterator[None]:
    """Raise ReaderLeftError for a closed pipe, for which click would exit with 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderLeftError from error


class Verbs(click.Group):
    """A group whose commands are modules, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verb in VERBS if find_spec(_module(verb)) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = import_module(_module(cmd_name)).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            likely = get_close_matches(args[0], self.list_commands(ctx), 1)
            more = f" Did you mean {likely[0]}?" if likely else ""
            raise click.UsageError(f"{error.message}{more}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        verbs = self.list_commands(ctx)
        if verbs:
            with formatter.section("Commands"):
                formatter.write_dl([(verb, VERBS[verb]) for verb in verbs])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _pipe_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _pipe_errors():
            return super().invoke(ctx)


def _print_version(ctx: click.Context, _parameter: click.Parameter, requested: bool) -> None:
    if not requested or ctx.resilient_parsing:
        return
    from rltrace.commands.version import own_version

    click.echo(f"rltrace {own_version()}")
    ctx.exit()


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it.")
def rltrace() -> None:
    """Find the first op at which two runs of a training program diverge, and why.

    \b
      rltrace record -o a.zarr -- python train.py
      rltrace record -o b.zarr -- python train.py
      rltrace diff a.zarr b.zarr
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: that of the process) and return the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    failed = ExitCode.RLTRACE_FAILED if _verb(arguments) in ("record", "replay") else ExitCode.TROUBLE
    return guarded(lambda: rltrace.main(args=arguments, prog_name="rltrace", standalone_mode=False), failed)


def _verb(arguments: Sequence[str]) -> str:
    """The verb of a command line: the first word that is not a flag, as the group has no other options."""
    return next((argument for argument in arguments if not argument.startswith("-")), "")


def guarded(call: Callable[[], object], failed: ExitCode) -> int:
    """The exit status of ``call``; ``failed`` if rltrace itself failed."""
    try:
        status = _status(call(), failed)
        with output_errors():
            _flush(sys.stdout)
    except SystemExit as ending:
        return _status(ending.code, failed)
    except (ReaderLeftError, BrokenPipeError):
        _silence(sys.stdout)
        return ExitCode.BROKEN_PIPE
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return failed
    except RltraceError as error:
        _show_traceback()
        complain(str(error))
        return failed
    except Exception as error:
        _show_unexpected(error)
        return failed
    finally:
        _drop_unwritable(sys.stdout)
        _drop_unwritable(sys.stderr)
    return status


def _status(result: object, failed: ExitCode) -> int:
    if result is None:
        return ExitCode.IDENTICAL
    return int(result) if isinstance(result, int) else failed


def _flush(stream: IO[str] | None) -> None:
    """Raise for a closed pipe or a full disk now, not at the interpreter's shutdown."""
    if stream is not None:
        stream.flush()


def _drop_unwritable(stream: IO[str] | None) -> None:
    """Discard buffered output that cannot be written: flushing it at shutdown would change the exit status."""
    try:
        _flush(stream)
    except (OSError, ValueError):
        _silence(stream)


def _silence(stream: IO[str] | None) -> None:
    """Redirect a stream to /dev/null, so that the interpreter's last flush succeeds."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]


def _show_traceback() -> bool:
    if not os.environ.get("RLTRACE_DEBUG"):
        return False
    import traceback

    with suppress(OSError):
        traceback.print_exc()
    return True


def _show_unexpected(error: Exception) -> None:
    """One readable line for an unexpected exception."""
    shown = _show_traceback()
    where = f" ({error.filename})" if isinstance(error, OSError) and error.filename is not None else ""
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    hint = "" if shown else "set RLTRACE_DEBUG=1 to see where it comes from"
    complain(f"{type(error).__name__}: {' '.join(text.split())}{where}", hint=hint)


if __name__ == "__main__":
    sys.exit(main())
