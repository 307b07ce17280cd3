"""The command ``rltrace``: runs a verb and returns its exit status.

Owns the handling of exceptions: click would exit with 1, which a script would read as "diverged". Verbs are imported
when they are called, never for ``--help``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from typing import IO, Any

import click

from rltrace.commands.console import ExitCode, complain, output_errors
from rltrace.errors import RltraceError
from rltrace.extension import Verb, extensions

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Record": {
        "record": "Run a command and record every op it runs.",
        "arm": "Have a running program that was started asleep record steps.",
    },
    "Compare": {"diff": "Compare two traces: where they first differ, and why."},
    "Prove": {
        "confirm": "Run both programs again: is the first difference the cause?",
        "replay": "Run a command with values of another run injected.",
    },
    "Look": {
        "show": "Look through one trace in the terminal: steps, curves, ops.",
        "info": "What a trace holds: machine, versions, streams, states.",
        "ops": "List the recorded ops, one line each.",
    },
    "Keep and move": {"build-engine": "Compile the native engine, which halves the cost of small ops."},
}
"""The core's verbs, each a module of this package with a click command named ``command``: by group, the help lines."""

RUN_COMMANDS = frozenset({"record", "replay"})
"""Those of the core that run a command, as which they end."""


def _all_verbs() -> dict[str, Verb]:
    """The core's verbs and those of the extensions, group by group."""
    found = {
        name: Verb(group, text, f"rltrace.commands.{name.replace('-', '_')}", name in RUN_COMMANDS)
        for group, verbs in GROUPS.items()
        for name, text in verbs.items()
    }
    for extension in extensions():
        found |= extension.verbs
    order = [*GROUPS, *(verb.group for verb in found.values())]
    return dict(sorted(found.items(), key=lambda item: order.index(item[1].group)))


VERBS = _all_verbs()


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
        return [name for name, verb in VERBS.items() if find_spec(verb.module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = import_module(VERBS[cmd_name].module).command
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

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs alone: the two options are in the line of usage."""
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        widest = max(map(len, names))
        for group, own in groupby(names, key=lambda name: VERBS[name].group):
            with formatter.section(group):
                formatter.write_dl([(name.ljust(widest), VERBS[name].help) for name in own])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _pipe_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _pipe_errors():
            return super().invoke(ctx)


def _print_version(ctx: click.Context, _parameter: click.Parameter, requested: bool) -> None:
    if not requested or ctx.resilient_parsing:
        return
    from rltrace.distribution import own_version

    click.echo(f"rltrace {own_version()}")
    ctx.exit()


@click.command(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    options_metavar="[--version | --help]",
    subcommand_metavar="VERB …",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it.")
def rltrace() -> None:
    """\b
    Find the first op at which two runs of a training program diverge, and why.
      rltrace record -o a.zarr -- python train.py
      rltrace record -o b.zarr -- python train.py
      rltrace diff a.zarr b.zarr
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: that of the process) and return the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # the first word that is not a flag, as the group has no other options
    verb = VERBS.get(next((word for word in arguments if not word.startswith("-")), ""))
    failed = ExitCode.RLTRACE_FAILED if verb is not None and verb.runs_command else ExitCode.TROUBLE
    return guarded(lambda: rltrace.main(args=arguments, prog_name="rltrace", standalone_mode=False), failed)


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
