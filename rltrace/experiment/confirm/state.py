"""Whether two runs of an experiment left the same state behind: what training goes on from.

Owns what belongs to it: after each optimizer attempt of the horizon the parameters and torch's generators, and as the
process ends, which it does with the horizon, these, the buffers and the optimizers' state. What a run printed or logged
does not belong to it: an op that only feeds a log can compute otherwise and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.experiment.confirm.horizon import Horizon
from rltrace.trace.reader import ProcessTrace, Trace
from rltrace.trace.schema import GENERATORS, Step, StepFlag

_TORCH = (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS)
State = dict[str, object]
"""By what it is, in words: the digest."""


def state_difference(a: Trace, b: Trace, horizon: Horizon) -> str | None:
    """The first thing in the state that differs, in words; None: nothing does."""
    left, right = state_of(a, horizon), state_of(b, horizon)
    for name, digest in left.items():
        if name not in right:
            return f"{name}: only one of the runs recorded it"
        if right[name] != digest:
            return f"{name} differ"
    extra = next((name for name in right if name not in left), None)
    return None if extra is None else f"{extra}: only one of the runs recorded it"


def state_of(trace: Trace, horizon: Horizon) -> State:
    """In the order in which a run comes to it."""
    return {name: digest for process in trace.processes for name, digest in _state(process, horizon)}


def _state(process: ProcessTrace, horizon: Horizon) -> Iterator[tuple[str, object]]:
    payloads = process.tables["optimizers"].payloads
    for row in process.steps:
        step = int(row[Step.STEP])
        if not horizon.first <= step < horizon.end or not int(row[Step.FLAGS]) & StepFlag.DIGESTED:
            continue
        payload = payloads[int(row[Step.OPTIMIZER])]
        name = payload.get("class", "optimizer") if isinstance(payload, dict) else "optimizer"
        where = f"of {process.name} after step {step:,}"
        yield f"the parameters of {name} {where}", int(row[Step.PARAMETERS])
        yield f"torch's generator states {where}", tuple(int(row[column]) for column in _TORCH)
    if any(int(row[Step.STEP]) >= horizon.end for row in process.steps):
        return  # it went on after the horizon, and what it ended with is of another time
    for ordinal, digest in process.parameters.items():
        yield f"the parameters of optimizer {ordinal} of {process.name} as it ends", digest
    if process.generators is not None:
        states = tuple(state for column, state in zip(GENERATORS, process.generators, strict=True) if column in _TORCH)
        yield f"torch's generator states of {process.name} as it ends", states
    for record in process.journal.records:
        if record["type"] == "state":
            yield f"the buffers and optimizer states of {process.name} as it ends", record.get("digest")
