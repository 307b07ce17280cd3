"""The runs of one experiment: each recorded over the horizon in a folder of its own, and made once.

Owns the working folder: a run that has ended is noted there, and an experiment that was interrupted does not repeat it.
Judges nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rltrace.errors import RecordError, UsageError
from rltrace.experiment.confirm.capture import unpack
from rltrace.experiment.confirm.phrases import runs_text
from rltrace.experiment.confirm.steps_covered import StepsCovered
from rltrace.experiment.rerun_command import Recipe
from rltrace.experiment.runner import Runner, RunRequest
from rltrace.replay.report import Account, parse_account

Side = Literal["a", "b"]

SCHEMA = "rltrace.experiment/1"
EMPTY: Mapping[str, object] = {}


@dataclass(frozen=True)
class RunOutcome:
    """One run that has ended."""

    trace: Path
    how: str
    """``ended with status 0``."""
    account: Account | None = None
    """Of a replay: what became of its injections; None: it was none, or it was refused (``refused`` says why)."""
    refused: str | None = None


@dataclass(frozen=True)
class RunSetting:
    """Where and how the runs are made."""

    folder: Path
    """Gets traces and output."""
    recipes: Mapping[Side, Recipe]
    """How each program is run; a side that cannot be run here is not in it."""
    horizon: StepsCovered
    shared: tuple[str, ...] = ()
    """Entries of the program's folder that the copies have as links to the originals."""
    in_place: bool = False
    values_limit: int = 1 << 30
    """Bytes of values that each process keeps at most."""


