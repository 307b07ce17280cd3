"""Random programs of several processes that compute and send each other what they computed.

Processes run in a random order. Each has one number; an op mixes something into it, a message carries it, and who
receives it mixes that in. So a difference goes exactly where messages carry it, and what happened before what is known.
"""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rltrace.testing import In, StreamBuilder, TraceBuilder, digest
from rltrace.trace.format.messages import MessageEnds

Clock = dict[str, int]
"""By process, how many of its rows happened before."""


@dataclass
class Member:
    """One process."""

    stream: StreamBuilder
    value: str = "0"
    clock: Clock = field(default_factory=dict)
    number: int = 0
    """Messages so far."""
    row: int | None = None
    """The last op."""

    def op(self, mixed_in: str, received: str | None = None) -> None:
        """An op on the process's number, and on what was received."""
        last = [In(self.row)] if self.row is not None else []
        inputs = [*last, *([] if received is None else [In(digest=received)])]
        self.value = f"{digest(self.value + mixed_in):x}"
        self.row = self.stream.op("aten.mul.Tensor", inputs=inputs, outputs=[self.value])

    def message(self, channel: str, sent: bool, content: str) -> None:
        ends = MessageEnds(channel, sent, self.stream.index, [self.stream.rows], [self.number], [digest(content)])
        self.stream.process.writer.append(ends.record())
        self.number += 1


@dataclass(frozen=True)
class Run:
    """One trace, and what truly happened before each row: by (process, row)."""

    path: Path
    before: dict[tuple[str, int], Clock]
    computed: frozenset[tuple[str, int]]
    """The rows that received nothing."""
    shared: bool
    """Whether all read from one queue of a process, else each from a pipe of its own."""


def run(path: Path, seed: int, planted: tuple[str, int] | None = None) -> Run:
    """A program that only ``seed`` decides; ``planted``: a row that computes another value."""
    random, trace = Random(seed), TraceBuilder(path)
    members = [Member(trace.process(f"rank0/worker:{n}").stream()) for n in range(random.randint(2, 5))]
    shared = random.random() < 0.3  # one queue for all, else a pipe between each two
    channels: dict[tuple[int, int], deque[tuple[str, Clock]]] = {}
    before: dict[tuple[str, int], Clock] = {}
    computed = set()
    for moment in range(random.randint(10, 60)):
        n = random.randrange(len(members))
        member = members[n]
        one = random.choice([k for k in range(len(members)) if k != n])
        queue = channels.setdefault((n, -1 if shared else one), deque())
        match random.choice(("op", "op", "send", "receive")):
            case "op":
                here = member.stream.name, member.stream.rows
                before[here] = dict(member.clock)
                computed.add(here)
                member.op(f"{moment}{' other' if planted == here else ''}")
            case "send":
                content = f"{moment} {member.value}" if random.random() < 0.7 else "ready"
                queue.append((content, {**member.clock, member.stream.name: member.stream.rows}))
                member.message(name_of(n, -1 if shared else one), True, content)
            case "receive":
                arrived = channels.get((one, -1 if shared else n))
                if arrived:
                    content, clock = arrived.popleft()
                    member.message(name_of(one, -1 if shared else n), False, content)
                    member.clock = {k: max(member.clock.get(k, 0), clock.get(k, 0)) for k in {*member.clock, *clock}}
                    before[member.stream.name, member.stream.rows] = dict(member.clock)
                    member.op(content, received=content.split()[-1])
    return Run(trace.finish(), before, frozenset(computed), shared)


def name_of(sender: int, receiver: int) -> str:
    return f"{sender} to {receiver}"
