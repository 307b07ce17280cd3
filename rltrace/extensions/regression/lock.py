"""A lock: the digests of every optimizer step of a run and the facts that select its kernels, as text to commit.

Owns the file (TOML, one line a step) and the comparison of two locks, one of which usually is that of a recording made
just now. Runs nothing; imports no torch. ``lock_check.py`` runs a program against its lock.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from rltrace.command_lines import UNKNOWN, difference, line, program
from rltrace.diff.base.coverage import is_finished
from rltrace.diff.base.model import NamedDifference, Verdict
from rltrace.diff.system_facts import fact_differences, selects_kernels
from rltrace.errors import RltraceError, UsageError
from rltrace.portable_keys import portable_key
from rltrace.trace.format.schema import Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.wording import counted, joined

VERSION: Final = 1
MAX_BYTES: Final = 64 << 20
"""Size of the largest file that is read, with three million steps."""

DIGEST: Final = "digest"
"""Fact that names the digest algorithm."""

LOCKED: Final = (
    "env.",
    "flag.",
    "host.libc",
    "numpy.",
    "package.",
    "python.hash_randomization",
    "python.implementation",
    "python.optimize",
    "python.version",
    "source.",
)
"""Prefixes of facts that a lock holds besides those that select kernels. Not among them is what changes with every
commit, boot or machine and computes nothing: the git revision, the kernel of the system, the number of cores."""

SECTIONS: Final = {"source.": "sources", "package.": "packages", "env.": "variables", "": "system"}
"""Tables of the file by the prefixes of their facts; the last has all others."""

Fact = str | int | float | bool


class LockError(RltraceError):
    """The file is not a lock that can be read, or a recording is not one that can be locked."""


class LockedStep(NamedTuple):
    """Digests at the end of one optimizer attempt, 32 bits of each; None: the attempt was not digested."""

    optimizer: int
    """Its ordinal in the process."""
    gradients: int | None
    parameters: int | None
    generators: int | None
    """Of torch's RNG states on all devices together."""


class LockedProcess(NamedTuple):
    """The steps of one process."""

    name: str
    optimizers: tuple[str, ...]
    """Class names by ordinal."""
    steps: tuple[LockedStep, ...]


@dataclass(frozen=True)
class Lock:
    """What a run computed step by step, and what selected its kernels."""

    command: tuple[str, ...]
    """Secrets masked; empty: not known, or it was recorded from within."""
    until: int | None
    """The step after which the run was ended (``--until``); None: it was not, or that is not known."""
    digest: str
    """The digest algorithm."""
    facts: Mapping[str, Fact]
    """Of the first process."""
    processes: tuple[LockedProcess, ...]
    """Those that made steps, by name."""
    unfinished: str = ""
    """Why the run of a recording did not come to its end; never in a file."""

    @property
    def steps(self) -> int:
        """Optimizer attempts of all processes."""
        return sum(len(process.steps) for process in self.processes)

    def up_to(self, step: int | None) -> Lock:
        """The same run, ended after this step; None: unchanged."""
        if step is None:
            return self
        return replace(self, processes=tuple(p._replace(steps=p.steps[: step + 1]) for p in self.processes))


# --- of a recording ---------------------------------------------------------------------------------------------------


def lock_of(trace: Trace) -> Lock:
    """The lock of a recording of any level. Raises LockError where it has no optimizer step, or is damaged."""
    with_steps = sorted((p for p in trace.processes if p.step_count), key=lambda process: process.name)
    if not with_steps:
        raise LockError(
            f"{trace.path} has no optimizer step to lock; where no torch optimizer runs, rltrace.step() ends a step"
        )
    first = with_steps[0]
    command = () if trace.launch.get("library") else program(trace)
    return Lock(
        () if command == UNKNOWN else command,
        None,
        str(first.facts.get(DIGEST) or ""),
        {name: value for name, value in sorted(first.facts.items()) if isinstance(value, Fact) and _is_locked(name)},
        tuple(map(_locked_process, with_steps)),
        _unfinished(trace, with_steps),
    )


def _is_locked(name: str) -> bool:
    return selects_kernels(name) or name.startswith(LOCKED)


