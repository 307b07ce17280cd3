"""Random scripts, and random edits whose effect is known: what a property test of ``diff`` compares.

A script has functions with loops, calls and recursion; running it gives instructions for the machine of ``programs``.
Edits are made to what ran, so every instruction that both sides have knows its counterpart. ``truth`` then reads off,
from what truly happened on both sides, what a comparison has to say; it uses nothing of what was recorded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from programs import KERNEL, Do, Done, Machine

from rltrace.diff.model import Cause

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
        for _ in range(self.random.randint(0, 5)):
            body += self._body(0, 2)
            if self.random.random() < 0.8:
                body += self._attempt(0)
            if self.random.random() < 0.4:
                body += self._attempt(1)
        return body + self._body(0, 2)

    def _attempt(self, ordinal: int) -> list[Statement]:
        weight = self.weights[ordinal % len(self.weights)]
        skipped = self.random.random() < 0.2
        update = Do(
            "aten.add_.Tensor", (weight, self._temporary()), weight, self._next(), floats=(self.random.random(),)
        )
        return [*([] if skipped else [update]), Do("step", ordinal=ordinal, optimizer=f"O{ordinal}", skipped=skipped)]

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


# --- edits ----------------------------------------------------------------------------------------------------------

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
        """Lines that one edit has touched and no other may: together nobody could tell which was which."""

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
        """New lines that compute something nobody uses: at one moment, or wherever a line runs."""
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


# --- the truth ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """What a comparison of two runs has to say."""

    rows: tuple[list[object], list[object]]
    """What ought to be recorded of each row: rows that are equal here can be told apart by nobody."""
    only: tuple[int, int]
    """Ops that one side alone ran, up to the first difference in values."""
    moved: int
    """The fewest rows that have to be moved to bring one order into the other."""
    one_sided: tuple[int | None, int | None]
    """The first row that one side alone has, on each."""
    harmful: bool
    """A one-sided op drew, or a matched op used what it wrote."""
    value: tuple[int, int] | None
    """Rows of the first matched ops, in A's order, whose values differ."""
    cause: Cause | None

    @property
    def identical(self) -> bool:
        return self.rows[0] == self.rows[1] and self.value is None


def truth(a: Machine, items_a: Sequence[Item], b: Machine, items_b: Sequence[Item]) -> Truth:
    """``items``: the instructions that the machines ran."""
    rows_a = {item.origin: a.rows[k] for k, item in enumerate(items_a) if item.do.is_op and item.origin is not None}
    rows_b = {item.origin: b.rows[k] for k, item in enumerate(items_b) if item.do.is_op and item.origin is not None}
    pairs = sorted((rows_a[o], rows_b[o]) for o in rows_a.keys() & rows_b.keys())
    partner = dict(pairs)
    alone = [sorted(set(range(len(m.done))) - set(own)) for m, own in ((a, partner), (b, partner.values()))]
    value = next(((i, j) for i, j in pairs if _differs(a.done[i], b.done[j])), None)
    before = [[r for r in rows if value is None or r < value[k]] for k, rows in enumerate(alone)]
    pairs_before = [(i, j) for i, j in pairs if value is None or i < value[0]]
    return Truth(
        rows=([_recorded(d) for d in a.done], [_recorded(d) for d in b.done]),
        only=(len(before[0]), len(before[1])),
        moved=len(pairs_before) - _longest_increasing([j for _, j in pairs_before]),
        one_sided=(alone[0][0] if alone[0] else None, alone[1][0] if alone[1] else None),
        harmful=any(m.done[r].state for m, rows in ((a, before[0]), (b, before[1])) for r in rows)
        or any(_uses(a.done[i], b.done[j], before) for i, j in pairs_before),
        value=value,
        cause=None if value is None else _cause(a.done[value[0]], b.done[value[1]], partner),
    )


def _recorded(done: Done) -> tuple[object, ...]:
    do = done.do
    value = "" if do.name == "aten.view.default" else done.value
    return (
        do.name,
        do.file,
        do.function,
        do.source or f"line {do.line}",
        do.stack,
        do.shape,
        do.floats,
        value,
        done.state,
    )


def _differs(a: Done, b: Done) -> bool:
    """Whether two matched ops differ in anything that is recorded."""
    if (a.do.name, a.do.shape, a.do.floats, a.state) != (b.do.name, b.do.shape, b.do.floats, b.state):
        return True
    reads = any(x.digested and y.digested and x.value != y.value for x, y in zip(a.reads, b.reads, strict=True))
    return reads or (a.value != b.value and a.do.name != "aten.view.default")


def _uses(a: Done, b: Done, alone: Sequence[Sequence[int]]) -> bool:
    """Whether a matched op, no view, found other bytes in an input because one side alone wrote them."""
    return a.do.name != "aten.view.default" and any(
        x.value != y.value and (x.writer in alone[0] or y.writer in alone[1])
        for x, y in zip(a.reads, b.reads, strict=True)
    )


def _cause(a: Done, b: Done, partner: dict[int, int]) -> Cause:
    """In the order in which causes are named where several meet in one op."""
    if a.state != b.state:
        return Cause.RNG
    unequal = [(x, y) for x, y in zip(a.reads, b.reads, strict=True) if x.value != y.value]
    if any(x.outside or y.outside for x, y in unequal):
        return Cause.OUTSIDE
    if any(x.writer is not None and partner.get(x.writer) != y.writer for x, y in unequal):
        return Cause.CONTROL_FLOW
    if unequal:
        return Cause.UNTRACKED_WRITE
    if (a.do.shape, a.do.floats) != (b.do.shape, b.do.floats):
        return Cause.ARGUMENTS
    if a.do.kernel is None or b.do.kernel is None:
        return Cause.COMPUTATION
    return Cause.KERNEL if a.do.kernel != b.do.kernel else Cause.SAME_KERNEL


def _longest_increasing(values: Sequence[int]) -> int:
    tails: list[int] = []
    for value in values:
        at = bisect_left(tails, value)
        tails[at : at + 1] = [value]
    return len(tails)
