"""Comparisons of every kind, made of small traces in the current folder: what each form of report is tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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


def kernel() -> Comparison:
    """Another instruction set, and an environment that says why."""
    other = tuple({**KERNEL, "isa": "AVX512"}.items())
    sources = {"source.train.py": "0f3c" * 16}
    recorded(Path("a.zarr"), program(), facts={"cpu.capability": "AVX2", "env.OMP_NUM_THREADS": "4", **sources})
    recorded(
        Path("b.zarr"),
        at("aten.mm.default", 2, kernel=other),
        facts={"cpu.capability": "AVX512", "source.train.py": "a917" * 16},
    )
    return compare("a.zarr", "b.zarr")


def identical() -> Comparison:
    recorded(Path("a.zarr"), program())
    recorded(Path("b.zarr"), program())
    return compare("a.zarr", "b.zarr")


def same_values() -> Comparison:
    """Log lines added."""
    recorded(Path("a.zarr"), program())
    recorded(Path("b.zarr"), with_extra("aten.sub.Tensor", LOG))
    return compare("a.zarr", "b.zarr")


def extra_draw() -> Comparison:
    """A draw that one side alone makes."""
    recorded(Path("a.zarr"), program())
    draw = Do("aten.rand.default", (), "extra", 51, source="log(torch.rand(3))", stack=OUTER)
    recorded(Path("b.zarr"), with_extra("step", draw))
    return compare("a.zarr", "b.zarr")


def steps() -> Comparison:
    """Two traces of step digests only."""
    for name, done in (
        ("a", training(4)),
        ("b", [replace(d, floats=(2e-3,)) if d.line == 31 else d for d in training(4)]),
    ):
        bare = [do for do in done if do.name == "step" or do.writes]
        recorded(Path(f"{name}.zarr"), bare, level="step")
    return compare("a.zarr", "b.zarr")


def unfinished() -> Comparison:
    recorded(Path("a.zarr"), program()[:30], state="killed")
    recorded(Path("b.zarr"), program())
    return compare("a.zarr", "b.zarr")


def ended() -> Comparison:
    recorded(Path("a.zarr"), program())
    recorded(Path("b.zarr"), [replace(do, stack=OUTER) for do in training(5)])
    return compare("a.zarr", "b.zarr")


CASES: dict[str, Callable[[], Comparison]] = {
    f.__name__: f for f in (kernel, identical, same_values, extra_draw, steps, unfinished, ended)
}
