"""The forward passes of a language model: the token ids of each, with their positions and mask.

Owns finding these among the inputs of module calls, by their content rather than by the names of one library: ids are
what the first embedding looks up. Compares nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.extensions.parity.call_range import CallRange, all_inner, inputs_of
from rltrace.extensions.parity.module_names import root_of
from rltrace.extensions.parity.token_keys import Numbers
from rltrace.trace.format.activation_rows import FACTS, ActivationRows, ModuleCall

INTEGERS = ("int64", "int32", "int16", "uint8", "int8")
IDS = ("input_ids", "ids", "tokens", "token_ids", "idx")
POSITIONS = ("position_ids", "positions", "pos_ids", "position", "pos", "input_pos", "cache_position")
MASKS = ("attention_mask", "attn_mask", "mask")
PADDING_MASKS = ("key_padding_mask", "src_key_padding_mask", "padding_mask", "pad_mask")
"""Masks that are true at padding, as in torch."""

HIGHEST_FIRST_POSITION = 2
"""Some models count positions from 1 or 2; a sequence with a higher first position began before the recording."""


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of an engine's KV cache that a batch fills; [tokens] each, none for padding at its end."""

    own: Numbers
    previous: Numbers
    """Of the predecessors; BEGINS: a sequence begins."""
    sampled: Numbers | None = None
    """Nonzero for tokens that were sampled; None: not declared."""


@dataclass(frozen=True, eq=False)
class Forward:
    """One forward pass over some tokens."""

    call: ModuleCall
    """The call whose input the ids are: of the embedding, if there is one."""
    shape: tuple[int, ...]
    """Of the ids in the program: [sequences, tokens], or [tokens]."""
    ids: Numbers
    """[sequences, tokens]."""
    positions: Numbers | None
    """[sequences, tokens] or [1, tokens]."""
    mask: Numbers | None
    """[sequences, length], nonzero except at padding; the last columns are those of this call."""
    slots: Slots | None = None
    """None: no adapter declared them."""
    gradient: bool = False
    """Whether gradients are recorded: then no token continues a sequence of an earlier call."""


def forwards_of(call_range: CallRange) -> tuple[Forward, ...]:
    """Every forward pass of the call range whose token ids were recorded, in order."""
    anchors = list(_anchors(call_range))
    counts: dict[int, int] = {}
    for call, _ in anchors:
        for above in call_range.around(call):
            counts[above.number] = counts.get(above.number, 0) + 1
    return tuple(_forward(call_range, call, tensor, counts) for call, tensor in anchors)


def _anchors(call_range: CallRange) -> Iterator[tuple[ModuleCall, ActivationRows]]:
    """For each outermost module, the calls with its token ids as input, and the ids."""
    looked_up: dict[str, list[tuple[ModuleCall, ActivationRows]]] = {}
    named: dict[str, list[tuple[ModuleCall, ActivationRows]]] = {}
    for call in call_range.calls:
        for tensor in _whole_numbers(call):
            if _named(tensor, POSITIONS):
                continue  # of a rotary embedding, the only one of a model that takes embedded tokens
            if "embedding" in call.kind.lower():
                looked_up.setdefault(call.module, []).append((call, tensor))
            elif _named(tensor, IDS):
                named.setdefault(call.module, []).append((call, tensor))
    roots = dict.fromkeys(root_of(call.module) for call in call_range.calls)
    found = []
    for root in roots:
        embeddings = {path: calls for path, calls in looked_up.items() if root_of(path) == root}
        chosen = _tokens_of(call_range, embeddings)
        if chosen is None:
            own = {path: calls for path, calls in named.items() if root_of(path) == root}
            chosen = next(iter(own), None)
        if chosen is not None:
            found += looked_up.get(chosen) or named[chosen]
    yield from sorted(found, key=lambda one: one[0].number)


def _whole_numbers(call: ModuleCall) -> Iterator[ActivationRows]:
    """Inputs that may be ids: integers, of one or two axes."""
    return (t for t in inputs_of(call) if t.dtype in INTEGERS and len(t.shape) in (1, 2) and 0 not in t.shape)


def _tokens_of(call_range: CallRange, embeddings: dict[str, list[tuple[ModuleCall, ActivationRows]]]) -> str | None:
    """The first embedding whose input is not positions."""
    for path, calls in embeddings.items():
        if len(embeddings) == 1 or not _counts_up(call_range, [tensor for _, tensor in calls]):
            return path
    return next(iter(embeddings), None)


