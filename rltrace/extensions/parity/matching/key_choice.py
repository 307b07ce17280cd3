"""The choice of keys by which rows of A and B are matched: tokens, inputs, or order.

Owns the choice, the errors where there is none, and which optimizer steps are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rltrace.errors import UsageError
from rltrace.extensions.parity.call_range import CallRange, inputs_of, outputs_of
from rltrace.extensions.parity.matching.forward_passes import Forward, forwards_of
from rltrace.extensions.parity.matching.token_grids import EarlierOutputs, TokenGrid, token_grids
from rltrace.extensions.parity.model import RowsBy
from rltrace.extensions.parity.module_names import root_of
from rltrace.extensions.parity.token_keys import NO_KEY, Keys
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall


@dataclass(frozen=True, eq=False)
class KeyChoice:
    """The keys of both sides."""

    by: RowsBy
    a: tuple[TokenGrid, ...]
    b: tuple[TokenGrid, ...]
    how: str
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Models that were given token ids and are compared on neither side, in words."""

    @property
    def shared(self) -> int:
        """Different keys that both sides have."""
        shared = np.intersect1d(_keys(self.a), _keys(self.b))
        return int((shared != NO_KEY).sum())


def _keys(grids: Sequence[TokenGrid]) -> Keys:
    return np.concatenate([np.zeros(0, np.uint64), *(grid.keys for grid in grids)])


# --- observations -----------------------------------------------------------------------------------------------------


def observation_grids(call_range: CallRange) -> tuple[TokenGrid, ...]:
    """Grids by an input of each outermost module that no earlier call returned; of several the one with the most
    different rows: a time or a mask is the same for many."""
    found: dict[str, dict[str, list[tuple[ModuleCall, Keys]]]] = {}
    earlier = EarlierOutputs()
    for call in call_range.outermost:
        for tensor in inputs_of(call):
            if tensor.digests.size and tensor.axes and not earlier.hold(call.module, tensor.digests):
                found.setdefault(call.module, {}).setdefault(tensor.name, []).append((call, tensor.digests))
        for tensor in outputs_of(call):
            earlier.add(call.module, tensor.digests)
    chosen = (max(inputs.values(), key=_different) for inputs in found.values())
    grids = (TokenGrid.of_inputs(call, digests) for calls in chosen for call, digests in calls)
    return tuple(sorted(grids, key=lambda grid: grid.anchor.number))


def _different(calls: Sequence[tuple[ModuleCall, Keys]]) -> int:
    return len(np.unique(np.concatenate([digests.ravel() for _, digests in calls])))


def counted_grids(call_range: CallRange) -> tuple[TokenGrid, ...]:
    """Grids by order: the key of a row is its number among all rows of the outermost module."""
    counts: dict[str, int] = {}
    grids = []
    for call in call_range.outermost:
        tensor = _counted_tensor(call)
        if tensor is None:
            continue
        first = counts.get(call.module, 0)
        counts[call.module] = first + tensor.digests.size
        keys = np.arange(first + 1, counts[call.module] + 1).astype(np.uint64)
        grids.append(TokenGrid.of_keys(call, tensor.digests.shape, keys))
    return tuple(grids)


def _counted_tensor(call: ModuleCall) -> ActivationRows | None:
    """The tensor whose rows are counted: the first input of numbers, else the first output."""
    tensors: Sequence[ActivationRows] = [t for t in (*inputs_of(call), *outputs_of(call)) if t.axes and t.digests.size]
    numbers = [tensor for tensor in tensors if "float" in tensor.dtype]
    return next(iter(numbers or tensors), None)


# --- tokens -----------------------------------------------------------------------------------------------------------


def grids_of(a: Sequence[Forward], b: Sequence[Forward], pad: int | None) -> KeyChoice:
    """Grids of token ids on both sides. ``pad``: the padding token, where no mask marks it."""
    sides = [name for name, side in (("A", a), ("B", b)) if any(f.mask is not None for f in side)]
    masks = f"masks of {' and '.join(sides)} mark the padding" if sides else ""
    how = masks if pad is None else f"token {pad} is padding, as given"
    return KeyChoice(RowsBy.TOKENS, token_grids(a, pad), token_grids(b, pad), how)


# --- the choice -------------------------------------------------------------------------------------------------------


SHOWN = 16
"""Tokens of a sequence that are shown."""


