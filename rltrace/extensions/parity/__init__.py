"""A trainer and a generator that should compute the same: matched token by token, down to the first op that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rltrace.extension import Extension, Verb

if TYPE_CHECKING:
    from rltrace.recorder.base.options import RecordOptions


ADAPTERS: Final = "rltrace.adapters"
"""Entry points of adapters: by library, the function that starts it."""


def _recorders(options: RecordOptions) -> dict[str, str]:
    if not options.rows:
        return {}
    from importlib.metadata import entry_points

    from rltrace.extensions.parity.adapters import library_of

    own = {
        "vllm": "vllm:start",
        "vllm.v1.worker.gpu_model_runner": "vllm:follow_runner",
        "sglang": "sglang:start",
        "sglang.srt.model_executor.model_runner": "sglang:follow_runner",
        "torchtitan": "torchtitan:start",
        "transformers.modeling_utils": "transformers:start",
    }
    adapters = {library: f"{__name__}.adapters.{name}" for library, name in own.items()}
    adapters |= {one.name: one.value for one in entry_points(group=ADAPTERS)}
    return adapters | {library_of(path): f"{__name__}.adapters:start_files" for path in options.adapters}


def _captures(options: RecordOptions) -> str:
    return "rltrace.extensions.parity.capture:add_captures" if options.rows or options.state is not None else ""


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
    _captures,
    providers={"rows": "rltrace.extensions.parity.patching.recorder:rows_provider"},
)