def _unfinished(trace: Trace, with_steps: Iterable[ProcessTrace]) -> str:
    """Other processes may end as they like: workers are killed as a matter of course."""
    bad = next((process for process in with_steps if not is_finished(process, "step")), None)
    if bad is not None:
        return f"{bad.name} is {bad.state}" + (f" ({bad.why})" if bad.why else "")
    return next(iter(trace.lost), "")


def _locked_process(process: ProcessTrace) -> LockedProcess:
    payloads: list[Any] = list(process.tables["optimizers"].payloads)
    optimizers = {int(p["ordinal"]): str(p["class"]) for p in payloads if isinstance(p, dict)}
    if not process.has_all_steps or len(optimizers) < len(payloads) or sorted(optimizers) != [*range(len(optimizers))]:
        raise LockError(f"{process.name} has steps that cannot be read: {line('verify', 'TRACE')} names the damage")
    ordinals = [int(payload["ordinal"]) for payload in payloads]
    steps = []
    for row in process.steps.tolist():
        state = tuple(int(row[column]) for column in (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS))
        digests: tuple[int | None, ...] = (None, None, None)
        if row[Step.FLAGS] & StepFlag.DIGESTED:
            digests = tuple(_short(d) for d in (row[Step.GRADIENTS], row[Step.PARAMETERS], _generators(*state)))
        steps.append(LockedStep(ordinals[row[Step.OPTIMIZER]], *digests))
    return LockedProcess(process.name, tuple(optimizers[n] for n in range(len(optimizers))), tuple(steps))


def _generators(torch: int, devices: int) -> int:
    return portable_key("generators", torch, devices) if devices else torch


def _short(digest: int) -> int:
    return (digest >> 32) ^ (digest & 0xFFFFFFFF)


# --- comparison -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LockFinding:
    """The first step of a process that is not the lock's."""

    process: str
    step: int
    optimizer: str
    """Class name, with its ordinal where the process has several: ``Adam``, ``Adam 1``."""
    differ: tuple[str, ...]
    """Of ``gradients``, ``parameters`` and ``RNG states``; empty: only one side made this step, or with another
    optimizer."""
    explanation: str
    """One sentence."""


@dataclass(frozen=True)
class LockComparison:
    """A lock and a run compared."""

    COMPUTED = ("agrees",)

    verdict: Verdict
    """``identical``, ``diverged``, or ``unknown``: equal as far as the run went, and it did not come to its end."""
    why: str
    """One sentence."""
    steps: int
    """Equal steps, of all processes, before the first that differs in any of them."""
    first: LockFinding | None
    """The earliest step that differs."""
    system: tuple[NamedDifference, ...]
    """Facts that differ, the likeliest to change results first; ``a``: the lock's, ``b``: the run's."""
    commands: str
    """How the run's command differs from the lock's, the lock being A; "": not at all, or not known."""

    @property
    def agrees(self) -> bool | None:
        """True: the run computed the same; False: it did not; None: that cannot be said."""
        return None if self.verdict is Verdict.UNKNOWN else self.verdict is Verdict.IDENTICAL


def compare_locks(locked: Lock, found: Lock) -> LockComparison:
    """Compare the lock of a run, ``found``, with an earlier one. Raises UsageError where their digests are of two
    algorithms."""
    if locked.digest != found.digest:
        raise UsageError(
            f"the lock holds digests of {locked.digest or 'an unknown algorithm'} and this rltrace makes those of "
            f"{found.digest}: they cannot be compared; make the lock again with --update"
        )
    system = fact_differences(locked.facts, found.facts)
    commands = difference(locked.command or UNKNOWN, found.command or UNKNOWN)
    runs = {process.name: process for process in found.processes}
    own = [_first_difference(process, runs.pop(process.name, None), found.unfinished) for process in locked.processes]
    own += [_first_difference(process._replace(steps=()), process, "") for process in runs.values()]
    first = min(filter(None, own), key=lambda finding: finding.step, default=None)
    if first is not None:
        equal = sum(min(len(process.steps), first.step) for process in locked.processes)
        return LockComparison(Verdict.DIVERGED, first.explanation, equal, first, system, commands)
    equal = min(locked.steps, found.steps)
    if found.unfinished:
        verb = "is" if equal == 1 else "are"
        why = f"{counted(equal, 'step')} of {locked.steps:,} {verb} equal, but {found.unfinished}"
        return LockComparison(Verdict.UNKNOWN, why, equal, None, system, commands)
    return LockComparison(Verdict.IDENTICAL, f"all {counted(equal, 'step')} are equal", equal, None, system, commands)