def _counts_up(call_range: CallRange, tensors: Sequence[ActivationRows]) -> bool:
    """Whether all of these count up along their last axis, as positions do (padding excepted)."""
    arrays = [array for array in map(call_range.numbers, tensors) if array is not None]
    long = [array for array in arrays if array.shape[-1] > 1]
    if not long or min(int(array.min()) for array in long) > HIGHEST_FIRST_POSITION:
        return False
    steps = np.concatenate([np.diff(array.astype(np.int64), axis=-1).ravel() for array in long])
    return bool(np.mean((steps == 1) | (steps == 0)) > 0.9 and np.any(steps == 1))


def _forward(call_range: CallRange, call: ModuleCall, tensor: ActivationRows, counts: dict[int, int]) -> Forward:
    ids = call_range.numbers(tensor)
    shape = tensor.shape
    if ids is None:  # over the limit of values, or in a hole
        return Forward(call, shape, np.zeros((0, 0), np.int64), None, None)
    tokens = ids.astype(np.int64).reshape(1, -1) if ids.ndim == 1 else ids.astype(np.int64)
    own = [above for above in call_range.around(call) if counts[above.number] == 1]
    near = [call, *own]
    inside = all_inner(call_range, own[-1], skip=call) if own else _rest_of_pass(call_range, call)
    positions = _first(_positions(call_range, tokens, one) for one in [*near, *inside])
    masks = _first(_mask(call_range, tokens, one) for one in near)
    if masks is not None and positions is not None and tokens.shape[1] == 1:
        masks = None  # the last columns of the mask of a static cache are not those of this call
    slots = next((found for one in near if (found := _slots(call_range, one)) is not None), None)
    return Forward(call, shape, tokens, positions, masks, slots, call_range.has_gradient(call))


def _slots(call_range: CallRange, call: ModuleCall) -> Slots | None:
    facts = call_range.facts.get(call.number, {})
    found = [None if name not in facts else call_range.numbers(facts[name]) for name in FACTS]
    return None if found[0] is None or found[1] is None else Slots(found[0], found[1], found[2])


def _rest_of_pass(call_range: CallRange, anchor: ModuleCall) -> Iterator[ModuleCall]:
    """The calls after ``anchor``, of a model whose own call was not recorded, up to the next call of its module."""
    after = bisect_right(call_range.calls, anchor.number, key=lambda call: call.number)
    for call in islice(call_range.calls, after, None):
        if call.module == anchor.module:
            return
        if root_of(call.module) == root_of(anchor.module):
            yield call


def _first(found: Iterable[NDArray[Any] | None]) -> NDArray[Any] | None:
    return next((array for array in found if array is not None), None)


def _named(tensor: ActivationRows, names: Sequence[str]) -> bool:
    return tensor.name.rpartition(".")[2] in names


def _positions(call_range: CallRange, ids: Numbers, call: ModuleCall) -> Numbers | None:
    """The positions of the tokens among the inputs of ``call``; None: none of a fitting shape."""
    for tensor in inputs_of(call):
        is_lookup = "embedding" in call.kind.lower() and tensor.dtype in INTEGERS
        if not (tensor.dtype in INTEGERS and (_named(tensor, POSITIONS) or is_lookup)):
            continue
        array = call_range.numbers(tensor)
        if array is None or 0 in array.shape or (is_lookup and not _is_counting(array, ids)):
            continue
        flat = array if array.ndim < 3 else array[0]  # of several kinds of positions, the first is the text's
        fitting = flat.reshape(1, -1) if flat.ndim == 1 else flat
        if fitting.shape[-1] == ids.shape[1] and fitting.shape[0] in (1, ids.shape[0]):
            found: Numbers = fitting.astype(np.int64)
            return found
    return None


def _is_counting(array: NDArray[Any], ids: Numbers) -> bool:
    """Whether the input of an embedding may be positions: it is not the ids, and counts up."""
    if array.reshape(-1).shape == ids.reshape(-1).shape and np.array_equal(array.reshape(-1), ids.reshape(-1)):
        return False
    return array.shape[-1] == 1 or bool(np.all(np.diff(array.astype(np.int64), axis=-1) == 1))


def _mask(call_range: CallRange, ids: Numbers, call: ModuleCall) -> Numbers | None:
    for tensor in inputs_of(call):
        names = MASKS + PADDING_MASKS
        if tensor.dtype not in (*INTEGERS, "bool") or len(tensor.shape) != 2 or not _named(tensor, names):
            continue
        if tensor.shape[0] != ids.shape[0] or tensor.shape[1] < ids.shape[1]:
            continue
        array = call_range.numbers(tensor)
        if array is not None:
            counts: Numbers = (array != 0).astype(np.int64)
            return 1 - counts if _named(tensor, PADDING_MASKS) else counts
    return None
