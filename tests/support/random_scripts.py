"""Random scripts and random edits to what they ran: what property tests of ``diff`` compare.

A script has functions with loops, calls and recursion, and training loops; running it gives instructions for the
machine of ``programs``. Every instruction that both sides have knows its counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from programs import KERNEL, Do

Frame = tuple[str, int, str, str]

PLAIN = ("aten.mul.Tensor", "aten.add.Tensor", "aten.mm.default", "aten.addmm.default", "aten.tanh.default")
ANY = (*PLAIN, "aten.argmax.default", "aten.clamp.default", "aten.mean.default")
TEMPORARIES = tuple(f"t{k}" for k in range(5))
DEEPEST = 4
LONGEST = 400
"""Instructions of one script, about."""


@dataclass(frozen=True)
class Loop:
    times: int
    body: list[Statement]


@dataclass(frozen=True)
class Call:
    function: int
    line: int


Statement = Do | Loop | Call


@dataclass(frozen=True)
class Item:
    """One instruction that ran."""

    do: Do
    origin: int | None
    """Its place in the unedited run; None: an edit added it."""


@dataclass
class Script:
    """Functions by number (0 is the main one), and how to run them."""

    functions: list[list[Statement]]
    setup: list[Do]
    ran: list[Do] = field(default_factory=list)

    def run(self) -> list[Do]:
        self.ran = list(self.setup)
        self._body(0, self.functions[0], (), 0)
        return self.ran

    def _body(self, number: int, body: Sequence[Statement], stack: tuple[Frame, ...], depth: int) -> None:
        for statement in body:
            if len(self.ran) > LONGEST:
                return
            if isinstance(statement, Loop):
                for _ in range(statement.times):
                    self._body(number, statement.body, stack, depth)
            elif isinstance(statement, Call):
                if depth < DEEPEST:
                    frame = _frame(number, statement.line)
                    self._body(statement.function, self.functions[statement.function], (frame, *stack), depth + 1)
            else:
                self._one(statement, stack)

    def _one(self, do: Do, stack: tuple[Frame, ...]) -> None:
        if do.name == "outside":
            do = replace(do, noise=f"observation {len(self.ran)}")
        elif do.name != "step":
            do = replace(do, stack=stack)
        self.ran.append(do)


def _frame(function: int, line: int) -> Frame:
    return (f"module{function % 2}.py", line, f"f{function}", f"line {line}")


class Writer:
    """Writes random scripts."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.line = 100
        self.weights = [f"w{k}" for k in range(random.randint(1, 3))]
        self.count = random.randint(1, 4)

    def script(self) -> Script:
        setup = [Do("aten.randn.default", (), w, k + 1) for k, w in enumerate(self.weights)]
        setup += [Do("aten.zeros.default", (), t, 20 + k) for k, t in enumerate(TEMPORARIES)]
        setup += [Do("outside", (), "o0", noise="first"), Do("outside", (), "o1", noise="second")]
        functions = [self._function(number) for number in range(self.count)]
        functions[0] = self._main()
        return Script(functions, setup)

    def _main(self) -> list[Statement]:
        body: list[Statement] = []
        if self.random.random() < 0.3:  # a long stretch before the first step
            body.append(Loop(self.random.randint(3, 12), self._body(0, 2)))
        if self.random.random() < 0.3:
            body += self._accumulating()
        for _ in range(self.random.randint(0, 5)):
            body += self._body(0, 2)
            if self.random.random() < 0.8:
                body += self._attempt(0)
            if self.random.random() < 0.4:
                body += self._attempt(1)
        return body + self._body(0, 2)

    def _accumulating(self) -> list[Statement]:
        """A training loop: several backward passes a step, a scaler that skips, an optimizer with another cadence."""
        batch = [*self._body(0, 1), *self._backward("g0", 0)]
        passes, cadence = self.random.randint(1, 4), self.random.randint(2, 3)
        unscale = Do("aten.mul_.Tensor", ("g0",), "g0", self._next(), floats=(0.5,))
        is_finite = Do("aten._local_scalar_dense.default", ("g0",), "", self._next())
        update = [self._update(0), self._update(1)]
        clear = [Do("aten.zeros.default", (), f"g{k}", self._next()) for k in (0, 1)]
        slower = [*self._backward("g1", 1), update[1], self._step(1, False), clear[1]]
        body: list[Statement] = [*clear]
        for k in range(self.random.randint(1, 6)):
            skipped = self.random.random() < 0.2
            body += [Loop(passes, batch), unscale, is_finite]
            body += [*([] if skipped else [update[0]]), self._step(0, skipped), clear[0]]
            body += slower if k % cadence == cadence - 1 else []
        return body

    def _backward(self, gradient: str, ordinal: int) -> list[Do]:
        """What a backward pass adds to a gradient."""
        new = Do("aten.mm.default", (self._temporary(), self._weight(ordinal)), "grad", self._next())
        return [new, Do("aten.add_.Tensor", (gradient, "grad"), gradient, self._next())]

    def _update(self, ordinal: int) -> Do:
        weight = self._weight(ordinal)
        return Do("aten.add_.Tensor", (weight, f"g{ordinal}"), weight, self._next(), floats=(1e-3,))

    def _step(self, ordinal: int, skipped: bool) -> Do:
        return Do("step", ordinal=ordinal, optimizer=f"O{ordinal}", skipped=skipped)

    def _weight(self, ordinal: int) -> str:
        return self.weights[ordinal % len(self.weights)]

    def _attempt(self, ordinal: int) -> list[Statement]:
        weight = self._weight(ordinal)
        skipped = self.random.random() < 0.2
        update = Do(
            "aten.add_.Tensor", (weight, self._temporary()), weight, self._next(), floats=(self.random.random(),)
        )
        return [*([] if skipped else [update]), self._step(ordinal, skipped)]

    def _function(self, number: int) -> list[Statement]:
        body = self._body(number, 1)
        if self.random.random() < 0.3:  # recursion
            body.insert(self.random.randint(0, len(body)), Call(number, self._next()))
        return body

    def _body(self, number: int, deep: int) -> list[Statement]:
        body: list[Statement] = []
        for _ in range(self.random.randint(1, 5)):
            kind = self.random.random()
            if kind < 0.15 and deep:
                body.append(Loop(self.random.randint(2, 5), self._body(number, deep - 1)))
            elif kind < 0.3 and number + 1 < self.count:
                body.append(Call(self.random.randint(number + 1, self.count - 1), self._next()))
            else:
                body += self._plain(number)
        return body

    def _plain(self, number: int) -> list[Statement]:
        kind, line = self.random.random(), self._next()
        at = {"file": f"module{number % 2}.py", "function": f"f{number}", "line": line}
        if kind < 0.1:
            return [Do("aten.rand.default", (), self._temporary(), **at)]
        if kind < 0.2:
            return [Do("outside", (), self.random.choice(["o0", "o1"]))]
        if kind < 0.27:
            return [Do("aten.view.default", (self._variable(),), "", **at)]
        if kind < 0.34:
            return [Do("aten._local_scalar_dense.default", (self._variable(),), "", **at)]
        name = self.random.choice(ANY)
        floats = (round(self.random.random(), 1),) if self.random.random() < 0.3 else ()
        one = Do(
            name,
            tuple(self._variable() for _ in range(self.random.randint(1, 2))),
            self._temporary(),
            floats=floats,
            **at,
        )
        return [one] * (2 if self.random.random() < 0.1 else 1)  # the same line twice

    def _variable(self) -> str:
        return self.random.choice([*self.weights, *TEMPORARIES, *TEMPORARIES, "o0", "o1"])

    def _temporary(self) -> str:
        return self.random.choice(TEMPORARIES)

    def _next(self) -> int:
        self.line += 1
        return self.line


# --- edits ------------------------------------------------------------------------------------------------------------


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
