"""A trainer and a generator that should compute the same: matched token by token, down to the first op that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rltrace.extension import Extension, Verb

if TYPE_CHECKING:
    from rltrace.recorder.base.options import RecordOptions


def _recorders(options: RecordOptions) -> dict[str, str]:
    return {"vllm": "rltrace.extensions.parity.adapters.vllm:start"} if options.rows and not options.rerun else {}


EXTENSION: Final = Extension(
    {
        "compare": Verb(
            "Compare",
            "Compare two programs row by row: generator and trainer.",
            "rltrace.extensions.parity.commands.compare",
        ),
        "replay-rows": Verb(
            "Prove",
            "Run a command with another program's rows injected.",
            "rltrace.extensions.parity.commands.replay_rows",
            runs_command=True,
        ),
    },
    _recorders,
    providers={"rows": "rltrace.extensions.parity.patching.start:rows_provider"},
)
