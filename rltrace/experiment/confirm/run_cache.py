"""The runs of one experiment, each made once and recorded over the steps covered.

Owns the working folder: finished runs and trials are noted there, and an interrupted experiment does not repeat them.
Compares nothing.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rltrace.errors import RecordError, UsageError
from rltrace.experiment.confirm.steps_covered import StepsCovered
from rltrace.experiment.rerun_command import Recipe
from rltrace.experiment.runner import Runner, RunRequest
from rltrace.rerun.account import Account, parse_account

Side = Literal["a", "b"]

CONTROL = ("--verify-inputs", "--values", "all", "--values-inputs")
"""Options with which a control is recorded whose values are injected."""

SCHEMA = "rltrace.experiment/1"
EMPTY: Mapping[str, object] = {}


@dataclass(frozen=True)
class RunOutcome:
    """A run that has ended."""

    trace: Path
    how: str
    """``ended with status 0``."""
    account: Account | None = None
    """The injections of a replay; None: it was no replay, or it was refused."""
    refused: str | None = None
    """Why a replay was refused."""


@dataclass(frozen=True)
class RunSetting:
    """Where and how the runs are made."""

    folder: Path
    """Folder for traces and output."""
    recipes: Mapping[Side, Recipe]
    """How to run each program; without a side that cannot be run here."""
    covered: StepsCovered
    shared: tuple[str, ...] = ()
    """Entries of the program's folder that are links to the originals in its copies."""
    in_place: bool = False
    values_limit: int = 1 << 30
    """Bytes of values that each process records at most."""