def _first_difference(locked: LockedProcess, found: LockedProcess | None, unfinished: str) -> LockFinding | None:
    """``unfinished``: why the run may lack steps that the lock has; "": it may not."""
    steps = found.steps if found is not None else ()
    pairs = enumerate(zip(locked.steps, steps, strict=False))
    at = next((number for number, (a, b) in pairs if a != b), min(len(locked.steps), len(steps)))
    if at < len(locked.steps) and at < len(steps):
        return _unequal(locked, at, locked.steps[at], steps[at])
    if at < len(locked.steps):
        if unfinished:
            return None
        more = counted(len(locked.steps) - at, "step")
        ends = f"{locked.name} ends after {counted(at, 'step')}; the lock has {more} more"
        why = ends if at else f"{locked.name} made no step; the lock has {counted(len(locked.steps), 'step')} of it"
        return LockFinding(locked.name, at, _optimizer(locked, locked.steps[at]), (), why)
    if found is not None and at < len(steps):
        more = counted(len(steps) - at, "step")
        why = f"{locked.name} goes on for {more} more after {counted(at, 'step')}, where the lock ends"
        why = why if at else f"the lock has no step of {locked.name}, which made {counted(len(steps), 'step')}"
        return LockFinding(locked.name, at, _optimizer(found, steps[at]), (), why)
    return None


def _unequal(process: LockedProcess, step: int, a: LockedStep, b: LockedStep) -> LockFinding:
    before = "every step before is equal" if step else "it is the first step"
    if a.optimizer != b.optimizer:
        why = f"another optimizer made this step: {a.optimizer} in the lock, {b.optimizer} here; {before}"
        return LockFinding(process.name, step, _optimizer(process, a), (), why)
    named = list(zip(("gradients", "parameters", "RNG states"), a[1:], b[1:], strict=True))
    differ = tuple(name for name, own, other in named if own != other)
    equal = [name for name, own, other in named if own == other]
    why = f"the {joined(differ)} at the end of this step differ; {before}"
    why += f", and so are the {joined(equal)} of this one" if equal and step else ""
    why += f", and its {joined(equal)} are equal" if equal and not step else ""
    return LockFinding(process.name, step, _optimizer(process, a), differ, why)


def _optimizer(process: LockedProcess, step: LockedStep) -> str:
    name = process.optimizers[step.optimizer]
    return name if len(process.optimizers) == 1 else f"{name} {step.optimizer}"


# --- the file ---------------------------------------------------------------------------------------------------------


HEAD: Final = """\
# What a run computed, step by step. Compare with it:  rltrace lock --check {name} -- {command}
# Accept what moved: add --update. Made by rltrace; a change by hand is a change of what is compared.
"""
STEPS: Final = "# step, or step/optimizer; gradients, parameters; RNG states where they changed"

_STEP = re.compile(r"(\d+)(?:/(\d+))? ([0-9a-f]{8}|-) ([0-9a-f]{8}|-)(?: ([0-9a-f]{8}|-))?")


def lock_text(lock: Lock, name: str) -> str:
    """The file's content; ``name``: of the file. Equal locks have equal texts."""
    return "\n".join(_lines(lock, name)) + "\n"


def _lines(lock: Lock, name: str) -> Iterator[str]:
    yield HEAD.format(name=_shown(name), command=_shown(" ".join(lock.command)) or "CMD").rstrip("\n")
    yield f"version = {VERSION}"
    yield f"command = [{', '.join(map(_toml, lock.command))}]"
    if lock.until is not None:
        yield f"until = {lock.until}"
    yield f"digest = {_toml(lock.digest)}"
    left = dict(sorted(lock.facts.items()))
    for prefix, section in SECTIONS.items():
        own = [fact for fact in left if fact.startswith(prefix)]
        if own:
            yield f"\n[{section}]"
        for fact in own:
            yield f"{_toml(fact.removeprefix(prefix))} = {_toml(left.pop(fact))}"
    for process in lock.processes:
        yield "\n[[processes]]"
        yield f"name = {_toml(process.name)}"
        yield f"optimizers = [{', '.join(map(_toml, process.optimizers))}]"
        yield STEPS
        yield 'steps = """'
        before: LockedStep | None = None
        for number, step in enumerate(process.steps):
            which = f"{number}/{step.optimizer}" if len(process.optimizers) > 1 else str(number)
            digests = step[1:3] if before is not None and before.generators == step.generators else step[1:]
            yield " ".join([which, *("-" if digest is None else f"{digest:08x}" for digest in digests)])
            before = step
        yield '"""'


