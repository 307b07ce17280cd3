"""Random scripts: what a property test of ``diff`` compares, before ``edits`` are made and with the ``truths`` of them.

A script has functions with loops, calls and recursion, and training loops; running it gives instructions for the
machine of ``programs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from programs import Do

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
