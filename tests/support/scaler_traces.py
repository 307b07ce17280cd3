"""Traces of gradient scalers, built update by update, as a recording of them would be."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rltrace.testing import TraceBuilder
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace

OVERFLOW, GOOD = True, False


def scaled(
    path: Path,
    found: Mapping[int, Sequence[bool]],
    *,
    starts: Mapping[int, float] | None = None,
    intervals: Mapping[int, int] | None = None,
    set_by_hand: Mapping[tuple[int, int], float] | None = None,
    watched: int = 0,
) -> Path:
    """A trace whose scalers find infinities at these updates of theirs, in turn; each has an optimizer of its number.

    A scaler starts at 1024 and grows after two good updates unless said; ``set_by_hand``: (scaler, update) to a scale.
    ``watched``: numbers of another series before all of that.
    """
    builder = TraceBuilder(path)
    for number in range(watched):
        builder.sample("watched", number)
    state = {number: [(starts or {}).get(number, 1024.0), 0] for number in found}
    for update in range(max(map(len, found.values()))):
        for number, flags in found.items():
            if update >= len(flags):
                continue
            scale, growth = state[number]
            step = builder.main.step
            if update == 0:
                builder.sample(f"optimizer:{number}/group:0/lr", 0.5, "learning-rate")
                builder.sample(f"scaler:{number}/scale", scale, "scaler")
                builder.sample(f"scaler:{number}/growth", growth, "scaler")
            builder.op("aten.add.Tensor", outputs=[f"{number} {update}"])
            builder.end_step("SGD", number, skipped=int(flags[update]))
            growth = 0 if flags[update] else growth + 1
            scale = scale / 2 if flags[update] else scale
            if growth >= (intervals or {}).get(number, 2):
                scale, growth = scale * 2, 0
            scale = (set_by_hand or {}).get((number, update), scale)
            state[number] = [scale, growth]
            values = {"skipped:" + str(number): flags[update], "found_inf": flags[update], "scale": scale}
            for name, value in {**values, "growth": growth}.items():
                builder.sample(f"scaler:{number}/{name}", value, "scaler", step=step)
    return builder.finish()


def process_of(path: Path) -> ProcessTrace:
    return open_trace(path).processes[0]