def _toml(value: Fact) -> str:
    """A value of TOML: its strings are those of JSON, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _shown(text: str) -> str:
    """Text for a comment, on one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def write_lock(path: str | Path, lock: Lock) -> None:
    """Write the file, or replace it atomically: a reader sees the old one or the new one. Raises LockError."""
    target = Path(path).resolve()  # a link stays one
    new = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            new = Path(file.name)
            file.write(lock_text(lock, target.name))
        new.chmod(target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask())
        new.replace(target)
    except OSError as error:
        if new is not None:
            with suppress(OSError):
                new.unlink()
        raise LockError(f"{path} cannot be written: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def read_lock(path: str | Path) -> Lock:
    """The lock in a file. Raises LockError, which says what is wrong, and where."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise LockError(f"{path} is too large to be a lock: more than {MAX_BYTES >> 20} MiB")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        missing = f"; {line('lock', '-o', path, '--', 'CMD')} makes one" if isinstance(error, FileNotFoundError) else ""
        raise LockError(f"{path} cannot be read: {error.strerror}{missing}") from None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is no TOML ({error})") from None
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise LockError(f"{path} has version {version}; this rltrace reads version {VERSION}: install a newer one")
    try:
        if version != VERSION:
            raise ValueError(f"its version is {version!r}, not {VERSION}")
        return _lock(document)
    except ValueError as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, why: str) -> LockError:
    return LockError(
        f"{path} is not a lock: {why}; restore it from version control, or make it again with "
        f"{line('lock', '--force', '-o', path, '--', 'CMD')}"
    )


def _lock(document: Mapping[str, Any]) -> Lock:
    facts: dict[str, Fact] = {}
    for prefix, section in SECTIONS.items():
        for name, value in _field(document, section, dict, {}).items():
            if not isinstance(value, Fact):
                raise ValueError(f'"{name}" of [{section}] is not text, a number or a truth value')
            facts[prefix + name] = value
    until = document.get("until")
    if until is not None and (type(until) is not int or until < 0):
        raise ValueError(f'"until" is {until!r}, not a step')
    processes = tuple(_process(entry) for entry in _field(document, "processes", list))
    if not processes or len({process.name for process in processes}) < len(processes):
        raise ValueError("it has no processes, or one of them twice")
    return Lock(_texts(document, "command"), until, _field(document, "digest", str), facts, processes)


def _process(entry: Any) -> LockedProcess:
    if not isinstance(entry, dict):
        raise ValueError("a process is no table")
    name, optimizers = _field(entry, "name", str), _texts(entry, "optimizers")
    steps: list[LockedStep] = []
    for text in _field(entry, "steps", str).splitlines():
        match = _STEP.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:60]!r} among the steps of {name} is no step")
        number, optimizer = int(match[1]), int(match[2] or 0)
        if number != len(steps):
            raise ValueError(f"step {number} of {name} is where step {len(steps)} should be")
        if optimizer >= len(optimizers):
            raise ValueError(f"step {number} of {name} is of optimizer {optimizer}, which is not listed")
        digests = [None if digest == "-" else int(digest, 16) for digest in match.group(3, 4, 5) if digest is not None]
        if len(digests) < 3:
            if not steps:
                raise ValueError(f"step 0 of {name} has no RNG states")
            digests.append(steps[-1].generators)
        steps.append(LockedStep(optimizer, *digests))
    if not steps:
        raise ValueError(f"{name} has no steps")
    return LockedProcess(name, optimizers, tuple(steps))


def _texts(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = _field(table, key, list)
    if not all(isinstance(item, str) for item in found):
        raise ValueError(f'"{key}" is not a list of texts')
    return tuple(found)


def _field(table: Mapping[str, Any], key: str, kind: type, default: Any = None) -> Any:
    found = table.get(key, default)
    if not isinstance(found, kind):
        raise ValueError(f'"{key}" is missing' if found is None else f'"{key}" is no {kind.__name__}')
    return found
