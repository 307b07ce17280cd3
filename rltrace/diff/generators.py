"""What is known of a process's generators around a place: where other data came in, whose random numbers it was not.

Owns the words. States are digested at every optimizer attempt: the last one before a row tells how its step began; in
the first step the state at its end has to do.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.findings import RowAt
from rltrace.trace.process import ProcessTrace
from rltrace.trace.schema import GENERATORS, Step, StepFlag

NAMES: dict[Step, str] = {
    Step.TORCH_GENERATOR: "torch",
    Step.DEVICE_GENERATORS: "device",
    Step.PYTHON_GENERATOR: "Python",
    Step.NUMPY_GENERATOR: "NumPy",
}


def generators_text(a: RowAt, b: RowAt) -> str:
    """``the torch, Python and NumPy generator states were equal as this step began``; empty where none is known."""
    began = a.view.attempt_before(a.index), b.view.attempt_before(b.index)
    ends = a.view.attempt_after(a.index), b.view.attempt_after(b.index)
    return _text(*began, "were", "as this step began") or _text(*ends, "are", "at the end of this step")


def left_elsewhere(a: ProcessTrace, b: ProcessTrace) -> str | None:
    """That torch's generators ended in other states, in runs of which no op tells; None: not so, or not known."""
    if a.generators is None or b.generators is None:
        return None
    states = zip(GENERATORS, a.generators, b.generators, strict=True)
    other = [NAMES[c] for c, x, y in states if c in (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS) and x != y]
    if not other:
        return None
    return (
        f"the {_and(other)} generator states differ as {a.name} ends, although they were equal at every op that "
        "both ran and that drew: the next draw would differ"
    )


def _text(a: NDArray[np.uint64] | None, b: NDArray[np.uint64] | None, were: str, when: str) -> str:
    if a is None or b is None or not int(a[Step.FLAGS] & b[Step.FLAGS]) & StepFlag.DIGESTED:
        return ""
    known = [column for column in NAMES if a[column] and b[column]]
    equal = [NAMES[column] for column in known if a[column] == b[column]]
    other = [NAMES[column] for column in known if a[column] != b[column]]
    if not equal:
        return f"the {_and(other)} generator states {were} not equal {when}" if other else ""
    text = f"the {_and(equal)} generator states {were} equal {when}"
    return f"{text}, the {_and(other)} ones {were} not" if other else text


def _and(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
