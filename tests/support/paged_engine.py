"""A small engine like those that serve models: flat batches over a KV cache of blocks, with facts for the recorder.

Its model is the one of ``whole_number_model``, so that it agrees with the trainer to the bit. Owns a scheduler with
continuous batching, chunked prefill, a prefix cache and preemption, and the declaration of what slots a batch fills.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn
from whole_number_model import LAYERS, WIDTH, Attention, Dense, Layer, Lists, Norm, Policy

from rltrace.extensions.parity.adapters.checkpoint_names import ATTENTION, attention_points, of_rank
from rltrace.extensions.parity.capture.call_facts import Called, Point, sources
from rltrace.trace.format.activation_rows import BEGINS, PREVIOUS_SLOT, SAMPLED, SLOT, Part


class Sampler(nn.Module):
    """Returns what was to be sampled, with its log-probabilities, as engines do."""

    def forward(self, logits: Tensor, chosen: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        return {"sampled_token_ids": chosen, "raw_logprobs": logits.log_softmax(-1).gather(1, chosen)}


@dataclass
class Batch:
    """Tokens of one forward pass; [tokens] each."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[list[int]] = field(default_factory=list)
    """The slots of each token's sequence up to it."""
    sampled: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Of each request the last token of this batch, as an index, and …"""
    following: list[int] = field(default_factory=list)
    """… the id after it."""
    sampler: Sampler | None = None

    def facts(self) -> Mapping[str, Tensor]:
        own = [slots[-1] for slots in self.slots]
        before = [slots[-2] if len(slots) > 1 else BEGINS for slots in self.slots]
        facts = {SLOT: own, PREVIOUS_SLOT: before, SAMPLED: self.sampled}
        return {name: torch.tensor(fact, dtype=torch.long) for name, fact in facts.items()}


class PartialDense(Dense):
    """Returns the part of one of several ranks; what they compute together is there, too, as if it was gathered."""

    def __init__(self, rank: tuple[int, int]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.rank = rank

    def forward(self, x: Tensor) -> Tensor:
        self.whole = super().forward(x)
        return part_of(self.whole, self.rank)


def part_of(x: Tensor, rank: tuple[int, int]) -> Tensor:
    return x.chunk(rank[1], -1)[rank[0]]


class Sums(nn.Module):
    """The sums over what the cache holds: attention, which is a module here."""

    bent = 0.0
    """How far what is decoded is from what is prefilled."""

    def __init__(self, size: int, rank: tuple[int, int]) -> None:
        super().__init__()
        self.cache, self.rank = torch.zeros(size, WIDTH), rank

    def forward(self, query: Tensor, batch: Batch) -> Tensor:
        if not batch.slots:
            return query
        self.cache[[slots[-1] for slots in batch.slots]] = query
        sums = torch.stack([self.cache[slots].sum(0) for slots in batch.slots])
        return sums + self.bent * sums.abs() * torch.tensor(batch.sampled)[:, None]


class PagedAttention(Attention):
    """The same by such a module."""

    def __init__(self, size: int, rank: tuple[int, int]) -> None:
        super().__init__()
        if rank[1] > 1:
            self.value = PartialDense(rank)
        self.sums = Sums(size, rank)

    def forward(self, x: Tensor, mask: Batch, past: object) -> Tensor:  # type: ignore[override]
        out: Tensor = self.out(self.sums(getattr(self.value, "whole", self.read(x)), mask))
        return out


class PagedLayer(Layer):
    """Its norm adds the residual, and returns the sum beside its result."""

    def add(self, x: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(self.norm, Norm):
            return super().add(x, made)
        read, x = self.norm(made, x)
        return x, read


def points(call: Called) -> list[Point]:
    """What the engine declares of such a norm: the sum is its input; that a rank returns its part; and attention."""
    if isinstance(call.module, PartialDense):
        return [(Part.OUTPUT, of_rank("", *call.module.rank), call.result)]
    if isinstance(call.module, Sums) and Attention.declares:
        name = next(name for name, module in call.root.named_modules() if module is call.module)
        parts = [part_of(x, call.module.rank)[..., None] for x in (call.args[0], call.result)]
        found = attention_points(name.replace("sums", ATTENTION), parts[:1], parts[1])
        return [(part, of_rank(point, *call.module.rank), x) for part, point, x in found]
    if not isinstance(call.module, Norm) or not isinstance(call.result, tuple):
        return []
    return [(Part.INPUT, "", call.result[1]), (Part.OUTPUT, "", call.result[0])]


@cache
def declare_points() -> None:
    sources.add(points=points)


class PagedPolicy(Policy):
    """The policy over flat batches."""

    def __init__(self, size: int, rank: tuple[int, int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PagedLayer() for _ in range(LAYERS))
        for layer in self.layers:
            layer.attention = PagedAttention(size, rank)
        self.logits_processor = nn.Identity()

    def forward(self, ids: Tensor, positions: Tensor, batch: Batch) -> Tensor:  # type: ignore[override]
        x = self.embed(ids) + self.place(positions)
        for layer in self.layers:
            x = torch.remainder(layer(x, batch, None), 64)
        x = self.keep(x)
        out: Tensor = self.head(x) if batch.sampler is None else x
        return out


@dataclass
class Request:
    """One sequence that is being computed."""

    tokens: list[int]
    prompt: int
    known: int
    """Tokens that are sampled, or of the prompt."""
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


class Engine:
    """Computes sequences as if it sampled them."""

    def __init__(
        self,
        weights: Policy,
        *,
        blocks: int = 32,
        size: int = 2,
        batch: int = 64,
        prefixes: bool = False,
        sampler: Sampler | None = None,
        rank: tuple[int, int] = (0, 1),
    ) -> None:
        """``blocks`` of ``size`` slots; at most ``batch`` tokens at a time; ``prefixes``: whole blocks are shared.
        ``sampler``: is given logits of the last tokens alone. ``rank``: of how many, each with a part of attention."""
        self.model = PagedPolicy(blocks * size, rank)
        self.model.load_state_dict(weights.state_dict())
        for own, other in zip(self.model.layers, weights.layers, strict=True):
            own.norm = other.norm
        self.size, self.batch, self.prefixes, self.sampler = size, batch, prefixes, sampler
        self.free = list(range(blocks))
        self.shared: dict[tuple[int, ...], int] = {}
        self.preempted = self.hits = 0
        self.now: Batch | None = None
        """What is computed now."""
        declare_points()
        sources.add(lambda: {} if self.now is None else self.now.facts())

    @torch.no_grad()
    def generate(self, sequences: Lists, prompts: list[int]) -> None:
        self._compute(Batch([0, 0, 0], [0, 1, 2], []))  # a warm-up, of no sequence
        waiting = [Request(list(row), n, n) for row, n in zip(sequences, prompts, strict=True)]
        running: list[Request] = []
        while waiting or running:
            running += waiting
            waiting = []
            batch = Batch(sampler=self.sampler)
            for request in list(running):
                self._schedule(batch, request, running, waiting)
            if batch.ids:
                self._compute(batch)
            for request in list(running):
                if request.computed == request.known:
                    request.known += 1
                    if request.known >= len(request.tokens):  # the last one is never fed
                        running.remove(request)
                        self._release(request)

    def _compute(self, batch: Batch) -> None:
        self.now = batch
        out = self.model(torch.tensor(batch.ids), torch.tensor(batch.positions), batch)
        if batch.sampler is not None:
            logits = self.model.logits_processor(self.model.head(out[batch.ends]))
            batch.sampler(logits, torch.tensor(batch.following)[:, None], torch.full((len(logits),), 0.5))
        self.now = None

    def _schedule(self, batch: Batch, request: Request, running: list[Request], waiting: list[Request]) -> None:
        """Add the next tokens of a request; where there are no blocks for them, give up what it has computed."""
        if request.computed == 0 and self.prefixes:
            self._reuse(request)
        count = min(request.known - request.computed, self.batch - len(batch.ids))
        needed = -(-(request.computed + count) // self.size) - len(request.blocks)
        if needed > len(self.free):
            self.preempted += request.computed > 0
            running.remove(request)
            waiting.append(request)
            self._release(request)
            request.computed = 0
            return
        request.blocks += [self.free.pop(0) for _ in range(needed)]
        for position in range(request.computed, request.computed + count):
            batch.ids.append(request.tokens[position])
            batch.positions.append(position)
            batch.sampled.append(int(position >= request.prompt))
            batch.slots.append(
                [request.blocks[p // self.size] * self.size + p % self.size for p in range(position + 1)]
            )
        request.computed += count
        batch.ends.append(len(batch.ids) - 1)
        batch.following.append(request.tokens[request.computed])

    def _reuse(self, request: Request) -> None:
        for end in range(self.size, request.known, self.size):
            block = self.shared.get(tuple(request.tokens[:end]))
            if block is None:
                return
            request.blocks.append(block)
            request.computed = end
            self.hits += 1

    def _release(self, request: Request) -> None:
        """Give blocks back; whole ones are kept for others where prefixes are shared."""
        for k, block in enumerate(request.blocks):
            end = (k + 1) * self.size
            if self.prefixes and end <= request.computed:
                self.shared.setdefault(tuple(request.tokens[:end]), block)
            elif block not in self.free:
                self.free.append(block)
        request.blocks = []
