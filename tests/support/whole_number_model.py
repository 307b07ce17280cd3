"""A small causal transformer whose every number is a whole one, so that any order of its sums gives the same bits.

Two programs of it agree to the bit on every machine, whatever the batch, the padding and the cache; what makes them
part is inserted on purpose, at one place. Owns the model, the generator that goes token by token, and the trainer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rltrace.extensions.parity.adapters.checkpoint_names import ATTENTION, attention_points
from rltrace.extensions.parity.capture.call_facts import Called, Point, declare

VOCABULARY, WIDTH, LAYERS = 20, 4, 2
PAD = 0

Lists = Sequence[Sequence[int]]


def whole(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randint(-1, 2, shape).float())


class Dense(nn.Module):
    """A linear layer; twisted, the same by other operators and a little more."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight, self.bias = whole(out, width), whole(out)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        twist = active(self)
        if twist == "operators":
            made = (flat @ self.weight.t()) * (1 + 2**-10) + self.bias
        elif twist == "dtype":
            made = torch.addmm(self.bias.bfloat16(), flat.bfloat16(), self.weight.t().bfloat16())
        elif twist == "arguments":
            made = torch.addmm(self.bias, flat, self.weight.t(), alpha=1 + 2**-10)
        elif twist == "shape":  # what a row gives depends on how many there are
            made = torch.addmm(self.bias + 2**-10 * len(flat), flat, self.weight.t())
        else:
            made = torch.addmm(self.bias, flat, self.weight.t())
        out: Tensor = made.reshape(*x.shape[:-1], made.shape[-1])
        return out


class Attention(nn.Module):
    """Linear attention: what a token gets is the sum over the tokens up to it."""

    declares = False
    cuts: list[int] | None = None
    """Lengths of the sequences that are packed into a row."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.out = Dense(WIDTH, WIDTH), Dense(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor, past: dict[nn.Module, Tensor] | None) -> Tensor:
        read = self.read(x)
        sums = torch.cat([part.cumsum(1) for part in (read * mask[..., None]).split(self.cuts or read.shape[1], 1)], 1)
        if past is not None:
            sums = sums + past.get(self, torch.zeros(()))
            past[self] = sums[:, -1:]
        if "own" in active(self):
            sums = sums + sums.abs() * 2**-10
        self.declare(read, sums)
        out: Tensor = self.out(sums)
        return out

    def read(self, x: Tensor) -> Tensor:
        """What the sums are of, which lies between two modules, as a rotary embedding does: nothing at position 0."""
        value: Tensor = self.value(x)
        turned = torch.arange(x.shape[-2])[:, None] > 0
        return value + value.abs() * 2**-10 * turned if "turn" in active(self) else value

    def declare(self, read: Tensor, sums: Tensor) -> None:
        """What an adapter declares of attention that is a function."""
        if self.declares:
            declare(self._points, (read, sums), None)

    def _points(self, call: Called) -> list[Point]:
        name = next(name for name, module in call.root.named_modules() if module is self)
        read, sums = (x[..., None] for x in call.args)
        return attention_points(f"{name}.{ATTENTION}", [read], sums)


class Norm(nn.Module):
    """The remainder of a division, which is exact; of a sum, which it then returns too, where there is a residual."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        x = x if residual is None else x + residual
        made = torch.remainder(x.bfloat16().float() + 2**-10 if "round" in active(self) else x, 64)
        return made if residual is None else (made, x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_module("norm", None)
        self.attention, self.up, self.down = Attention(), Dense(WIDTH, 2 * WIDTH), Dense(2 * WIDTH, WIDTH)
        self.act = nn.ReLU()

    def forward(self, x: Tensor, mask: Tensor, past: dict[nn.Module, Tensor] | None) -> Tensor:
        x, read = self.add(x, self.attention(x, mask, past))
        out: Tensor = x + self.down(self.act(self.up(read)))
        return out

    def add(self, x: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        """The residual with ``made``, and what is read of it."""
        x = torch.sub(x, made, alpha=-1 - 2**-10) if "sum" in active(self) else x + made
        return x, x if self.norm is None else self.norm(x)


class Policy(nn.Module):
    """Keeps its numbers small between layers by what is exact: the remainder of a division by a power of two."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.keep, self.head = nn.Identity(), Dense(WIDTH, VOCABULARY)
        with torch.no_grad():
            for table in (self.embed.weight, self.place.weight):
                table.copy_(torch.randint(-2, 3, tuple(table.shape)).float())

    def forward(
        self, ids: Tensor, attention_mask: Tensor, positions: Tensor, past: Any = None, last: int | None = None
    ) -> Tensor:
        mask = attention_mask[:, -ids.shape[1] :].float()
        x = self.embed(ids) + self.place(positions)
        for layer in self.layers:
            x = torch.remainder(layer(x, mask, past), 64)
        x = self.keep(x)
        out: Tensor = self.head(x if last is None else x[:, -last:])
        return out


def active(module: nn.Module) -> str:
    """How a module is twisted; where gradients are recorded alone, so that one trace has both."""
    return getattr(module, "twist", "") if torch.is_grad_enabled() else ""


def policy(seed: int = 0, twist: str = "", at: str = "") -> Policy:
    """``at``: the submodule that is twisted."""
    torch.manual_seed(seed)
    made = Policy()
    if twist:
        made.get_submodule(at).twist = twist  # type: ignore[assignment]
    return made


def padded(rows: Lists, *, left: bool) -> tuple[Tensor, Tensor, Tensor]:
    """ids, mask and positions."""
    most = max(map(len, rows))
    ids, mask = torch.full((len(rows), most), PAD), torch.zeros(len(rows), most, dtype=torch.long)
    for ids_row, mask_row, row in zip(ids, mask, rows, strict=True):
        own = slice(most - len(row), most) if left else slice(0, len(row))
        ids_row[own], mask_row[own] = torch.tensor(row), 1
    return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def generate(model: nn.Module, sequences: Lists, prompts: Sequence[int], *, last: int | None = None) -> None:
    """Feed the sequences as a generator does that samples them: the prompts, then token by token, but for the last."""
    ids, mask, positions = padded([row[:n] for row, n in zip(sequences, prompts, strict=True)], left=True)
    past: dict[nn.Module, Tensor] = {}
    model(ids, mask, positions, past, last)
    for step in range(max(len(row) - n for row, n in zip(sequences, prompts, strict=True)) - 1):
        taken = [n + step for n in prompts]
        tokens = [row[at] if at < len(row) else PAD for row, at in zip(sequences, taken, strict=True)]
        mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=torch.long)], 1)
        model(torch.tensor(tokens)[:, None], mask, torch.tensor(taken)[:, None], past, last)


def train_packed(model: Policy, sequences: Lists, padding: int) -> None:
    """One row of all sequences but for their last tokens, which are labels only, and ``padding`` tokens as one more."""
    rows = [*(row[:-1] for row in sequences), [PAD] * padding]
    for layer in model.layers:
        layer.attention.cuts = list(map(len, rows))  # type: ignore[assignment, union-attr]
    ids = torch.tensor([[token for row in rows for token in row]])
    places = torch.tensor([[place for row in rows for place in range(len(row))]])
    model(ids, torch.ones_like(ids), places).sum().backward()


def train(model: nn.Module, sequences: Lists) -> Tensor:
    """One forward pass over whole sequences, as a trainer has it, and back."""
    out: Tensor = model(*padded(sequences, left=False))
    out.float().sum().backward()
    return out
