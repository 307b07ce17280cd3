"""Random edits to what a random script ran: every instruction that both sides have knows its counterpart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from programs import KERNEL, Do

from scripts import ANY, TEMPORARIES, Frame, Item

OTHER = tuple({**KERNEL, "threads": 8}.items())


class Editor:
    """Makes random edits to what ran."""

    def __init__(self, random: Random, ran: Sequence[Do]) -> None:
        self.random = random
        self.items = [Item(do, k) for k, do in enumerate(ran)]
        self.start = next(k for k, do in enumerate(ran) if do.name == "outside") + 2
        self.made: list[str] = []
        self.line = 5_000
        self.settled: set[int] = set()
        """Lines that one edit has touched and no other may: together it could not be known which was which."""

    def edit(self, kinds: Sequence[str]) -> None:
        kind = self.random.choice(kinds)
        method: Callable[[], bool] = getattr(self, f"_{kind.replace('-', '_')}")
        if method():
            self.made.append(kind)

    def _ops(self, wanted: Callable[[Do], bool] = lambda do: True) -> list[int]:
        ops = [k for k, item in enumerate(self.items) if item.origin is not None and item.do.is_op]
        return [k for k in ops if wanted(self.items[k].do)]

    def _free(self, wanted: Callable[[Do], bool]) -> list[int]:
        return self._ops(lambda do: do.line not in self.settled and wanted(do))

    def _change(self, places: Sequence[int], **how: object) -> bool:
        for place in places:
            item = self.items[place]
            self.settled.add(item.do.line)
            self.items[place] = Item(replace(item.do, **how), item.origin)  # type: ignore[arg-type]
        return bool(places)

    def _pick(self, places: Sequence[int]) -> list[int]:
        """One of these, or all instances of its line from there on."""
        if not places:
            return []
        one = self.random.choice(places)
        if self.random.random() < 0.6:
            return [one]
        return [k for k in places if k >= one and self._line_of(k) == self._line_of(one)]

    def _line_of(self, place: int) -> tuple[str, int]:
        return self.items[place].do.name, self.items[place].do.line

    def _value(self) -> bool:
        how = self.random.choice([{"noise": "x"}, {"kernel": OTHER}, {"noise": "x", "kernel": None}])
        return self._change(self._pick(self._free(lambda do: do.name != "aten.view.default")), **how)

    def _argument(self) -> bool:
        return self._change(self._pick(self._free(lambda do: bool(do.floats))), floats=(9.0,))

    def _shape(self) -> bool:
        return self._change(self._pick(self._free(lambda do: bool(do.reads))), shape=(5,))

    def _outside(self) -> bool:
        places = [k for k, item in enumerate(self.items) if item.do.name == "outside" and item.origin is not None]
        return self._change([self.random.choice(places)], noise="other")

    def _seed(self) -> bool:
        return self._insert(self._place(), [Do("seed", noise="other ")])

    def _alias(self) -> bool:
        places = [k + 1 for k, item in enumerate(self.items) if item.do.name == "step"]
        weights = sorted({item.do.writes for item in self.items if item.do.writes.startswith("w")})
        return bool(places) and self._insert(
            self.random.choice(places), [Do("alias", (), self.random.choice(weights), noise=f"{len(self.made)}")]
        )

    def _log(self) -> bool:
        """New lines that compute something unused: at one moment, or wherever a line runs."""
        self.line += 10
        names = [self.random.choice(ANY) for _ in range(self.random.randint(1, 3))]
        reads = self.random.choice([*TEMPORARIES, "w0", "o0"])
        new = [Do(n, ("log" if k else reads,), "log", self.line + k) for k, n in enumerate(names)]
        for place in reversed(self._pick([k for k in self._ops() if k >= self.start])):
            self._insert(place, new)
        return True

    def _again(self) -> bool:
        """A part of the program runs once more, on variables of its own, with observations of its own."""
        place = self._place()
        part = [item.do for item in self.items[place : place + self.random.randint(1, 12)]]
        part = [do for do in part if not do.draws and do.name not in ("step", "alias", "seed")]
        part = [do for do in part if do.line not in self.settled]
        self.settled |= {do.line for do in part if do.is_op}
        own: dict[str, str] = {}
        new = []
        for k, do in enumerate(part):
            reads = tuple(own.get(name, name) for name in do.reads)
            if do.writes:
                own[do.writes] = f"again {len(self.made)} {do.writes}"
            noise = f"again {len(self.made)} {k}" if do.name == "outside" else do.noise
            new.append(replace(do, reads=reads, writes=own.get(do.writes, ""), noise=noise))
        return self._insert(place, new)

    def _draw(self) -> bool:
        self.line += 10
        return self._insert(self._place(), [Do("aten.rand.default", (), "extra", self.line)])

    def _live(self) -> bool:
        """A new line that changes what others use."""
        self.line += 10
        name = self.random.choice(TEMPORARIES)
        return self._insert(self._place(), [Do("aten.mul.Tensor", (name, "w0"), name, self.line)])

    def _overflow(self) -> bool:
        """A scaler finds an overflow on one side alone: the attempt is made, and the update is not."""
        items = self.items
        places = [k for k, item in enumerate(items) if item.do.name == "step" and items[k - 1].do.writes[:1] == "w"]
        places = [k for k in places if items[k - 1].do.line not in self.settled and items[k - 1].origin is not None]
        if not places:
            return False
        place = self.random.choice(places)
        self.settled.add(items[place - 1].do.line)
        items[place - 1 : place + 1] = [Item(replace(items[place].do, skipped=True), items[place].origin)]
        return True

    def _reorder(self) -> bool:
        """Two adjacent parts that have nothing to do with each other change places."""
        for _ in range(20):
            place = self._place()
            middle = place + self.random.randint(1, 4)
            end = middle + self.random.randint(1, 4)
            first, second = self.items[place:middle], self.items[middle:end]
            if len(second) == end - middle and independent([i.do for i in first], [i.do for i in second]):
                self.items[place:end] = [*second, *first]
                self.settled |= {item.do.line for item in (*first, *second) if item.do.is_op}
                return True
        return False

    def _rename(self) -> bool:
        """A line, or the name of a function, is another one from now on; what it does is not."""
        function = f"f{self.random.randint(0, 3)}"
        names = self.random.random() < 0.5
        lines = [item.do.line for item in self.items if item.do.line >= 100]
        line = self.random.choice(lines) if lines else 0

        def frame(old: Frame) -> Frame:
            file, number, name, source = old
            if names:
                return file, number, f"{name}_renamed" if name == function else name, source
            return file, number, name, f"{source} renamed" if number == line else source

        for k, item in enumerate(self.items):
            do = item.do
            if do.is_op and do.line >= 100:
                own = frame((do.file, do.line, do.function, do.source or f"line {do.line}"))
                changed = replace(do, function=own[2], source=own[3], stack=tuple(map(frame, do.stack)))
                self.items[k] = Item(changed, item.origin)
        return True

    def _place(self) -> int:
        """Somewhere before the last op: what is added after it may as well be a run that went on."""
        return self.random.randint(self.start, max(self.start, *self._ops()))

    def _insert(self, place: int, new: Sequence[Do]) -> bool:
        self.items[place:place] = [Item(do, None) for do in new]
        return bool(new)


def independent(first: Sequence[Do], second: Sequence[Do]) -> bool:
    """Whether two parts may change places without anything else changing."""
    if any(not do.is_op and do.name != "outside" for do in (*first, *second)):
        return False
    if any(do.draws for do in first) and any(do.draws for do in second):
        return False
    reads = [{name for do in part for name in do.reads} for part in (first, second)]
    writes = [{do.writes for do in part if do.writes} for part in (first, second)]
    return not (writes[0] & (writes[1] | reads[1]) or writes[1] & reads[0])