class RunCache:
    """Makes runs, one at a time."""

    def __init__(
        self,
        setting: RunSetting,
        subject: Mapping[str, object],
        runner: Runner,
        on_run: Callable[[str], None] = lambda name: None,
    ) -> None:
        """``subject`` identifies the experiment; ``on_run`` is called with the name of each run that ended.

        Raises UsageError where the folder holds the runs of another one.
        """
        self._on_run = on_run
        self._setting = setting
        self._runner = runner
        self._last: Path | None = None
        self.folder = setting.folder.absolute()
        _claim(self.folder, subject)

    def record(self, name: str, side: Side, *, values: bool) -> RunOutcome:
        """Run the unchanged program of a side again; ``values``: record all of them."""
        limit = ("--values-limit", str(self._setting.values_limit))
        keep = (*CONTROL, *limit) if values else CONTROL[:1]
        recipe, covered = self._setting.recipes[side], self._setting.covered
        return self._run(name, side, ("record",), (*covered.options, *recipe.options, *keep))

    def replay(
        self,
        name: str,
        side: Side,
        source: Path,
        *,
        rows: Mapping[str, Sequence[int]] | None = None,
        kinds: Sequence[str] | None = None,
        selectors: Sequence[str] = (),
    ) -> RunOutcome:
        """Run the program of a side with values of ``source`` injected: at some of its rows, at kinds of op (by label),
        at selected ops, or, without arguments, at every op.

        Except for the last, values are injected at origins only: at an op whose inputs already differ, an injection
        would mask a difference from elsewhere.
        """
        request = [word for text in selectors for word in ("--inject", text)]
        selections = {
            option: selected for option, selected in (("only", rows), ("kinds", kinds)) if selected is not None
        }
        for option, selected in selections.items():
            path = self.folder / f"{name}.{option}.json"
            path.write_text(json.dumps(selected) + "\n", encoding="utf-8")
            request += [f"--{option}", str(path)]
        request = [*request, "--origins"] if request else ["--lockstep"]
        result = ("--result", str(self.folder / f"{name}.replay.json"))
        options = (*request, *self._setting.covered.until, *result)
        return self._run(name, side, ("replay", str(source)), options, selections)

    def add_control(self, name: str, control: Path) -> str:
        """Use the trace of a control that was run elsewhere as the run of this name; returns how it was run."""
        trace = self.folder / f"{name}.zarr"
        if not _note_of(trace).exists():
            shutil.rmtree(trace, ignore_errors=True)
            shutil.copytree(control, trace)
            _write_note(trace, f"its trace is {control}", {})
        return str(_read_note(trace)["how"])

    def remove(self, ran: RunOutcome) -> None:
        """Remove the trace and note of a run."""
        shutil.rmtree(ran.trace, ignore_errors=True)
        with suppress(FileNotFoundError):
            _note_of(ran.trace).unlink()

    def discard_last(self) -> None:
        """Make the last run again next time; its trace stays until then."""
        if self._last is not None:
            with suppress(FileNotFoundError):
                _note_of(self._last).unlink()

    def _run(
        self,
        name: str,
        side: Side,
        verb: tuple[str, ...],
        options: tuple[str, ...],
        selections: Mapping[str, object] = EMPTY,
    ) -> RunOutcome:
        """The run of a name, made unless it exists with the same request."""
        trace = self._last = self.folder / f"{name}.zarr"
        request = {"side": side, "verb": [*verb], "options": [*options], "lists": dict(selections)}
        note = _read_note(trace)
        if note.get("asked") == json.loads(json.dumps(request)):
            how = str(note["how"])
        else:
            self.remove(RunOutcome(trace, ""))  # of a run that was interrupted, or of another request
            how, refused = self._run_again(name, side, trace, verb, options)
            if refused is not None:
                return RunOutcome(trace, how, None, refused)
            _write_note(trace, how, request)
        return RunOutcome(trace, how, self._account(name) if verb[0] == "replay" else None)

    def _run_again(
        self, name: str, side: Side, trace: Path, verb: tuple[str, ...], options: tuple[str, ...]
    ) -> tuple[str, str | None]:
        """How the run ended, and why a replay was refused."""
        setting, recipe = self._setting, self._setting.recipes[side]
        result = self.folder / f"{name}.replay.json"
        with suppress(FileNotFoundError):
            result.unlink()
        copy = None if setting.in_place else self.folder / "folders" / name
        if copy is not None:
            shutil.rmtree(copy, ignore_errors=True)
        job = RunRequest(
            name=name,
            command=recipe.command,
            origin=recipe.folder,
            copy=copy,
            trace=trace,
            output=self.folder / f"{name}.out",
            options=options,
            verb=verb,
            environment=recipe.environment(),
            shared=setting.shared,
            without=self.folder,
        )
        try:
            (ended,) = self._runner.run([job])
        except RecordError as error:
            if verb[0] != "replay":
                raise
            return "was refused", str(error)
        self._on_run(name)
        if verb[0] == "replay" and not result.exists():
            return ended.how, f"it {ended.how} without a report on its injections (see {job.output})"
        return ended.how, None

    def _account(self, name: str) -> Account | None:
        try:
            found: Any = json.loads((self.folder / f"{name}.replay.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return parse_account(found, Account)


def _note_of(trace: Path) -> Path:
    return trace.with_suffix(".done.json")


def _write_note(trace: Path, how: str, request: Mapping[str, object]) -> None:
    """Note that a run has ended, so that it is not made again."""
    _note_of(trace).write_text(json.dumps({"how": how, "asked": request}) + "\n", encoding="utf-8")


def _read_note(trace: Path) -> dict[str, Any]:
    """The note of a run; empty: it has not ended."""
    try:
        found = json.loads(_note_of(trace).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _claim(folder: Path, subject: Mapping[str, object]) -> None:
    """Mark the folder as that of this experiment. Raises UsageError where it is that of another one."""
    file = folder / "experiment.json"
    expected = json.loads(json.dumps({"schema": SCHEMA, **subject}))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold tensors
        if file.exists():
            if json.loads(file.read_text(encoding="utf-8")) != expected:
                raise UsageError(
                    f"{folder} holds the runs of another experiment (other traces, commands or steps); remove it, or"
                    " name another folder with --work"
                )
        elif any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty and holds no experiment; name another folder with --work")
        else:
            file.write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be used for the runs: {error.strerror}") from error
    except ValueError:
        raise UsageError(f"{file} is damaged; remove {folder}") from None


TRIALS_SCHEMA = "rltrace.trials/1"
Attempt = Callable[[frozenset[str]], bool]
"""Run the experiment once with these classes injected; whether the run is repaired."""


class TrialLog:
    """The trials of one experiment, in an append-only file: one line of JSON each, synced before it counts."""

    def __init__(self, file: Path, subject: Mapping[str, object], attempt: Attempt, samples: int = 1) -> None:
        """``subject`` identifies the experiment; ``samples``: runs of each trial.

        Raises UsageError where the file holds trials of another experiment.
        """
        self._file = file
        self._attempt = attempt
        self._samples = samples
        self._counts: dict[frozenset[str], list[bool]] = {}
        header = {"schema": TRIALS_SCHEMA, **subject}
        lines = list(_lines(file))
        if not lines:
            self._append(header)
        elif lines[0] != json.loads(json.dumps(header)):
            raise UsageError(f"{file} holds the trials of another experiment; remove it, or name another folder")
        for line in lines[1:]:
            self._counts.setdefault(frozenset(line["classes"]), []).append(bool(line["repaired"]))

    def repairs(self, classes: Iterable[str]) -> bool:
        """Whether the run is repaired with ``classes``; makes the runs that are missing."""
        chosen = frozenset(classes)
        counts = self._counts.setdefault(chosen, [])
        while all(counts) and len(counts) < self._samples:  # one that is not repaired settles it
            repaired = self._attempt(chosen)
            self._append({"classes": sorted(chosen), "repaired": repaired})
            counts.append(repaired)
        return all(counts)

    @property
    def runs(self) -> int:
        """Runs of all trials so far, without that of no class."""
        return sum(len(found) for classes, found in self._counts.items() if classes)

    @property
    def flaky(self) -> int:
        """Trials of which some runs were repaired, and others were not."""
        return sum(0 < sum(found) < len(found) for found in self._counts.values())

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._file.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _lines(file: Path) -> Iterable[dict[str, Any]]:
    """The complete lines of a file; an incomplete last line is truncated. Raises UsageError where one is damaged."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(file, len(whole))
    for line in whole.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            raise UsageError(f"{file} is damaged; remove it, or name another folder") from None
        assert isinstance(found, dict)
        yield found
