"""A program run again from recorded memory: which steps of it, as which rank, and what came of that. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rltrace.diff.base.model import Comparison
from rltrace.fingerprint.host import FILE_LISTS
from rltrace.masking import MASK
from rltrace.rerun.account import Account
from rltrace.trace.format.schema import Step
from rltrace.trace.read.process import ProcessTrace


@dataclass(frozen=True)
class ProgramRerun:
    """What a program run again as one recorded process gave."""

    process: str
    trace: str
    """Path of the recorded trace."""
    rerun: str
    """Path of that of this run."""
    bitwise: bool
    """Whether its ops are the recorded ones and gave the recorded bits."""
    why: str
    """Why the program was ended early; empty: it was not."""
    memory: Account
    comparison: Comparison | None
    """With the recorded steps; None: the program did not come to them."""


# --- the recorded process ---------------------------------------------------------------------------------------------


def rank_of(process: ProcessTrace) -> tuple[int, int] | None:
    """Its rank, and the number of ranks; None: it was the only process, or they are not known."""
    words = [word for payload in process.tables["scalars"].payloads if isinstance(payload, list) for word in payload]
    groups = [word for word in words if isinstance(word, dict) and isinstance(word.get("ranks"), list)]
    variable = str(process.facts.get("env.WORLD_SIZE", ""))
    world = int(variable) if variable.isdigit() else max((max(group["ranks"]) + 1 for group in groups), default=0)
    name = process.name.partition("/")[0].removeprefix("rank")
    rank = groups[0]["rank"] if groups else int(name) if name.isdigit() else None
    return None if rank is None or not world else (rank, world)


def rank_variables(process: ProcessTrace) -> dict[str, str]:
    """Variables by which a launcher names the rank of a process; empty: it has none."""
    place = rank_of(process)
    if place is None:
        return {}
    rank, world = map(str, place)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    return {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def recorded_variables(process: ProcessTrace) -> dict[str, str]:
    """The variables that kernels depend on, as they were."""
    found = {name.removeprefix("env."): value for name, value in process.facts.items() if name.startswith("env.")}
    return {
        name: str(value)
        for name, value in found.items()
        if name not in FILE_LISTS and value is not None and MASK not in str(value)
    }


def last_step(process: ProcessTrace, end: int) -> int:
    """The last step whose ops were recorded; ``end``: of the window."""
    made = int(process.steps[-1, Step.STEP]) if len(process.steps) else 0
    return min(made, end - 1)


SETTLED: Final = 2
"""Attempts of each optimizer after which a program runs as it does later: state exists, buckets have their order."""


def default_warm_up(process: ProcessTrace, step: int) -> int:
    """How many steps the program has to make before its next one is like the recorded ``step``: the fewest after which
    the same optimizers attempt steps, each after two of its attempts, and after the same backward passes."""
    payloads: Any = process.tables["optimizers"].payloads
    steps = process.steps
    ordinals = np.array([payloads[number]["ordinal"] for number in steps[:, Step.OPTIMIZER].tolist()], np.int64)
    played = np.diff(steps[:, Step.ENVIRONMENT_STEPS].astype(np.int64), prepend=0) > 0
    kinds = np.stack([ordinals, steps[:, Step.BACKWARDS].astype(np.int64), played], 1)
    wanted = kinds[step:]
    everyone = set(ordinals[:step].tolist())
    for first in range(step):
        counts = [int((ordinals[:first] == ordinal).sum()) for ordinal in everyone]
        if min(counts, default=0) >= SETTLED and np.array_equal(kinds[first : first + len(wanted)], wanted):
            return first
    return step