def choose_keys(a: CallRange, b: CallRange, rows_by: RowsBy | None, pad: int | None) -> KeyChoice:
    """Keys by tokens, else by inputs, or as requested. Raises UsageError."""
    if rows_by is RowsBy.ORDER:
        return KeyChoice(
            RowsBy.ORDER,
            counted_grids(a),
            counted_grids(b),
            "the k-th row of A is matched with the k-th of B, as requested",
        )
    if rows_by is not RowsBy.INPUTS:
        found = forwards_of(a), forwards_of(b)
        if all(found):
            return _choose_tokens(*found, pad)
        if rows_by is RowsBy.TOKENS or any(found):
            side = "A" if not found[0] else "B"
            raise UsageError(
                f"no token ids of {side} are known: no call of an embedding, or with input_ids, was recorded; "
                "--rows-by inputs, or order, compares without them"
            )
    known = KeyChoice(RowsBy.INPUTS, observation_grids(a), observation_grids(b), "rows with the same input are matched")
    if known.shared:
        return known
    if rows_by is RowsBy.INPUTS:
        raise UsageError("the outermost modules of the two sides share no input rows")
    raise UsageError(
        "the rows cannot be matched: neither side looks token ids up, and the inputs of their outermost modules "
        "differ; use --rows-by order if the k-th row of A is the k-th of B"
    )


def _choose_tokens(a: Sequence[Forward], b: Sequence[Forward], pad: int | None) -> KeyChoice:
    for name, side in (("A", a), ("B", b)):
        if not any(forward.ids.size for forward in side):
            raise UsageError(
                f"the values of {name}'s token ids were not recorded, or cannot be read, so its rows are "
                "unidentified; --rows-by inputs, or order, compares without them"
            )
    known = grids_of(a, b, pad)
    cached = [name for name, side in (("A", a), ("B", b)) if any(forward.slots is not None for forward in side)]
    followed = f"those of {' and '.join(cached)} follow each other as the KV cache shows" if cached else ""
    how = "; ".join(filter(None, ["rows with the same tokens so far are matched", followed, known.how]))
    return replace(known, how=how, notes=() if known.shared else _first_tokens(a, b))


def _first_tokens(a: Sequence[Forward], b: Sequence[Forward]) -> tuple[str, ...]:
    """Notes with the first sequence of each side, where the two share no key."""
    shown = []
    for name, side in (("A", a), ("B", b)):
        first = next((forward.ids[0] for forward in side if forward.ids.size), np.zeros(0, np.int64))
        rest = " …" if len(first) > SHOWN else ""
        shown.append(f"the first tokens of {name} were {' '.join(map(str, first[:SHOWN].tolist()))}{rest}")
    return tuple(shown)


def match_steps(a: CallRange, b: CallRange) -> tuple[CallRange, CallRange, list[str]]:
    """Both sides without calls of steps that only one side has: the weights differ between steps.

    Where no step is on both sides, all calls, as if of one step. The third value are notes.
    """
    common = set(a.steps) & set(b.steps)
    if not common:
        calls = " and ".join(f"{side.side.upper()}'s calls are of {_steps(side.steps)}" for side in (a, b))
        return _without_steps(a), _without_steps(b), [f"{calls}: steps do not show whether the weights are the same"]
    notes = []
    for side in (a, b):
        others = [step for step in side.steps if step not in common]
        if others:
            left = sum(call.step in others for call in side.outermost)
            notes.append(
                f"{left:,} outermost calls of {side.side.upper()}, of {_steps(others)}, are left out: the other "
                "side has none of these steps, and each optimizer step changes the weights"
            )
    return _of_steps(a, common), _of_steps(b, common), notes


def _of_steps(call_range: CallRange, steps: set[int]) -> CallRange:
    return replace(call_range, calls=tuple(call for call in call_range.calls if call.step in steps))


def _without_steps(call_range: CallRange) -> CallRange:
    return replace(call_range, calls=tuple(replace(call, step=0) for call in call_range.calls))


def _steps(steps: Sequence[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def sampling_models(grids: Sequence[TokenGrid]) -> set[str]:
    """Outermost modules of which a forward pass continues sequences of an earlier one, as where tokens are sampled.

    A trainer's forward pass without gradient, or a reference model's, has whole sequences.
    """
    return {root_of(grid.anchor.module) for grid in grids if grid.continues}


def select_models(known: KeyChoice, names: Sequence[tuple[str, str]], *, same_trace: bool) -> KeyChoice:
    """Without forward passes of models that have no partner, such as a reference model of one side.

    ``same_trace``: a module of the same name is the same on both sides.
    """
    if not names:
        return known
    roots = [{root_of(pair[side]) for pair in names} for side in (0, 1)]
    a, b = (
        tuple(grid for grid in grids if root_of(grid.anchor.module) in own)
        for grids, own in zip((known.a, known.b), roots, strict=True)
    )
    compared = roots[0] | roots[1] if same_trace else set()
    left = {
        f"{root} of {name}": None
        for name, grids, own in zip("AB", (known.a, known.b), roots, strict=True)
        for grid in grids
        if (root := root_of(grid.anchor.module)) not in own | compared and known.by is RowsBy.TOKENS
    }
    return replace(known, a=a, b=b, left_out=tuple(left))
