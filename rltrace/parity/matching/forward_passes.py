"""The forward passes of a language model within a call range: which tokens each was given, where they stand, which count.

Owns finding the token ids, positions and masks among the inputs of module calls, by what they are rather than by how
one library calls them: ids are what the first embedding looks up. Compares nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.parity.call_range import CallRange, inputs_of
from rltrace.parity.module_names import root_of
from rltrace.token_keys import Numbers
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall

INTEGERS = ("int64", "int32", "int16", "uint8", "int8")
IDS = ("input_ids", "ids", "tokens", "token_ids", "idx")
POSITIONS = ("position_ids", "positions", "pos_ids", "position", "pos", "input_pos", "cache_position")
MASKS = ("attention_mask", "attn_mask", "mask")
PADDING_MASKS = ("key_padding_mask", "src_key_padding_mask", "padding_mask", "pad_mask")
"""Masks that are true where a token does *not* count, as torch has it."""

HIGHEST_FIRST_POSITION = 2
"""Some models count positions from 1 or 2 on; what begins later is a sequence whose beginning was not recorded."""


@dataclass(frozen=True, eq=False)
class Forward:
    """One pass over some tokens."""

    call: ModuleCall
    """The call that was given the ids: of the embedding, if there is one."""
    shape: tuple[int, ...]
    """As the program has the ids: [sequences, tokens], or [tokens]."""
    ids: Numbers
    """[sequences, tokens]."""
    positions: Numbers | None
    """[sequences, tokens] or [1, tokens]."""
    mask: Numbers | None
    """[sequences, length], nonzero where a token counts; the last ones are those of this call."""


def forwards_of(call_range: CallRange) -> tuple[Forward, ...]:
    """Every forward pass of the call range whose token ids were kept, in order."""
    anchors = list(_anchors(call_range))
    counts: dict[int, int] = {}
    for call, _ in anchors:
        for above in call_range.around(call):
            counts[above.number] = counts.get(above.number, 0) + 1
    return tuple(_forward(call_range, call, tensor, counts) for call, tensor in anchors)


def _anchors(call_range: CallRange) -> Iterator[tuple[ModuleCall, ActivationRows]]:
    """Of each outermost module the calls that take its token ids, with them."""
    looked_up: dict[str, list[tuple[ModuleCall, ActivationRows]]] = {}
    given: dict[str, list[tuple[ModuleCall, ActivationRows]]] = {}
    for call in call_range.calls:
        for tensor in _whole_numbers(call):
            if _named(tensor, POSITIONS):
                continue  # of a rotary embedding: a model that is given embedded tokens looks nothing else up
            if "embedding" in call.kind.lower():
                looked_up.setdefault(call.module, []).append((call, tensor))
            elif _named(tensor, IDS):
                given.setdefault(call.module, []).append((call, tensor))
    roots = dict.fromkeys(root_of(call.module) for call in call_range.calls)
    found = []
    for root in roots:
        embeddings = {path: calls for path, calls in looked_up.items() if root_of(path) == root}
        chosen = _tokens_of(call_range, embeddings)
        if chosen is None:
            own = {path: calls for path, calls in given.items() if root_of(path) == root}
            chosen = next(iter(own), None)
        if chosen is not None:
            found += looked_up.get(chosen) or given[chosen]
    yield from sorted(found, key=lambda one: one[0].number)


def _whole_numbers(call: ModuleCall) -> Iterator[ActivationRows]:
    """Inputs that may be ids: whole numbers, of one or two axes."""
    return (t for t in inputs_of(call) if t.dtype in INTEGERS and len(t.shape) in (1, 2) and 0 not in t.shape)


def _tokens_of(call_range: CallRange, embeddings: dict[str, list[tuple[ModuleCall, ActivationRows]]]) -> str | None:
    """The first embedding that looks something else up than positions."""
    for path, calls in embeddings.items():
        if len(embeddings) == 1 or not _counts_up(call_range, [tensor for _, tensor in calls]):
            return path
    return next(iter(embeddings), None)


def _counts_up(call_range: CallRange, tensors: Sequence[ActivationRows]) -> bool:
    """Whether all of these hold consecutive numbers along their last axis, as positions do (padding aside)."""
    arrays = [array for array in map(call_range.numbers, tensors) if array is not None]
    long = [array for array in arrays if array.shape[-1] > 1]
    if not long or min(int(array.min()) for array in long) > HIGHEST_FIRST_POSITION:
        return False
    steps = np.concatenate([np.diff(array.astype(np.int64), axis=-1).ravel() for array in long])
    return bool(np.mean((steps == 1) | (steps == 0)) > 0.9 and np.any(steps == 1))


def _forward(call_range: CallRange, call: ModuleCall, tensor: ActivationRows, counts: dict[int, int]) -> Forward:
    ids = call_range.numbers(tensor)
    shape = tensor.shape
    if ids is None:  # of the outermost calls values are kept always; these were over the limit, or are in a hole
        return Forward(call, shape, np.zeros((0, 0), np.int64), None, None)
    tokens = ids.astype(np.int64).reshape(1, -1) if ids.ndim == 1 else ids.astype(np.int64)
    own = [above for above in call_range.around(call) if counts[above.number] == 1]
    near = [call, *own]
    inside = _inside(call_range, own[-1], call) if own else ()
    positions = _first(_positions(call_range, tokens, one) for one in [*near, *inside])
    masks = _first(_mask(call_range, tokens, one) for one in near)
    if masks is not None and positions is not None and tokens.shape[1] == 1:
        masks = None  # of a cache of fixed length, the last ones are not those of this call
    return Forward(call, shape, tokens, positions, masks)


def _first(found: Iterable[NDArray[Any] | None]) -> NDArray[Any] | None:
    return next((array for array in found if array is not None), None)


def _inside(call_range: CallRange, outer: ModuleCall, but: ModuleCall) -> Iterator[ModuleCall]:
    """Calls within ``outer``, in order."""
    for call in call_range.inner.get(outer.number, ()):
        if call is not but:
            yield call
            yield from _inside(call_range, call, but)


def _named(tensor: ActivationRows, names: Sequence[str]) -> bool:
    return tensor.name.rpartition(".")[2] in names


def _positions(call_range: CallRange, ids: Numbers, call: ModuleCall) -> Numbers | None:
    """What ``call`` was given as the tokens' positions; None: nothing that fits."""
    for tensor in inputs_of(call):
        is_lookup = "embedding" in call.kind.lower() and tensor.dtype in INTEGERS
        if not (tensor.dtype in INTEGERS and (_named(tensor, POSITIONS) or is_lookup)):
            continue
        array = call_range.numbers(tensor)
        if array is None or 0 in array.shape or (is_lookup and not _is_counting(array, ids)):
            continue
        flat = array if array.ndim < 3 else array[0]  # of several kinds of positions, the first are of the text
        fitting = flat.reshape(1, -1) if flat.ndim == 1 else flat
        if fitting.shape[-1] == ids.shape[1] and fitting.shape[0] in (1, ids.shape[0]):
            found: Numbers = fitting.astype(np.int64)
            return found
    return None


def _is_counting(array: NDArray[Any], ids: Numbers) -> bool:
    """Whether what an embedding looked up may be positions: it is not the ids, and counts up."""
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
