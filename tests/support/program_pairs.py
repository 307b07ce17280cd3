"""Random pairs of programs: the same ops, of which B runs some more, and some are off from some line on."""

import linecache
from random import Random

import torch

WRONG = [0.0]
"""How far the ops below are off; each program sets it."""


@torch.library.custom_op("against::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * (1.0 + WRONG[0])


scaled.register_autograd(lambda ctx, grad: grad, setup_context=lambda ctx, inputs, output: None)


@torch.library.custom_op("against::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor) -> None:
    x.mul_(1.0 + WRONG[0])


STATEMENTS = (
    "{x} = {y} * 2 + {z}",
    "{x} = scaled({y})",
    "{x}.add_({y})",
    "scale_({x})",
    "{x}[1:].mul_(1.5)",
    "{x} = torch.rand(4) + {y}",
    "{x} = torch.where({y} > 1, {y}, {z})",
    "torch.mul({y}, {z}, out={x})",
    "{x} = {y}.t().clone()",
    "torch._foreach_add_([{x}], [{y}])",
    "float({x}.sum())",
)
EXTRAS = ("{x}.mean()", "{x}.add_(0.5)", "torch.rand(2)", "{x}.mul_(1)", "({x} + {y}).exp()")


def text_of(random: Random, extra: int) -> tuple[str, str]:
    """A program, and the same with ``extra`` statements more in it, one of them off."""
    lines = ["a, b, c = torch.ones(4), torch.arange(4.0), torch.full((4,), 0.5)"]
    names = list("abc")

    def made(choices: tuple[str, ...]) -> str:
        x, y, z = (random.choice(names) for _ in range(3))
        return random.choice(choices).format(x=x, y=y, z=z)

    lines += [made(STATEMENTS) for _ in range(random.randint(3, 25))]
    changed = list(lines)
    for _ in range(extra):
        changed.insert(random.randint(1, len(changed)), made(EXTRAS))
    if random.random() < 0.7:
        place = random.randint(1, len(changed))
        changed[place:place] = ["WRONG[0] = 0.25"]
    return "\n".join(lines), "\n".join(changed)


def run_text(text: str, **names: object) -> None:
    """Run a program; ``names``: more that it may use."""
    WRONG[0] = 0.0
    linecache.cache["<made>"] = (len(text), None, [line + "\n" for line in text.splitlines()], "<made>")
    exec(compile(text, "<made>", "exec"), {"torch": torch, "scaled": scaled, "scale_": scale_, "WRONG": WRONG, **names})