class RunCache:
    """Makes runs, one at a time."""

    def __init__(self, setting: RunSetting, subject: Mapping[str, object], runner: Runner) -> None:
        """``subject``: what the experiment is about. Raises UsageError where the folder holds another one's runs."""
        self._setting = setting
        self._runner = runner
        self._last: Path | None = None
        self._folder = setting.folder.absolute()
        _claim(self._folder, subject)

    @property
    def folder(self) -> Path:
        return self._folder

    def record(self, name: str, side: Side, *, values: bool) -> RunOutcome:
        """The program of a side again, unchanged; ``values``: all of them are kept."""
        limit = ("--values-limit", str(self._setting.values_limit))
        keep = ("--values", "all", "--values-inputs", *limit) if values else ()
        own = self._setting.recipes[side].options
        return self._run(name, side, ("record",), (*self._setting.horizon.options, "--verify-inputs", *own, *keep))

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
        """The program of a side with values of ``source`` put in: at some of its rows, at ops of some kinds (their
        labels), where selectors find some, or, where nothing is given, at all.

        All but the last is done at origins alone: an op that was given other values already is left as it is, for what
        is put in there would cover for a difference that comes from elsewhere.
        """
        asked = [word for text in selectors for word in ("--inject", text)]
        lists = {option: listed for option, listed in (("only", rows), ("kinds", kinds)) if listed is not None}
        for option, listed in lists.items():
            path = self._folder / f"{name}.{option}.json"
            path.write_text(json.dumps(listed) + "\n", encoding="utf-8")
            asked += [f"--{option}", str(path)]
        asked = [*asked, "--origins"] if asked else ["--lockstep"]
        result = ("--result", str(self._folder / f"{name}.replay.json"))
        options = (*asked, *self._setting.horizon.until, *result)
        return self._run(name, side, ("replay", str(source)), options, lists)

    def place(self, name: str, capture: Path) -> str:
        """Have a control that was run elsewhere stand for a run of this name; how it was run."""
        trace = self._folder / f"{name}.zarr"
        if not _note_of(trace).exists():
            shutil.rmtree(trace, ignore_errors=True)
            about = unpack(capture, trace)
            _write_note(trace, f"captured of {about.path}, the same {runs_text(about.runs)}", {})
        return str(_read_note(trace)["how"])

    def forget(self, ran: RunOutcome) -> None:
        """Remove a run's trace that nothing asks for any more."""
        shutil.rmtree(ran.trace, ignore_errors=True)
        with suppress(FileNotFoundError):
            _note_of(ran.trace).unlink()

    def reconsider(self) -> None:
        """The run that was asked for last settles nothing: it stays to be looked at, and is made again next time."""
        if self._last is not None:
            with suppress(FileNotFoundError):
                _note_of(self._last).unlink()

    def _run(
        self,
        name: str,
        side: Side,
        verb: tuple[str, ...],
        options: tuple[str, ...],
        lists: Mapping[str, object] = EMPTY,
    ) -> RunOutcome:
        """The run of a name, made unless it is there: one that was asked for in these words, lists included."""
        trace = self._last = self._folder / f"{name}.zarr"
        asked = {"side": side, "verb": [*verb], "options": [*options], "lists": dict(lists)}
        note = _read_note(trace)
        if note.get("asked") == json.loads(json.dumps(asked)):
            how = str(note["how"])
        else:
            self.forget(RunOutcome(trace, ""))  # of a run that was interrupted, or asked for in other words
            how, refused = self._make(name, side, trace, verb, options)
            if refused is not None:
                return RunOutcome(trace, how, None, refused)
            _write_note(trace, how, asked)
        return RunOutcome(trace, how, self._account(name) if verb[0] == "replay" else None)

    def _make(
        self, name: str, side: Side, trace: Path, verb: tuple[str, ...], options: tuple[str, ...]
    ) -> tuple[str, str | None]:
        """How the run ended, and why a replay was refused."""
        setting, recipe = self._setting, self._setting.recipes[side]
        result = self._folder / f"{name}.replay.json"
        with suppress(FileNotFoundError):
            result.unlink()
        copy = None if setting.in_place else self._folder / "folders" / name
        if copy is not None:
            shutil.rmtree(copy, ignore_errors=True)
        job = RunRequest(
            name=name,
            command=recipe.command,
            origin=recipe.folder,
            copy=copy,
            trace=trace,
            output=self._folder / f"{name}.out",
            options=options,
            verb=verb,
            environment=recipe.environment(),
            shared=setting.shared,
            without=self._folder,
        )
        try:
            (ended,) = self._runner.run([job])
        except RecordError as error:
            if verb[0] == "record":
                raise
            return "was refused", str(error)
        if verb[0] == "replay" and not result.exists():
            return ended.how, f"it {ended.how} without a report on its injections (see {job.output})"
        return ended.how, None

    def _account(self, name: str) -> Account | None:
        try:
            found: Any = json.loads((self._folder / f"{name}.replay.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return parse_account(found)


def _note_of(trace: Path) -> Path:
    return trace.with_suffix(".done.json")


def _write_note(trace: Path, how: str, asked: Mapping[str, object]) -> None:
    """Note that a run has ended; from here on it is not made again."""
    _note_of(trace).write_text(json.dumps({"how": how, "asked": asked}) + "\n", encoding="utf-8")


def _read_note(trace: Path) -> dict[str, Any]:
    """The note of a run; empty where it has not ended."""
    try:
        found = json.loads(_note_of(trace).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _claim(folder: Path, subject: Mapping[str, object]) -> None:
    """Make the folder this experiment's. Raises UsageError where it is another's."""
    file = folder / "experiment.json"
    wanted = json.loads(json.dumps({"schema": SCHEMA, **subject}))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold tensors
        if file.exists():
            if json.loads(file.read_text(encoding="utf-8")) != wanted:
                raise UsageError(
                    f"{folder} holds the runs of another experiment (other traces, commands or steps); remove it, or"
                    " name another folder with --work"
                )
        elif any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty and holds no experiment; name another folder with --work")
        else:
            file.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be used for the runs: {error.strerror}") from error
    except ValueError:
        raise UsageError(f"{file} is damaged; remove {folder}") from None
