"""The injections of one process while it runs: which are due, and what came of each.

Makes none itself: ops are overwritten by ``values.py``, arrays of JAX replaced by its extension. No torch.
"""

import threading
from collections.abc import Callable, Sequence

from rltrace.errors import HoleError
from rltrace.rerun.account import NO_STEP, NO_STREAM, NOT_REACHED, RAISED, Account, MissedInjection, missed_injection
from rltrace.rerun.op_kinds import OpDistance, OpKind, OpKinds, Tallies
from rltrace.rerun.plan import Attempt, Injection, InjectionPlan, Place
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.values import Value


class NotInjectedError(Exception):
    """An injection could not be made; the text is the reason."""


def check_fits(value: Value, what: str, dtype: str, shape: tuple[int, ...], hint: str = "") -> None:
    """Raise NotInjectedError where an array or tensor of B is not of the dtype and shape of A's value."""
    if (dtype, shape) != (value.dtype, value.shape):
        both = f"{dtype}{list(shape)} here and {value.dtype}{list(value.shape)} in A"
        raise NotInjectedError(f"{what} is {both}{hint}")


def device_words(devices: Sequence[str]) -> str:
    """``cpu and cuda``."""
    return " and ".join(dict.fromkeys(devices)) or "no device"


class InjectionFollower:
    """The injections of one process and their outcomes, while it runs."""

    def __init__(self, plan: InjectionPlan, process: ProcessTrace, *, origins: bool = False) -> None:
        """``origins``: inject only where the inputs of an op equal those in A."""
        self.plan = plan
        self.origins = origins
        self._received = 0
        self._values = process.values
        self._lock = threading.Lock()
        self._left = {
            name: {step: dict(places) for step, places in steps.items()} for name, steps in plan.streams.items()
        }
        self._streams: set[str] = set()
        self._reached: set[tuple[str, Attempt]] = set()
        self._done = 0
        self._missed: list[MissedInjection] = []
        self._kinds = OpKinds(process.words)
        self._other = Tallies()
        self._raised: set[tuple[str, int]] = set()

    def value(self, digest: int) -> Value:
        """A's value. Thread-safe. Raises NotInjectedError."""
        with self._lock:
            try:
                value = self._values.get(digest)
            except HoleError as error:
                raise NotInjectedError(str(error)) from None
        if value is None:
            raise NotInjectedError(f"A has no value {digest:016x}")
        return value

    def begin(self, stream: str) -> None:
        self._streams.add(stream)

    def due_in(self, stream: str, step: Attempt) -> dict[Place, Injection] | None:
        """The injections of the step after the attempt ``step``; remove one when it is made."""
        self._reached.add((stream, step))
        return self._left.get(stream, {}).get(step)

    def done(self, injection: Injection, kind_b: Callable[[], OpKind], distance: OpDistance) -> None:
        """Count an injection that was made; ``distance``: of B's values from A's, ``kind_b``: kind of the op in B."""
        with self._lock:
            self._done += 1
            if distance:
                kind = self._kinds.of(injection.place[0], injection.site, injection.kernel)
                self._other.add(kind, kind_b(), injection.stream, injection.row, injection.step, distance)

    def receive(self) -> None:
        """Count an injection that was skipped, because the inputs of the op differ from those in A."""
        with self._lock:
            self._received += 1

    def miss(self, injection: Injection, reason: str) -> None:
        """Record an injection that could not be made."""
        with self._lock:
            self._missed.append(missed_injection(injection, reason))

    def raised(self, injection: Injection) -> None:
        """Record that the op raised; this is the reason if the injection is not made later."""
        with self._lock:
            self._raised.add((injection.stream, injection.row))

    def account(self) -> Account:
        """The outcomes of all injections so far; the program may be going on."""
        found = list(self._missed)
        for name, steps in self._left.items():
            for step, places in steps.items():
                reason = NOT_REACHED if (name, step) in self._reached else NO_STEP
                reason = reason if name in self._streams else NO_STREAM
                left = list(places.values())
                raised = {i.row for i in left if (name, i.row) in self._raised}
                found += [missed_injection(i, RAISED if i.row in raised else reason) for i in left]
        return Account(len(self.plan), self._done, tuple(found), self._other.kinds(), self._received)
