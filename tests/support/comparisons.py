"""Comparisons of every kind, made of small traces in the current folder: what each form of report is tried on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from programs import KERNEL, Do, recorded, training

from rltrace.diff import Comparison, compare

OUTER = (
    ("stable_baselines3/ppo/ppo.py", 311, "PPO.learn", "return super().learn("),
    ("run.py", 8, "<module>", "main()"),
)
LOG = Do("aten.mean.default", ("e",), "log", 50, source="logger.record('e', e.mean())", stack=OUTER)


def program() -> list[Do]:
    return [replace(do, stack=OUTER) for do in training(3)]


def at(name: str, number: int, **fields: object) -> list[Do]:
    """The program with the nth instruction of this name changed."""
    done = program()
    place = [p for p, do in enumerate(done) if do.name == name][number]
    return [*done[:place], replace(done[place], **fields), *done[place + 1 :]]  # type: ignore[arg-type]


def with_extra(name: str, extra: Do) -> list[Do]:
    return [item for do in program() for item in ([do, extra] if do.name == name else [do])]


def pair(a: list[Do], b: list[Do], **of_b: Any) -> Comparison:
    """``a.zarr`` and ``b.zarr``; ``of_b``: what is recorded of B besides."""
    recorded(Path("a.zarr"), a, facts=of_b.pop("facts_a", None))
    recorded(Path("b.zarr"), b, **of_b)
    return compare("a.zarr", "b.zarr")


def kernel() -> Comparison:
    """Another instruction set, and an environment that says why."""
    facts_a = {"cpu.capability": "AVX2", "env.OMP_NUM_THREADS": "4", "source.train.py": "0f3c" * 16}
    facts_b = {"cpu.capability": "AVX512", "source.train.py": "a917" * 16}
    other = tuple({**KERNEL, "isa": "AVX512"}.items())
    return pair(program(), at("aten.mm.default", 2, kernel=other), facts_a=facts_a, facts=facts_b)


def identical() -> Comparison:
    return pair(program(), program())


def same_values() -> Comparison:
    """Log lines added."""
    return pair(program(), with_extra("aten.sub.Tensor", LOG))


def extra_draw() -> Comparison:
    """A draw that one side alone makes."""
    draw = Do("aten.rand.default", (), "extra", 51, source="log(torch.rand(3))", stack=OUTER)
    return pair(program(), with_extra("step", draw))


def steps() -> Comparison:
    """Two traces of step digests only."""
    other = [replace(d, floats=(2e-3,)) if d.line == 31 else d for d in training(4)]
    for name, done in (("a", training(4)), ("b", other)):
        bare = [do for do in done if do.name == "step" or do.writes]
        recorded(Path(f"{name}.zarr"), bare, level="step")
    return compare("a.zarr", "b.zarr")


def unfinished() -> Comparison:
    recorded(Path("a.zarr"), program()[:30], state="killed")
    recorded(Path("b.zarr"), program())
    return compare("a.zarr", "b.zarr")


def ended() -> Comparison:
    return pair(program(), [replace(do, stack=OUTER) for do in training(5)])


CASES: dict[str, Callable[[], Comparison]] = {
    f.__name__: f for f in (kernel, identical, same_values, extra_draw, steps, unfinished, ended)
}
