"""A whole trace that is being built, and its processes: births, facts, endings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from rltrace.testing.inputs import digest
from rltrace.testing.processes import Process
from rltrace.testing.streams import StreamBuilder, states_of
from rltrace.trace.writer import create_trace, end_launch


class ProcessBuilder(Process):
    """One process of a trace, with its streams."""

    @cached_property
    def streams(self) -> dict[str, StreamBuilder]:
        """Those begun so far, by name."""
        return {}

    def stream(self, name: str | None = None) -> StreamBuilder:
        """The stream of this name (default: the process's own), begun when it is new."""
        name = name or self.name
        if name not in self.streams:
            self.streams[name] = StreamBuilder(self, name)
        return self.streams[name]

    def finish(
        self,
        state: str = "complete",
        ending: Mapping[str, object] | None = None,
        generators: object = None,
        parameters: Mapping[int, object] | None = None,
    ) -> None:
        """Commit all and end: "complete", "stopped", or "killed" (no word is left); ``generators``: as in a step,
        ``parameters``: those of each optimizer by its ordinal."""
        for stream in self.streams.values():
            stream.commit()
        if state != "killed":
            last = {ordinal: digest(value) for ordinal, value in (parameters or {}).items()}
            self.writer.close(state, ending or {"status": 0}, states_of(generators), last)


class TraceBuilder:
    """A whole trace. Its own ``op``, ``end_step`` … are those of the main stream of process ``rank0/main``."""

    def __init__(
        self,
        path: Path,
        level: str = "op",
        engine: str = "testing",
        process: str = "rank0/main",
        *,
        alive: bool = False,
    ) -> None:
        self.path = Path(path)
        self.level, self.engine = level, engine
        create_trace(self.path, {"command": ["python", "train.py"], "cwd": "~", "options": {"level": level}})
        self.processes: dict[str, ProcessBuilder] = {}
        self.main = self.process(process, alive=alive)
        self.stream = self.main.stream
        self.op, self.event = self.main.stream().op, self.main.stream().event
        self.end_step = self.main.stream().end_step
        self.window = self.main.stream().window
        self.commit = self.main.stream().commit
        self.fact = self.main.fact
        self.value = self.main.stream().value
        self.sample = self.main.stream().sample
        self.left_out = self.main.stream().left_out
        self.call, self.op_rows = self.main.stream().call, self.main.stream().op_rows
        self.rows_left_out = self.main.stream().rows_left_out

    def process(self, name: str, *, alive: bool = False) -> ProcessBuilder:
        """The process of this name, born when it is new. ``alive``: unfinished it is "running", not "killed"."""
        return self.processes.get(name) or self.newborn(name, alive=alive)

    def newborn(self, wanted: str, argv: Sequence[str] = ("train.py",), *, alive: bool = False) -> ProcessBuilder:
        """A process that asks for this name, and gets it with a number where another one has it."""
        process = ProcessBuilder(self.path, wanted, self.level, self.engine, alive=alive, argv=argv)
        self.processes[process.name] = process
        return process

    def finish(
        self,
        state: str = "complete",
        ending: Mapping[str, object] | None = None,
        generators: object = None,
        parameters: Mapping[int, object] | None = None,
    ) -> Path:
        """End every process and the launch; returns the path."""
        for process in self.processes.values():
            process.finish(state, ending, generators, parameters)
        if state != "killed":
            end_launch(self.path, {"status": 0})
        return self.path
