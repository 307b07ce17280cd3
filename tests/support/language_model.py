"""A language model whose calls are built in memory: what it gives at a token depends on the tokens up to it alone.

Owns the building of module calls from NumPy arrays, so that what a comparison finds can be checked against what was put
in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.digest import digest_buffer, seed_of
from rltrace.extensions.parity.call_range import CallRange
from rltrace.extensions.parity.impact.logprobs import Policy
from rltrace.extensions.parity.matching.forward_passes import forwards_of
from rltrace.extensions.parity.matching.row_keying import Keying
from rltrace.extensions.parity.matching.row_pairs import partners
from rltrace.extensions.parity.matching.token_grids import token_grids
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, Part
from rltrace.trace.read.values import Value

VOCABULARY = 13
PAD = 12
Logits = Callable[[tuple[int, ...]], NDArray[np.float32]]


def logits(prefix: tuple[int, ...]) -> NDArray[np.float32]:
    """What an unchanged model gives after these tokens."""
    return np.random.default_rng([7, len(prefix), *prefix]).normal(size=VOCABULARY).astype(np.float32)


@dataclass(eq=False)
class Spoken:
    """One side, call by call."""

    side: str
    speaks: Logits = logits
    name: str = "Model"
    keep: bool = True
    """Keep the values of what is no whole number."""
    step: int = 0
    calls: list[ModuleCall] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)
    row: int = 0
    _past: list[list[int]] = field(default_factory=list)
    _mask: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def feed(
        self,
        ids: Sequence[Sequence[int]],
        mask: Sequence[Sequence[int]] | None = None,
        *,
        cached: bool = False,
        last: int | None = None,
        extra: Sequence[tuple[str, str, Callable[[tuple[int, ...]], NDArray[Any]]]] = (),
    ) -> None:
        """One forward pass. ``cached``: it goes on from the call before. ``last``: logits of so many last tokens only.

        ``mask``: 0 where a token pads, of this call's tokens. ``extra``: (module, name, what it gives at a token).
        """
        tokens = np.array(ids, np.int64)
        counts = np.ones(tokens.shape, np.int64) if mask is None else np.array(mask, np.int64)
        if not cached:
            self._past, self._mask = [[] for _ in ids], np.zeros((len(ids), 0), np.int64)
        self._mask = np.concatenate([self._mask, counts], axis=1)
        positions = np.array(
            [[max(0, len(past) + c - 1) for c in np.cumsum(row)] for past, row in zip(self._past, counts, strict=True)]
        )
        prefixes = [self._prefixes(*row) for row in zip(self._past, tokens.tolist(), counts.tolist(), strict=True)]
        inputs = {"input_ids": tokens, "position_ids": positions, "attention_mask": self._mask}
        given = [self.kept(Part.INPUT, name, array) for name, array in inputs.items()]
        kept = slice(0 if last is None else tokens.shape[1] - last, None)
        root, begun = len(self.calls), self.row
        inner: list[tuple[str, tuple[ActivationRows, ...]]] = [
            ("embed", (self.kept(Part.INPUT, "input", tokens), self._gives("", prefixes, lambda p: logits(p)[:4])))
        ]
        inner += [(module, (self._gives(name, prefixes, give),)) for module, name, give in extra]
        end = begun + len(inner) + 3
        kept_prefixes = [row[kept] for row in prefixes]
        hidden = replace(self._gives("", kept_prefixes, lambda p: logits(p)[:4]), part=Part.INPUT)
        inner += [("lm_head", (hidden, self._gives("", kept_prefixes, self.speaks)))]
        out = self._gives("logits", kept_prefixes, self.speaks)
        self.call(root, None, self.name, "LanguageModel", begun, end, (*given, out))
        for at, (module, tensors) in enumerate(inner):
            kind = "Embedding" if module == "embed" else "Router"
            self.call(root + 1 + at, root, f"{self.name}.{module}", kind, begun + at, begun + at + 1, tensors)
        self.row = end

    def _prefixes(self, past: list[int], tokens: list[int], counts: list[int]) -> list[tuple[int, ...]]:
        found = []
        for token, counted in zip(tokens, counts, strict=True):
            if counted:
                past.append(token)
            found.append(tuple(past) if counted else (-1 & 0xFFFF, token))
        return found

    def _gives(
        self, name: str, prefixes: list[list[tuple[int, ...]]], give: Callable[..., NDArray[Any]]
    ) -> ActivationRows:
        return self.kept(Part.OUTPUT, name, np.array([[give(prefix) for prefix in row] for row in prefixes]))

    def call(
        self,
        number: int,
        parent: int | None,
        module: str,
        kind: str,
        first: int,
        end: int,
        tensors: tuple[ActivationRows, ...],
    ) -> None:
        self.calls.append(ModuleCall(number, parent, module, kind, self.step, "other", False, first, end, tensors))

    def kept(self, part: Part, name: str, array: NDArray[Any]) -> ActivationRows:
        dtype, rows = str(array.dtype), array.reshape(-1, array.shape[-1])
        whole = digest_buffer(array.tobytes(), seed_of(dtype, array.shape))
        if self.keep or array.dtype.kind == "i":
            self.values[whole] = Value(whole, dtype, array.shape, memoryview(array.tobytes()))
        digests = [digest_buffer(row.tobytes(), seed_of(dtype, row.shape)) for row in rows]
        shape = array.shape[:-1]
        return ActivationRows(
            part, name, dtype, array.shape, tuple(range(len(shape))), np.array(digests, np.uint64).reshape(shape), whole
        )

    @property
    def call_range(self) -> CallRange:
        return CallRange(self.side, tuple(self.calls), find=self.values.get)


def policies(a: Spoken, b: Spoken) -> tuple[Policy, Policy]:
    """Both sides, as a comparison has them."""
    grids_a, grids_b = (token_grids(forwards_of(side.call_range)) for side in (a, b))
    return Policy(Keying(a.call_range, grids_a), partners(grids_a, grids_b)), Policy(Keying(b.call_range, grids_b))


def generate(side: Spoken, prompts: Sequence[Sequence[int]], taken: Sequence[Sequence[int]], **more: Any) -> None:
    """Prompts padded on the left, then token by token; the last token of the longest is never fed, and a sequence that
    has ended is fed padding that counts, as transformers does it."""
    width, steps = max(map(len, prompts)), max(map(len, taken))
    pads = [width - len(prompt) for prompt in prompts]
    ids = [[PAD] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * (width - pad) for pad in pads]
    side.feed(ids, mask, last=1, **more)
    for at in range(steps - 1):
        side.feed([[tokens[at] if at < len(tokens) else PAD] for tokens in taken], cached=True, **more)


def train(side: Spoken, prompts: Sequence[Sequence[int]], taken: Sequence[Sequence[int]], **more: Any) -> None:
    """Whole sequences, padded on the right."""
    sequences = [[*prompt, *tokens] for prompt, tokens in zip(prompts, taken, strict=True)]
    width = max(map(len, sequences))
    ids = [[*sequence, *[PAD] * (width - len(sequence))] for sequence in sequences]
    side.feed(ids, [[1] * len(s) + [0] * (width - len(s)) for s in sequences], **more)
