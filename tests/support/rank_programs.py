"""Made-up programs of several ranks: what each computes, and the collectives in which they meet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rltrace.testing import In, StreamBuilder, TraceBuilder

WORLD = ("0", (0, 1))


@dataclass
class Rank:
    """One process of a program of several: what it computes, and where it meets the others."""

    stream: StreamBuilder
    number: int

    def compute(self, value: str = "x") -> None:
        self.stream.op("aten.mm.default", outputs=[value])

    def meet(
        self, name: str, group: tuple[str, Sequence[int]] = WORLD, integers: Sequence[int] = (), waits: bool = True
    ) -> None:
        who = {"group": group[0], "rank": self.number, "ranks": list(group[1])}
        words = [["T"], who, *["i"] * len(integers), *([False] if waits else [])]
        self.stream.op(f"c10d.{name}.default", inputs=["unknown"], scalars=words, integers=integers)

    def read(self, value: str = "x", sent: int = 1) -> None:
        """Compute with what came with a collective."""
        self.stream.op("aten.copy_.default", inputs=[In(digest=value, sent=sent)], outputs=[value])


class Program:
    """A trace of some ranks."""

    def __init__(self, path: Path, ranks: int = 2) -> None:
        self.trace = TraceBuilder(path)
        self.ranks = [Rank(self.trace.process(f"rank{k}/main").stream(), k) for k in range(ranks)]

    def finish(self) -> Path:
        return self.trace.finish()


def both_programs(folder: Path, ranks: int = 2) -> Iterator[tuple[Program, str]]:
    """Programs for ``a.zarr`` and ``b.zarr``, one after the other, each with a value: another one in B."""
    for side, value in (("a", "x"), ("b", "other")):
        program = Program(folder / f"{side}.zarr", ranks)
        yield program, value
        program.finish()


def reducing(path: Path, begins: int | None = None, *, waits: bool = True, steps: int = 6, at: int = 1) -> Path:
    """Both ranks reduce in each step; from step ``begins`` on, rank ``at`` computes something else."""
    program = Program(path)
    for step in range(steps):
        other = begins is not None and step >= begins
        for rank in program.ranks:
            rank.compute("other" if other and rank.number == at else "x")
            rank.meet("allreduce_", waits=waits)
            rank.compute("y")
            rank.read("other sum" if other else "sum")
            rank.stream.end_step()
    return program.finish()
